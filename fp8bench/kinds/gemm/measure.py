"""How GEMMs are measured: the request, the configuration made from it, the timings of this process, and the record.

The most that fp8 can gain on a complete step is Amdahl's law, over GEMMs:

    bound = T / (T - GEMMs in bf16 + GEMMs in fp8)

T is the baseline's measured step time; GEMMs are as timed here, each in the fastest correct fp8 precision, or bf16
without one. A mode that replaces more, as Transformer Engine's block does, may gain more: that is not due to fp8.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt

from fp8bench import registry
from fp8bench.config.options import is_whole, sized, within
from fp8bench.config.request import RunRequest
from fp8bench.kinds.kind import Log
from fp8bench.kinds.one_record import TIMING, Prepared, Request, head, of_run, place_of
from fp8bench.machine.gpus import require_idle, this_machine
from fp8bench.machine.identity import Here
from fp8bench.records import results
from fp8bench.records.select import Filter, grouped, latest_first
from fp8bench.schema import gemm
from fp8bench.schema import option as limits
from fp8bench.schema.config import Device
from fp8bench.schema.errors import Status, UsageError
from fp8bench.schema.execution import VARIANTS
from fp8bench.schema.files import Frozen
from fp8bench.schema.gemm import ALIGNMENT, padded
from fp8bench.schema.option import ByDevice, Option
from fp8bench.schema.rank import GEMMS
from fp8bench.schema.record import METHOD_VERSION, Record, RecordHead
from fp8bench.stats.steps import bottleneck_of

Words = tuple[str, ...]


class GemmRequest(Request):
    command = "gemm"

    workload: Annotated[str | None, of_run("workload", "GEMMs of its linear layers, forward and backward")] = None
    batch_size: Annotated[PositiveInt | None, of_run("batch_size", "Samples a step", metavar="N")] = None
    shapes: Annotated[Words, Option("Rows, output features, inner dimension. Repeatable", metavar="M,N,K")] = ()
    sweep: Annotated[bool, Option("Square GEMMs, from small to large")] = False
    precisions: Annotated[
        Words,
        Option(
            "bf16, fp8-tensorwise, fp8-rowwise, or either with -fast for fast accumulation. Repeatable",
            if_unset="all",
            metavar="NAME",
        ),
    ] = ()
    pairs: Annotated[
        Words,
        Option(
            "Of --shape: fp8 formats of its operands, e4m3,e4m3, e4m3,e5m2, e5m2,e4m3, or all. Repeatable",
            if_unset="e4m3,e4m3",
            metavar="LEFT,RIGHT",
        ),
    ] = ()
    compiled_casts: Annotated[bool, Option("Time casts by torch.compile too, which takes a while")] = False
    rounds: Annotated[
        PositiveInt | None,
        of_run("rounds", "Of each GEMM, in balanced order", default=ByDevice(cuda=3, cpu=1), metavar="R"),
    ] = None
    seconds: Annotated[PositiveFloat, TIMING] = 0.1
    allow_busy: Annotated[bool, of_run("allow_busy")] = False
    seed: Annotated[NonNegativeInt, of_run("seed", "Seed of the operands")] = 0


class GemmConfig(Frozen):
    """The request with every number resolved."""

    device: Device
    workload: str | None
    batch_size: PositiveInt | None
    shapes: tuple[gemm.Shape, ...] = Field(description="given by --shape")
    sweep: bool
    precisions: tuple[gemm.Precision, ...]
    pairs: tuple[gemm.Pair, ...] = Field(default=(), description="formats of left and right; empty: those of training")
    bias: bool = Field(default=False, description="each shape with a bias too; of older records")
    outputs: tuple[gemm.Output, ...] = Field(default=(), description="for each shape; empty: bf16; of older records")
    compiled_casts: bool
    rounds: PositiveInt = Field(default=1, description="of each GEMM")
    seconds: PositiveFloat = Field(description="time for each timing, at least 20 repetitions a round")
    seed: int = Field(ge=0)


class GemmRecord(RecordHead):
    """The record of one call of `fp8bench gemm`: one process, one device. Another process may be faster or slower."""

    kind: Literal["gemm"] = "gemm"
    config: GemmConfig
    products: tuple[gemm.ProductTimings, ...] = ()
    ceilings: tuple[gemm.Ceiling, ...] = ()
    bounds: tuple[gemm.StepBound, ...] = ()
    scaled_mm: str | None = Field(default=None, description="which function made the fp8 products; null: none ran")
    flush_bytes: int | None = Field(default=None, description="written before each repetition; null: caches stay warm")
    warnings: tuple[str, ...] = ()


SWEEP: dict[Device, tuple[int, ...]] = {
    "cuda": (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
    "cpu": (64, 128, 256, 512),
}


def prepare(request: GemmRequest, environ: Mapping[str, str]) -> Prepared[GemmConfig]:
    """Check the request, then the machine. Raises UsageError and ModeUnavailable."""
    shapes = tuple(map(parse_shape, request.shapes))
    # bf16 is always measured, as fp8's reference.
    precisions = tuple(dict.fromkeys(("bf16", *request.chosen("precision", request.precisions, gemm.PRECISIONS))))
    words = [",".join(_parts(word)) for word in request.pairs]
    named = request.chosen("--pair", words, (*map(",".join, gemm.PAIRS), "all")) if words else ()
    pairs = tuple(pair for pair in gemm.PAIRS if {",".join(pair), "all"} & set(named))
    _require_one_way(request)
    if request.workload is not None:
        registry.find_workload(request.workload)
    if precisions != ("bf16",):
        require_aligned(
            (gemm.Product(shape=one) for one in shapes),
            f"Pad --shape to multiples of {ALIGNMENT}, or give --precision bf16 alone",
        )
    machine = this_machine(environ)
    device: Device = "cuda" if machine.has_gpu else "cpu"
    place = place_of(request, machine)
    warnings = require_idle(environ, 0, request.allow_busy) if machine.has_gpu else ()
    workload = batch_size = None
    if not shapes and not request.sweep:
        default_on = (one.name for one in registry.BUILTIN_WORKLOADS if device in one.default_on)
        workload = sized(request.workload or next(default_on))
        usual = RunRequest().of_workers(device, registry.find_workload(workload).usual)["batch_size"]
        batch_size = request.batch_size or int(usual)
    config = GemmConfig(
        device=device,
        workload=workload,
        batch_size=batch_size,
        shapes=shapes,
        precisions=precisions,
        pairs=pairs,
        rounds=request.on(device, "rounds"),
        **request.model_dump(include={"sweep", "compiled_casts", "seconds", "seed"}),
    )
    return Prepared(config, warnings, **vars(place))


def _parts(text: str) -> list[str]:
    return [word.strip() for word in text.lower().replace("x", ",").split(",")]


def parse_shape(text: str) -> gemm.Shape:
    """Parse `12608,5120,1280` or `12608x5120x1280`: M, N, K. Raises UsageError."""
    words = _parts(text)
    if len(words) != len(gemm.Shape.model_fields) or not all(map(is_whole, words)):
        what = f"--shape {text!r} is not three whole numbers"
        raise UsageError(what, "Give M,N,K: rows, output features, inner dimension")
    m, n, k = (within("--shape", text, word, limits.DIMENSION) for word in words)
    if 0 in (m, n, k):
        raise UsageError(f"--shape {text!r} has a dimension of 0", "Give dimensions above 0")
    return gemm.Shape(m=m, n=n, k=k)


def require_aligned(products: Iterable[gemm.Product], remedy: str) -> None:
    """Raise UsageError if a GEMM that is measured in fp8 too has a dimension that is invalid there."""
    for one in products:
        for name, size in one.shape if one.stays_bf16 is None else ():
            if size != padded(size):
                why = f"which is not divisible by {ALIGNMENT}, as fp8 GEMMs need; {padded(size)} would be"
                raise UsageError(f"{one.label} has {name.upper()} = {size}, {why}", remedy)


def _require_one_way(request: GemmRequest) -> None:
    other = "--shape" if request.shapes else "--sweep" if request.sweep else None
    if request.pairs and (request.sweep or not request.shapes):
        what = "a sweep" if request.sweep else "a workload"
        why = f"--pair belongs to --shape, and {what} has the formats of training"
        raise UsageError(why, "Give --shape M,N,K, or omit it")
    if request.pairs and set(request.precisions) == {"bf16"}:
        raise UsageError("--pair is of fp8, and bf16 alone was named", "Add --precision fp8-rowwise, or omit it")
    if request.workload is not None and other:
        raise UsageError(f"both --workload and {other} were given", "Give one of them: each makes a record of its own")
    if request.batch_size is not None and other:
        raise UsageError("--batch-size belongs to a workload, and shapes were given", "Omit it, or the shapes")


def measure(prepared: Prepared[GemmConfig], log: Log) -> GemmRecord:
    """Measure every GEMM. Raises UsageError if a shape cannot be measured (fp8 cannot take it, or memory is short),
    ModeUnavailable if torch cannot use the GPU, and RunFailed if it breaks.
    """
    # Imported here because these modules import torch.
    from fp8bench.numerics.gemm.bench import Bench
    from fp8bench.numerics.memory import device_for
    from fp8bench.worker.subject import environment

    config = prepared.config
    device_for(config.device)
    wanted, sizes, unseen = _work(config)
    kept = _kept_runs(prepared, log) if config.workload is not None else []
    bench = Bench.on(config.device, config.seconds, config.seed, config.compiled_casts, config.rounds)
    bench.require_memory(one.shape for one in wanted)
    log("large square GEMMs, for the ceilings")
    ceilings = bench.ceilings(config.precisions)
    found: list[gemm.ProductTimings] = []
    for number, one in enumerate(wanted, start=1):
        log(f"{number} of {len(wanted)}: {f'{one.label}, {one.shape}' if one.layers else one.label}")
        found.append(bench.measure(one, config.precisions))
    # Without named formats there is no such field, as in records that knew no such option.
    pairs: list[JsonValue] = [" x ".join(pair) for pair in config.pairs]
    formats: dict[str, JsonValue] = {"pairs": pairs, "bias": False, "outputs": []} if pairs else {}
    return GemmRecord(
        **head(prepared, f"gemm-{config.workload or ('sweep' if config.sweep else 'shapes')}"),
        status="ok",
        fingerprint={
            "workload": config.workload,
            "batch_size": config.batch_size,
            "sizes": dict(sizes) if sizes is not None else None,
            "shapes": [[shape.m, shape.n, shape.k] for shape in config.shapes],
            "sweep": config.sweep,
            "data": "normal",
            **formats,
            "cache": "warm" if bench.timer.flush_bytes is None else "flushed",
            "method_version": METHOD_VERSION,
        },
        environment=environment(bench.device),
        config=config,
        products=tuple(found),
        ceilings=ceilings,
        bounds=bounds(found, kept, config.workload, config.batch_size) if config.workload is not None else (),
        scaled_mm=bench.kernel.name if config.precisions != ("bf16",) else None,
        flush_bytes=bench.timer.flush_bytes,
        warnings=(*prepared.warnings, *unseen),
    )


def _work(config: GemmConfig) -> tuple[tuple[gemm.Product, ...], Mapping[str, int | str] | None, tuple[str, ...]]:
    if config.workload is None or config.batch_size is None:
        shapes = dict.fromkeys((*config.shapes, *map(gemm.Shape.cube, SWEEP[config.device] if config.sweep else ())))
        every = product(shapes, config.pairs or (None,))
        return tuple(gemm.Product(shape=shape, formats=pair) for shape, pair in every), None, ()
    from fp8bench.numerics.model_facts import linear_gemms
    from fp8bench.workloads.resizable import as_named

    made = registry.load(registry.find_workload(config.workload))(data="device", seed=config.seed)
    workload = as_named(made, config.workload)
    products, unseen = linear_gemms(workload, config.batch_size)
    if config.precisions != ("bf16",):
        size = padded(config.batch_size)
        larger = f"--batch-size {size} where rows are batch x tokens, or " if size != config.batch_size else ""
        require_aligned(products, f"Say {larger}--precision bf16 alone")
    warnings = (f"not measured, since not called as a layer: {', '.join(unseen)}",) if unseen else ()
    return products, workload.sizes(), warnings


def _kept_runs(prepared: Prepared[GemmConfig], log: Log) -> list[Record]:
    kept = results.read(prepared.results_dir, [prepared.instance.key])
    here = prepared.here or Here()
    alike = [record for record, _ in kept if not here.unlike(record)]
    for broken in kept.broken:
        log(f"warning: {broken.told}")
    if len(alike) < len(kept):
        log(
            f"{len(kept) - len(alike)} of {len(kept)} runs of {prepared.instance.key!r} are of another machine, "
            "software or method, so they bound no step here"
        )
    return alike


BASELINE = "baseline-bf16"


def bounds(
    products: Sequence[gemm.ProductTimings], records: Iterable[Record], workload: str, batch_size: int | None
) -> tuple[gemm.StepBound, ...]:
    """Return one bound for each variant in which the baseline was measured, eager first; without any, one for the GEMMs
    alone. Empty if there is no bound. records: oldest first; the latest measurement on one GPU counts of the baseline
    and of each fp8 mode. workload, batch_size: of the GEMMs.

    An eager baseline is shown only with eager modes: the gain of the compiler or of the replay would count as fp8's.
    Another one is also shown with modes that were not measured in all of its ways: that is the choice that a user has.
    """
    of_step: dict[str, Any] = {"workload": workload, "batch_size": batch_size, "world_size": 1, "device": "cuda"}
    wanted = Filter(**of_step, status="ok", source="measured")
    fitting = [
        record
        for record in wanted.of(records)
        if record.summary and (record.what.mode == BASELINE or (record.evidence and record.evidence.fp8))
    ]
    every = grouped(fitting, lambda record: (record.execution or "eager", record.what.mode_label))
    found = []
    for variant in VARIANTS:
        ways = {"eager", variant, *variant.split("+")}
        shown = {label: of for one in VARIANTS for (how, label), of in every.items() if one == how and how in ways}
        if (variant, BASELINE) in every:
            rounds = {label: latest_first(of)[0] for label, of in shown.items()}
            found.append(bound(products, rounds.pop(BASELINE), rounds.values()))
    return tuple(one for one in found or [bound(products)] if one is not None)


def bound(
    products: Sequence[gemm.ProductTimings], baseline: Sequence[Record] = (), modes: Iterable[Sequence[Record]] = ()
) -> gemm.StepBound | None:
    """Return the bound of all products of a step. baseline: rounds of one measurement, oldest first; none: of the GEMMs
    alone. modes: the rounds of each mode shown with it. None without an fp8 time that is not emulated, or without a
    bf16 time.
    """
    timed = [(one, time) for one in products if (time := _fastest_s(one, "bf16", "none")) is not None]
    converted = [(one, time) for one, time in timed if one.product.stays_bf16 is None]
    fp8_s = {way: [_fastest_s(one, "fp8", way) for one, _ in converted] for way in gemm.CASTS}
    if not any(fp8_s["none"]) or len(timed) < len(products):
        return None
    bf16_s, rest_s = sum(time for _, time in converted), 0.0
    of_step: dict[str, Any] = {}
    if baseline:
        last, step_s = baseline[-1], _step_time_s(baseline)
        rest_s = step_s - bf16_s
        of_step = {
            "baseline_run_id": last.run_id,
            "compiled": last.compiled,
            "execution": last.execution,
            "rounds": len(baseline),
            "step_time_s": step_s,
            "profiled_products_s": last.profile.seconds(*GEMMS) if last.profile else None,
            "modes": tuple(
                gemm.ModeGain(
                    label=rounds[-1].what.mode_label,
                    compiled=bool(rounds[-1].compiled),
                    execution=rounds[-1].execution,
                    step_time_s=(time_s := _step_time_s(rounds)),
                    rounds=len(rounds),
                    speedup=step_s / time_s,
                    held_back_by=next((str(one) for one in map(bottleneck_of, reversed(rounds)) if one), None),
                )
                for rounds in modes
            ),
        }
    # If the GEMMs alone take longer than the step, the clocks were not the same.
    fits = not baseline or rest_s > 0
    gains = []
    for way, times in fp8_s.items():
        if fits and any(times):
            ours = sum(time or bf16 for (_, bf16), time in zip(converted, times, strict=True))
            gains.append(gemm.Gain(casts=way, products_s=ours, speedup=(rest_s + bf16_s) / (rest_s + ours)))
    return gemm.StepBound(
        **of_step,
        bf16_products_s=bf16_s,
        other_products_s=sum(time for one, time in timed if one.product.stays_bf16 is not None),
        left_in_bf16=fp8_s["none"].count(None),
        at_most=tuple(gains),
        reason=None if fits else "the GEMMs alone take longer here than the whole step did",
    )


def _fastest_s(one: gemm.ProductTimings, arithmetic: gemm.Arithmetic, casts: gemm.Casts) -> float | None:
    """Return the seconds a step of the fastest timing with these casts; None without one that is not emulated."""
    alike = (timing.on_units_s for timing in one.timings if (timing.arithmetic, timing.casts) == (arithmetic, casts))
    return min((time * (one.product.calls_per_step or 1) for time in alike if time is not None), default=None)


def _step_time_s(rounds: Sequence[Record]) -> float:
    return median(record.summary.step_time_s for record in rounds if record.summary is not None)


def statuses(record: GemmRecord, request: GemmRequest) -> list[Status]:
    """Return `invalid` if a GEMM was not computed correctly, and how each named precision, or all of fp8, ended:
    `unsupported` if it ran for no shape.
    """
    ended = {(timing.precision, timing.status) for one in record.products for timing in one.timings}
    invalid: list[Status] = ["invalid"] if any(status == "invalid" for _, status in ended) else []
    named = request.precisions or {precision for precision, _ in ended if precision != "bf16"}
    return [*invalid, *("ok" if (name, "ok") in ended else "unsupported" for name in named)]

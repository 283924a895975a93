"""What `fp8bench gemm` runs: words made into a configuration, the products measured in this process, and the record.

One process is enough for what is asked here, a product's speed next to another's, and not for the last percent: the
record says that its intervals are of one process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from fp8bench import registry
from fp8bench.config.request import RunRequest
from fp8bench.config.words import above_zero, is_whole, machine_label, whole, within
from fp8bench.launch.assemble import new_run_id
from fp8bench.launch.instance import AUTO, instance_called
from fp8bench.machine.busy import require_idle
from fp8bench.machine.gpus import this_machine
from fp8bench.machine.identity import Here, software_here, this_machines_identity
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.schema import option as bounds
from fp8bench.schema.config import Device
from fp8bench.schema.errors import ModeUnavailable, UsageError, require_known
from fp8bench.schema.execution import Variant
from fp8bench.schema.formats import ALIGNMENT, padded
from fp8bench.schema.gemm import (
    PRECISIONS,
    GemmConfig,
    GemmRecord,
    Precision,
    Product,
    ProductTimings,
    Shape,
)
from fp8bench.schema.instance import Instance
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.record import METHOD_VERSION, SCHEMA_VERSION, Record

LISTING = "fp8bench gemm --help"
SECONDS = 0.1
ROUNDS: dict[Device, int] = {"cuda": 3, "cpu": 1}
SWEEP: dict[Device, tuple[int, ...]] = {
    "cuda": (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
    "cpu": (64, 128, 256, 512),
}
Measured = dict[Variant, dict[str, list[Record]]]
"""See numerics.gemm.bound.latest_measurements."""

Told = Callable[[str], None]
"""Takes a line about how it goes."""


@dataclass(frozen=True)
class GemmRequest:
    """The command line's words; None is left to the machine."""

    workload: str | None = None
    batch_size: str | None = None
    shapes: tuple[str, ...] = ()
    sweep: bool = False
    precisions: tuple[str, ...] = ()
    compiled_casts: bool = False
    rounds: str | None = None
    seconds: str | None = None
    seed: str | None = None
    instance: str = AUTO
    name: str | None = None
    allow_busy: bool = False
    results_dir: Path = Path("results")


@dataclass(frozen=True)
class PreparedGemm:
    """What will be measured, and where it is kept. warnings: of the circumstances, for the record."""

    config: GemmConfig
    instance: Instance
    in_catalog: bool
    results_dir: Path
    warnings: tuple[str, ...] = ()
    machine: MachineIdentity | None = None


@dataclass(frozen=True)
class _Work:
    """Every product, and what the fingerprint needs to know of the workload."""

    products: tuple[Product, ...]
    sizes: Mapping[str, int | str] | None = None
    warnings: tuple[str, ...] = field(default=())


def prepare(request: GemmRequest, environ: Mapping[str, str]) -> PreparedGemm:
    """Check the words, then look at the machine. Raises UsageError and ModeUnavailable."""
    shapes = tuple(map(parse_shape, request.shapes))
    precisions = parse_precisions(request.precisions)
    seconds = SECONDS if request.seconds is None else above_zero("--seconds", request.seconds, SECONDS, bounds.TIMING_S)
    seed = 0 if request.seed is None else whole("--seed", request.seed, 0, bounds.SEED)
    rounds = None if request.rounds is None else whole("--rounds", request.rounds, 1, bounds.ROUNDS)
    batch_size = None if request.batch_size is None else whole("--batch-size", request.batch_size, 1, bounds.BATCH_SIZE)
    _require_one_way(request)
    if request.workload is not None:
        registry.find_workload(request.workload)
    if any(precision != "bf16" for precision in precisions):
        _require_aligned(shapes)
    results.require_writable(request.results_dir)
    instance, in_catalog, device, warnings = _place(request, environ)
    of_workload = not shapes and not request.sweep
    config = GemmConfig(
        device=device,
        workload=(request.workload or _default_workload(device)) if of_workload else None,
        batch_size=(batch_size or RunRequest().on(device, "batch_size")) if of_workload else None,
        shapes=shapes,
        sweep=request.sweep,
        precisions=precisions,
        compiled_casts=request.compiled_casts,
        rounds=rounds or ROUNDS[device],
        seconds=seconds,
        seed=seed,
    )
    machine = this_machines_identity(machine_label(request.name))
    return PreparedGemm(config, instance, in_catalog, request.results_dir, warnings, machine)


def measure(prepared: PreparedGemm, told: Told) -> tuple[GemmRecord, Path]:
    """Measure every product, and keep the record; returns it and its path.

    Raises UsageError where a shape cannot be measured (fp8 cannot take it, or memory is short), RunFailed where the
    device breaks or the record cannot be kept.
    """
    # Imported here: these bring torch.
    from fp8bench.numerics.gemm.bench import Bench
    from fp8bench.numerics.gemm.bound import bounds as most_of_fp8
    from fp8bench.worker.environment import environment

    config = prepared.config
    kept = _kept_runs(prepared, told)
    work = _work(config)
    bench = Bench.on(config.device, config.seconds, config.seed, config.compiled_casts, config.rounds)
    bench.require_memory(product.shape for product in work.products)
    told("large square products, for the ceilings")
    ceilings = bench.ceilings(config.precisions)
    found: list[ProductTimings] = []
    for number, product in enumerate(work.products, start=1):
        what = f"{product.label}, {product.shape}" if product.layers else product.label
        told(f"{number} of {len(work.products)}: {what}")
        found.append(bench.measure(product, config.precisions))
    now = datetime.now(UTC)
    asked_fp8 = any(precision != "bf16" for precision in config.precisions)
    record = GemmRecord(
        schema_version=SCHEMA_VERSION,
        method_version=METHOD_VERSION,
        run_id=new_run_id(f"gemm-{config.workload or ('sweep' if config.sweep else 'shapes')}", now),
        status="ok",
        source="measured",
        created_utc=now,
        instance=prepared.instance.key,
        fingerprint=fingerprint(config, work.sizes, bench.timer.flush_bytes is not None),
        environment=environment(bench.device),
        machine=prepared.machine,
        config=config,
        products=tuple(found),
        ceilings=ceilings,
        bounds=most_of_fp8(found, *kept) if config.workload is not None else (),
        scaled_mm=bench.kernel.name if asked_fp8 else None,
        flush_bytes=bench.timer.flush_bytes,
        warnings=(*prepared.warnings, *work.warnings),
    )
    instances.keep(prepared.instance, None, prepared.in_catalog, prepared.results_dir)
    return record, results.write(record, prepared.results_dir)


def fingerprint(config: GemmConfig, sizes: Mapping[str, int | str] | None, flushed: bool) -> dict[str, JsonValue]:
    """What must be alike for two records' products to be compared one by one."""
    return {
        "workload": config.workload,
        "batch_size": config.batch_size,
        "sizes": dict(sizes) if sizes is not None else None,
        "shapes": [[shape.m, shape.n, shape.k] for shape in config.shapes],
        "sweep": config.sweep,
        "data": "normal",
        "cache": "flushed" if flushed else "warm",
        "method_version": METHOD_VERSION,
    }


def exit_code(record: GemmRecord, named: Sequence[str] = ()) -> int:
    """4: a product was wrong; 3: fp8 was asked for and none of it runs here, or a precision that was named ran for no
    product; else 0. named: precisions by the user's own words.
    """
    timings = [timing for one in record.products for timing in one.timings]
    if any(timing.status == "invalid" for timing in timings):
        return 4
    ran = {timing.precision for timing in timings if timing.status == "ok"}
    fp8 = {timing.precision for timing in timings if timing.precision != "bf16"}
    return 3 if (fp8 and not fp8 & ran) or not ran.issuperset(named) else 0


def parse_shape(text: str) -> Shape:
    """`12608,5120,1280` or `12608x5120x1280`: M, N, K. Raises UsageError."""
    words = [word.strip() for word in text.lower().replace("x", ",").split(",")]
    if len(words) != len(Shape.model_fields) or not all(map(is_whole, words)):
        raise UsageError(
            f"--shape {text!r} is not three whole numbers", "Say M,N,K: rows, output features, inner dimension"
        )
    m, n, k = (within("--shape", text, word, bounds.DIMENSION) for word in words)
    if 0 in (m, n, k):
        raise UsageError(f"--shape {text!r} has a dimension of 0", "Give dimensions above 0")
    return Shape(m=m, n=n, k=k)


def parse_precisions(names: Sequence[str]) -> tuple[Precision, ...]:
    """In the order of PRECISIONS; none named: all of them. bf16 is always among them, since fp8 is held against it.

    Raises UsageError for one that nobody has heard of.
    """
    for name in names:
        require_known("precision", name, PRECISIONS, LISTING)
    return tuple(one for one in PRECISIONS if not names or one in names or one == "bf16")


def _require_one_way(request: GemmRequest) -> None:
    if request.workload is not None and (request.shapes or request.sweep):
        other = "--shape" if request.shapes else "--sweep"
        raise UsageError(f"both --workload and {other} were given", "Give one of them: each makes a record of its own")
    if request.batch_size is not None and (request.shapes or request.sweep):
        raise UsageError("--batch-size belongs to a workload, and shapes were given", "Omit it, or the shapes")


def _require_aligned(shapes: Sequence[Shape]) -> None:
    for shape in shapes:
        for name, size, _ in shape.misaligned:
            m, n, k = map(padded, (shape.m, shape.n, shape.k))
            raise UsageError(
                f"--shape {shape.m},{shape.n},{shape.k} has {name} = {size}, which is not divisible by {ALIGNMENT}, as "
                "fp8 products need",
                f"Pad it: --shape {m},{n},{k} would do, or say --precision bf16 alone",
            )


def _place(request: GemmRequest, environ: Mapping[str, str]) -> tuple[Instance, bool, Device, tuple[str, ...]]:
    """Which instance this is, whether the catalogue knows it, on what is measured, and what a reader must be told."""
    machine = this_machine(environ)
    catalog = catalogs.load_beside(instances.files(request.results_dir))
    instance = instance_called(request.instance, machine, catalog)
    warnings: tuple[str, ...] = ()
    if machine.has_gpu:
        warnings = require_idle(environ, 0, request.allow_busy)
        if not _torch_sees_cuda():
            if request.instance != AUTO:
                raise ModeUnavailable(
                    f"the driver shows {machine.gpus[0]}, and this torch cannot use it",
                    "Install a torch that is built for this driver's CUDA, or say --instance auto to measure the CPU",
                )
            warnings = (f"the driver shows {machine.gpus[0]}, and this torch cannot use it: measured on the CPU",)
            machine = replace(machine, gpus=())
            instance = instance_called(AUTO, machine, catalog)
    return instance, instance.key in catalog.instances, "cuda" if machine.has_gpu else "cpu", warnings


def _torch_sees_cuda() -> bool:
    from fp8bench.numerics.gemm.bench import sees_cuda

    return sees_cuda()


def _default_workload(device: Device) -> str:
    return next(entry.name for entry in registry.BUILTIN_WORKLOADS if device in entry.default_on)


def _work(config: GemmConfig) -> _Work:
    if config.workload is None or config.batch_size is None:
        squares = SWEEP[config.device] if config.sweep else ()
        shapes = [*config.shapes, *(Shape(m=size, n=size, k=size) for size in squares)]
        return _Work(tuple(Product(shape=shape) for shape in dict.fromkeys(shapes)))
    from fp8bench.numerics.gemm.linear_layers import linear_gemms, require_aligned

    workload = registry.load(registry.find_workload(config.workload))(data="device", seed=config.seed)
    found = linear_gemms(workload, config.batch_size)
    if any(precision != "bf16" for precision in config.precisions):
        require_aligned(found, config.batch_size)
    warnings = (f"not measured, since not called as a layer: {', '.join(found.unseen)}",) if found.unseen else ()
    return _Work(found.products, workload.sizes(), warnings)


def _kept_runs(prepared: PreparedGemm, told: Told) -> tuple[Measured, Callable[[Record], Record]]:
    """What runs of this machine and its software are kept that a bound can be made of, and how to read one whole.

    told: hears of those that are left out.
    """
    config = prepared.config
    if config.workload is None or config.batch_size is None:
        return {}, lambda record: record
    from fp8bench.numerics.gemm.bound import latest_measurements

    kept = results.read(prepared.results_dir, [prepared.instance.key])
    paths = {record.run_id: path for record, path in kept}
    here = Here(prepared.machine, software_here(config.device == "cuda"))
    alike = [record for record, _ in kept if not here.unlike(record)]
    for broken in kept.broken:
        told(f"warning: not read: {broken}")
    if len(alike) < len(kept):
        told(
            f"{len(kept) - len(alike)} of {len(kept)} runs of {prepared.instance.key!r} are of another machine, "
            "software or method, and bound no step here"
        )

    def whole(record: Record) -> Record:
        """Without its profile where that cannot be read: the bound needs the step's time alone."""
        found = results.read_whole(paths[record.run_id])
        return found if isinstance(found, Record) else record

    return latest_measurements(alike, config.workload, config.batch_size), whole

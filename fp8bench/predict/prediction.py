"""A prediction of a step: the profiled measurement that it begins with, the target, and whether that can run it; and
the rows of a comparison that are predicted. Numbers only.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from fp8bench.kinds.kind import MAY_NOT_FIT
from fp8bench.kinds.run import as_of
from fp8bench.kinds.run.explain import profiled
from fp8bench.kinds.run.row import Row, to_row
from fp8bench.predict.step import Known, Machine, ModelError, Step, Work, known, model_error, predict
from fp8bench.records.select import Measurement
from fp8bench.registry import modes
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.rank import starved
from fp8bench.schema.record import Record
from fp8bench.stats.steps import step_times

FP8_UNITS = (8, 9)
RECIPES = {"te-fp8:block": ((9, 0), (9, 0)), "te-fp8:mxfp8": ((10, 0), None)}
"""The first and last compute capability of a recipe: on Blackwell, Transformer Engine computes block by mxfp8."""

Target = tuple[Instance, Machine]
"""An instance, and its GPUs that train together."""


@dataclass(frozen=True)
class Source:
    """A profiled measurement. row: without a price. record: of the profile's round. work: of a GPU and step."""

    row: Row
    record: Record
    machine: Machine
    work: Work


def tokens_of(sizes: dict[str, object]) -> int | None:
    """Return the tokens of a sequence: its length, or a ViT's patches and class token. None if sizes do not tell."""
    length = sizes.get("sequence_length")
    if isinstance(length, int) and length > 0:
        return length
    image, patch = sizes.get("img_size"), sizes.get("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int) or patch < 1:
        return None
    return (image // patch) ** 2 + bool(sizes.get("class_token", True))


def gradient_bytes_of(record: Record) -> float | None:
    """Return the bytes of all weights' float32 gradients, from the operations of forward and backward: 6 for each
    weight and token (Kaplan et al., Scaling laws for neural language models, 2020). None if the record does not tell.
    """
    summary = record.summary
    a_unit = 1 if summary and summary.unit == "tokens" else tokens_of(record.fingerprint.get("sizes") or {})
    if summary is None or not summary.flops_per_step or not a_unit:
        return None
    return 4 * summary.flops_per_step / (6 * a_unit * summary.units_per_step)


def source(measurement: Measurement, catalog: Catalog) -> Source:
    """Return a measurement's source, by the profile nearest to its step time. Raises UsageError for what is missing."""
    latest = measurement.latest
    config, there, name = latest.config, latest.environment, f"{latest.instance}:{latest.what.mode}"
    if latest.status != "ok" or config is None or there is None:
        what = f"{name} has no measured steps ({latest.source}, {latest.status})"
        raise UsageError(what, f"See it with `fp8bench compare {latest.instance}`")
    if config.device == "cpu":
        raise UsageError(f"{name} was measured on a CPU, from which no GPU can be predicted", "Name a record of a GPU")
    if config.nodes > 1:
        what = f"{name} ran on {config.nodes} nodes, whose network no figure here covers"
        raise UsageError(what, "Name a record of one host")
    gpu = catalog.gpu_by_product(there.device_name)
    if gpu is None:
        what = f"{name} ran on {there.device_name!r}, which the catalogue does not know, so its peak is unknown"
        raise UsageError(what, "Name a record of a GPU that `fp8bench list instances` lists")
    row = to_row(measurement, catalog)
    record = profiled(row)
    if row.times is None or record is None or record.profile is None or record.summary is None:
        remedy = f"Measure it again: `fp8bench run --mode {latest.what.mode_label}`"
        raise UsageError(f"{name} was recorded without a profile", remedy)
    step_s, profile = row.times.by_elapsed.value * record.summary.units_per_step, record.profile
    work = Work(
        step_s=step_s,
        by_category=profile.by_category,
        nccl_s=profile.nccl_s,
        host_bound=bool(starved(profile.idle_share(step_s))),
        tokens=tokens_of(record.fingerprint.get("sizes") or {}),
        causal=record.parity is not None and record.parity.later_leakage is not None,
        gradient_bytes=gradient_bytes_of(record),
    )
    return Source(row, record, Machine(gpu, config.world_size), work)


def sources(measurements: Sequence[Measurement], catalog: Catalog) -> tuple[list[Source], list[str]]:
    """Return at least one source, and why other measurements are none. Raises the first UsageError if there is none."""
    found, refused = [], []
    for measurement in measurements:
        try:
            found.append(source(measurement, catalog))
        except UsageError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found, [f"omitted: {error.what}" for error in refused]


def target(instance: Instance, catalog: Catalog, gpus: int | None = None) -> Target:
    """Return the target. gpus: that train; None: all. Raises UsageError for an unknown GPU, or more than it has."""
    key, gpu = instance.key, catalog.gpus.get(instance.gpu or "")
    if gpu is None or instance.gpu_count < 1:
        what = f"{key} has {instance.gpu!r}, of which" if instance.gpu else f"{key} has no known GPU, so"
        raise UsageError(
            f"{what} neither dense_bf16_tflops nor memory_bandwidth_gb_s is known",
            "Name an instance of `fp8bench list instances` whose GPU is listed",
        )
    if gpus is not None and gpus > instance.gpu_count:
        what = f"{key} has {instance.gpu_count} GPUs, not {gpus}, and several hosts are not predicted"
        raise UsageError(what, f"Give --gpus {instance.gpu_count} or less")
    return instance, Machine(gpu, gpus or instance.gpu_count)


def unsupported(source: Source, target: Target) -> str | None:
    """Return why the target cannot run what was measured; None if nothing is known to prevent it."""
    (instance, (gpu, _)), evidence, label = target, source.record.evidence, source.row.mode_label
    if ((evidence and evidence.fp8) or source.work.by_category.get("gemm_fp8")) and gpu.capability < FP8_UNITS:
        return f"{gpu.name} has no fp8 units, which take {gpu.too_old_for(FP8_UNITS)}"
    entry = modes().get(source.record.what.mode)
    first, last = RECIPES.get(label, (None, None))
    for least in (entry.needs.compute_capability if entry and entry.needs else None, first):
        if least is not None and gpu.capability < least:
            return f"{label} needs {gpu.too_old_for(least)}"
    if last is not None and gpu.capability > last:
        return f"{label} is computed by mxfp8 on {gpu.name}, and not as it was measured"
    peak, there = source.row.peak_memory_bytes, instance.gpu_memory_gib
    if peak is not None and there is not None and peak > there * GIB:
        return f"it needs {gib(peak)} of each GPU, and {gpu.name} has {there:g}: predict a smaller batch"
    return None


def doubts(source: Source, target: Target, error: ModelError | None, known: Known) -> Iterator[str]:
    """Yield what a reader must know of a prediction."""
    (instance, (gpu, _)), what = target, source.record.what
    peak, there = source.row.peak_memory_bytes, instance.gpu_memory_gib
    if peak is None or there is None:
        yield "whether it fits into memory is unknown"
    # The measured peak counts only torch's allocator.
    elif peak > 0.95 * there * GIB:
        yield f"needs {peak / GIB:.1f} of {there:g} GiB: {MAY_NOT_FIT}"
    if source.row.step_time_ci_s is None:
        yield "one process was measured, which has no interval"
    used = {"dense_bf16_tflops", "memory_bandwidth_gb_s", "dense_fp8_tflops", "sm_count", "sm_clock_mhz"}
    if source.machine.gpu.name != gpu.name and (doubted := sorted(used.intersection(gpu.doubtful))):
        yield f"doubtful in the catalogue: {', '.join(doubted)} of {gpu.name}"
    batches = known.workloads.get(what.workload, ())
    if source.work.host_bound:
        yield "no range: its GPU waited for its host, and the speed of another host is not known"
    if not batches and error is None:
        cases = ", ".join(f"{name} at batch {' and '.join(map(str, of))}" for name, of in known.workloads.items())
        yield f"no range: untested for {what.workload}, since all cases of the model's error are {cases}"
    elif error is None and not source.work.host_bound:
        yield "no range: no record of a second machine tests such a change"
    elif error is not None and error.cases and what.batch_size not in batches:
        yield f"untested at batch {what.batch_size}: the cases are at {' and '.join(map(str, batches))}"


class Foreseen(NamedTuple):
    """A measurement as predicted for a target, for a row of a table. step: empty if it cannot run there, as the status
    and the reason of its record say. error: None if nothing tests it.
    """

    measurement: Measurement
    step: Step = Step(0.0, 0.0, (), ())
    error: ModelError | None = None


def foresee(origin: Source, there: Target, shipped: Known) -> Foreseen:
    """Return the prediction. Its row's interval is wider by the model's error, or by more where communication may be
    hidden. Raises UsageError if the catalogue lacks a figure.
    """
    (instance, machine), (_, measured_gpus), work = there, origin.machine, origin.work
    product, gpus = next(iter(machine.gpu.product_names), machine.gpu.name), machine.gpus / measured_gpus
    if (why := unsupported(origin, there)) is not None:
        stopped = scaled(origin.record, instance.key, 1.0, gpus, product)
        return Foreseen(Measurement((stopped.model_copy(update={"status": "unsupported", "reason": why}),)))
    step = predict(work, origin.machine, machine, shipped.limits)
    # No record of a GPU tells how fast another host is.
    workload = origin.record.what.workload
    error = None if work.host_bound else model_error(shipped, workload, origin.machine, machine)
    # DDP keeps one more copy of the gradients, in its buckets.
    buckets = (work.gradient_bytes or 0.0) * ((machine.gpus > 1) - (measured_gpus > 1))
    told = instance.key, step.step_s / work.step_s, gpus, product, round(buckets)
    measurement = Measurement(
        tuple(scaled(one, *told) for one in origin.row.measurement.rounds),
        measured_on=origin.record.instance,
        origin="predicted",
        # Where the communication was not measured, all of it may be hidden.
        elsewhere=(1 + error.share) * step.step_s / step.least_s - 1 if error else 0.0,
        doubts=tuple(doubts(origin, there, error, shipped)),
    )
    return Foreseen(measurement, step, error)


def foreseen(measured: Sequence[Measurement], names: Sequence[str], catalog: Catalog) -> list[Measurement]:
    """Return what is predicted for all GPUs of each instance that nobody measured, for rows of a comparison: one for
    each mode and batch size that was measured elsewhere, from the measurement of least error; of several, from the
    fastest on most GPUs. What cannot run there, or has no tested error, has no row.
    """
    origins, shipped, found = [], known(), list[Measurement]()
    work = attrgetter("mode_label", "workload", "batch_size", "te_switches", "grad_accumulation", "optimizer")
    for one in measured:
        # What is missing of a source is told by `predict`.
        if one.latest.joined in ("none", "ddp"):
            with suppress(UsageError):
                origins.append(source(one, catalog))
    origins.sort(key=lambda one: (-one.machine.gpus, one.work.step_s))
    for name in names:
        best: dict[object, tuple[float, Measurement]] = {}
        for origin in origins:
            with suppress(UsageError):
                there, key = target(catalog.instances[name], catalog), work(origin.row.latest.config)
                one, _, error = foresee(origin, there, shipped)
                if there[1].gpu.product_names and error and error.value < best.get(key, (math.inf,))[0]:
                    best[key] = error.value, one
        found += [one for _, one in best.values()]
    return found


def scaled(
    record: Record,
    instance: str,
    by: float,
    gpus: float,
    product: str | None = None,
    more_bytes: int = 0,
    nodes: int = 1,
) -> Record:
    """Return the record as predicted for an instance, of no known machine. by, gpus, nodes: how many times as long a
    step takes, and as many GPUs and nodes share it. product: the GPU's name, if another. more_bytes: of its memory.
    """
    config, summary, times, there = record.config, record.summary, step_times(record), record.environment
    if config is None or summary is None or times is None or there is None:
        raise ValueError(f"{record.run_id} was not measured")
    unknown = ("step_time_ci_s", "joules_per_unit", "units_per_kwh", "sm_clock_mhz", "host_lead_s", "data_wait_share")
    new_summary = {
        **dict.fromkeys(unknown),
        "flags": (),
        "step_time_s": summary.step_time_s * by,
        "units_per_step": round(summary.units_per_step * gpus),
        "throughput_per_s": summary.throughput_per_s * gpus / by,
        "flops_per_step": summary.flops_per_step and round(summary.flops_per_step * gpus),
    }
    new_times = {field: getattr(times, field) * by for field in ("mean_s", "median_s", "spread_s", "warmup_s")}
    ranks = {"world_size": round(config.world_size * gpus), "nodes": config.nodes * nodes}
    known_peaks = ((one, one.peak_allocated_bytes) for one in record.memory if one.peak_allocated_bytes is not None)
    memory = (one.model_copy(update={"peak_allocated_bytes": peak + more_bytes}) for one, peak in known_peaks)
    found = as_of(instance, record)
    return found.model_copy(
        update={
            "run_id": found.run_id if nodes == 1 else f"{found.run_id}-{nodes}-nodes",
            "config": config.model_copy(update=ranks),
            "environment": there.model_copy(update={"device_name": product or there.device_name}),
            "summary": summary.model_copy(update=new_summary),
            "step_times": times.model_copy(update=new_times),
            "memory": tuple(memory),
            **{"profile": None, "telemetry": (), "samples": ()},
        }
    )

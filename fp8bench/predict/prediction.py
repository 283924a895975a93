"""Predictions: each of a measurement that was profiled, for one target, with a range and all that it assumes. Numbers
only. Not a record: not kept, and in no comparison. Its range is the measured interval widened by the model's error on
the logarithmic scale; if no communication was measured, the lower end assumes that all of it is hidden.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Literal, NamedTuple

from fp8bench.kinds.kind import Labelled
from fp8bench.kinds.run import as_of
from fp8bench.predict.source import Source, source
from fp8bench.predict.step import Known, Machine, ModelError, Part, known, model_error, predict
from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, of_used, why_no_price
from fp8bench.records.select import Measurement
from fp8bench.registry import modes
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.record import Record
from fp8bench.tables.written import Interval

FP8_UNITS = (8, 9)
RECIPES = {"te-fp8:block": ((9, 0), (9, 0)), "te-fp8:mxfp8": ((10, 0), None)}
"""The first and last compute capability of a recipe: on Blackwell, Transformer Engine computes block by mxfp8."""

NEARLY_FULL = 0.95
"""The share of the GPU's memory from which a prediction warns: the measured peak counts only torch's allocator."""


class Target(NamedTuple):
    """GPUs of an instance that train together."""

    instance: Instance
    machine: Machine


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
        raise UsageError(
            f"{key} has {instance.gpu_count} GPUs, not {gpus}, and several hosts are not predicted",
            f"Give --gpus {instance.gpu_count} or less",
        )
    return Target(instance, Machine(gpu, gpus or instance.gpu_count))


class Measured(Frozen):
    """The measurement that a prediction is based on. units_per_usd: at the price of the same day; null without one."""

    instance: str
    gpu: str
    world_size: int
    step_time_s: float
    step_time_ci_s: Interval | None
    throughput_per_s: float
    usd_per_hour: float | None
    units_per_usd: float | None
    run_id: str
    run_ids: tuple[str, ...]


class Prediction(Labelled, Frozen):
    """A prediction in SI units; the names are the keys of `predict --format json`. Null means unknown. A range is not a
    95 % interval: see `ModelError`. usd_per_hour: the price of the GPUs that are used, which is price_share of the
    price of the instance price_share_of (null: the complete target instance). break_even_usd_per_hour: the price at
    which a dollar buys as much as on the measured machine. gemm_share_of_peak: as measured. assumed, warnings:
    sentences.
    """

    source: Literal["predicted"] = "predicted"
    status: Literal["predicted", "unsupported"]
    reason: str | None = None
    instance: str
    gpu: str
    world_size: int
    mode: str
    recipe: str | None
    execution: Variant | None
    attention: str | None
    workload: str
    batch_size: int
    unit: str
    step_time_s: float | None = None
    step_time_range_s: Interval | None = None
    throughput_per_s: float | None = None
    throughput_range_per_s: Interval | None = None
    usd_per_hour: float | None
    price_as_of: date | None
    price_source: str | None
    price_share: float
    price_share_of: str | None = None
    units_per_usd: float | None = None
    units_per_usd_range: Interval | None = None
    usd_per_million_units: float | None = None
    break_even_usd_per_hour: float | None = None
    break_even_range_usd_per_hour: Interval | None = None
    gemm_share_of_peak: float | None = None
    measured: Measured
    model_error: ModelError | None = None
    parts: tuple[Part, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Predictions(NamedTuple):
    """Predictions by what a dollar buys; those that cannot run are last. warnings: of all of them."""

    rows: tuple[Prediction, ...]
    warnings: tuple[str, ...]


def predictions(
    sources: Sequence[Source], target: Target, known: Known, catalog: Catalog, query: PriceQuery
) -> Predictions:
    """Return the predictions of each source. query: for the prices of both machines. Raises UsageError if the target is
    the machine that was measured, or if the catalogue lacks a figure.
    """
    (instance, machine), gpus = target, target.machine.gpus
    there = [one for one in sources if (one.record.instance, one.machine.gpus) != (instance.key, gpus)]
    if not there:
        measured = f"{instance.key} itself was measured on {gpus} GPU{'' if gpus == 1 else 's'}"
        raise UsageError(measured, f"See it with `fp8bench compare {instance.key}`")
    rows = [_prediction(source, target, known, catalog, query) for source in there]
    rows.sort(key=lambda row: (row.status != "predicted", -(row.units_per_usd or row.throughput_per_s or 0.0)))
    said = []
    fewer = {row.measured.world_size for row in rows if row.status == "predicted" and row.measured.world_size < gpus}
    if fewer and gpus > known.most_gpus:
        sizes = " and ".join(map(str, sorted(fewer)))
        said.append(f"{gpus} GPUs are predicted from {sizes}: the model was tested on up to {known.most_gpus}")
    paid = of_used(instance, machine.gpu.name, gpus, catalog, query)
    if paid is None:
        said.append(why_no_price(instance.key, instance, query))
    elif paid.instance != instance.key:
        said.append(f"no price of {instance.key} is known: {paid} stand in for it")
    return Predictions(tuple(rows), tuple(said))


def _prediction(source: Source, target: Target, known: Known, catalog: Catalog, query: PriceQuery) -> Prediction:
    record, (instance, machine) = source.record, target
    paid = of_used(instance, machine.gpu.name, machine.gpus, catalog, query)
    measured = _measured(source, catalog, query)
    about = partial(
        made_of,
        Prediction,
        record.what,
        instance=instance.key,
        gpu=machine.gpu.name,
        world_size=machine.gpus,
        execution=record.execution,
        attention=record.attention,
        unit=source.summary.unit,
        usd_per_hour=paid and paid.usd_per_hour,
        price_as_of=paid and paid.price.as_of,
        price_source=paid and paid.price.source,
        price_share=paid.share if paid else machine.gpus / instance.gpu_count,
        price_share_of=paid.instance if paid and (paid.share < 1 or paid.instance != instance.key) else None,
        measured=measured,
    )
    if (why := unsupported(source, target)) is not None:
        return about(status="unsupported", reason=why)
    step = predict(source.work, source.machine, machine, known.limits)
    # No record of a GPU tells how fast another host is.
    error = None if source.work.host_bound else model_error(known, record.what.workload, source.machine, machine)
    # The value and, if the error is known, the slow and the fast end.
    steps_s = [step.step_s]
    if error is not None:
        low, high = source.row.step_time_ci_s or (source.step_s, source.step_s)
        off = math.exp(error.value)
        steps_s += [step.step_s * high / source.step_s * off, step.least_s * low / source.step_s / off]
    units = source.summary.units_per_step / source.machine.gpus * machine.gpus
    rates = [units / step_s for step_s in steps_s]
    usd, as_many = paid.usd_per_hour if paid else None, measured.units_per_usd
    per_usd = [cost.units_per_usd(rate, usd) for rate in rates] if usd else []
    even = [cost.break_even_usd_per_hour(rate, as_many) for rate in rates] if as_many else []
    return about(
        status="predicted",
        step_time_s=step.step_s,
        step_time_range_s=steps_s[:0:-1] or None,
        throughput_per_s=rates[0],
        throughput_range_per_s=rates[1:] or None,
        units_per_usd=per_usd[0] if per_usd else None,
        units_per_usd_range=per_usd[1:] or None,
        usd_per_million_units=cost.usd_per_million_units(per_usd[0]) if per_usd else None,
        break_even_usd_per_hour=even[0] if even else None,
        break_even_range_usd_per_hour=even[1:] or None,
        gemm_share_of_peak=_share_of_peak(source),
        model_error=error,
        parts=step.parts,
        assumed=step.assumed,
        warnings=tuple(_warnings(source, target, error, known)),
    )


def _measured(source: Source, catalog: Catalog, query: PriceQuery) -> Measured:
    row, (gpu, gpus) = source.row, source.machine
    query = replace(query, machine=row.machine)
    paid = of_used(catalog.instances.get(row.instance), gpu.name, gpus, catalog, query)
    usd = paid.usd_per_hour if paid else None
    per_usd = cost.units_per_usd(row.throughput_per_s or 0.0, usd) if usd else None
    return made_of(Measured, row, gpu=gpu.name, run_id=source.record.run_id, usd_per_hour=usd, units_per_usd=per_usd)


def unsupported(source: Source, target: Target) -> str | None:
    """Return why the target cannot run what was measured; None if nothing is known to prevent it."""
    gpu, evidence = target.machine.gpu, source.record.evidence
    if ((evidence and evidence.fp8) or source.work.by_category.get("gemm_fp8")) and gpu.capability < FP8_UNITS:
        return f"{gpu.name} has no fp8 units, which take {gpu.too_old_for(FP8_UNITS)}"
    entry = modes().get(source.record.what.mode)
    first, last = RECIPES.get(source.row.mode_label, (None, None))
    for least in (entry.needs.compute_capability if entry and entry.needs else None, first):
        if least is not None and gpu.capability < least:
            return f"{source.row.mode_label} needs {gpu.too_old_for(least)}"
    if last is not None and gpu.capability > last:
        return f"{source.row.mode_label} is computed by mxfp8 on {gpu.name}, and not as it was measured"
    peak, there = source.row.peak_memory_bytes, target.instance.gpu_memory_gib
    if peak is not None and there is not None and peak > there * GIB:
        return f"it needs {gib(peak)} of each GPU, and {gpu.name} has {there:g}: predict a smaller batch"
    return None


def _share_of_peak(source: Source) -> float | None:
    work, gpu = source.work, source.machine.gpu
    in_16_bits, in_fp8 = work.by_category.get("gemm_bf16", 0.0), work.by_category.get("gemm_fp8", 0.0)
    if (in_16_bits and gpu.dense_bf16_tflops is None) or (in_fp8 and gpu.dense_fp8_tflops is None):
        return None
    capacity = (in_16_bits * (gpu.dense_bf16_tflops or 0.0) + in_fp8 * (gpu.dense_fp8_tflops or 0.0)) * 1e12
    flops = source.summary.flops_per_step
    return flops / source.machine.gpus / capacity if flops and capacity else None


def _warnings(source: Source, target: Target, error: ModelError | None, known: Known) -> Iterator[str]:
    gpu, what = target.machine.gpu, source.record.what
    peak, there = source.row.peak_memory_bytes, target.instance.gpu_memory_gib
    if peak is None or there is None:
        yield "whether it fits into memory is unknown"
    elif peak > NEARLY_FULL * there * GIB:
        yield f"needs {peak / GIB:.1f} of {there:g} GiB: it may not fit"
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


def foreseen(measured: Sequence[Measurement], names: Sequence[str], catalog: Catalog) -> list[Measurement]:
    """Return what is predicted for all GPUs of each instance that nobody measured, for rows of a comparison: one for
    each mode and batch size that was measured elsewhere, from the measurement of least error; of several, from the
    fastest on most GPUs. Its interval is wider by that error, or by more where communication may be hidden. What cannot
    run there, or has no tested error, has no row.
    """
    origins, shipped, found = [], known(), list[Measurement]()
    for one in measured:
        # What is missing of a source is told by `predict`.
        with suppress(UsageError):
            origin = source(one, catalog)
            if one.latest.joined in ("none", "ddp") and not origin.work.host_bound:
                origins.append(origin)
    for name in names:
        with suppress(UsageError):
            found += _foreseen(origins, target(catalog.instances[name], catalog), shipped)
    return found


def _foreseen(origins: Sequence[Source], there: Target, shipped: Known) -> Iterator[Measurement]:
    (instance, machine), best = there, dict[object, tuple[Source, ModelError]]()
    for origin in sorted(origins, key=lambda one: (-one.machine.gpus, one.step_s)):
        what, config = origin.record.what, origin.measurement.latest.config
        error = model_error(shipped, what.workload, origin.machine, machine)
        if error is None or config is None or unsupported(origin, there) is not None:
            continue
        switches = config.te_switches, config.grad_accumulation, config.optimizer
        key = what.mode_label, what.workload, what.batch_size, *switches
        if key not in best or error.value < best[key][1].value:
            best[key] = origin, error
    for origin, error in best.values() if machine.gpu.product_names else ():
        with suppress(UsageError):
            step = predict(origin.work, origin.machine, machine, shipped.limits)
            # DDP keeps one more copy of the gradients, in its buckets.
            buckets = (origin.work.gradient_bytes or 0.0) * ((machine.gpus > 1) - (origin.machine.gpus > 1))
            by, gpus = step.step_s / origin.step_s, machine.gpus / origin.machine.gpus
            told = instance.key, by, gpus, machine.gpu.product_names[0], round(buckets)
            yield Measurement(
                tuple(scaled(one, *told) for one in origin.measurement.rounds),
                measured_on=origin.record.instance,
                origin="predicted",
                # Where the communication was not measured, all of it may be hidden.
                elsewhere=(1 + error.share) * step.step_s / step.least_s - 1,
                doubts=tuple(_warnings(origin, there, error, shipped)),
            )


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
    config, summary, times, there = record.config, record.summary, record.step_times, record.environment
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
    found = as_of(instance, record)
    return found.model_copy(
        update={
            "run_id": found.run_id if nodes == 1 else f"{found.run_id}-{nodes}-nodes",
            "config": config.model_copy(update=ranks),
            "environment": there.model_copy(update={"device_name": product or there.device_name}),
            "summary": summary.model_copy(update=new_summary),
            "step_times": times.model_copy(update=new_times),
            "memory": tuple(
                one.model_copy(update={"peak_allocated_bytes": one.peak_allocated_bytes + more_bytes})
                for one in record.memory
                if one.peak_allocated_bytes is not None
            ),
            **{"profile": None, "telemetry": (), "samples": ()},
        }
    )

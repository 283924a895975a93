"""Rows of a comparison for an instance that nobody measured: what was measured elsewhere, with its step predicted.

Of all measurements of a variant, the one is taken from which the model's error is least. The row's interval is wider by
that error, or by more where communication may be hidden. What cannot run there, or has no tested error, has no row.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from fp8bench.kinds.run.lent import as_of
from fp8bench.predict.prediction import Target, unsupported
from fp8bench.predict.source import Source, source
from fp8bench.predict.step import Known, Machine, ModelError, known, model_error, predict
from fp8bench.records.select import Key, Measurement
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.record import Record


def foreseen(measured: Sequence[Measurement], names: Sequence[str], catalog: Catalog) -> list[Measurement]:
    """Return what is predicted for all GPUs of each instance, one for each variant that was measured elsewhere."""
    origins, limits = [], known()
    for one in measured:
        # What is missing of a source is told by `predict`.
        with suppress(UsageError):
            origin = source(one, catalog)
            if one.latest.joined in ("none", "ddp") and not origin.work.host_bound:
                origins.append(origin)
    return [one for name in names for one in _foreseen(origins, catalog.instances[name], catalog, limits)]


def _foreseen(origins: Sequence[Source], instance: Instance, catalog: Catalog, limits: Known) -> Iterator[Measurement]:
    gpu = catalog.gpus.get(instance.gpu or "")
    if gpu is None or instance.gpu_count < 1 or not gpu.product_names:
        return
    there = Target(instance, Machine(gpu, instance.gpu_count), None)
    best: dict[Key, tuple[float, int, Source, ModelError]] = {}
    for origin in origins:
        error = model_error(limits, origin.record.what.workload, origin.machine, there.machine)
        if error is None or unsupported(origin, there) is not None:
            continue
        # Of two that are as good, the one of more GPUs.
        key, one = _apart_from_place(origin.measurement.latest), (error.value, -origin.machine.gpus, origin, error)
        best[key] = min(best.get(key, one), one, key=lambda each: each[:2])
    for _, _, origin, error in best.values():
        with suppress(UsageError):
            step = predict(origin.work, origin.machine, there.machine, limits.limits)
            # Where the communication was not measured, all of it may be hidden.
            reach = (1 + error.share) * step.step_s / step.least_s - 1
            by, gpus = step.step_s / origin.step_s, there.machine.gpus / origin.machine.gpus
            rounds = tuple(_scaled(one, there, by, gpus) for one in origin.measurement.rounds)
            elsewhere = origin.record.instance
            yield Measurement(rounds, measured_on=elsewhere, origin="predicted", elsewhere=reach)


def _apart_from_place(record: Record) -> Key:
    what, config = record.what, record.config
    switches = (config.te_switches, config.grad_accumulation, config.optimizer) if config else ()
    return (what.mode_label, what.workload, what.batch_size, record.execution, *switches)


def _scaled(record: Record, there: Target, by: float, gpus: float) -> Record:
    """Return the record with its times and sizes as predicted, of no known machine."""
    config, summary, times = record.config, record.summary, record.step_times
    if config is None or summary is None or times is None or record.environment is None:
        raise ValueError(f"{record.run_id} was not measured")
    seconds = {field: getattr(times, field) * by for field in ("mean_s", "median_s", "spread_s", "warmup_s")}
    changed = {
        "step_time_s": summary.step_time_s * by,
        "units_per_step": round(summary.units_per_step * gpus),
        "throughput_per_s": summary.throughput_per_s * gpus / by,
        "flops_per_step": summary.flops_per_step and round(summary.flops_per_step * gpus),
    }
    unknown = ("step_time_ci_s", "joules_per_unit", "units_per_kwh", "sm_clock_mhz", "host_lead_s", "data_wait_share")
    product = there.machine.gpu.product_names[0]
    return as_of(there.instance.key, record).model_copy(
        update={
            "config": config.model_copy(update={"world_size": there.machine.gpus}),
            "environment": record.environment.model_copy(update={"device_name": product}),
            "summary": summary.model_copy(update={**changed, **dict.fromkeys(unknown), "flags": ()}),
            "step_times": times.model_copy(update=seconds),
            **{"profile": None, "telemetry": (), "samples": ()},
        }
    )

"""Predictions: each of a measurement, for one target, with a range and all that it assumes. Numbers only; `document`
shows them.

A prediction is not a record: it is not kept, and no comparison takes it. Its range is the interval of the measurement
widened by the model's error (`model_error`) on the logarithmic scale. If no communication was measured, the lower end
also assumes that all communication may be hidden.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Literal

from fp8bench.predict.limits import Limits
from fp8bench.predict.model_error import Case, ModelError, change, model_error, speaking_for
from fp8bench.predict.source import Source, Sources
from fp8bench.predict.step import Part, Step, predict, share_of_peak
from fp8bench.predict.target import Target, memory_warning, unsupported
from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, of_used
from fp8bench.schema.config import mode_label
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog

Range = tuple[float, float]


class Measured(Frozen):
    """The measurement that a prediction is based on. units_per_usd: at the price of the same day; null without one."""

    instance: str
    gpu: str
    world_size: int
    step_time_s: float
    step_time_ci_s: Range | None
    throughput_per_s: float
    usd_per_hour: float | None
    units_per_usd: float | None
    run_id: str
    run_ids: tuple[str, ...]


class Prediction(Frozen):
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
    step_time_range_s: Range | None = None
    throughput_per_s: float | None = None
    throughput_range_per_s: Range | None = None
    usd_per_hour: float | None
    price_as_of: date | None
    price_source: str | None
    price_share: float
    price_share_of: str | None = None
    units_per_usd: float | None = None
    units_per_usd_range: Range | None = None
    usd_per_million_units: float | None = None
    break_even_usd_per_hour: float | None = None
    break_even_range_usd_per_hour: Range | None = None
    gemm_share_of_peak: float | None = None
    measured: Measured
    model_error: ModelError | None = None
    parts: tuple[Part, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def mode_label(self) -> str:
        """The mode with its recipe, e.g. `te-fp8:delayed`."""
        return mode_label(self.mode, self.recipe)


class Predictions(Frozen):
    """Predictions, sorted by workload and by what a dollar is predicted to buy; those that cannot run are last.
    omitted: measurements from which nothing can be predicted, with the reason.
    """

    rows: tuple[Prediction, ...]
    omitted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def predictions(
    sources: Sources, target: Target, cases: Sequence[Case], limits: Limits, catalog: Catalog, query: PriceQuery
) -> Predictions:
    """Return the predictions of each source. limits: of kinds of kernels. query: for the measured machine's own price.

    Raises UsageError if the target is the machine that was measured, or if the catalogue lacks a figure that a
    prediction needs.
    """
    key, gpus = target.instance.key, target.machine.gpus
    there = [one for one in sources.found if (one.record.instance, one.machine.gpus) != (key, gpus)]
    if not there:
        measured = f"{key} itself was measured on {gpus} GPU{'' if gpus == 1 else 's'}"
        raise UsageError(measured, f"See it with `fp8bench compare {key}`")
    rows = [_prediction(source, target, cases, limits, catalog, query) for source in there]
    ranked = sorted(
        rows,
        key=lambda row: (row.status != "predicted", row.workload, -(row.units_per_usd or row.throughput_per_s or 0.0)),
    )
    warnings = tuple(_about_all(ranked, target, cases))
    return Predictions(rows=tuple(ranked), omitted=sources.omitted, warnings=warnings)


def _prediction(
    source: Source, target: Target, cases: Sequence[Case], limits: Limits, catalog: Catalog, query: PriceQuery
) -> Prediction:
    record, what, paid = source.record, source.record.what, target.paid
    row = made_of(
        Prediction,
        what,
        status="predicted",
        instance=target.instance.key,
        gpu=target.gpu.name,
        world_size=target.machine.gpus,
        execution=record.execution,
        attention=record.attention,
        unit=record.summary.unit if record.summary else "units",
        usd_per_hour=paid.usd_per_hour if paid else None,
        price_as_of=paid.price.as_of if paid else None,
        price_source=paid.price.source if paid else None,
        price_share=target.share,
        price_share_of=paid.instance if paid and (paid.share < 1 or paid.instance != target.instance.key) else None,
        measured=_measured(source, catalog, query),
    )
    why = unsupported(source, target)
    if why is not None:
        return row.model_copy(update={"status": "unsupported", "reason": why})
    step = predict(source.work, source.machine, target.machine, limits)
    # No record of a GPU tells how fast another host is.
    tests = speaking_for(cases, source.machine, target.machine)
    error = None if source.host_bound else model_error(tests, change(source.machine, target.machine))
    found = {
        "gemm_share_of_peak": share_of_peak(source.work, source.machine),
        "model_error": error,
        "parts": step.parts,
        "assumed": step.assumed,
        "warnings": tuple(_row_warnings(source, target, error)),
    }
    return row.model_copy(update={**found, **_numbers(row, source, step, error)})


def _measured(source: Source, catalog: Catalog, query: PriceQuery) -> Measured:
    record = source.record
    instance = catalog.instances.get(record.instance)
    machine = record.machine.id if record.machine else None
    paid = of_used(instance, source.machine.gpu, source.machine.gpus, catalog, replace(query, machine=machine))
    throughput = source.units_per_step / source.step_s
    usd = paid.usd_per_hour if paid else None
    return Measured(
        instance=record.instance,
        gpu=source.machine.gpu,
        world_size=source.machine.gpus,
        step_time_s=source.step_s,
        step_time_ci_s=source.interval_s,
        throughput_per_s=throughput,
        usd_per_hour=usd,
        units_per_usd=cost.units_per_usd(throughput, usd) if usd else None,
        run_id=record.run_id,
        run_ids=tuple(one.run_id for one in source.measurement.rounds),
    )


def _numbers(row: Prediction, source: Source, step: Step, error: ModelError | None) -> dict[str, Any]:
    units = source.units_per_step / source.machine.gpus * row.world_size
    step_range = _range_s(source, step, error)
    throughput = units / step.step_s
    found: dict[str, Any] = {
        "step_time_s": step.step_s,
        "step_time_range_s": step_range,
        "throughput_per_s": throughput,
    }
    ends = (units / step_range[1], units / step_range[0]) if step_range else None
    found["throughput_range_per_s"] = ends
    if row.usd_per_hour:
        usd = row.usd_per_hour
        found["units_per_usd"] = cost.units_per_usd(throughput, usd)
        found["usd_per_million_units"] = cost.usd_per_million_units(found["units_per_usd"])
        found["units_per_usd_range"] = _both(ends, lambda one: cost.units_per_usd(one, usd))
    reference = row.measured.units_per_usd
    if reference:
        found["break_even_usd_per_hour"] = cost.break_even_usd_per_hour(throughput, reference)
        found["break_even_range_usd_per_hour"] = _both(ends, lambda one: cost.break_even_usd_per_hour(one, reference))
    return found


def _both(ends: Range | None, of: Any) -> Range | None:
    return None if ends is None else (of(ends[0]), of(ends[1]))


def _range_s(source: Source, step: Step, error: ModelError | None) -> Range | None:
    """Return the range of the step; None if nothing tests the model for such a change: its error is then unknown."""
    if error is None:
        return None
    low, high = source.interval_s or (source.step_s, source.step_s)
    off = math.exp(error.value)
    return step.least_s * low / source.step_s / off, step.step_s * high / source.step_s * off


def _row_warnings(source: Source, target: Target, error: ModelError | None) -> list[str]:
    said = [*filter(None, [memory_warning(source, target)])]
    if source.interval_s is None:
        said.append("too few steps were measured for an interval of their own")
    elif len(source.measurement.rounds) == 1:
        said.append("one process was measured, and its interval does not apply to the next one")
    used = {"dense_bf16_tflops", "memory_bandwidth_gb_s", "dense_fp8_tflops", "sm_count", "sm_clock_mhz"}
    doubted = sorted(used.intersection(target.gpu.doubtful)) if source.machine.gpu != target.gpu.name else []
    if doubted:
        said.append(f"doubtful in the catalogue: {', '.join(doubted)} of {target.gpu.name}")
    if source.host_bound:
        said.append("no range: its GPU waited for its host, and the speed of another host is not known")
    elif error is None:
        said.append("no range: no record of a second machine tests such a change")
    return said


def _about_all(rows: Sequence[Prediction], target: Target, cases: Sequence[Case]) -> list[str]:
    predicted = [row for row in rows if row.status == "predicted"]
    more = [row for row in predicted if row.world_size > row.measured.world_size]
    most = max((max(case.gpus) for case in cases if case.counted and case.change.scale != "as many GPUs"), default=1)
    said = []
    if more and target.machine.gpus > most:
        had = " and ".join(map(str, sorted({row.measured.world_size for row in more})))
        tested = f"the model was tested on up to {most}" if most > 1 else "no record tests more than one"
        said.append(f"{target.machine.gpus} GPUs are predicted from {had}: {tested}")
    untested = sorted({row.gpu for row in predicted if row.model_error and not _tested(row, cases)})
    if untested:
        said.append(f"no prediction of a {' or '.join(untested)} was ever compared with a measurement")
    if target.about_price:
        said.append(target.about_price)
    return said


def _tested(row: Prediction, cases: Sequence[Case]) -> bool:
    if row.gpu == row.measured.gpu:
        return True
    return any(row.gpu in case.machines for case in cases if case.counted)

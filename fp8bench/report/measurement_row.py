"""One measurement and its price, made into a row: everything about it that needs no other row."""

import math
from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING

from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, choose, only_another_machines
from fp8bench.report.marks import marks
from fp8bench.report.measurement import Measurement
from fp8bench.report.options import CompareOptions
from fp8bench.report.row import Row
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.record import Record, Summary

if TYPE_CHECKING:
    from fp8bench.stats.estimate import Estimate


PRICED_ELSEWHERE = "instance.yaml has the price of another machine, which is not this row's: give its own with --price"


def to_row(measurement: Measurement, found: "Estimate | None", catalog: Catalog, options: CompareOptions) -> Row:
    """The row, priced, but not yet held against a reference.

    found: seconds a unit takes, over the rounds; None for a figure without samples.
    """
    record = measurement.latest
    what = record.what
    machine, software = measurement.machine, measurement.software
    instance = catalog.instances.get(record.instance)
    nodes = _nodes(record, instance)
    query = _price_query(record, options)
    price = choose(instance.prices, query) if instance else None
    others = instance is not None and only_another_machines(instance.prices, query)
    usd_per_hour = price.usd_per_hour * nodes if price and price.usd_per_hour else None
    row = Row(
        instance=record.instance,
        mode=what.mode,
        recipe=what.recipe,
        status=record.status,
        reason=record.reason,
        source=record.source,
        workload=what.workload,
        device=record.config.device if record.config else "cuda",
        emulated=bool(record.evidence and record.evidence.emulated),
        compile=record.compiled,
        attention=record.attention,
        batch_size=what.batch_size,
        world_size=what.world_size,
        nodes=nodes,
        rounds=len(measurement.rounds),
        run_id=record.run_id,
        run_ids=tuple(each.run_id for each in measurement.rounds),
        session_id=record.session.session_id if record.session else None,
        machine=machine.id if machine else None,
        machine_label=machine.label if machine else None,
        software=dict(software) if software is not None else None,
        usd_per_hour=usd_per_hour,
        price_as_of=price.as_of if price else None,
        price_source=price.source if price else None,
        marks=(
            *marks(measurement, found, price, instance.gpu_count * nodes if instance else None),
            *((PRICED_ELSEWHERE,) if others else ()),
        ),
    )
    if record.status != "ok" or record.summary is None:
        return row
    return row.model_copy(update=_measured(row, measurement, record.summary, found, catalog))


def _measured(
    row: Row, measurement: Measurement, summary: Summary, found: "Estimate | None", catalog: Catalog
) -> dict[str, object]:
    units = summary.units_per_step
    step_time_s = found.value * units if found else summary.step_time_s
    throughput_per_s = units / step_time_s
    # The time of an emulation says nothing about fp8, so no money is computed from it.
    per_usd = cost.units_per_usd(throughput_per_s, row.usd_per_hour) if row.usd_per_hour and not row.emulated else None
    interval = summary.step_time_ci_s
    if found is not None:
        interval = None if found.low is None or found.high is None else (found.low * units, found.high * units)
    peaks = [m.peak_allocated_bytes for r in measurement.rounds for m in r.memory if m.peak_allocated_bytes is not None]
    leads = _over_rounds(measurement, lambda s: None if s.host_lead_s is None else s.host_lead_s / s.step_time_s)
    return {
        "step_time_s": step_time_s,
        "step_time_ci_s": interval,
        "spread_between_processes": found.between if found else None,
        "spread_within_process": found.within if found else None,
        "throughput_per_s": throughput_per_s,
        "unit": summary.unit,
        "units_per_usd": per_usd,
        "usd_per_million_units": cost.usd_per_million_units(per_usd) if per_usd else None,
        "peak_memory_bytes": max(peaks, default=None),
        "joules_per_unit": _over_rounds(measurement, lambda s: s.joules_per_unit),
        "units_per_kwh": _over_rounds(measurement, lambda s: s.units_per_kwh),
        "host_lead_share": leads,
        "data_wait_share": _over_rounds(measurement, lambda s: s.data_wait_share),
        **_utilization(measurement.latest, step_time_s, catalog),
    }


def _over_rounds(measurement: Measurement, of: Callable[[Summary], float | None]) -> float | None:
    """The median over the rounds that know."""
    values: Iterable[float | None] = (of(record.summary) for record in measurement.rounds if record.summary)
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _nodes(record: Record, instance: Instance | None) -> int:
    """Machines to pay for: as the run counted them, or as many as an imported figure's GPUs fill."""
    if record.config is not None:
        return record.config.nodes
    return math.ceil(record.what.world_size / instance.gpu_count) if instance and instance.gpu_count else 1


def _price_query(record: Record, options: CompareOptions) -> PriceQuery:
    """A measured row takes today's price; a published one that of its day; --price-as-of overrides both."""
    published_on = record.provenance.published_on if record.provenance else None
    day = options.as_of or published_on or options.today
    machine = record.machine.id if record.machine else None
    return PriceQuery(day, day >= options.today, options.region, options.purchase, machine)


def _utilization(record: Record, step_time_s: float, catalog: Catalog) -> dict[str, float | None]:
    """MFU against the dense bf16 peak, and for an fp8 mode against the fp8 peak. An unknown GPU has none."""
    summary, environment, evidence = record.summary, record.environment, record.evidence
    gpu = catalog.gpu_by_product(environment.device_name) if environment else None
    if summary is None or gpu is None or summary.flops_per_step is None or record.config is None:
        return {"mfu_bf16": None, "mfu_fp8": None}
    work = (summary.flops_per_step, step_time_s, record.config.world_size)
    in_fp8 = evidence is not None and evidence.fp8 and not evidence.emulated
    return {
        "mfu_bf16": cost.mfu(*work, gpu.dense_bf16_tflops) if gpu.dense_bf16_tflops else None,
        "mfu_fp8": cost.mfu(*work, gpu.dense_fp8_tflops) if in_fp8 and gpu.dense_fp8_tflops else None,
    }

"""One record and its price, made into a row: everything about it that needs no other row."""

import math

from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.report.options import CompareOptions
from fp8bench.report.row import Row
from fp8bench.schema.instance import Catalog, Instance, Price
from fp8bench.schema.record import Record, Summary

HOST_BOUND_LEAD = 0.15
"""Share of a step below which the host's lead says that the GPU waits for the host (see worker.clock)."""


def to_row(record: Record, catalog: Catalog, options: CompareOptions) -> Row:
    """The row, priced, but not yet held against a reference."""
    what, summary = record.what, record.summary
    instance = catalog.instances.get(record.instance)
    device = record.config.device if record.config else "cuda"
    nodes = _nodes(record, instance)
    price = choose(instance.prices, _price_query(record, options)) if instance else None
    usd_per_hour = price.usd_per_hour * nodes if price and price.usd_per_hour else None
    emulated = bool(record.evidence and record.evidence.emulated)
    # The time of an emulation says nothing about fp8, so no money is computed from it.
    per_usd = None
    if summary is not None and usd_per_hour is not None and not emulated:
        per_usd = cost.units_per_usd(summary.throughput_per_s, usd_per_hour)
    peaks = [memory.peak_allocated_bytes for memory in record.memory if memory.peak_allocated_bytes is not None]
    row = Row(
        instance=record.instance,
        mode=what.mode,
        recipe=what.recipe,
        status=record.status,
        reason=record.reason,
        source=record.source,
        workload=what.workload,
        device=device,
        emulated=emulated,
        compile=record.compiled,
        attention=record.attention,
        batch_size=what.batch_size,
        world_size=what.world_size,
        nodes=nodes,
        run_id=record.run_id,
        usd_per_hour=usd_per_hour,
        price_as_of=price.as_of if price else None,
        price_source=price.source if price else None,
        marks=_own_marks(record, price, instance.gpu_count * nodes if instance else None),
    )
    if record.status != "ok" or summary is None:
        return row
    return row.model_copy(
        update={
            "step_time_s": summary.step_time_s,
            "step_time_ci_s": summary.step_time_ci_s,
            "throughput_per_s": summary.throughput_per_s,
            "unit": summary.unit,
            "units_per_usd": per_usd,
            "usd_per_million_units": cost.usd_per_million_units(per_usd) if per_usd else None,
            "peak_memory_bytes": max(peaks, default=None),
            **_utilization(record, catalog),
        }
    )


def _nodes(record: Record, instance: Instance | None) -> int:
    """Machines to pay for: as the run counted them, or as many as an imported figure's GPUs fill."""
    if record.config is not None:
        return record.config.nodes
    return math.ceil(record.what.world_size / instance.gpu_count) if instance and instance.gpu_count else 1


def _price_query(record: Record, options: CompareOptions) -> PriceQuery:
    """A measured row takes today's price; a published one that of its day; --price-as-of overrides both."""
    published_on = record.provenance.published_on if record.provenance else None
    day = options.as_of or published_on or options.today
    return PriceQuery(day, day >= options.today, options.region, options.purchase)


def _utilization(record: Record, catalog: Catalog) -> dict[str, float | None]:
    """MFU against the dense bf16 peak, and for an fp8 mode against the fp8 peak. An unknown GPU has none."""
    summary, environment, evidence = record.summary, record.environment, record.evidence
    gpu = catalog.gpu_by_product(environment.device_name) if environment else None
    if summary is None or gpu is None or summary.flops_per_step is None or record.config is None:
        return {"mfu_bf16": None, "mfu_fp8": None}
    work = (summary.flops_per_step, summary.step_time_s, record.config.world_size)
    in_fp8 = evidence is not None and evidence.recipe is not None and not evidence.emulated
    return {
        "mfu_bf16": cost.mfu(*work, gpu.dense_bf16_tflops) if gpu.dense_bf16_tflops else None,
        "mfu_fp8": cost.mfu(*work, gpu.dense_fp8_tflops) if in_fp8 and gpu.dense_fp8_tflops else None,
    }


def _own_marks(record: Record, price: Price | None, paid_gpus: int | None) -> tuple[str, ...]:
    marks = []
    if record.config is not None and record.config.device == "cpu":
        marks.append("cpu")
    if record.evidence is not None and record.evidence.emulated:
        marks.append("emulated")
    if record.source != "measured":
        marks.append(record.source)
    if price is not None and price.as_of is None:
        marks.append("undated price")
    if price is not None and price.derived:
        marks.append("per-GPU price x GPUs")
    if paid_gpus and record.what.world_size < paid_gpus:
        marks.append(f"{record.what.world_size} of {paid_gpus} GPUs used, all paid for")
    if record.summary is not None and _host_bound(record.summary):
        marks.append("host-bound")
    if record.evidence is not None:
        marks += record.evidence.warnings
    return tuple(marks)


def _host_bound(summary: Summary) -> bool:
    return summary.host_lead_s is not None and summary.host_lead_s < HOST_BOUND_LEAD * summary.step_time_s

"""The comparison: records joined with prices, held against a reference row. Numbers only; tables.py gives them
looks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pydantic import JsonValue

from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.report.row import Comparison, Row
from fp8bench.report.select import select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Instance, Price, Purchase
from fp8bench.schema.record import Record, Summary

DEFAULT_REFERENCE_MODE = "baseline-bf16"
MIXED_DATES_DAYS = 90
HOST_BOUND_LEAD = 0.15
"""Share of a step below which the host's lead says that the GPU waits for the host (see worker.clock)."""


@dataclass(frozen=True)
class Reference:
    """Which row the others are held against. mode: with or without its recipe; compile: None takes either."""

    instance: str
    mode: str
    compile: bool | None = None
    asked_for: bool = True


@dataclass(frozen=True)
class CompareOptions:
    """What the user asked of the comparison. as_of: None prices each row for its own day (see README, Prices)."""

    instances: tuple[str, ...]
    today: date
    reference: Reference
    as_of: date | None = None
    region: str | None = None
    purchase: Purchase = "on_demand"
    workload: str | None = None
    every: bool = False
    allow_mismatch: bool = False


def parse_reference(text: str | None, instances: Sequence[str]) -> Reference:
    """`INSTANCE:MODE[:RECIPE][/eager|/compiled]`; None is the first instance's baseline-bf16. Raises UsageError."""
    if text is None:
        return Reference(instances[0], DEFAULT_REFERENCE_MODE, asked_for=False)
    label, _, setting = text.partition("/")
    instance, _, mode = label.partition(":")
    settings = {"": None, "eager": False, "compiled": True}
    if not instance or not mode or setting not in settings:
        raise UsageError(
            f"--reference {text!r} is not INSTANCE:MODE", "Say, for example, --reference p4d:baseline-bf16"
        )
    return Reference(instance, mode, settings[setting])


def compare(records: Sequence[Record], catalog: Catalog, options: CompareOptions) -> Comparison:
    """records: those of the instances in `options`, oldest first.

    Raises UsageError when an instance has no record, the reference that was asked for is not there, or the records
    are of unlike work and `allow_mismatch` is not set.
    """
    chosen = select(records, options.every, options.workload)
    _require_some(chosen, options)
    rows = [_measured_row(record, catalog, options) for record in chosen]
    reference = _find_reference(rows, options.reference)
    by_id = {record.run_id: record for record in chosen}
    warnings = []
    if reference is None:
        wanted = options.reference
        warnings.append(
            f"no ok record of {wanted.instance}:{wanted.mode} to hold the rows against, so gains are left out; "
            "name another row with --reference"
        )
    else:
        rows = _against_reference(rows, reference, by_id, options.allow_mismatch)
    order = {name: place for place, name in enumerate(options.instances)}
    rows.sort(key=lambda row: (order[row.instance], row.status != "ok", row.emulated, -(row.throughput_per_s or 0)))
    warnings += _mixed_dates(rows)
    return Comparison(rows=tuple(rows), warnings=tuple(warnings))


def _require_some(chosen: Sequence[Record], options: CompareOptions) -> None:
    present = {record.instance for record in chosen}
    for name in options.instances:
        if name not in present:
            of = f" of {options.workload}" if options.workload else ""
            raise UsageError(
                f"no record{of} for instance {name!r}",
                f"Run `fp8bench run --instance {name}` there, or put a figure in with `fp8bench import`",
            )


def _measured_row(record: Record, catalog: Catalog, options: CompareOptions) -> Row:
    """Everything about a record that needs no other row."""
    what, summary = record.what, record.summary
    instance = catalog.instances.get(record.instance)
    device = record.config.device if record.config else "cuda"
    nodes = _nodes(record, instance)
    price = choose(instance.prices, _price_query(record, options)) if instance else None
    usd_per_hour = price.usd_per_hour * nodes if price and price.usd_per_hour else None
    per_usd = cost.units_per_usd(summary.throughput_per_s, usd_per_hour) if summary and usd_per_hour else None
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
        emulated=bool(record.evidence and record.evidence.emulated),
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


def _find_reference(rows: Sequence[Row], wanted: Reference) -> Row | None:
    """The best row that fits: a gain over a slow variant of the baseline would flatter.

    Raises UsageError when the user named a row that is not there.
    """
    fitting = [
        row
        for row in rows
        if row.status == "ok"
        and row.instance == wanted.instance
        and wanted.mode in (row.mode, row.mode_label)
        and wanted.compile in (None, row.compile)
    ]
    if fitting:
        return max(fitting, key=lambda row: row.units_per_usd or row.throughput_per_s or 0)
    if wanted.asked_for:
        there = ", ".join(sorted({f"{row.instance}:{row.mode_label}" for row in rows if row.status == "ok"}))
        raise UsageError(
            f"no ok record of {wanted.instance}:{wanted.mode} to be the reference", f"There are: {there or 'none'}"
        )
    return None


def _against_reference(
    rows: Sequence[Row], reference: Row, by_id: dict[str, Record], allow_mismatch: bool
) -> list[Row]:
    expected = by_id[reference.run_id].fingerprint
    held = []
    for row in rows:
        differing = _differing(by_id[row.run_id].fingerprint, expected) if row.status == "ok" else []
        if differing and not allow_mismatch:
            raise UsageError(
                f"{row.instance}:{row.mode_label} and the reference {reference.instance}:{reference.mode_label} did "
                f"unlike work: {_tell(differing, by_id[row.run_id].fingerprint, expected)}",
                "Compare like with like (--workload chooses one), or say --allow-mismatch to see them marked",
            )
        held.append(_held_against(row, reference, differing))
    return held


def _held_against(row: Row, reference: Row, differing: Sequence[str]) -> Row:
    marks = list(row.marks)
    if differing:
        marks.append(f"unlike the reference in {', '.join(differing)}")
    if row.batch_size != reference.batch_size:
        marks.append(f"batch {row.batch_size}, reference {reference.batch_size}")
    if row.world_size != reference.world_size:
        workers = "GPUs" if row.device == "cuda" else "processes"
        marks.append(f"{row.world_size} {workers}, reference {reference.world_size}")
    update: dict[str, object] = {"marks": tuple(marks), "is_reference": row.run_id == reference.run_id}
    # A CPU's time, or an emulation's, says nothing about a GPU's or about fp8: such rows have no rank.
    comparable = row.device == reference.device and not row.emulated and not reference.emulated
    if comparable and row.throughput_per_s and reference.throughput_per_s:
        update["speedup_vs_reference"] = row.throughput_per_s / reference.throughput_per_s
        if reference.units_per_usd:
            update["break_even_usd_per_hour"] = cost.break_even_usd_per_hour(
                row.throughput_per_s, reference.units_per_usd
            )
            if row.units_per_usd:
                update["gain_vs_reference"] = cost.gain(row.units_per_usd, reference.units_per_usd)
    return row.model_copy(update=update)


def _differing(fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> list[str]:
    names = dict.fromkeys([*expected, *fingerprint])
    return [name for name in names if fingerprint.get(name) != expected.get(name)]


def _tell(names: Sequence[str], fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name} ({fingerprint.get(name)} and {expected.get(name)})" for name in names)


def _mixed_dates(rows: Sequence[Row]) -> list[str]:
    dates = [row.price_as_of for row in rows if row.price_as_of is not None]
    if not dates or (max(dates) - min(dates)).days <= MIXED_DATES_DAYS:
        return []
    return [
        f"prices are from {min(dates)} to {max(dates)}, more than {MIXED_DATES_DAYS} days apart; "
        "--price-as-of puts all rows on one day"
    ]

"""A row compared with the reference: its speed-up, what it gains for a dollar, and whether that can be called better.
Machine and software may bar a verdict.

Where both have a price, the verdict is on units per USD, since a second machine that makes a step shorter can still
make each image dearer; else it is on speed. Prices are exact, so a unit's cost is as uncertain as its time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.unit_cost import UnitTime
from fp8bench.pricing import cost
from fp8bench.schema.identity import Software, differing, not_comparable, unlike_software
from fp8bench.schema.record import Record
from fp8bench.stats.verdict import HOLDS_NOISE, RowVerdict, verdict_on_value

if TYPE_CHECKING:
    from fp8bench.stats.ratio import Ratio


@dataclass(frozen=True)
class Likeness:
    """How a row stands to the reference. verdict: whether one may be given. marks: what a reader must know of it."""

    verdict: bool = True
    marks: tuple[str, ...] = ()


def likeness(record: Record, reference: Record, allow_mismatch: bool) -> Likeness:
    """Within one instance unlike machines or software bar a verdict, unless the user asked for it; between instances
    unlike machines are the question, and unlike software is marked.
    """
    unlike = not_comparable(record, reference)
    if unlike:
        how = "unlike the reference in" if allow_mismatch else "not comparable with the reference:"
        return Likeness(allow_mismatch, (f"{how} {', '.join(unlike)}",))
    software = unlike_software(record, reference)
    return Likeness(marks=(f"unlike the reference in {', '.join(software)}",) if software else ())


def distinguished(rows: Sequence[Row]) -> list[Row]:
    """The rows, marked with their machine where those of one instance have several, and likewise with each part of the
    software.
    """
    of_instance: dict[str, list[Row]] = {}
    for row in rows:
        if row.source == "measured":
            of_instance.setdefault(row.instance, []).append(row)
    return [
        row.model_copy(update={"marks": (*_names(row, of_instance.get(row.instance, ())), *row.marks)}) for row in rows
    ]


def _names(row: Row, beside: Sequence[Row]) -> list[str]:
    names = []
    if len({other.machine for other in beside}) > 1:
        label = f"{row.machine_label} ({row.machine})" if row.machine_label else row.machine
        names.append(f"machine {label or 'unknown'}")
    if row.software is not None:
        softwares: list[Software] = [other.software for other in beside if other.software is not None]
        unlike = dict.fromkeys(name for other in softwares for name in differing(row.software, other))
        names += [f"{name} {row.software.get(name) or 'unknown'}" for name in unlike]
    return names


def compared_with(
    row: Row, reference: Row, found: UnitTime | None, reference_found: UnitTime | None, like: Likeness
) -> Row:
    """found: what a unit takes in each process of the row, and of the reference; None for a figure without samples.
    like: whether machine and software allow a verdict.
    """
    is_reference = row.run_id == reference.run_id
    update: dict[str, object] = {
        "marks": (*row.marks, *like.marks, *_unlike_sizes(row, reference)),
        "is_reference": is_reference,
    }
    if not (like.verdict and _comparable(row, reference) and row.throughput_per_s and reference.throughput_per_s):
        return row.model_copy(update=update)
    update["speedup_vs_reference"] = row.throughput_per_s / reference.throughput_per_s
    if reference.units_per_usd:
        update["break_even_usd_per_hour"] = cost.break_even_usd_per_hour(row.throughput_per_s, reference.units_per_usd)
        if row.units_per_usd:
            update["gain_vs_reference"] = cost.gain(row.units_per_usd, reference.units_per_usd)
    if found is not None and reference_found is not None and not is_reference:
        update |= _judged(found, reference_found, _price_ratio(row, reference))
    return row.model_copy(update=update)


def _unlike_sizes(row: Row, reference: Row) -> list[str]:
    marks = []
    if row.batch_size != reference.batch_size:
        marks.append(f"batch {row.batch_size}, reference {reference.batch_size}")
    if row.world_size != reference.world_size:
        worker, workers = ("GPU", "GPUs") if row.device == "cuda" else ("process", "processes")
        marks.append(f"{row.world_size} {worker if row.world_size == 1 else workers}, reference {reference.world_size}")
    return marks


def _comparable(row: Row, reference: Row) -> bool:
    """A CPU's time, or an emulation's, is not comparable with a GPU's or with fp8's, and an image is no token."""
    return (row.device, row.unit) == (reference.device, reference.unit) and not (row.emulated or reference.emulated)


def _price_ratio(row: Row, reference: Row) -> float | None:
    """What an hour costs over what it costs in the reference; None where either has no price."""
    if row.usd_per_hour is None or reference.usd_per_hour is None:
        return None
    return row.usd_per_hour / reference.usd_per_hour


def _judged(found: UnitTime, reference: UnitTime, price_ratio: float | None) -> dict[str, object]:
    # Imported here, as in unit_time.py: numpy takes a moment, and published figures have no samples.
    from fp8bench.stats.ratio import ratio

    held = ratio(found.by_elapsed, reference.by_elapsed)
    few = min(len(found.processes), len(reference.processes)) < 2
    verdict, why = _verdict(held, price_ratio, few)
    if verdict != "inconclusive" and (found.uneven or reference.uneven):
        by_medians, _ = _verdict(ratio(found.by_medians, reference.by_medians), price_ratio, few)
        if by_medians != verdict:
            verdict, why = "inconclusive", f"{verdict} by elapsed time, {by_medians} by medians"
    update: dict[str, object] = {
        "verdict": verdict,
        "verdict_on": "throughput" if price_ratio is None else "units_per_usd",
        "verdict_why": why,
    }
    if held.low is not None and held.high is not None:
        low, high = 1 / held.high, 1 / held.low
        update["speedup_ci_vs_reference"] = (low, high)
        if price_ratio is not None:
            update["gain_ci_vs_reference"] = (low / price_ratio - 1, high / price_ratio - 1)
    return update


def _verdict(held: "Ratio", price_ratio: float | None, few: bool) -> tuple[RowVerdict, str | None]:
    """The verdict and, of an inconclusive one, why. held: of times; few: processes, for a verdict on either."""
    if price_ratio is None or few or held.low is None or held.high is None:
        return held.verdict, held.why
    verdict = verdict_on_value(held.low * price_ratio, held.high * price_ratio)
    return verdict, HOLDS_NOISE if verdict == "inconclusive" else None

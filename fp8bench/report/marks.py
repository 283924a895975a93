"""What a reader of a row must be told: marks, short ones in the row and long ones under the table.

What was found in every round is said once, with the latest round's figures; what was not, with the number of rounds.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from fp8bench.report.measurement import Measurement
from fp8bench.schema.instance import Price
from fp8bench.schema.record import Record
from fp8bench.stats.bound import bound_of
from fp8bench.stats.telemetry import round_flags

if TYPE_CHECKING:
    from fp8bench.stats.estimate import Estimate

SPREAD = 0.02
"""Relative standard deviation between processes from which a row says that they differ: twice the noise below which no
mode is called faster."""


def marks(
    measurement: Measurement, spread: "Estimate | None", price: Price | None, paid_gpus: int | None
) -> tuple[str, ...]:
    """spread: the measurement's step time over its processes. paid_gpus: GPUs in the instances that are paid for."""
    record = measurement.latest
    return (
        *_kind(record),
        *_price(price),
        *_paid(record, paid_gpus),
        *_rounds(measurement, spread),
        *_found_in_rounds(measurement.rounds, _bounds),
        *_found_in_rounds(measurement.rounds, _flags),
        *_slow_rounds(measurement),
        *_found_in_rounds(measurement.rounds, _warnings),
    )


def _kind(record: Record) -> Iterable[str]:
    if record.config is not None and record.config.device == "cpu":
        yield "cpu"
    if record.evidence is not None and record.evidence.emulated:
        yield "emulated"
    if record.source != "measured":
        yield record.source


def _price(price: Price | None) -> Iterable[str]:
    if price is not None and price.as_of is None:
        yield "undated price"
    if price is not None and price.derived:
        yield "per-GPU price x GPUs"


def _paid(record: Record, paid_gpus: int | None) -> Iterable[str]:
    if paid_gpus and record.what.world_size < paid_gpus:
        yield f"{record.what.world_size} of {paid_gpus} GPUs used, all paid for"


def _rounds(measurement: Measurement, spread: "Estimate | None") -> Iterable[str]:
    if spread is not None and spread.processes == 1:
        yield "one process"
    if spread is not None and spread.between is not None and spread.between >= SPREAD:
        yield f"its processes differ by {spread.between * 100:.1f} % (standard deviation)"
    if measurement.stopped:
        every = len(measurement.rounds) + len(measurement.stopped)
        last = measurement.stopped[-1]
        yield f"{len(measurement.stopped)} of {every} rounds {last.status}: {last.reason}"


def _bounds(record: Record) -> Iterable[str]:
    bound = bound_of(record)
    return [str(bound)] if bound else []


def _flags(record: Record) -> Iterable[str]:
    if record.summary is None:
        return []
    steadiness = record.summary.steadiness
    return [*record.summary.flags, *([steadiness.unsteady] if steadiness and steadiness.unsteady else [])]


def _warnings(record: Record) -> Iterable[str]:
    return record.evidence.warnings if record.evidence else ()


def _slow_rounds(measurement: Measurement) -> Iterable[str]:
    clocks = [record.summary.sm_clock_mhz if record.summary else None for record in measurement.rounds]
    for number, flag in enumerate(round_flags(clocks), start=1):
        if flag is not None:
            yield f"round {number}: {flag}"


def _found_in_rounds(rounds: Sequence[Record], of: Callable[[Record], Iterable[str]]) -> list[str]:
    """Texts alike but for their figures are one finding."""
    latest: dict[str, str] = {}
    times: dict[str, int] = {}
    for record in rounds:
        for text in dict.fromkeys(of(record)):
            kind = re.sub(r"\d+(\.\d+)?", "#", text)
            latest[kind] = text
            times[kind] = times.get(kind, 0) + 1
    return [
        text if times[kind] == len(rounds) else f"{text}, in {times[kind]} of {len(rounds)} rounds"
        for kind, text in latest.items()
    ]

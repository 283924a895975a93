"""Marks of a row for its reader: short ones in the row and long ones below the table.

A finding of every round is shown once, with the latest round's figures; other findings with their number of rounds.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from fp8bench.kinds.priced import PRICED_ELSEWHERE, WHAT_IF, Priced
from fp8bench.kinds.run.unit_cost import APART, UnitTime
from fp8bench.records.select import Measurement, execution
from fp8bench.schema.machine import checkout_of
from fp8bench.schema.record import Record
from fp8bench.stats.steps import SLOW_STEP, bottleneck_of
from fp8bench.stats.telemetry import round_flags

SPREAD = 0.02
"""The relative standard deviation between processes from which a row says that they differ: twice the noise below which
no mode is called faster.
"""


def marks(measurement: Measurement, found: UnitTime | None, priced: Priced, paid_gpus: int | None) -> tuple[str, ...]:
    """Return the marks. found: what a unit takes in each process. paid_gpus: GPUs in the instances that are used."""
    record = measurement.latest
    return (
        *_kind(record),
        *_requested(record),
        *(_price(priced) if record.status == "ok" else ()),
        *_paid(record, priced, paid_gpus),
        *_rounds(measurement, found),
        *(_uneven(found) if found else ()),
        *_found_in_rounds(measurement.rounds, _limited_by),
        *_found_in_rounds(measurement.rounds, _flags),
        *_slow_rounds(measurement),
        *_found_in_rounds(measurement.rounds, _not_replayed),
        *_found_in_rounds(measurement.rounds, _warnings),
    )


def _kind(record: Record) -> Iterable[str]:
    if record.config is not None and record.config.device == "cpu":
        yield "cpu"
    if record.evidence is not None and record.evidence.emulated:
        yield "emulated"
    if record.config is not None and record.config.te_switches:
        yield f"with {record.config.te_switches}"
    if record.source != "measured":
        yield record.source
    if record.provenance is not None and record.provenance.derivation is not None:
        yield f"derived from {record.provenance.derivation}"


def _requested(record: Record) -> Iterable[str]:
    """Yield what was requested of a run that stopped before it was known how its steps would be executed."""
    config = record.config
    if config is None or record.status == "ok" or execution(record) is not None:
        return
    if config.compile != "auto":
        yield f"with --compile {config.compile}"
    if config.cuda_graphs == "on":
        yield f"with --cuda-graphs {config.cuda_graphs}"


def _price(priced: Priced) -> Iterable[str]:
    price = priced.price
    if price is None:
        yield priced.why_none
        return
    if price.source == WHAT_IF:
        yield WHAT_IF
    elif price.as_of is None:
        yield "undated price"
    if price.derived:
        yield "per-GPU price x GPUs"
    if price.doubtful or price.doubt:
        yield "doubtful price"
    if priced.elsewhere:
        yield PRICED_ELSEWHERE


def _paid(record: Record, priced: Priced, paid_gpus: int | None) -> Iterable[str]:
    if priced.share_of is not None and priced.gpus is not None:
        used, there = priced.gpus
        why = "" if priced.share_of == record.instance else f", since no price of {record.instance} is known"
        yield f"share of {priced.share_of}: {used} of {there} GPUs{why}"
    elif paid_gpus and record.what.world_size < paid_gpus:
        yield f"{record.what.world_size} of {paid_gpus} GPUs used"


def _rounds(measurement: Measurement, found: UnitTime | None) -> Iterable[str]:
    if found is not None and len(found.processes) == 1:
        yield "one process"
    spread = found.by_elapsed.spread if found is not None else None
    if spread is not None and spread >= SPREAD:
        yield f"its processes differ by {spread * 100:.1f} % (standard deviation): measure more --rounds"
    checkouts = dict.fromkeys(str(checkout_of(one.environment)) for one in measurement.rounds)
    if len(checkouts) > 1:
        yield f"its rounds are of unlike commits of fp8bench: {', '.join(checkouts)}"
    if measurement.stopped:
        every = len(measurement.rounds) + len(measurement.stopped)
        last = measurement.stopped[-1]
        yield f"{len(measurement.stopped)} of {every} rounds {last.status}: {last.reason}"


def _uneven(found: UnitTime) -> Iterable[str]:
    """Yield what makes elapsed time and median differ."""
    if abs(found.mean_above_median) > APART:
        where = "above" if found.mean_above_median > 0 else "below"
        yield f"mean {abs(found.mean_above_median) * 100:.1f} % {where} median"
    if found.slow_steps:
        yield f"{found.slow_steps} of {found.steps} steps above {SLOW_STEP}x"


def _limited_by(record: Record) -> Iterable[str]:
    bound = bottleneck_of(record)
    return [str(bound)] if bound else []


def _flags(record: Record) -> Iterable[str]:
    if record.summary is None:
        return []
    steadiness = record.summary.steadiness
    return [*record.summary.flags, *([steadiness.unsteady] if steadiness and steadiness.unsteady else [])]


def _not_replayed(record: Record) -> Iterable[str]:
    """Return why steps were not replayed although they might have been. A CPU has nothing to replay."""
    return [] if record.not_replayed is None or record.status != "ok" else [f"not replayed: {record.not_replayed}"]


def _warnings(record: Record) -> Iterable[str]:
    """Return all warnings except the one that repeats why the steps were not replayed."""
    reason = record.not_replayed
    warnings = record.evidence.warnings if record.evidence else ()
    return [warning for warning in warnings if reason is None or reason not in warning]


def _slow_rounds(measurement: Measurement) -> Iterable[str]:
    clocks = [record.summary.sm_clock_mhz if record.summary else None for record in measurement.rounds]
    for number, flag in enumerate(round_flags(clocks), start=1):
        if flag is not None:
            yield f"round {number}: {flag}"


def _found_in_rounds(rounds: Sequence[Record], of: Callable[[Record], Iterable[str]]) -> list[str]:
    """Return findings over all rounds. Texts that differ only in their figures are one finding."""
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

"""The answer in a sentence: which mode on which instance, how much more it buys, and how certain that is.

Every number is a row's own, written as in the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8bench.kinds.run.rivals import RULE, rivals
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.report.written import change_low_to_high, number, rate, ratio


@dataclass(frozen=True)
class Answer:
    """The answer. best: the row that the sentence is about; None without one. grounds: sentences that qualify it."""

    sentence: str
    grounds: tuple[str, ...]
    best: Row | None = None


def name_of(row: Row) -> str:
    """Return the name in charts and sentences, e.g. `h200-1x te-fp8:delayed`."""
    return f"{row.instance} {row.mode_label}"


def detail_of(row: Row) -> str:
    """Return what distinguishes a row from others of that name, e.g. `eager, batch 256 x 2`."""
    worker = f" x {row.world_size}" if row.world_size > 1 else ""
    reported = ("" if row.source == "measured" else f", {row.source}") + (", emulated" if row.emulated else "")
    return f"{f'{row.execution}, ' if row.execution else ''}batch {row.batch_size}{worker}{reported}"


def unit_of(row: Row) -> str:
    """Return the unit, e.g. `images`."""
    return row.unit or "units"


def answer(comparison: Comparison, bought: str = "", quicker: Sequence[str] = ()) -> Answer:
    """Answer with the best measured row. Nothing is concluded from rows that are not ok, or from an emulation's time.

    bought: how, e.g. `on demand`. quicker: sentences about rows that take less time for more money.
    """
    ran = [row for row in comparison.rows if row.status == "ok"]
    measured = [row for row in ran if row.source == "measured" and not row.emulated]
    if not measured:
        return _nothing_measured(comparison.rows, ran)
    best = measured[0]
    if best.units_per_usd is None:
        return _by_speed(best)
    sentence = (
        f"{best.mode_label} on {best.instance} buys most: {rate(best.units_per_usd)} {unit_of(best)} for a dollar"
        f"{_more(best, comparison.rows)}."
    )
    grounds = (
        _against_reference(best, comparison.rows),
        _rivals(best, measured),
        *quicker,
        _price(best, bought),
        _reported_above(best, ran),
        _not_ranked(comparison.rows),
    )
    return Answer(sentence, tuple(filter(None, grounds)), best)


def _more(best: Row, rows: Sequence[Row]) -> str:
    reference, gain = _reference(rows), best.gain_vs_reference
    if reference is None or best.is_reference or gain is None:
        return ""
    there = "" if reference.instance == best.instance else f" on {reference.instance}"
    more = "more" if gain >= 0 else "fewer"
    return f", {number(abs(gain), '.1f', 100)} % {more} than {reference.mode_label}{there}"


def _how(row: Row) -> str:
    rounds = "1 round" if row.rounds == 1 else f"{row.rounds} rounds of fresh processes"
    return f"Measured: {row.workload}, {detail_of(row)}, {rounds}"


def _against_reference(best: Row, rows: Sequence[Row]) -> str:
    how, reference = _how(best), _reference(rows)
    if reference is None:
        return f"{how}."
    if best.is_reference:
        return f"{how}. All others are compared with it, and none of them buys more."
    against = f"{how}, against {name_of(reference)} ({detail_of(reference)}): "
    if best.gain_ci_vs_reference is not None:
        against += f"{change_low_to_high(*best.gain_ci_vs_reference)} % with 95 % confidence, "
    if best.verdict == "inconclusive":
        return f"{against}which is inconclusive: {best.verdict_why}."
    return f"{against}{best.verdict or 'without a verdict'}."


def _rivals(best: Row, measured: Sequence[Row]) -> str:
    """Name the rows that may buy as much as the best row."""
    close = rivals(best, measured)
    if not close:
        return ""
    names = ", ".join(f"{name_of(row)} ({detail_of(row)})" for row in close)
    return (
        f"Not distinguished from it: {names}; {RULE}. Measure more rounds, or more machines, before you choose between "
        "them."
    )


def _price(best: Row, bought: str) -> str:
    of = f"as of {best.price_as_of}" if best.price_as_of else "without a date"
    how = f" {bought}" if bought else ""
    said = f"Price: {number(best.usd_per_hour, ',.2f')} USD an hour{how}, {of}; measured on {_day(best)}."
    even = best.break_even_usd_per_hour
    if best.is_reference or even is None or best.usd_per_hour is None or even <= best.usd_per_hour:
        return said
    return f"{said} Up to {number(even, ',.2f')} USD an hour it would still buy more than the reference does."


def _day(row: Row) -> str:
    """Return the day of the row's latest round, with which its run id begins."""
    day = row.run_id[:8]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}" if len(day) == 8 and day.isdecimal() else "an unknown day"


def _reported_above(best: Row, ran: Sequence[Row]) -> str:
    above = [row for row in ran[: ran.index(best)] if row.source != "measured"]
    if not above:
        return ""
    names = ", ".join(f"{name_of(row)} ({rate(row.units_per_usd)})" for row in above)
    return f"Figures that were not measured here stand above it, and are no basis for a purchase: {names}."


def _not_ranked(rows: Sequence[Row]) -> str:
    stopped = [row for row in rows if row.status != "ok"]
    if not stopped:
        return ""
    listed = ", ".join(f"{name_of(row)} ({row.outcome})" for row in stopped)
    return f"Without a rank, and listed below with the cause: {listed}."


def _by_speed(best: Row) -> Answer:
    """Answer by speed: no measured row has a price, because rows with a price are ranked first."""
    sentence = (
        f"{best.mode_label} on {best.instance} is fastest, at {rate(best.throughput_per_s)} {unit_of(best)} a second; "
        "no price is known, so cost is unknown."
    )
    grounds = [f"{_how(best)}."]
    if best.speedup_vs_reference is not None and not best.is_reference:
        grounds.append(f"That is {ratio(best.speedup_vs_reference)} the reference: {best.verdict or 'no verdict'}.")
    if best.device == "cpu":
        grounds.append("It ran on a CPU, whose speed does not predict a GPU's.")
    grounds.append("Give the price with `fp8bench run --price`, or in the instance's instance.yaml.")
    return Answer(sentence, tuple(grounds), best)


def _nothing_measured(rows: Sequence[Row], ran: Sequence[Row]) -> Answer:
    figures = [row for row in ran if row.source != "measured"]
    rest = (_not_ranked(rows),) if _not_ranked(rows) else ()
    if figures:
        first = figures[0]
        per_usd = f": {rate(first.units_per_usd)} {unit_of(first)} for a dollar" if first.units_per_usd else ""
        sentence = f"Nothing here was measured. Of {first.source} figures, {name_of(first)} stands first{per_usd}."
        return Answer(sentence, ("Run `fp8bench run` on the instance before you choose it.", *rest))
    if ran:
        return Answer("Nothing can be said of money or of fp8: every row is an emulation.", rest)
    return Answer("No row is a valid measurement, so there is no answer.", rest)


def _reference(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.is_reference), None)

"""The answer in a sentence: which mode on which instance, how much more it buys, and how sure that is.

Every number is a row's own, and written as the table writes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8bench.report.run.row import Comparison, Row
from fp8bench.report.written import gain_bounds, number, rate


@dataclass(frozen=True)
class Answer:
    """best: the row that the sentence is about; None: there is none. grounds: sentences that a reader needs with it."""

    sentence: str
    grounds: tuple[str, ...]
    best: Row | None = None


def name_of(row: Row) -> str:
    """`h200-1x te-fp8:delayed`: what charts and sentences call it."""
    return f"{row.instance} {row.mode_label}"


def detail_of(row: Row) -> str:
    """`eager, batch 256 x 2`: what keeps it apart from others of that name."""
    worker = f" x {row.world_size}" if row.world_size > 1 else ""
    reported = "" if row.source == "measured" else f", {row.source}"
    return f"{f'{row.execution}, ' if row.execution else ''}batch {row.batch_size}{worker}{reported}"


def unit_of(row: Row) -> str:
    """`images`."""
    return row.unit or "units"


def answer(comparison: Comparison) -> Answer:
    """The best row that was measured; of rows that are not ok, and of an emulation's time, nothing is concluded."""
    ran = [row for row in comparison.rows if row.status == "ok"]
    measured = [row for row in ran if row.source == "measured" and not row.emulated]
    if not measured:
        return _nothing_measured(comparison.rows, ran)
    best = measured[0]
    if best.units_per_usd is None:
        return _by_speed(best, measured)
    sentence = (
        f"{best.mode_label} on {best.instance} buys most: {rate(best.units_per_usd)} {unit_of(best)} for a dollar"
    )
    grounds = [
        _how(best),
        _against_reference(best, comparison.rows),
        _rivals(best, measured),
        _reported_above(best, ran),
        _price(best),
        _not_ranked(comparison.rows),
    ]
    return Answer(f"{sentence}{_more(best, comparison.rows)}.", tuple(text for text in grounds if text), best)


def gain_of(row: Row) -> str:
    """`24.9 % more (24.5 to 25.3)`; empty where it has none."""
    if row.gain_vs_reference is None or row.is_reference:
        return ""
    more = row.gain_vs_reference >= 0
    sign = 1 if more else -1
    text = f"{number(sign * row.gain_vs_reference, '.1f', 100)} % {'more' if more else 'fewer'}"
    if row.gain_ci_vs_reference is None:
        return text
    low, high = row.gain_ci_vs_reference
    return f"{text} (95 % interval {gain_bounds(low, high, lambda end: f'{end * 100:+.1f}')} %)"


def _more(best: Row, rows: Sequence[Row]) -> str:
    reference = _reference(rows)
    if reference is None or best.is_reference or not gain_of(best):
        return ""
    return f", {number(abs(best.gain_vs_reference or 0), '.1f', 100)} % {'more' if (best.gain_vs_reference or 0) >= 0 else 'fewer'} than {reference.mode_label} on {reference.instance}"


def _how(best: Row) -> str:
    rounds = "1 round" if best.rounds == 1 else f"{best.rounds} rounds of fresh processes"
    return f"It ran as {detail_of(best)}, training {best.workload}, in {rounds}."


def _against_reference(best: Row, rows: Sequence[Row]) -> str:
    reference = _reference(rows)
    if reference is None:
        return ""
    if best.is_reference:
        return "It is the row that all others are compared with, and none of them buys more."
    against = f"Against {name_of(reference)} ({detail_of(reference)}) that is {gain_of(best)}"
    if best.verdict == "inconclusive":
        return f"{against}: inconclusive, since {best.verdict_why}."
    return f"{against}: {best.verdict}." if best.verdict else f"{against}, without a verdict."


def _rivals(best: Row, measured: Sequence[Row]) -> str:
    """Those whose intervals reach into the best row's: which of them is best is not known."""
    if best.gain_ci_vs_reference is None:
        close = [row for row in measured if best.is_reference and row.verdict == "inconclusive"]
    else:
        low = best.gain_ci_vs_reference[0]
        close = [row for row in measured if row is not best and _reaches(row, low)]
    if not close:
        return ""
    names = ", ".join(f"{name_of(row)} ({detail_of(row)})" for row in close)
    return f"Not told apart from it, as intervals overlap: {names}. Measure more rounds before you choose between them."


def _reaches(row: Row, low: float) -> bool:
    if row.gain_ci_vs_reference is not None:
        return row.gain_ci_vs_reference[1] >= low
    return row.is_reference and low <= 0


def _reported_above(best: Row, ran: Sequence[Row]) -> str:
    above = [row for row in ran[: ran.index(best)] if row.source != "measured"]
    if not above:
        return ""
    names = ", ".join(f"{name_of(row)} ({rate(row.units_per_usd)})" for row in above)
    return f"Figures that were not measured here stand above it, and are no ground for a purchase: {names}."


def _price(best: Row) -> str:
    of = f"as of {best.price_as_of}" if best.price_as_of else "without a date"
    return f"Price: {number(best.usd_per_hour, ',.2f')} USD an hour, {of}. Measured on {day_of(best)}."


def day_of(row: Row) -> str:
    """Of its latest round, as its run's id begins."""
    day = row.run_id[:8]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}" if day.isdecimal() else "an unknown day"


def _not_ranked(rows: Sequence[Row]) -> str:
    stopped = [row for row in rows if row.status != "ok"]
    if not stopped:
        return ""
    told = ", ".join(f"{name_of(row)} ({row.outcome})" for row in stopped)
    return f"Without a rank, since {'it' if len(stopped) == 1 else 'they'} did not run as {'it' if len(stopped) == 1 else 'they'} should: {told}."


def _by_speed(best: Row, measured: Sequence[Row]) -> Answer:
    """No measured row has a price, as rows with one go first."""
    kind = "a CPU, whose speed says nothing about a GPU's" if best.device == "cpu" else f"{best.instance}"
    sentence = (
        f"{best.mode_label} on {best.instance} is fastest, at {rate(best.throughput_per_s)} {unit_of(best)} a second; "
        "no price is known, so nothing is said of money."
    )
    held = (
        []
        if best.speedup_vs_reference is None or best.is_reference
        else [f"That is {best.speedup_vs_reference:.2f} times the reference: {best.verdict or 'no verdict'}."]
    )
    hint = "Give the price with `fp8bench run --price`, or in the instance's instance.yaml."
    return Answer(sentence, (_how(best), *held, *([f"It ran on {kind}."] if best.device == "cpu" else []), hint), best)


def _nothing_measured(rows: Sequence[Row], ran: Sequence[Row]) -> Answer:
    emulated = [row for row in ran if row.emulated]
    figures = [row for row in ran if row.source != "measured"]
    if figures:
        first = figures[0]
        per_usd = f": {rate(first.units_per_usd)} {unit_of(first)} for a dollar" if first.units_per_usd else ""
        sentence = f"Nothing here was measured. Of {first.source} figures, {name_of(first)} stands first{per_usd}."
        return Answer(sentence, ("Run `fp8bench run` there before you choose.", _not_ranked(rows)))
    if emulated:
        return Answer("Nothing can be said of money: every row is an emulation.", (_not_ranked(rows),))
    return Answer("No row ran as it should, so there is no answer.", (_not_ranked(rows),))


def _reference(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.is_reference), None)

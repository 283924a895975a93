"""Rows as charts. Their numbers are those of the table, and come from the rows; raw samples come from the records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from fp8bench.kinds.run.explain.choice import profiled
from fp8bench.kinds.run.explain.document import LOOKS
from fp8bench.kinds.run.explain.steps import StepBreakdown, explain_steps
from fp8bench.kinds.run.page.answer import detail_of, name_of, unit_of
from fp8bench.kinds.run.row import Row
from fp8bench.pricing import cost
from fp8bench.pricing.cost import front as front_of
from fp8bench.profiling.facts import StepFacts, facts_of
from fp8bench.report.page.bars import Bar, Bars, Stack, Stacks
from fp8bench.report.page.drawing import Chart
from fp8bench.report.page.scatter import Point, Scatter
from fp8bench.report.page.strips import Strip, Strips
from fp8bench.report.written import change, number, rate
from fp8bench.schema.record import Record
from fp8bench.stats.steps import longest_rank

MOST_DRAWN = 24
"""The most rows of a chart, whose title says if there are more; the table has all."""

DrawnT = TypeVar("DrawnT")

MILLION = 1e6


@dataclass(frozen=True)
class Shown:
    """A row, its place in the table from 1, and its rounds with their samples; a figure from elsewhere has none."""

    number: int
    row: Row
    rounds: tuple[Record, ...]


PLOTS: dict[str, str] = {
    "price-performance": "what a dollar buys",
    "time-cost": "time against cost",
    "speed": "units a second",
    "steps": "every timed step",
    "breakdown": "where the step goes",
    "memory": "peak memory",
    "energy": "energy a unit",
}
"""The charts that can be drawn, and what each shows."""


def charts(shown: Sequence[Shown], job: float = MILLION) -> dict[str, Chart]:
    """Return charts by name, if they have anything to draw, in the order of PLOTS. job: units for time against cost."""
    ran = [one for one in shown if one.row.status == "ok"]
    if not ran:
        return {}
    # Images and tokens cannot share a chart: only rows with the first row's unit are drawn.
    unit = unit_of(ran[0].row)
    ran = [one for one in ran if unit_of(one.row) == unit]
    made = (
        _value(ran, unit),
        _time_cost(ran, unit, job),
        _speed(ran, unit),
        _steps(ran),
        _breakdown(ran, unit),
        _memory(ran),
        _energy(ran, unit),
    )
    return {chart.name: chart for chart in made if chart is not None}


def _first(found: Sequence[DrawnT]) -> tuple[Sequence[DrawnT], str]:
    """Return the items that are drawn, and the end of a title that says so if these are not all."""
    rest = f", the first {MOST_DRAWN} of {len(found)} rows" if len(found) > MOST_DRAWN else ""
    return found[:MOST_DRAWN], rest


def _look(one: Shown, first: Shown) -> dict[str, str]:
    """Return the look: of the best, of the reference, or outlines for what was not measured here."""
    if one.row.source != "measured":
        return {"look": "reported", "edge": "faint"}
    return {"look": "reference" if one.row.is_reference else "first" if one is first else "other"}


def _bars(
    name: str,
    title: str,
    caption: str,
    ran: Sequence[Shown],
    value: Callable[[Row], float | None],
    said: Callable[[Row], str],
    interval: Callable[[Row], tuple[float, float] | None],
    detail: Callable[[Row], str] = detail_of,
    broken: bool = False,
    greatest_first: bool = False,
) -> Bars | None:
    """Return bars. value: None if a row has no bar. broken: whether a broken line marks the reference."""
    known = [(one, found) for one in ran if (found := value(one.row)) is not None]
    if not known:
        return None
    drawn, rest = _first(known)
    if greatest_first:
        drawn = sorted(drawn, key=lambda pair: -pair[1])
    there = [one for one, _ in drawn]
    first = next((one for one in there if one.row.source == "measured"), there[0])
    bars = tuple(
        Bar(
            one.number,
            name_of(one.row),
            detail(one.row),
            found,
            said(one.row),
            interval(one.row),
            **_look(one, first),
        )
        for one, found in drawn
    )
    line = next((found for one, found in drawn if one.row.is_reference), None) if broken else None
    return Bars(name, f"{title}{rest}", caption.format(drawn=_how_drawn(there, broken)), bars, line)


def _value(ran: Sequence[Shown], unit: str) -> Chart | None:
    return _bars(
        "price-performance",
        f"{unit.capitalize()} for a dollar",
        "More is better. {drawn}",
        ran,
        lambda row: row.units_per_usd,
        lambda row: rate(row.units_per_usd),
        lambda row: row.units_per_usd_ci,
        _detail_with_gain,
        broken=True,
    )


def _how_drawn(there: Sequence[Shown], broken: bool) -> str:
    """Say what the looks of these bars mean. broken: whether a broken line marks the reference."""
    measured = [one for one in there if one.row.source == "measured"]
    said = []
    if any(one.row.step_time_ci_s is not None for one in there):
        said.append("A line over a bar is its 95 % interval.")
    if any(one.row.is_reference for one in measured):
        said.append("The reference is brown.")
    if broken and any(one.row.is_reference for one in there):
        said.append("A broken line is the reference.")
    if len(measured) < len(there):
        said.append("Outlined bars are figures that were not measured here.")
    return " ".join(said)


def _detail_with_gain(row: Row) -> str:
    """Return e.g. `eager, batch 256: +24.9 % (+24.5 to +25.3)`."""
    if row.is_reference:
        return f"{detail_of(row)}: reference"
    if row.gain_vs_reference is None:
        return detail_of(row)
    gain = change(row.gain_vs_reference, row.gain_ci_vs_reference)
    return f"{detail_of(row)}: {gain}{'?' if row.verdict == 'inconclusive' else ''}"


def _speed(ran: Sequence[Shown], unit: str) -> Chart | None:
    return _bars(
        "speed",
        f"{unit.capitalize()} a second",
        "All GPUs of a row together. {drawn}",
        ran,
        lambda row: row.throughput_per_s,
        lambda row: rate(row.throughput_per_s),
        lambda row: row.throughput_ci_per_s,
        greatest_first=True,
    )


def _memory(ran: Sequence[Shown]) -> Chart | None:
    return _bars(
        "memory",
        "Peak memory, GiB a GPU",
        "Less leaves room for a larger batch. Of torch's allocator, the fullest GPU of any round.",
        ran,
        lambda row: None if row.peak_memory_bytes is None else row.peak_memory_bytes * 2.0**-30,
        lambda row: number(row.peak_memory_bytes, ".1f", 2**-30),
        lambda _row: None,
    )


def _energy(ran: Sequence[Shown], unit: str) -> Chart | None:
    return _bars(
        "energy",
        f"Energy, J {_a(unit)}",
        "Less is better. What the GPUs drew, and nothing else of the host; a line goes from the least to the most of "
        "any round.",
        ran,
        lambda row: row.joules_per_unit,
        lambda row: number(row.joules_per_unit, ".3g"),
        lambda row: row.joules_per_unit_range,
    )


def _a(units: str) -> str:
    """Return e.g. `an image`."""
    return f"{'an' if units[:1] in 'aeio' else 'a'} {units.removesuffix('s')}"


def _time_cost(ran: Sequence[Shown], unit: str, job: float) -> Chart | None:
    there, rest = _first([one for one in ran if one.row.units_per_usd and one.row.throughput_per_s])
    if not there:
        return None
    hours = [cost.job_hours(job, one.row.throughput_per_s or 1.0) for one in there]
    usd = [cost.job_usd(job, one.row.units_per_usd or 1.0) for one in there]
    front = front_of(list(zip(hours, usd, strict=True)))
    scale, time_unit = _time_unit(max(hours))
    points = tuple(
        Point(
            one.number,
            name_of(one.row),
            time * scale,
            money,
            f"{detail_of(one.row)}: {time_said(time)}, {money:,.2f} USD",
            _ends(one.row, time * scale, money),
            best,
        )
        for one, time, money, best in zip(there, hours, usd, front, strict=True)
    )
    return Scatter(
        "time-cost",
        f"Time against cost of {count_said(job)} {unit}{rest}",
        "Down and left is better. Full points are the Pareto front: no other row is both as quick and as cheap. "
        "A line through a point is its 95 % interval. Axes do not begin at zero.",
        time_unit,
        "USD",
        points,
    )


def _ends(row: Row, time: float, money: float) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return the ends of the interval. Prices are exact: time and cost both vary with the step's time."""
    if row.step_time_s is None or row.step_time_ci_s is None:
        return None
    low, high = (end / row.step_time_s for end in row.step_time_ci_s)
    return (time * low, money * low), (time * high, money * high)


def _time_unit(longest_h: float) -> tuple[float, str]:
    if longest_h < 2:
        return 60.0, "minutes"
    return (1.0, "hours") if longest_h < 72 else (1 / 24, "days")


def time_said(hours: float) -> str:
    """Write hours, e.g. `22.7 min`, `34.1 h`, `5.2 days`."""
    scale, unit = _time_unit(hours)
    return f"{hours * scale:.1f} {'min' if unit == 'minutes' else 'h' if unit == 'hours' else unit}"


def count_said(units: float) -> str:
    """Write a count, e.g. `1 million`, `90 million`, `2.5 billion`, `800`."""
    for scale, word in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if units >= scale:
            return f"{units / scale:,.6g}{word}"
    return f"{units:,.6g}"


def _steps(ran: Sequence[Shown]) -> Chart | None:
    measured, rest = _first([one for one in ran if any(record.samples for record in one.rounds)])
    if not measured:
        return None
    return Strips(
        "steps",
        f"Every timed step, by round{rest}",
        "A dot is a step, a line of dots a round in processes of its own (r1, r2, ...), an upright line the round's "
        "mean. Across: how far from the row's median, on a scale that is even to 1 % and logarithmic beyond. Rounds "
        "that lie apart, or a tail, mean that one run alone would have misled.",
        tuple(map(_strip, measured)),
    )


def _strip(one: Shown) -> Strip:
    rounds = tuple(
        tuple(longest_rank([rank.step_s for rank in record.samples])) for record in one.rounds if record.samples
    )
    steps = [step for steps in rounds for step in steps]
    said = f"{median(steps) * 1e3:.1f} ms, longest {max(steps) * 1e3:.1f}"
    return Strip(one.number, name_of(one.row), f"{detail_of(one.row)}: {said}", rounds)


def facts_shown(one: Shown) -> StepFacts | None:
    """Return the facts of the profiled round nearest the row's step time; None if no round was profiled."""
    nearest = profiled(one.rounds, one.row)
    return None if nearest is None else replace(facts_of(nearest), step_time_s=one.row.step_time_s)


def _step_of(one: Shown) -> StepBreakdown | None:
    facts = facts_shown(one)
    return None if facts is None else explain_steps(facts, None).modes[0]


def _breakdown(ran: Sequence[Shown], unit: str) -> Chart | None:
    found, rest = _first([(one, step) for one in ran if (step := _step_of(one)) is not None])
    if not found:
        return None
    longest_ms = max(step.length_s / one.row.batch_size * 1e3 for one, step in found)
    digits = 2 if longest_ms >= 1 else 3
    stacks = tuple(
        Stack(
            one.number,
            name_of(one.row),
            f"{detail_of(one.row)}: {number(one.row.step_time_s, '.1f', 1e3)} ms a step",
            f"{step.length_s / one.row.batch_size * 1e3:.{digits}f}",
            tuple((name, seconds / one.row.batch_size * 1e3) for name, seconds in step.parts()),
        )
        for one, step in found
    )
    return Stacks(
        "breakdown",
        f"Where the step goes, ms {_a(unit)} of one worker{rest}",
        "By kind of kernel, from a short profile of rank 0 after the timed steps. A step is divided by its batch, so "
        "that rows of unlike batches can be compared.",
        stacks,
        tuple(LOOKS.items()),
        lambda milliseconds: f"{milliseconds:.{digits}f}",
    )


def by_run(records: Mapping[str, Record], row: Row) -> tuple[Record, ...]:
    """Return the row's rounds, oldest first."""
    return tuple(records[run_id] for run_id in row.run_ids)

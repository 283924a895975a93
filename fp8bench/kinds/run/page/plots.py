"""Rows as charts. Their numbers are those of the table, and come from the rows; the raw samples from the records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fp8bench.kinds.run.page.answer import detail_of, name_of, unit_of
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.steps import IDLE, PARTS, StepBreakdown, explain_steps
from fp8bench.pricing import cost
from fp8bench.pricing.cost import front as front_of
from fp8bench.profiling.facts import Facts, facts_of
from fp8bench.report.page.bars import Bar, Bars, Stack, Stacks
from fp8bench.report.page.charts import Chart
from fp8bench.report.page.drawing import Look
from fp8bench.report.page.scatter import Point, Scatter
from fp8bench.report.page.strips import Strip, Strips
from fp8bench.report.written import change, number, rate
from fp8bench.schema.record import Record
from fp8bench.stats.steps import longest_rank

MOST_DRAWN = 24
"""Rows; the table has all."""

MILLION = 1e6

LOOKS: tuple[tuple[str, Look], ...] = (
    *((name, f"part-{place}") for place, name in enumerate(PARTS.values(), start=1)),
    (IDLE, "idle"),
)


@dataclass(frozen=True)
class Shown:
    """A row, its place in the table from 1, and its rounds with their samples; none of a figure from elsewhere."""

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
"""What can be drawn, and what it shows."""


def charts(shown: Sequence[Shown], job: float = MILLION) -> dict[str, Chart]:
    """By name, those that have anything to draw, in the order of PLOTS. job: units that time against cost is for."""
    ran = _of_one_unit([one for one in shown if one.row.status == "ok"])
    made: dict[str, Chart | None] = {
        "price-performance": _value(ran),
        "time-cost": _time_cost(ran, job),
        "speed": _speed(ran),
        "steps": _steps(ran),
        "breakdown": _breakdown(ran),
        "memory": _memory(ran),
        "energy": _energy(ran),
    }
    rest = f" The first {MOST_DRAWN} rows; the table has all." if len(ran) > MOST_DRAWN else ""
    return {name: replace(chart, caption=chart.caption + rest) for name, chart in made.items() if chart is not None}


def _of_one_unit(ran: Sequence[Shown]) -> list[Shown]:
    """An image is no token: those of the first row's."""
    return [one for one in ran if one.row.unit == ran[0].row.unit]


def _drawn(some: Sequence[Shown], has: Callable[[Row], object]) -> list[Shown]:
    return [one for one in some if has(one.row) is not None][:MOST_DRAWN]


def _of(there: Sequence[Shown]) -> str:
    return unit_of(there[0].row)


def _look(one: Shown, first: Shown) -> dict[str, str]:
    """The best one's, the reference's, and outlines alone for what was not measured here."""
    if one.row.source != "measured":
        return {"look": "reported", "edge": "faint"}
    return {"look": "reference" if one.row.is_reference else "first" if one is first else "other"}


def _bars(
    name: str,
    title: str,
    caption: str,
    there: Sequence[Shown],
    value: Callable[[Row], float],
    said: Callable[[Row], str],
    interval: Callable[[Row], tuple[float, float] | None],
    detail: Callable[[Row], str] = detail_of,
    mark: bool = False,
) -> Bars | None:
    if not there:
        return None
    measured = [one for one in there if one.row.source == "measured"]
    first = measured[0] if measured else there[0]
    bars = tuple(
        Bar(
            one.number,
            name_of(one.row),
            detail(one.row),
            value(one.row),
            said(one.row),
            interval(one.row),
            **_look(one, first),
        )
        for one in there
    )
    reference = next((one.row for one in there if one.row.is_reference), None)
    line = value(reference) if reference is not None and mark else None
    return Bars(name, title, caption, bars, line)


def _value(ran: Sequence[Shown]) -> Chart | None:
    there = _drawn(ran, lambda row: row.units_per_usd)
    return _bars(
        "price-performance",
        f"{_of(there).capitalize()} for a dollar" if there else "",
        f"More is better. {_how_drawn(there, mark=True)}",
        there,
        lambda row: row.units_per_usd or 0.0,
        lambda row: rate(row.units_per_usd),
        lambda row: row.units_per_usd_ci,
        _detail_with_gain,
        mark=True,
    )


def _how_drawn(there: Sequence[Shown], mark: bool = False) -> str:
    """What the looks of bars mean, of those that there are. mark: a broken line is the reference."""
    measured = [one for one in there if one.row.source == "measured"]
    said = []
    if any(one.row.step_time_ci_s is not None for one in there):
        said.append("A line over a bar is its 95 % interval.")
    if any(one.row.is_reference for one in measured):
        said.append("The reference is brown.")
    if mark and any(one.row.is_reference for one in there):
        said.append("A broken line is the reference.")
    if len(measured) < len(there):
        said.append("Outlined bars are figures that were not measured here.")
    return " ".join(said)


def _detail_with_gain(row: Row) -> str:
    """`eager, batch 256: +24.9 % (+24.5 to +25.3)`."""
    if row.is_reference:
        return f"{detail_of(row)}: reference"
    if row.gain_vs_reference is None:
        return detail_of(row)
    gain = change(row.gain_vs_reference, row.gain_ci_vs_reference)
    return f"{detail_of(row)}: {gain}{'?' if row.verdict == 'inconclusive' else ''}"


def _speed(ran: Sequence[Shown]) -> Chart | None:
    there = _drawn(ran, lambda row: row.throughput_per_s)
    there.sort(key=lambda one: -(one.row.throughput_per_s or 0))
    return _bars(
        "speed",
        f"{_of(there).capitalize()} a second" if there else "",
        f"All GPUs of a row together. {_how_drawn(there)}",
        there,
        lambda row: row.throughput_per_s or 0.0,
        lambda row: rate(row.throughput_per_s),
        lambda row: row.throughput_ci_per_s,
    )


def _memory(ran: Sequence[Shown]) -> Chart | None:
    there = _drawn(ran, lambda row: row.peak_memory_bytes)
    return _bars(
        "memory",
        "Peak memory, GiB a GPU",
        "Less leaves room for a larger batch. Of torch's allocator, the fullest GPU of any round.",
        there,
        lambda row: (row.peak_memory_bytes or 0) * 2.0**-30,
        lambda row: number(row.peak_memory_bytes, ".1f", 2**-30),
        lambda _row: None,
    )


def _energy(ran: Sequence[Shown]) -> Chart | None:
    there = _drawn(ran, lambda row: row.joules_per_unit)
    one = _of(there).removesuffix("s") if there else ""
    return _bars(
        "energy",
        f"Energy, J {'an' if one[:1] in 'aeio' else 'a'} {one}",
        "Less is better. What the GPUs drew, and nothing else of the host; a line goes from the least to the most of "
        "any round.",
        there,
        lambda row: row.joules_per_unit or 0.0,
        lambda row: number(row.joules_per_unit, ".3g"),
        lambda row: row.joules_per_unit_range,
    )


def _time_cost(ran: Sequence[Shown], job: float) -> Chart | None:
    there = [one for one in ran if one.row.units_per_usd and one.row.throughput_per_s][:MOST_DRAWN]
    if not there:
        return None
    hours = [cost.job_hours(job, one.row.throughput_per_s or 1.0) for one in there]
    usd = [cost.job_usd(job, one.row.units_per_usd or 1.0) for one in there]
    front = front_of(list(zip(hours, usd, strict=True)))
    points = tuple(
        Point(
            one.number,
            name_of(one.row),
            time,
            money,
            f"{detail_of(one.row)}: {time_said(time)}, {money:,.2f} USD",
            _ends(one.row, time, money),
            best,
        )
        for one, time, money, best in zip(there, hours, usd, front, strict=True)
    )
    scale, unit = _time_unit(max(hours))
    return Scatter(
        "time-cost",
        f"Time against cost of {count_said(job)} {_of(there)}",
        "Down and left is better. Full points are the Pareto front: no other row is both as quick and as cheap. "
        "A line through a point is its 95 % interval. Axes do not begin at zero.",
        unit,
        "USD",
        tuple(replace(point, x=point.x * scale, ends=_scaled(point.ends, scale)) for point in points),
    )


def _ends(row: Row, time: float, money: float) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Prices are exact: both vary as the step's time does."""
    if row.step_time_s is None or row.step_time_ci_s is None:
        return None
    low, high = (end / row.step_time_s for end in row.step_time_ci_s)
    return (time * low, money * low), (time * high, money * high)


def _scaled(
    ends: tuple[tuple[float, float], tuple[float, float]] | None, scale: float
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    return None if ends is None else ((ends[0][0] * scale, ends[0][1]), (ends[1][0] * scale, ends[1][1]))


def _time_unit(longest_h: float) -> tuple[float, str]:
    if longest_h < 2:
        return 60.0, "minutes"
    return (1.0, "hours") if longest_h < 72 else (1 / 24, "days")


def time_said(hours: float) -> str:
    """`22.7 min`, `34.1 h`, `5.2 days`."""
    scale, unit = _time_unit(hours)
    return f"{hours * scale:.1f} {'min' if unit == 'minutes' else 'h' if unit == 'hours' else unit}"


def count_said(units: float) -> str:
    """`1 million`, `90 million`, `2.5 billion`, `800`."""
    for scale, word in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if units >= scale:
            return f"{units / scale:,.6g}{word}"
    return f"{units:,.6g}"


def _steps(ran: Sequence[Shown]) -> Chart | None:
    strips = []
    for one in ran[:MOST_DRAWN]:
        rounds = tuple(
            tuple(longest_rank([rank.step_s for rank in record.samples])) for record in one.rounds if record.samples
        )
        if rounds:
            steps = [step for steps in rounds for step in steps]
            middle, most = median(steps), max(steps)
            said = f"{middle * 1e3:.1f} ms, longest {most * 1e3:.1f}"
            strips.append(Strip(one.number, name_of(one.row), f"{detail_of(one.row)}: {said}", rounds))
    if not strips:
        return None
    return Strips(
        "steps",
        "Every timed step, by round",
        "A dot is a step, a line of dots a round in processes of its own (r1, r2, ...), an upright line the round's "
        "mean. Across: how far from the row's median, on a scale that is even to 1 % and logarithmic beyond. Rounds "
        "that lie apart, or a tail, mean that one run alone would have misled.",
        tuple(strips),
    )


def facts_shown(one: Shown) -> Facts | None:
    """Of the profiled round nearest the row's step time; None where none was profiled."""
    profiled = [record for record in one.rounds if record.profile is not None and record.summary is not None]
    if not profiled or one.row.step_time_s is None:
        return None
    time_s = one.row.step_time_s
    nearest = min(profiled, key=lambda record: abs((record.summary.step_time_s if record.summary else 0.0) - time_s))
    return replace(facts_of(nearest), step_time_s=time_s)


def _step_of(one: Shown) -> StepBreakdown | None:
    facts = facts_shown(one)
    return None if facts is None else explain_steps(facts, None).modes[0]


def _breakdown(ran: Sequence[Shown]) -> Chart | None:
    found = [(one, step) for one in ran if (step := _step_of(one)) is not None][:MOST_DRAWN]
    if not found:
        return None
    unit = _of([one for one, _ in found]).removesuffix("s")
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
        f"Where the step goes, ms {'an' if unit[:1] in 'aeio' else 'a'} {unit} of one worker",
        "By kind of kernel, from a short profile of rank 0 after the timed steps. A step is divided by its batch, so "
        "that rows of unlike batches can be compared.",
        stacks,
        LOOKS,
        lambda milliseconds: f"{milliseconds:.{digits}f}",
    )


def by_run(records: Mapping[str, Record], row: Row) -> tuple[Record, ...]:
    """The row's rounds, oldest first."""
    return tuple(records[run_id] for run_id in row.run_ids)

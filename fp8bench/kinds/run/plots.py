"""Rows as charts. Their numbers are those of the table, and come from the rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.explain import COLOURS, profiled
from fp8bench.kinds.run.row import Row
from fp8bench.pricing import cost
from fp8bench.profiling.facts import StepFacts, facts_of
from fp8bench.schema.record import Record
from fp8bench.tables.row_chart import Bar, Bars, Chart, Item, Point, Scatter, Stack, Stacks
from fp8bench.tables.written import brief_count, change, number, rate, time_said, time_unit_of

MOST_DRAWN = 10
"""The most rows of a chart, which then fits a screen; its title says if there are more. The table has all."""

USUAL_JOB = {"tokens": 1e9}
MILLION = 1e6


@dataclass(frozen=True, eq=False)
class Shown:
    """A row, its place in the table from 1, and its rounds."""

    number: int
    row: Row
    rounds: tuple[Record, ...]

    @property
    def latest(self) -> Record:
        return self.rounds[-1]


def shown_rows(comparison: Comparison, records: Mapping[str, Record]) -> list[Shown]:
    """Return the rows with their records, oldest first. records: by their ids."""
    rounds = (tuple(records[run_id] for run_id in row.run_ids) for row in comparison.rows)
    return [Shown(place, *of) for place, of in enumerate(zip(comparison.rows, rounds, strict=True), start=1)]


def name_of(row: Row) -> str:
    """Return the name in charts and sentences, e.g. `h200-1x te-fp8:delayed`."""
    return f"{row.instance} {row.mode_label}"


def detail_of(row: Row) -> str:
    """Return what distinguishes a row from others of that name, e.g. `eager, batch 256 x 2`."""
    worker = f" x {row.world_size}" if row.world_size > 1 else ""
    reported = ("" if row.source == "measured" else f", {row.source}") + (", emulated" if row.emulated else "")
    return f"{f'{row.execution}, ' if row.execution else ''}batch {row.batch_size}{worker}{reported}"


def unit_of(row: Row) -> str:
    return row.unit or "units"


PLOTS = {
    "price-performance": "what a dollar buys",
    "time-cost": "time against cost",
    "speed": "units a second",
    "breakdown": "where the step goes",
    "memory": "peak memory",
    "energy": "energy a unit",
}
"""The charts that can be drawn, and what each shows."""


def charts(shown: Sequence[Shown], job: float | None = None) -> dict[str, Chart[Any]]:
    """Return charts by name, if they have anything to draw, in the order of PLOTS. job: units for time against cost;
    None for a million, of tokens a billion.
    """
    ran = [one for one in shown if one.row.status == "ok"]
    if not ran:
        return {}
    # Images and tokens cannot share a chart: only rows with the first row's unit are drawn.
    unit = unit_of(ran[0].row)
    ran = [one for one in ran if unit_of(one.row) == unit]
    job = job or USUAL_JOB.get(unit, MILLION)
    title, interval = unit.capitalize(), "A line over the end of a bar is its 95 % interval."
    a_unit = f"{'an' if unit[:1] in 'aeio' else 'a'} {unit.removesuffix('s')}"
    made = (
        _bars(
            "price-performance",
            f"{title} for a dollar",
            f"More is better; on the right, also against the reference. {interval}",
            ran,
            lambda row: row.units_per_usd,
            interval=lambda row: row.units_per_usd_ci,
            remark=_gain,
            broken=True,
        ),
        _time_cost(ran, unit, job),
        _bars(
            "speed",
            f"{title} a second",
            f"More is better; all GPUs of a row together. {interval}",
            sorted(ran, key=lambda one: -(one.row.throughput_per_s or 0.0)),
            lambda row: row.throughput_per_s,
            interval=lambda row: row.throughput_ci_per_s,
        ),
        _breakdown(ran, a_unit),
        _bars(
            "memory",
            "Peak memory, GiB a GPU",
            "Less leaves room for a larger batch. Of torch's allocator, the fullest GPU of any round.",
            ran,
            lambda row: None if row.peak_memory_bytes is None else row.peak_memory_bytes * 2.0**-30,
            lambda gib: f"{gib:.1f}",
        ),
        _bars(
            "energy",
            f"Energy, joules {a_unit}",
            "Less is better. What the GPUs drew, and nothing else of the host. A line over the end of a bar goes from "
            "the least to the most of any round.",
            ran,
            lambda row: row.joules_per_unit,
            lambda joules: f"{joules:.3g}",
            lambda row: row.joules_per_unit_range,
        ),
    )
    return {chart.name: chart for chart in made if chart is not None}


def _drawn(found: Sequence[Shown]) -> tuple[list[Shown], str]:
    """Return the rows that are drawn, the reference among them, and the end of a title if these are not all."""
    drawn = list(found[:MOST_DRAWN])
    if not any(one.row.is_reference for one in drawn):
        drawn[-1:] = [one for one in found if one.row.is_reference] or drawn[-1:]
    return drawn, f", {MOST_DRAWN} of {len(found)} rows" if len(found) > MOST_DRAWN else ""


def _item(one: Shown, value: str, remark: str = "") -> Item:
    return Item(one.number, name_of(one.row), value, detail_of(one.row), remark)


def _bars(
    name: str,
    title: str,
    caption: str,
    ran: Sequence[Shown],
    value: Callable[[Row], float | None],
    form: Callable[[float], str] = rate,
    interval: Callable[[Row], tuple[float, float] | None] = lambda _row: None,
    remark: Callable[[Row], str] = lambda row: "reference" if row.is_reference else "",
    broken: bool = False,
) -> Bars | None:
    # broken: whether a broken line marks the reference.
    found = {one: known for one in ran if (known := value(one.row)) is not None}
    if not found:
        return None
    drawn, rest = _drawn(list(found))
    first = next((one for one in drawn if one.row.source == "measured"), drawn[0])

    def look(one: Shown) -> str:
        if one.row.source != "measured":
            return "reported"
        return "reference" if one.row.is_reference else "first" if one is first else "other"

    bars = tuple(
        Bar(_item(one, form(found[one]), remark(one.row)), found[one], interval(one.row), look(one)) for one in drawn
    )
    line = next((found[one] for one in drawn if one.row.is_reference), None) if broken else None
    said = [caption]
    if "reference" in (looks := {bar.look for bar in bars}):
        said.append("The reference is brown" + (", and a broken line across the others." if broken else "."))
    if "reported" in looks:
        said.append("Outlined bars were not measured here.")
    return Bars(name, f"{title}{rest}", " ".join(said), bars, line)


def _gain(row: Row) -> str:
    gain = change(row.gain_vs_reference, row.gain_ci_vs_reference) + "?" * (row.verdict == "inconclusive")
    return "reference" if row.is_reference else "" if row.gain_vs_reference is None else gain


def _time_cost(ran: Sequence[Shown], unit: str, job: float) -> Chart[Any] | None:
    priced = [one for one in ran if one.row.units_per_usd and one.row.throughput_per_s]
    best: dict[str, Shown] = {}
    for one in sorted(priced, key=lambda one: one.row.units_per_usd or 0.0):
        best[one.row.instance] = one
    several = len(best) > 1
    drawn, rest = _drawn([one for one in priced if not several or one is best[one.row.instance]])
    if not drawn:
        return None
    spent = [
        (cost.job_hours(job, one.row.throughput_per_s or 1.0), cost.job_usd(job, one.row.units_per_usd or 1.0))
        for one in drawn
    ]
    scale, time_unit = time_unit_of(max(spent)[0])

    def point(one: Shown, hours: float, usd: float, on_front: bool) -> Point:
        item = _item(one, f"{time_said(hours)}, {usd:,.2f} USD", "on the front" if on_front else "")
        step, interval = one.row.step_time_s, one.row.step_time_ci_s
        # Prices are exact: time and cost both vary with the step's time.
        ends = [(hours * scale * end / step, usd * end / step) for end in interval] if step and interval else None
        both = (ends[0], ends[1]) if ends else None
        return Point(item, hours * scale, usd, both, on_front, hollow=one.row.source != "measured")

    return Scatter(
        "time-cost",
        f"Time against cost of {brief_count(job)} {unit}{rest}",
        f"Down and left is better{', each instance in its cheapest row' if several else ''}. The stepped line is the "
        "front: no other row is both as quick and as cheap. A line through a point is its 95 % interval; a hollow "
        "point was not measured there. Axes do not begin at zero.",
        tuple(point(one, *of, on) for one, of, on in zip(drawn, spent, cost.front(spent), strict=True)),
        x_title=time_unit,
        y_title="USD",
    )


def facts_shown(one: Shown) -> StepFacts | None:
    """Return the facts of the profiled round nearest the row's step time; None if no round was profiled."""
    nearest = profiled(one.rounds, one.row)
    if nearest is None or one.row.step_time_s is None:
        return None
    return facts_of(nearest, one.row.step_time_s)


def _breakdown(ran: Sequence[Shown], a_unit: str) -> Chart[Any] | None:
    steps = {one: known for one in ran if (known := facts_shown(one)) is not None}
    if not steps:
        return None
    drawn, rest = _drawn(list(steps))
    ms = {one: 1e3 / one.row.batch_size for one in drawn}
    write = ("{:.2f}" if max(steps[one].length_s * ms[one] for one in drawn) >= 1 else "{:.3f}").format

    def stack(one: Shown) -> Stack:
        remark = f"{number(one.row.step_time_s, '.1f', 1e3)} ms a step"
        item = _item(one, f"{write(steps[one].length_s * ms[one])} ms", remark)
        return Stack(item, tuple((name, seconds * ms[one]) for name, seconds in steps[one].parts()))

    return Stacks(
        "breakdown",
        f"Where the step goes, ms {a_unit} of one worker{rest}",
        "By kind of kernel, from a short profile of rank 0 after the timed steps. A step is divided by its batch, so "
        "that rows of unlike batches can be compared.",
        tuple(map(stack, drawn)),
        tuple(COLOURS.items()),
        write,
    )

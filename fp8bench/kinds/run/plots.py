"""Rows as charts. Their numbers are those of the table, and come from the rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fp8bench.kinds.run.explain import COLOURS, profiled
from fp8bench.kinds.run.row import Row
from fp8bench.pricing import cost
from fp8bench.profiling.causes import StepFacts, facts_of
from fp8bench.schema.record import Record
from fp8bench.tables.row_chart import Bar, Bars, Chart, Point, Scatter
from fp8bench.tables.written import brief_count, change, number, rate, time_said, time_unit_of

MOST_DRAWN = 10
"""The most rows of a chart, which then fits a screen; its title says if there are more. The table has all."""

USUAL_JOB = {"tokens": 1e9}
MILLION = 1e6
"""The units whose time and cost are drawn if no job is given."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A row, and its place in the table from 1."""

    number: int
    row: Row

    @property
    def latest(self) -> Record:
        return self.row.measurement.latest

    @cached_property
    def facts(self) -> StepFacts | None:
        """The facts of the profiled round nearest the row's step time; None if no round was profiled."""
        nearest = profiled(self.row.measurement.rounds, self.row)
        if nearest is None or self.row.step_time_s is None:
            return None
        return facts_of(nearest, self.row.step_time_s)


def shown_rows(rows: Iterable[Row]) -> list[Shown]:
    return [Shown(place, row) for place, row in enumerate(rows, start=1)]


def detail_of(row: Row) -> str:
    """Return what distinguishes a row from others of that name, e.g. `eager, batch 256 x 2`."""
    worker = f" x {row.world_size}" if row.world_size > 1 else ""
    reported = ("" if row.source == "measured" else f", {row.source}") + (", emulated" if row.emulated else "")
    return f"{f'{row.execution}, ' if row.execution else ''}batch {row.batch_size}{worker}{reported}"


PLOTS = {
    "price-performance": "what a dollar buys",
    "time-cost": "time against cost",
    "speed": "units a second",
    "breakdown": "where the step goes",
    "memory": "peak memory",
    "energy": "energy a unit",
}
"""The charts that can be drawn, and what each shows."""


def charts(shown: Sequence[Shown]) -> dict[str, Chart]:
    """Return charts by name, if they have anything to draw, in the order of PLOTS."""
    ran = [one for one in shown if one.row.status == "ok"]
    if not ran:
        return {}
    # Images and tokens cannot share a chart: only rows with the first row's unit are drawn.
    unit = ran[0].row.unit or "units"
    ran = [one for one in ran if (one.row.unit or "units") == unit]
    job = ran[0].row.job_units or USUAL_JOB.get(unit, MILLION)
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
            gains=True,
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


def _texts(one: Shown, value: str, remark: str) -> tuple[int, str, str, str, str]:
    return one.number, f"{one.row.instance} {one.row.mode_label}", value, detail_of(one.row), remark


def _bars(
    name: str,
    title: str,
    caption: str,
    ran: Sequence[Shown],
    value: Callable[[Row], float | None],
    form: Callable[[float], str] = rate,
    interval: Callable[[Row], tuple[float, float] | None] = lambda _row: None,
    gains: bool = False,
) -> Bars | None:
    # gains: whether they stand beside the bars, and a broken line marks the reference.
    found = {one: known for one in ran if (known := value(one.row)) is not None}
    if not found:
        return None
    drawn, rest = _drawn(list(found))
    first = next((one for one in drawn if one.row.source == "measured"), drawn[0])
    bars, broken_at = [], None
    for one in drawn:
        row, remark = one.row, ""
        look = "reported" if row.source != "measured" else "first" if one is first else "other"
        if row.is_reference:
            remark, broken_at = "reference", found[one] if gains and broken_at is None else broken_at
            look = "reference" if row.source == "measured" else look
        elif gains and row.gain_vs_reference is not None:
            unsure = "?" * (row.verdict == "inconclusive")
            remark = change(row.gain_vs_reference, row.gain_ci_vs_reference) + unsure
        texts = _texts(one, form(found[one]), remark)
        bars.append(Bar(*texts, parts=((look, found[one]),), interval=interval(row)))
    looks = {name for bar in bars for name, _ in bar.parts}
    if "reference" in looks:
        caption += f" The reference is brown{', and a broken line across the others' if gains else ''}."
    if "reported" in looks:
        caption += " Outlined bars were not measured here."
    return Bars(name, f"{title}{rest}", caption, bars, broken_at=broken_at)


def _time_cost(ran: Sequence[Shown], unit: str, job: float) -> Chart | None:
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

    points = []
    for one, (hours, usd), on_front in zip(drawn, spent, cost.front(spent), strict=True):
        row, texts = one.row, _texts(one, f"{time_said(hours)}, {usd:,.2f} USD", "on the front" if on_front else "")
        # Prices are exact: time and cost both vary with the step's time.
        shares = [end / row.step_time_s for end in row.step_time_ci_s or ()] if row.step_time_s else []
        ends = tuple((hours * scale * share, usd * share) for share in shares)
        hollow = row.source != "measured"
        points.append(Point(*texts, x=hours * scale, y=usd, ends=ends, front=on_front, hollow=hollow))
    return Scatter(
        "time-cost",
        f"Time against cost of {brief_count(job)} {unit}{rest}",
        f"Down and left is better{', each instance in its cheapest row' if several else ''}. The stepped line is the "
        "front: no other row is both as quick and as cheap. A line through a point is its 95 % interval; a hollow "
        "point was not measured there. Axes do not begin at zero.",
        points,
        x_title=time_unit,
        y_title="USD",
    )


def _breakdown(ran: Sequence[Shown], a_unit: str) -> Chart | None:
    steps = {one: one.facts for one in ran if one.facts is not None}
    if not steps:
        return None
    drawn, rest = _drawn(list(steps))
    ms = {one: 1e3 / one.row.batch_size for one in drawn}
    write = ("{:.2f}" if max(steps[one].length_s * ms[one] for one in drawn) >= 1 else "{:.3f}").format
    bars = []
    for one in drawn:
        remark = f"{number(one.row.step_time_s, '.1f', 1e3)} ms a step"
        texts = _texts(one, f"{write(steps[one].length_s * ms[one])} ms", remark)
        bars.append(Bar(*texts, parts=tuple((name, seconds * ms[one]) for name, seconds in steps[one].parts())))
    return Bars(
        "breakdown",
        f"Where the step goes, ms {a_unit} of one worker{rest}",
        "By kind of kernel, from a short profile of rank 0 after the timed steps. A step is divided by its batch, so "
        "that rows of unlike batches can be compared.",
        bars,
        COLOURS,
        write_part=write,
    )

"""Charts of rows: what a dollar buys, time against cost, speed, where the step goes, memory and energy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fp8bench.kinds.run.columns import COLUMNS
from fp8bench.kinds.run.explain import COLOURS, profiled
from fp8bench.kinds.run.row import Row
from fp8bench.pricing import cost
from fp8bench.profiling.causes import StepFacts, facts_of
from fp8bench.schema.execution import executed
from fp8bench.tables.row_chart import Bar, Bars, Chart, Point, Scatter
from fp8bench.tables.written import brief_count, change, number, time_said, time_unit_of

MOST_DRAWN = 10
"""The most rows of a chart, which then fits a screen; its title says if there are more. The table has all."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A row, and its place in the table from 1."""

    number: int
    row: Row

    @cached_property
    def facts(self) -> StepFacts | None:
        """The facts of the profiled round nearest the row's step time; None if no round was profiled."""
        nearest, step_s = profiled(self.row), self.row.step_time_s
        return None if nearest is None or step_s is None else facts_of(nearest, step_s)


def shown_rows(rows: Iterable[Row]) -> list[Shown]:
    return [Shown(place, row) for place, row in enumerate(rows, start=1)]


def detail_of(row: Row) -> str:
    """Return what distinguishes a row from others of that name, e.g. `compiled, CUDA graph, batch 256 x 2`."""
    batch = f"batch {row.batch_size}" + (f" x {row.world_size}" if row.world_size > 1 else "")
    source, emulated = None if row.source == "measured" else row.source, "emulated" if row.emulated else None
    return ", ".join(filter(None, (executed(row.execution), batch, source, emulated)))


PLOTS = ("price-performance", "time-cost", "speed", "breakdown", "memory", "energy")
"""The charts that can be drawn."""

INTERVAL = "A line over the end of a bar is its 95 % interval."
CAPTIONS = {
    "price-performance": f"More is better; on the right, also against the reference of its batch. {INTERVAL}",
    "speed": f"More is better; all GPUs of a row together. {INTERVAL}",
    "memory": "Less leaves room for a larger batch. Of torch's allocator, the fullest GPU of any round.",
    "energy": "Less is better. What the GPUs drew, and nothing else of the host. A line over the end of a bar goes "
    "from the least to the most of any round.",
}
"""How to read the charts of bars."""


def charts(shown: Sequence[Shown]) -> dict[str, Chart]:
    """Return charts by name, if they have anything to draw, in the order of PLOTS."""
    ran = [one for one in shown if one.row.status == "ok"]
    if not ran:
        return {}
    # Images and tokens cannot share a chart: only rows with the first row's unit are drawn.
    unit = ran[0].row.unit or "units"
    ran = [one for one in ran if (one.row.unit or "units") == unit]
    a_unit = f"{'an' if unit[:1] in 'aeio' else 'a'} {unit.removesuffix('s')}"
    by_speed = sorted(ran, key=lambda one: -(one.row.throughput_per_s or 0.0))
    made = (
        _bars("price-performance", f"{unit.capitalize()} for a dollar", ran, "value", "units_per_usd_ci"),
        _time_cost(ran, unit, ran[0].row.job_units or (1e9 if unit == "tokens" else 1e6)),
        _bars("speed", f"{unit.capitalize()} a second", by_speed, "throughput", "throughput_ci_per_s"),
        _breakdown(ran, a_unit),
        _bars("memory", "Peak memory, GiB a GPU", ran, "memory"),
        _bars("energy", f"Energy, joules {a_unit}", ran, "energy", "joules_per_unit_range"),
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


def _bars(name: str, title: str, ran: Sequence[Shown], of: str, interval: str = "") -> Bars | None:
    """Return a bar for each row. of: a column of COLUMNS; `value` has gains beside it. interval: a field of a row."""
    column, caption, gains = COLUMNS[of], CAPTIONS[name], of == "value"
    found = {one: known for one in ran if (known := column.value(one.row)) is not None}
    if not found:
        return None
    drawn, rest = _drawn(list(found))
    first = next((one for one in drawn if one.row.source == "measured"), drawn[0])
    bars, looks = [], set()
    for one in drawn:
        row, remark = one.row, "reference" if one.row.is_reference else ""
        look = remark or ("first" if one is first else "other") if row.source == "measured" else "reported"
        if gains and not row.is_reference and row.gain_vs_reference is not None:
            unsure = "?" * (row.verdict == "inconclusive")
            remark = change(row.gain_vs_reference, row.gain_ci_vs_reference) + unsure
        looks.add(look)
        texts = _texts(one, column.text(row), remark)
        bars.append(Bar(*texts, parts=((look, found[one]),), interval=getattr(row, interval, None)))
    # Rows of unlike batches have references of their own, and no line across all bars.
    references = [found[one] for one in drawn if one.row.is_reference]
    alike = len(references) == len({one.row.batch_size for one in drawn}) == 1
    broken_at = references[0] if gains and alike else None
    signs = ["brown"] if "reference" in looks else []
    signs += ["a broken line across the others"] if broken_at else []
    if signs:
        caption += f" The reference is {', and '.join(signs)}."
    if any(bar.remark.endswith("?") for bar in bars):
        caption += " ?: not decided."
    if "reported" in looks:
        caption += " Outlined bars were not measured here."
    return Bars(name, f"{title}{rest}", caption, bars, broken_at=broken_at)


def _time_cost(ran: Sequence[Shown], unit: str, job: float) -> Chart | None:
    priced = [one for one in ran if one.row.units_per_usd and one.row.throughput_per_s]
    best = {one.row.instance: one for one in sorted(priced, key=lambda one: one.row.units_per_usd or 0.0)}
    several = len(best) > 1
    drawn, rest = _drawn([one for one in priced if not several or one is best[one.row.instance]])
    if not drawn:
        return None
    known = ((one.row.throughput_per_s or 1.0, one.row.units_per_usd or 1.0) for one in drawn)
    spent = [(cost.job_hours(job, per_s), cost.job_usd(job, per_usd)) for per_s, per_usd in known]
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
    write = ("{:.2f}" if max(1e3 * steps[one].length_s / one.row.batch_size for one in drawn) >= 1 else "{:.3f}").format
    bars = []
    for one in drawn:
        facts, ms = steps[one], 1e3 / one.row.batch_size
        texts = _texts(one, f"{write(facts.length_s * ms)} ms", f"{number(one.row.step_time_s, '.1f', 1e3)} ms a step")
        bars.append(Bar(*texts, parts=tuple((name, seconds * ms) for name, seconds in facts.parts())))
    return Bars(
        "breakdown",
        f"Where the step goes, ms {a_unit} of one worker{rest}",
        "By kind of kernel, from a short profile of rank 0 after the timed steps. A step is divided by its batch, so "
        "that rows of unlike batches can be compared.",
        bars,
        COLOURS,
        write_part=write,
    )

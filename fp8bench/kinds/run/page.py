"""The page about runs: the answer, what a dollar buys, and everything that the answer rests on; and charts of rows."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import chain
from operator import attrgetter

from fp8bench import __version__
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.explain import COLOURS, explain_steps, profiled
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.sentences import sentences
from fp8bench.kinds.run.shown import FEW_INSTANCES, document
from fp8bench.pricing import cost
from fp8bench.profiling.causes import StepFacts, facts_of
from fp8bench.records.select import grouped
from fp8bench.schema.execution import executed
from fp8bench.schema.machine import checkout_of
from fp8bench.schema.rank import Evidence, ExecutedEvidence, Parity
from fp8bench.schema.record import Provenance
from fp8bench.tables.document import NOTHING, Cells, Note, Table, telling
from fp8bench.tables.page import Page, Part, Section
from fp8bench.tables.row_chart import Bar, Bars, Chart, Point, Scatter
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import brief_count, change, number, rate, time_said, time_unit_of

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
    title, interval = unit.capitalize(), "A line over the end of a bar is its 95 % interval."
    a_unit = f"{'an' if unit[:1] in 'aeio' else 'a'} {unit.removesuffix('s')}"
    made = (
        _bars(
            "price-performance",
            f"{title} for a dollar",
            f"More is better; on the right, also against the reference of its batch. {interval}",
            ran,
            lambda row: row.units_per_usd,
            interval=lambda row: row.units_per_usd_ci,
            gains=True,
        ),
        _time_cost(ran, unit, ran[0].row.job_units or (1e9 if unit == "tokens" else 1e6)),
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
    bars, looks = [], set()
    for one in drawn:
        row, remark = one.row, "reference" if one.row.is_reference else ""
        look = remark or ("first" if one is first else "other") if row.source == "measured" else "reported"
        if gains and not row.is_reference and row.gain_vs_reference is not None:
            unsure = "?" * (row.verdict == "inconclusive")
            remark = change(row.gain_vs_reference, row.gain_ci_vs_reference) + unsure
        looks.add(look)
        texts = _texts(one, form(found[one]), remark)
        bars.append(Bar(*texts, parts=((look, found[one]),), interval=interval(row)))
    # Rows of unlike batches have references of their own, and no line across all bars.
    references = [found[one] for one in drawn if one.row.is_reference]
    broken_at = references[0] if gains and len(references) == 1 else None
    if references:
        caption += f" The reference is brown{', and a broken line across the others' if broken_at else ''}."
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


def page(comparison: Comparison, today: date, bought: str = "") -> Page:
    """Build the page. bought: how, e.g. `on demand`."""
    rows, shown = comparison.rows, shown_rows(comparison.rows)
    drawn = charts(shown)

    def some(*names: str) -> tuple[Part, ...]:
        return tuple(drawn[name] for name in names if name in drawn)

    rest = [*sentences(comparison)] or ["No record is shown."]
    # Of many instances, which one is the first question.
    first = len({row.instance for row in rows}) > FEW_INSTANCES
    answer = next((text for text in rest if first and text.startswith("Which instance?")), rest[0])
    rest.remove(answer)
    if rows and not any(row.timed for row in rows if row.status == "ok"):
        rest.append("Nothing here was measured. Run `fp8bench run` on the instance before you choose it.")
    # The table that compare prints, and its notes; the answer and warnings are at the top of the page.
    table = chain(*document(comparison, every_row=True).blocks)
    told = (one for one in table if isinstance(one, (Table, Note)))
    of_rows = (one._replace(numbered=True) if isinstance(one, Table) else one for one in told)
    priced = {(row.instance, row.nodes, row.usd_per_hour, row.price_as_of, row.price_source): row for row in rows}
    sections = [
        Section("value", "What a dollar buys", some("price-performance", "time-cost")),
        Section("speed", "Speed", () if "price-performance" in drawn else some("speed")),
        Section("table", "All rows", tuple(of_rows), "Every column: fp8bench compare --wide; every note: --notes."),
        Section("stopped", "Not ranked, and why", _table([one for one in shown if one.row.status != "ok"], STOPPED)),
        Section("steps", "Where the step goes", (*some("breakdown"), *_limits(shown))),
        Section("resources", "Memory and energy", some("memory", "energy")),
        Section("evidence", "What really ran", tuple(_evidence(shown))),
        Section("prices", "Prices", (Table(tuple(column.cells([*priced.values()]) for column in PRICES)),)),
        Section("environment", "Environment", _environments(shown)),
        Section("records", "Records", _table(shown, RECORDS)),
    ]
    where, what = (", ".join(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("instance", "workload"))
    return Page(
        title=f"fp8bench: {what} on {where}",
        answer=answer,
        grounds=(*rest, *_about(rows, bought)),
        warnings=(*filter(None, [comparison.hint]), *comparison.warnings),
        sections=tuple(section for section in sections if section.parts),
        foot=f"Made by fp8bench {__version__} on {today}. Every number comes from the records that are named above.",
    )


def _about(rows: Sequence[Row], bought: str) -> Iterator[str]:
    best = next((row for row in rows if row.status == "ok" and row.timed and row.units_per_usd), None)
    if best is None:
        yield "No price is known: give it with `fp8bench run --price`, or in the instance's instance.yaml."
        return
    of = f"as of {best.price_as_of}" if best.price_as_of else "without a date"
    usd, measured = f"{best.usd_per_hour:,.2f} USD an hour", best.latest.created_utc
    yield f"Price of {best.instance}: {' '.join(filter(None, (usd, bought)))}, {of}; measured on {measured:%Y-%m-%d}."
    if best.job_hours is not None and best.job_usd is not None:
        took = f"{time_said(best.job_hours)} and {best.job_usd:,.2f} USD"
        yield f"The job of {brief_count(best.job_units)} {best.unit} takes {took}."


def _table(rows: Sequence[Shown], columns: Sequence[Column[Shown]], *more: Cells) -> tuple[Table, ...]:
    naming: tuple[Column[Shown], ...] = (
        Column("row", lambda one: one.number, "d"),
        word("instance", lambda one: one.row.instance),
        word("mode", lambda one: one.row.mode_label),
    )
    shown = telling(*(column.cells(rows) for column in columns), *more)
    return (Table((*(column.cells(rows) for column in naming), *shown), naming=3),) if rows else ()


STOPPED: tuple[Column[Shown], ...] = (
    word("execution", lambda one: detail_of(one.row)),
    word("status", lambda one: one.row.status),
    word("cause", lambda one: one.row.cause),
    Column("why", lambda one: one.row.reason, kind="note"),
    Column("what to do", lambda one: one.row.latest.remedy, kind="note"),
)
RECORDS: tuple[Column[Shown], ...] = (
    word("session", lambda one: one.row.session_id),
    Column("records", lambda one: ", ".join(one.row.run_ids) or None, kind="note"),
)
REPORTED: tuple[Column[Provenance], ...] = (
    Column("published on", lambda p: p.published_on, str, "word"),
    Column("where it comes from", lambda p: p.citation, kind="note"),
)


def _limits(shown: Sequence[Shown]) -> tuple[Part, ...]:
    # Each row beside one of the reference's mode that did its work on its instance, if there is any.
    found = {one: one.facts for one in shown if one.row.status == "ok" and one.facts is not None}
    modes = {one.row.mode_label for one in found if one.row.is_reference}
    work = attrgetter("instance", "workload", "batch_size", "world_size", "device")
    said = []
    for one, facts in found.items():
        alike = [other for other in found if other.row.mode_label in modes and work(other.row) == work(one.row)]
        alike.sort(key=lambda other: (other.row.machine != one.row.machine, other.row.step_time_s or math.inf))
        beside = found[alike[0]] if alike and alike[0] is not one else None
        said.append(explain_steps(facts, beside).sentence)
    executed: Column[Shown] = word("executed", lambda one: detail_of(one.row))
    return _table([*found], [executed], Cells("what limits the step", tuple(said), "note"))


def _evidence(shown: Sequence[Shown]) -> Iterator[Part]:
    measured = [one for one in shown if one.row.latest.source == "measured"]
    ran = {one: evidence for one in measured if (evidence := one.row.latest.evidence)}
    executed: Column[Shown] = word("execution", lambda one: one.row.execution)
    yield from _table([*ran], [executed], *(column.cells([*ran.values()]) for column in RAN))
    proved = [one for one in measured if one.row.latest.parity or (one in ran and ran[one].executed)]
    parity = [one.row.latest.parity for one in proved]
    proof = [evidence.executed if (evidence := one.row.latest.evidence) else None for one in proved]
    yield from _table(proved, (), *(one.cells(parity) for one in PARITY), *(one.cells(proof) for one in PROOF))
    if proved:
        yield Note(
            "Of each row's latest round. Errors are relative, and 1 means nothing in common; in brackets the most that "
            "the mode allows. Parity: one batch through the plain model and through the converted one. Proof: steps as "
            "they were timed against the same steps plainly eager. The record has every other number of the proof."
        )
    for one, evidence in ran.items():
        yield from (Note(f"{one.number}  {warning}") for warning in dict.fromkeys(evidence.warnings))
    reported = {one: found for one in shown if (found := one.row.latest.provenance)}
    source: Column[Shown] = word("source", lambda one: one.row.latest.source)
    yield from _table([*reported], [source], *(column.cells([*reported.values()]) for column in REPORTED))


def _count(*values: int | None) -> str | None:
    return None if None in values else " of ".join(map(str, values))


def _error(value: float | None, most: float | None = None) -> str:
    return number(value, ".2g") + ("" if most is None else f" ({most:.2g})")


SEEN = {True: "seen", False: "none seen", None: "not profiled"}
RAN: tuple[Column[Evidence], ...] = (
    word("layers converted", lambda e: _count(e.converted_layers, e.total_layers)),
    word("fp8 GEMMs", lambda e: SEEN[e.fp8_kernels] if e.fp8 else None),
    word("attention", lambda e: e.attention),
    word("gradients shared", lambda e: e.join),
    word("emulated", lambda e: "yes" if e.emulated else None),
    Column("recipe", lambda e: e.recipe, kind="note"),
    Column("compiled, because", lambda e: e.compile.reason, kind="note"),
    Column("CUDA graph, because", lambda e: e.graph and e.graph.reason, kind="note"),
)
PARITY: tuple[Column[Parity], ...] = (
    Column("parity", lambda p: "passed" if p.passed else "failed", str),
    Column("logits", lambda p: _error(p.logits_error, p.tolerance.logits), str),
    Column("loss", lambda p: _error(p.loss_error, p.tolerance.loss), str),
    Column("input gradient", lambda p: _error(p.input_gradient_error, p.tolerance.input_gradient), str),
)
PROOF: tuple[Column[ExecutedEvidence], ...] = (
    Column("steps proved", lambda e: e.steps, "d"),
    Column("gradients", lambda e: _error(e.gradient_error, e.bound), str),
    Column("weights' update", lambda e: _error(e.update_error, e.bound), str),
    Column("spread of ranks", lambda e: _error(e.spread), str),
)
PRICES: tuple[Column[Row], ...] = (
    word("instance", lambda row: row.instance),
    Column("machines", lambda row: row.nodes, "d"),
    Column("USD/h", lambda row: row.usd_per_hour, ",.2f"),
    word("as of", lambda row: "no price" if row.usd_per_hour is None else str(row.price_as_of or "undated")),
    Column("source", lambda row: row.price_source, kind="note"),
)


def _environments(shown: Sequence[Shown]) -> tuple[Table, ...]:
    def environment(one: Shown) -> tuple[tuple[str, str | None], ...]:
        commit, machine = checkout_of(one.row.latest.environment), str(one.row.latest.machine or NOTHING)
        return tuple({"machine": machine, **(one.row.software or {}), "commit of fp8bench": commit}.items())

    together = grouped((one for one in shown if one.row.software), environment)
    facts = [dict(key) for key in together]
    names = tuple(name for name in dict.fromkeys(chain(*facts)) if any(one.get(name) for one in facts))
    columns = [Cells("what", names, "word")]
    for ones, known in zip(together.values(), facts, strict=True):
        heading = f"{ones[0].row.instance}: row{'s' * (len(ones) > 1)} {', '.join(str(one.number) for one in ones)}"
        columns.append(Cells(heading, tuple(known.get(name) or NOTHING for name in names), "word"))
    return (Table(tuple(columns)),) if together else ()

"""The page about runs: the answer, what a dollar buys, and everything that the answer rests on."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from fp8bench import __version__
from fp8bench.kinds.kind import AS_IT_IS
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.charts import Shown, charts, detail_of, shown_rows
from fp8bench.kinds.run.explain import explain_steps
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.sentences import sentences
from fp8bench.kinds.run.shown import FEW_INSTANCES, document
from fp8bench.records.select import grouped
from fp8bench.schema.machine import checkout_of
from fp8bench.schema.rank import Evidence, ExecutedEvidence, Parity
from fp8bench.tables.document import Letters, Note, Table
from fp8bench.tables.page import Page, Part, Section
from fp8bench.tables.study import Column, StudyTable, word
from fp8bench.tables.written import brief_count, number, time_said

FIRST_NOTES = 5
"""How many notes stand below the table of all rows. The others have a section of their own."""


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
    told = [*chain(*document(comparison, view=AS_IT_IS.model_copy(update={"notes": True}), every_row=True).blocks)]
    table = [one._replace(numbered=True) for one in told if isinstance(one, Table)]
    notes = [one for one in told if isinstance(one, Note)]
    priced = {(row.instance, row.nodes, row.usd_per_hour, row.price_as_of, row.price_source): row for row in rows}
    sections = [
        Section("value", "What a dollar buys", some("price-performance", "time-cost")),
        Section("speed", "Speed", () if "price-performance" in drawn else some("speed")),
        Section("table", "All rows", (*table, *notes[:FIRST_NOTES], Note("Every column: fp8bench compare --wide"))),
        Section("stopped", "Not ranked, and why", _table((one for one in shown if one.row.status != "ok"), STOPPED)),
        Section("steps", "Where the step goes", (*some("breakdown"), *_limits(shown))),
        Section("resources", "Memory and energy", some("memory", "energy")),
        Section("notes", "More notes", tuple(notes[FIRST_NOTES:])),
        Section("evidence", "What really ran", tuple(_evidence(shown))),
        Section("prices", "Prices", _table(priced.values(), PRICES, 1)),
        Section("environment", "Environment", _environments(shown)),
        Section("records", "Records", _table(shown, RECORDS)),
    ]
    where, what = (", ".join(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("instance", "workload"))
    return Page(
        title=f"fp8bench: {what} on {where}",
        answer=answer,
        grounds=(*rest, *_about(comparison, bought)),
        warnings=(*filter(None, [comparison.hint]), *comparison.warnings),
        sections=tuple(section for section in sections if section.parts),
        foot=f"Made by fp8bench {__version__} on {today}. Every number comes from the records that are named above.",
    )


def _about(comparison: Comparison, bought: str) -> Iterator[str]:
    best = next((row for row in comparison.rows if row.status == "ok" and row.timed and row.units_per_usd), None)
    if best is None:
        yield "No price is known: give it with `fp8bench run --price`, or in the instance's instance.yaml."
        return
    measured = f"measured {f'on {best.measured_on} ' if best.measured_on else ''}on {best.latest.created_utc:%Y-%m-%d}"
    if comparison.answer.pairs:  # whose sentence has the prices
        yield f"Prices are {bought or 'as listed'}; {measured}."
    else:
        of = f"as of {best.price_as_of}" if best.price_as_of else "undated"
        usd = " ".join(filter(None, (f"{best.usd_per_hour:,.2f} USD an hour", bought)))
        yield f"Price of {best.instance}: {usd}, {of}; {measured}."
    if best.job_hours is not None and best.job_usd is not None:
        took = f"{time_said(best.job_hours)} and {best.job_usd:,.2f} USD"
        yield f"The job of {brief_count(best.job_units)} {best.unit} takes {took}."


LineT = TypeVar("LineT")


def _table(rows: Iterable[LineT], columns: Sequence[Column[LineT]], naming: int = 3) -> tuple[Part, ...]:
    table, letters, every = StudyTable(naming=columns[:naming], columns=columns[naming:]), Letters(), [*rows]
    return (table.of([every], [""], letters), *map(Note, letters.lines())) if every else ()


def _of(part: Callable[[Shown], LineT | None], columns: Sequence[Column[LineT]]) -> list[Column[Shown]]:
    """Return columns of a part of a row, in which a row without that part has nothing."""

    def get_of(column: Column[LineT]) -> Callable[[Shown], object]:
        return lambda one: None if (found := part(one)) is None else column.get(found)

    every: Iterable[Any] = columns
    return [replace(one, get=get_of(one)) for one in every]


NAMING: tuple[Column[Shown], ...] = (
    Column("row", lambda one: one.number, "d"),
    word("instance", lambda one: one.row.instance),
    word("mode", lambda one: one.row.mode_label),
)
EXECUTED: Column[Shown] = word("executed", lambda one: detail_of(one.row))
STOPPED: tuple[Column[Shown], ...] = (
    *NAMING,
    EXECUTED,
    word("status", lambda one: one.row.status),
    word("cause", lambda one: one.row.cause),
    Column("why", lambda one: one.row.reason, kind="note"),
    Column("what to do", lambda one: one.row.latest.remedy, kind="note"),
)
RECORDS: tuple[Column[Shown], ...] = (
    *NAMING,
    word("source", lambda one: one.row.latest.source),
    word("session", lambda one: one.row.session_id),
    Column("published on", lambda one: getattr(one.row.latest.provenance, "published_on", None), kind="word"),
    Column("where it comes from", lambda one: getattr(one.row.latest.provenance, "citation", None), kind="note"),
    Column("records", lambda one: ", ".join(one.row.run_ids) or None, kind="note"),
)
PRICES: tuple[Column[Row], ...] = (
    word("instance", lambda row: row.instance),
    Column("machines", lambda row: row.nodes, "d"),
    Column("USD/h", lambda row: row.usd_per_hour, ",.2f"),
    word("as of", lambda row: "no price" if row.usd_per_hour is None else str(row.price_as_of or "undated")),
    Column("source", lambda row: row.price_source, kind="note"),
)


def _error(value: float | None, most: float | None = None) -> str:
    return number(value, ".2g") + ("" if most is None else f" ({most:.2g})")


def _layers(evidence: Evidence) -> str | None:
    converted, total = evidence.converted_layers, evidence.total_layers
    return None if converted is None or total is None else f"{converted} of {total}"


SEEN = {True: "seen", False: "none seen", None: "not profiled"}
RAN: tuple[Column[Evidence], ...] = (
    word("layers converted", _layers),
    word("fp8 GEMMs", lambda e: SEEN[e.fp8_kernels] if e.fp8 else None),
    word("attention", lambda e: e.attention),
    word("gradients shared", lambda e: e.join),
    word("emulated", lambda e: "yes" if e.emulated else None),
    word("recipe", lambda e: e.recipe, below=True),
    word("compiled, because", lambda e: e.compile.reason, below=True),
    word("CUDA graph, because", lambda e: e.graph.reason if e.graph else None, below=True),
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


def _limits(shown: Sequence[Shown]) -> tuple[Part, ...]:
    # Each row beside one of the reference's mode that did its work on its instance, if there is any.
    found = {one: one.facts for one in shown if one.row.status == "ok" and one.facts is not None}
    modes = {one.row.mode_label for one in found if one.row.is_reference}
    work = attrgetter("instance", "workload", "batch_size", "world_size", "device")

    def limit(one: Shown) -> str:
        alike = [other for other in found if other.row.mode_label in modes and work(other.row) == work(one.row)]
        alike.sort(key=lambda other: (other.row.machine != one.row.machine, other.row.step_time_s or math.inf))
        beside = found[alike[0]] if alike and alike[0] is not one else None
        return explain_steps(found[one], beside).sentence

    return _table(found, [*NAMING, EXECUTED, Column("what limits the step", limit, kind="note")])


def _evidence(shown: Sequence[Shown]) -> Iterator[Part]:
    measured = [one for one in shown if one.row.latest.source == "measured"]
    ran = {one: evidence for one in measured if (evidence := one.row.latest.evidence)}
    yield from _table(ran, [*NAMING, word("execution", lambda one: one.row.execution), *_of(ran.get, RAN)])
    parity = {one: found for one in measured if (found := one.row.latest.parity)}
    proof = {one: evidence.executed for one, evidence in ran.items() if evidence.executed}
    proved = [one for one in measured if one in parity or one in proof]
    yield from _table(proved, [*NAMING, *_of(parity.get, PARITY), *_of(proof.get, PROOF)])
    if proved:
        yield Note(
            "Of each row's latest round. Errors are relative, and 1 means nothing in common; in brackets the most that "
            "the mode allows. Parity: one batch through the plain model and through the converted one. Proof: steps as "
            "they were timed against the same steps plainly eager. The record has every other number of the proof."
        )
    for one, evidence in ran.items():
        yield from (Note(f"{one.number}  {warning}") for warning in dict.fromkeys(evidence.warnings))


def _environments(shown: Sequence[Shown]) -> tuple[Part, ...]:
    def environment(one: Shown) -> tuple[tuple[str, str | None], ...]:
        latest = one.row.latest
        machine, commit = str(latest.machine) if latest.machine else None, checkout_of(latest.environment)
        return tuple({"machine": machine, **(one.row.software or {}), "commit of fp8bench": commit}.items())

    together = grouped((one for one in shown if one.row.software), environment)
    columns: list[Column[str]] = [word("what", str)]
    for known, ones in together.items():
        numbers = ", ".join(str(one.number) for one in ones)
        columns.append(word(f"{ones[0].row.instance}: row{'s' * (len(ones) > 1)} {numbers}", dict(known).get))
    names = dict.fromkeys(name for known in together for name, value in known if value)
    return _table(names, columns, 1)

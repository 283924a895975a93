"""The page about runs: the answer first, then what a dollar buys, then everything that the answer rests on."""

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import chain
from operator import attrgetter
from typing import Any

from fp8bench import __version__
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.explain import explain_steps
from fp8bench.kinds.run.plots import Shown, charts, detail_of, shown_rows
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.sentences import sentences
from fp8bench.kinds.run.shown import FEW_INSTANCES, document
from fp8bench.kinds.view import View
from fp8bench.records.select import grouped
from fp8bench.schema.machine import checkout_of
from fp8bench.tables.document import NOTHING, CellKind, Cells, Note, Table, telling
from fp8bench.tables.page import Page, Part, Section
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import brief_count, number, time_said

HOW_TO_READ_PROOFS = (
    "Of each row's latest round. Errors are relative, and 1 means nothing in common; in brackets the most that the "
    "mode allows. Parity: one batch through the plain model and through the converted one. Proof: steps as they were "
    "timed against the same steps plainly eager. The record has every other number of the proof."
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
    # The table that compare prints, and all its notes; the answer and warnings are at the top of the page.
    blocks = document(comparison, view=View(notes=True), every_row=True).blocks
    table = [one for parts in blocks for one in parts if isinstance(one, (Table, Note))]
    priced = {(row.instance, row.nodes, row.usd_per_hour, row.price_as_of, row.price_source): row for row in rows}
    of_rows = [one._replace(numbered=True) if isinstance(one, Table) else one for one in table]
    stopped = _table([one for one in shown if one.row.status != "ok"], STOPPED)
    sections = [
        Section("value", "What a dollar buys", some("price-performance", "time-cost")),
        Section("speed", "Speed", () if "price-performance" in drawn else some("speed")),
        Section("table", "All rows", tuple(of_rows), "Every column: fp8bench compare --wide."),
        Section("stopped", "Not ranked, and why", stopped),
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
        warnings=comparison.warnings,
        sections=tuple(section for section in sections if section.parts),
        foot=f"Made by fp8bench {__version__} on {today}. Every number comes from the records that are named above.",
    )


def _about(rows: Sequence[Row], bought: str) -> Iterator[str]:
    best = next((row for row in rows if row.status == "ok" and row.timed and row.units_per_usd), None)
    if best is None:
        yield "No price is known: give it with `fp8bench run --price`, or in the instance's instance.yaml."
    else:
        of = f"as of {best.price_as_of}" if best.price_as_of else "without a date"
        how, measured = f" {bought}" if bought else "", best.measurement.latest.created_utc
        price = f"{best.usd_per_hour:,.2f} USD an hour{how}, {of}; measured on {measured:%Y-%m-%d}"
        yield f"Price of {best.instance}: {price}."
        if best.job_hours is not None and best.job_usd is not None:
            took = f"{time_said(best.job_hours)} and {best.job_usd:,.2f} USD"
            yield f"The job of {brief_count(best.job_units)} {best.unit} takes {took}."


NAMING: tuple[Column[Shown], ...] = (
    Column("row", lambda one: one.number, "d"),
    word("instance", lambda one: one.row.instance),
    word("mode", lambda one: one.row.mode_label),
)


def _table(rows: Sequence[Shown], columns: Sequence[Column[Shown]], *more: Cells) -> tuple[Table, ...]:
    shown = telling(*(column.cells(rows) for column in columns), *more)
    return (Table((*(column.cells(rows) for column in NAMING), *shown), naming=3),) if rows else ()


def _note(heading: str, get: Callable[[Shown], str | None]) -> Column[Shown]:
    return Column(heading, get, kind="note")


def _of(heading: str, part: str, get: Callable[[Any], object], kind: CellKind = "word") -> Column[Shown]:
    """Return a column of a part of the latest round: `evidence`, `evidence.executed`, `parity` or `provenance`."""
    outer, _, inner = part.partition(".")

    def value(one: Shown) -> object:
        found = getattr(one.latest, outer)
        found = getattr(found, inner) if found and inner else found
        return get(found) or None if found else None

    return Column(heading, value, str, kind)


STOPPED: tuple[Column[Shown], ...] = (
    word("execution", lambda one: detail_of(one.row)),
    word("status", lambda one: one.row.status),
    word("cause", lambda one: one.row.cause),
    _note("why", lambda one: one.row.reason),
    _note("what to do", lambda one: one.latest.remedy),
)
RECORDS: tuple[Column[Shown], ...] = (
    word("session", lambda one: one.row.session_id),
    _note("records", lambda one: ", ".join(one.row.run_ids) or None),
)
REPORTED: tuple[Column[Shown], ...] = (
    word("source", lambda one: one.latest.source),
    _of("published on", "provenance", lambda p: p.published_on),
    _of("where it comes from", "provenance", lambda p: p.citation, "note"),
)


def _limits(shown: Sequence[Shown]) -> tuple[Part, ...]:
    """Say what limits each row's step or, beside a row of the reference's mode that did its work on its instance, what
    makes it slower than that.
    """
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
    ran = {one: one.latest.evidence for one in shown if one.latest.source == "measured" and one.latest.evidence}
    yield from _table([*ran], RAN)
    measured = [one for one in shown if one.latest.source == "measured"]
    proved = [one for one in measured if one.latest.parity or (one in ran and ran[one].executed)]
    yield from _table(proved, PROOFS)
    if proved:
        yield Note(HOW_TO_READ_PROOFS)
    for one, evidence in ran.items():
        yield from (Note(f"{one.number}  {warning}") for warning in dict.fromkeys(evidence.warnings))
    yield from _table([one for one in shown if one.latest.provenance is not None], REPORTED)


def _count(*values: int | None) -> str | None:
    return None if None in values else " of ".join(map(str, values))


def _error(value: float | None, most: float | None = None) -> str:
    return number(value, ".2g") + ("" if most is None else f" ({most:.2g})")


SEEN = {True: "seen", False: "none seen", None: "not profiled"}

RAN: tuple[Column[Shown], ...] = (
    word("execution", lambda one: one.row.execution),
    _of("layers converted", "evidence", lambda e: _count(e.converted_layers, e.total_layers)),
    _of("fp8 GEMMs", "evidence", lambda e: SEEN[e.fp8_kernels] if e.fp8 else None),
    _of("attention", "evidence", lambda e: e.attention),
    _of("gradients shared", "evidence", lambda e: e.join),
    _of("emulated", "evidence", lambda e: "yes" if e.emulated else None),
    _of("recipe", "evidence", lambda e: e.recipe, "note"),
    _of("compiled, because", "evidence", lambda e: e.compile.reason, "note"),
    _of("CUDA graph, because", "evidence", lambda e: e.graph.reason if e.graph else None, "note"),
)
PROOFS: tuple[Column[Shown], ...] = (
    _of("parity", "parity", lambda p: "passed" if p.passed else "failed", "quantity"),
    _of("logits", "parity", lambda p: _error(p.logits_error, p.tolerance.logits), "quantity"),
    _of("loss", "parity", lambda p: _error(p.loss_error, p.tolerance.loss), "quantity"),
    _of("input gradient", "parity", lambda p: _error(p.input_gradient_error, p.tolerance.input_gradient), "quantity"),
    _of("steps proved", "evidence.executed", lambda e: e.steps, "quantity"),
    _of("gradients", "evidence.executed", lambda e: _error(e.gradient_error, e.bound), "quantity"),
    _of("weights' update", "evidence.executed", lambda e: _error(e.update_error, e.bound), "quantity"),
    _of("spread of ranks", "evidence.executed", lambda e: _error(e.spread), "quantity"),
)
PRICES: tuple[Column[Row], ...] = (
    word("instance", lambda row: row.instance),
    Column("machines", lambda row: row.nodes, "d"),
    Column("USD/h", lambda row: row.usd_per_hour, ",.2f"),
    word("as of", lambda row: "no price" if row.usd_per_hour is None else str(row.price_as_of or "undated")),
    Column("source", lambda row: row.price_source, kind="note"),
)


def _environments(shown: Sequence[Shown]) -> tuple[Table, ...]:
    together = grouped((one for one in shown if one.row.software), lambda one: tuple(_environment(one).items()))
    facts = [dict(key) for key in together]
    names = tuple(name for name in dict.fromkeys(chain(*facts)) if any(one.get(name) for one in facts))
    columns = [Cells("what", names, "word")]
    for ones, known in zip(together.values(), facts, strict=True):
        heading = f"{ones[0].row.instance}: row{'s' * (len(ones) > 1)} {', '.join(str(one.number) for one in ones)}"
        columns.append(Cells(heading, tuple(known.get(name) or NOTHING for name in names), "word"))
    return (Table(tuple(columns)),) if together else ()


def _environment(one: Shown) -> dict[str, str | None]:
    commit = checkout_of(one.latest.environment)
    return {"machine": str(one.latest.machine or NOTHING), **(one.row.software or {}), "commit of fp8bench": commit}

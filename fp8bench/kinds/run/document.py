"""A comparison of runs as a document: a table of 80 characters that answers, the wide table that has everything, or
the columns that were requested.

The answer follows in sentences, then notes: marks of rows, why a verdict is inconclusive, why a mode did not run, and
what so few processes cannot show. The wide table has short marks in its rows and letters for the rest.
"""

from collections.abc import Iterator, Sequence

from fp8bench.kinds.run import brief
from fp8bench.kinds.run.columns import COLUMNS, EVERY, NOTES, OF_A_JOB
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.kinds.run.sentences import as_json, sentences
from fp8bench.kinds.view import AS_IT_IS, View
from fp8bench.schema.record import PROOF_VERSION
from fp8bench.tables import document as doc
from fp8bench.tables.written import counted

SHORT_MARK = 24
SHORT_MARKS = 48
"""The most characters of a mark, and of all marks of a row together, in the row of the wide table."""

NAMING_COLUMNS = 2

OTHERS = 3
"""The most rows that a sentence names; for more it gives their number."""


def document(*comparisons: Comparison, view: View = AS_IT_IS) -> doc.Document:
    """Return one table for each of the comparisons, at least one. The data has every field of every `Row`."""
    rows = tuple(row for one in comparisons for row in one.rows)
    letters = doc.Letters()
    tables = [_block(one, letters, view) for one in comparisons]
    warnings = dict.fromkeys(warning for one in comparisons for warning in one.warnings)
    of_all = [*notes(rows, view), *unseen(rows)]
    in_columns = view.wide or bool(view.columns)
    lines = [*letters.lines(), *of_all] if in_columns else brief.notes(rows, of_all, view.notes)
    below: list[doc.Part] = [*map(doc.Note, lines), *map(doc.Warned, warnings)]
    blocks = doc.blocks(*tables[:-1], [*tables[-1], *below])
    data = doc.CsvLines.of(Row, rows)
    return doc.Document(blocks, data=rows, answer=[as_json(one) for one in comparisons], lines=data)


def _block(comparison: Comparison, letters: doc.Letters, view: View) -> list[doc.Part]:
    rows = comparison.rows
    certain = [] if view.wide or view.columns else brief.certain(rows)
    return [
        *([doc.Heading(comparison.name)] if comparison.name else []),
        _table(rows, letters, view),
        *map(doc.Note, certain),
        *map(doc.Sentence, sentences(comparison)),
    ]


def _table(rows: Sequence[Row], letters: doc.Letters, view: View) -> doc.Table:
    emphasis = tuple(map(_emphasis, rows))
    if view.wide:
        remarks = doc.Rows(rows).column(NOTES, lambda row: _marks(row, letters), "note")
        return doc.Table((*columns(rows), remarks), naming=NAMING_COLUMNS, numbered=True, emphasis=emphasis)
    if view.columns:
        named = tuple(_named(name, rows, letters) for name in view.columns)
        return doc.Table(named, naming=1, whole=True, emphasis=emphasis)
    return doc.Table(tuple(brief.columns(rows)), naming=NAMING_COLUMNS, whole=True, emphasis=emphasis)


def _named(name: str, rows: Sequence[Row], letters: doc.Letters) -> doc.Cells:
    if name == NOTES:
        return doc.Rows(rows).column(NOTES, lambda row: brief.marks(row, letters), "note")
    return EVERY[name].column(rows)


def columns(rows: Sequence[Row]) -> list[doc.Cells]:
    """Return the columns of the wide table, the two that name a row first, without those in which no row says anything.

    The columns that matter most precede all other numbers, because a narrow terminal divides a table.
    """
    names = [name for name in COLUMNS if name != "gpus" and (name not in OF_A_JOB or rows[0].job_units is not None)]
    every = [(COLUMNS[name], COLUMNS[name].column(rows)) for name in names]
    return [column for of, column in every if column.says_something or not of.optional]


def unseen(rows: Sequence[Row]) -> list[str]:
    """Return a line about what the row with the fewest processes cannot show; none if nothing was measured."""
    known = [row for row in rows if row.unseen_share is not None]
    if not known:
        return []
    least = max(known, key=lambda row: row.unseen_share or 0)
    processes = counted(least.rounds, "process", "processes")
    fewest = "a row" if {row.rounds for row in known} == {least.rounds} else "(the fewest of these rows)"
    return [
        f"With {processes} {fewest}, a state that fewer than {(least.unseen_share or 0) * 100:.0f} % of processes have "
        "(a slow start, another kernel) may be unseen; more --rounds show more."
    ]


def _emphasis(row: Row) -> doc.Emphasis:
    return "strong" if row.is_reference else "" if row.status == "ok" else "faint"


def _marks(row: Row, letters: doc.Letters) -> str:
    """Return the notes of a row of the wide table: its status and cause if it is not ok, its short marks, and letters
    for the rest.
    """

    def fits(mark: str, words: list[str]) -> bool:
        return len(mark) <= SHORT_MARK and len(", ".join([*words, mark])) <= SHORT_MARKS

    words, long = brief.in_row_and_below(row, fits)
    return " ".join([", ".join(words), *(f"[{letters.of(text)}]" for text in long)]).strip()


def _machines(rows: Sequence[Row]) -> dict[str, set[str]]:
    """Return the known machines of each instance that has several."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.status == "ok" and row.machine is not None:
            found.setdefault(row.instance, set()).add(row.machine)
    return {instance: machines for instance, machines in found.items() if len(machines) > 1}


def older_proofs(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one note about the measured rows that were proved by older rules than today's, if there are any."""
    measured = [row for row in rows if row.proof_version is not None]
    older = [row for row in measured if (row.proof_version or 0) < PROOF_VERSION]
    if older:
        some = ", ".join(dict.fromkeys(row.label for row in older)) if len(older) <= OTHERS else f"{len(older)} rows"
        which = "Every measured row was" if len(older) == len(measured) else f"{some}:"
        versions = ", ".join(map(str, sorted({row.proof_version or 1 for row in older})))
        yield f"{which} proved by older rules, which saw less (version {versions}, now {PROOF_VERSION})."


def notes(rows: Sequence[Row], view: View) -> Iterator[str]:
    """Yield what applies to all tables: notes on the Pareto front, a job, several batch sizes, and several machines."""
    if any(row.pareto for row in rows) and view.wide:
        yield f"{brief.PARETO}: no other row is faster without costing more, or cheaper without being slower."
    if any(row.job_hours is not None for row in rows):
        yield (
            "A job's hours and USD are those of training steps alone: no start, evaluation, checkpoint or "
            "interruption, and no minimum billing period."
        )
    yield from older_proofs(rows)
    if view.group_by != "machine" and (several := _machines(rows)):
        counts = ", ".join(f"{len(machines)} of {instance}" for instance, machines in several.items())
        yield f"Machines differ ({counts}): each row is compared on its own; --group-by machine has a table for each."

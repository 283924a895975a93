"""A comparison of runs as a document: a table that answers within 120 characters, the wide one that has everything, or
the columns that were asked for.

Short marks stand in the row; longer ones, why a verdict is inconclusive, and the reason of a mode that did not run, are
footnotes under the table. The answer in a sentence follows, warnings about all rows, and what so few processes cannot
show.
"""

from collections.abc import Sequence

from fp8bench.kinds.run import answer, brief
from fp8bench.kinds.run.columns import COLUMNS, EVERY, NOTES, OF_A_JOB
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.kinds.view import AS_IT_IS, View
from fp8bench.report import document as doc

SHORT_MARK = 24
SHORT_MARKS = 48
"""Characters of a mark, and of all marks of a row together, that stand in the row of the wide table."""

NAMING_COLUMNS = 2


def document(*comparisons: Comparison, view: View = AS_IT_IS) -> doc.Document:
    """One table a comparison, at least one. Machines get every field of every `Row`."""
    rows = tuple(row for one in comparisons for row in one.rows)
    letters = doc.Letters()
    tables = [_block(one, letters, view) for one in comparisons]
    warnings = dict.fromkeys(warning for one in comparisons for warning in one.warnings)
    below: list[doc.Part] = [*map(doc.Note, letters.lines()), *map(doc.Note, answer.notes(rows, view))]
    below += [*map(doc.Warned, warnings), *map(doc.Note, unseen(rows))]
    return doc.Document(doc.blocks(*tables[:-1], [*tables[-1], *below]), data=rows, lines=doc.Lines.of(Row, rows))


def _block(comparison: Comparison, letters: doc.Letters, view: View) -> list[doc.Part]:
    rows = comparison.rows
    common = () if view.wide or view.columns else brief.of_every_row(rows)
    return [
        *([doc.Heading(comparison.name)] if comparison.name else []),
        _table(rows, letters, view),
        *([doc.Note(f"Every measured row: {', '.join(common)}.")] if common else []),
        *map(doc.Sentence, answer.sentences(rows)),
    ]


def _table(rows: Sequence[Row], letters: doc.Letters, view: View) -> doc.Table:
    emphasis = tuple(map(_emphasis, rows))
    if view.wide:
        notes = doc.Rows(rows).column(NOTES, lambda row: _marks(row, letters), "note")
        return doc.Table((*columns(rows), notes), naming=NAMING_COLUMNS, numbered=True, emphasis=emphasis)
    if view.columns:
        named = tuple(_named(name, rows, letters) for name in view.columns)
        return doc.Table(named, naming=1, whole=True, emphasis=emphasis)
    return doc.Table(tuple(brief.columns(rows, letters)), naming=NAMING_COLUMNS, whole=True, emphasis=emphasis)


def _named(name: str, rows: Sequence[Row], letters: doc.Letters) -> doc.Column:
    if name == NOTES:
        return doc.Rows(rows).column(NOTES, lambda row: brief.marks(row, letters), "note")
    return EVERY[name].column(rows)


def columns(rows: Sequence[Row]) -> list[doc.Column]:
    """Those of the wide table, the two that name a row first; those of which no row says anything are omitted.

    What a reader came for goes first of all numbers, since a narrow terminal divides a table.
    """
    names = [name for name in COLUMNS if name != "gpus" and (name not in OF_A_JOB or rows[0].job_units is not None)]
    every = [(COLUMNS[name], COLUMNS[name].column(rows)) for name in names]
    return [column for of, column in every if column.says_something or not of.optional]


def unseen(rows: Sequence[Row]) -> list[str]:
    """A line of what the row with the fewest processes cannot show; none where nothing was measured."""
    known = [row for row in rows if row.unseen_share is not None]
    if not known:
        return []
    least = max(known, key=lambda row: row.unseen_share or 0)
    processes = "1 process" if least.rounds == 1 else f"{least.rounds} processes"
    fewest = "a row" if {row.rounds for row in known} == {least.rounds} else "(the fewest of a row here)"
    return [
        f"With {processes} {fewest}, a state that fewer than {(least.unseen_share or 0) * 100:.0f} % of processes have "
        "(a slow start, another kernel) may be unseen; more --rounds show more."
    ]


def _emphasis(row: Row) -> doc.Emphasis:
    return "strong" if row.is_reference else "" if row.status == "ok" else "faint"


def _marks(row: Row, letters: doc.Letters) -> str:
    """The notes of a row of the wide table: its status and cause if it is not ok, its short marks, and letters for the
    rest.
    """
    words: list[str] = [] if row.status == "ok" else [row.outcome]
    long = [] if row.reason is None else [row.reason]
    for mark in row.marks:
        fits = len(mark) <= SHORT_MARK and len(", ".join([*words, mark])) <= SHORT_MARKS
        (words if fits else long).append(mark)
    if row.pareto:
        words.append(brief.PARETO)
    if row.verdict == "inconclusive" and row.verdict_why:
        long.append(f"inconclusive: {row.verdict_why}")
    return " ".join([", ".join(words), *(f"[{letters.of(text)}]" for text in long)]).strip()

"""The table that answers: which mode on which instance, how fast, what a dollar buys, how much more than the reference,
whether that is certain, and notes. With a job, its time and cost instead.

The table is at most WIDTH characters wide if names allow it. To fit, it omits the default recipe from the names of
modes, then an instance that all rows have, then digits of steps. A column that is the same for every row, as the batch
size mostly is, is omitted.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fp8bench import registry
from fp8bench.kinds.run.columns import COLUMNS, NOTES, OF_A_JOB, OF_ITS_OWN, step, tone, units_of
from fp8bench.kinds.run.likeness import unlike_sizes
from fp8bench.kinds.run.row import Row
from fp8bench.report.document import NOTHING, Column, Letters, Rows
from fp8bench.report.written import Interval, change, number, with_interval
from fp8bench.schema.execution import suffix

WIDTH, GAP = 120, 2
SHORT_MARK = 9
"""The longest mark that is shown in the row: `published`, `emulated`, `what-if`."""

THOUSANDS = 10_000
"""The units for a dollar from which thousands are shown."""

PARETO = "Pareto"


class Density(NamedTuple):
    """How much a table shows. recipes: whether default recipes are named. instance: whether an instance that all rows
    have is named. tenths: whether steps have tenths of milliseconds, else three digits.
    """

    recipes: bool
    instance: bool
    tenths: bool


DENSITIES = (
    Density(True, True, True),
    Density(False, True, True),
    Density(False, False, True),
    Density(False, True, False),
)
"""Densities from the roomiest to the tightest; the first that fits is used, or the last."""


def columns(rows: Sequence[Row], letters: Letters) -> list[Column]:
    common = of_every_row(rows)
    reference = next((row for row in rows if row.is_reference), None)

    def noted(row: Row) -> str:
        return marks(row, letters, (*common, *(unlike_sizes(row, reference) if reference else [])))

    notes = Rows(rows).column(NOTES, noted, "note")
    for density in DENSITIES:
        found = [*_columns(rows, density), notes]
        if sum(_width(column) for column in found) + GAP * (len(found) - 1) <= WIDTH:
            break
    return found


def _width(column: Column) -> int:
    """Return the width of a column with each word of its heading on its own line."""
    return max(map(len, (*column.heading.split(), *column.cells)))


def _columns(rows: Sequence[Row], density: Density) -> Iterator[Column]:
    column = Rows(rows).column
    yield column("mode", lambda row: _mode(row, density.recipes), "word")
    if density.instance or len({row.instance for row in rows}) > 1:
        yield column("instance", lambda row: row.instance, "word")
    sizes = _sizes(rows)
    if sizes is not None:
        yield column(*sizes)
    if len({row.grad_accumulation for row in rows if row.grad_accumulation is not None}) > 1:
        yield OF_ITS_OWN["micro-batches"].column(rows)
    if rows[0].job_units is None:
        written = step if density.tenths else lambda row: _three(row.step_time_s, row.step_time_ci_s, 1e3)
        yield column("step, ms (95 %)", written, "interval", spare=True)
        yield column("speed-up", lambda row: number(row.speedup_vs_reference, ".2f", after="x"), spare=True)
        heading, scale = _rates(rows)
        yield column(
            f"{heading} (95 %)",
            lambda row: _three(row.units_per_usd, row.units_per_usd_ci, scale),
            "interval",
        )
    else:
        yield from (COLUMNS[name].column(rows) for name in OF_A_JOB)
        yield column("speed-up", lambda row: number(row.speedup_vs_reference, ".2f", after="x"), spare=True)
    yield column("gain", lambda row: change(None if row.is_reference else row.gain_vs_reference, None), tone=tone)
    yield column(
        "verdict", lambda row: "reference" if row.is_reference else row.verdict or NOTHING, "verdict", tone=tone
    )


def _mode(row: Row, recipes: bool) -> str:
    """Return e.g. `te-fp8:delayed/graphed`, as --reference takes it."""
    entry = next((one for one in registry.BUILTIN_MODES if one.name == row.mode), None)
    default = entry is not None and entry.recipes is not None and row.recipe in entry.recipes[:1]
    return f"{row.mode}{suffix(row.execution)}" if default and not recipes else row.variant_label


def _sizes(rows: Sequence[Row]) -> tuple[str, Callable[[Row], str]] | None:
    """Return the column of what differs: batch sizes, workers on one instance, or both; None if neither differs."""
    batch = len({row.batch_size for row in rows}) > 1
    workers = len({(row.instance, row.world_size) for row in rows}) > len({row.instance for row in rows})
    if batch and workers:
        return "batch", lambda row: f"{row.batch_size} x {row.world_size}"
    if batch:
        return "batch", lambda row: str(row.batch_size)
    return ("GPUs", lambda row: str(row.world_size)) if workers else None


def _rates(rows: Sequence[Row]) -> tuple[str, float]:
    """Return the heading for what a dollar buys, and the factor for its values."""
    least = min((row.units_per_usd for row in rows if row.units_per_usd), default=0.0)
    return (f"k {units_of(rows)}/USD", 1e-3) if least >= THOUSANDS else (f"{units_of(rows)}/USD", 1)


def _three(value: float | None, ci: Interval | None, scale: float) -> str:
    """Write integers, or three digits of values below 100."""
    largest = max(value or 0.0, ci[1] if ci else 0.0) * scale
    return with_interval(value, ci, ".3g" if largest < 100 else ",.0f", scale=scale)


def marks(row: Row, letters: Letters, said: Sequence[str] = ()) -> str:
    """Return the notes of a row: status and cause if it is not ok, marks of one word, whether it is on the Pareto
    front, and letters for the rest. said: marks that are shown elsewhere, in a column or below the table.
    """
    words, long = in_row_and_below(row, lambda mark, _words: len(mark) <= SHORT_MARK, said)
    given = sorted({letters.of(text) for text in long}, key=lambda letter: (len(letter), letter))
    return " ".join([*words, *([f"[{' '.join(given)}]"] if given else [])])


def in_row_and_below(
    row: Row, fits: Callable[[str, list[str]], bool], said: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the texts in the row, and those below the table. fits: decides for a mark and the words before it."""
    words = [] if row.status == "ok" else [row.outcome]
    below = [] if row.reason is None else [row.reason]
    for mark in row.marks:
        if mark not in said:
            (words if fits(mark, words) else below).append(mark)
    if row.pareto:
        words.append(PARETO)
    if row.verdict == "inconclusive" and row.verdict_why:
        below.append(f"inconclusive: {row.verdict_why}")
    return words, below


def of_every_row(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the marks that all of several measured rows that ran have: they are shown once, not in every row."""
    found = [row.marks for row in rows if row.status == "ok" and row.source == "measured"]
    return tuple(mark for mark in found[0] if all(mark in marks for marks in found)) if len(found) > 1 else ()

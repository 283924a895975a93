"""The table that answers: which mode on which instance, how fast, what a dollar buys of it, how much more than the
reference, whether that can be said, and what to know of it. With a job, what that takes and costs instead.

It is at most WIDTH characters wide where names allow it: first the default recipe is omitted from the names of modes,
then an instance that all rows have, then digits of steps. A column that says the same of every row, as the batch size
mostly does, is not there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fp8bench import registry
from fp8bench.kinds.run.columns import COLUMNS, NOTES, OF_A_JOB, step, tone, units_of
from fp8bench.kinds.run.compare import unlike_sizes
from fp8bench.kinds.run.row import Row
from fp8bench.report.document import NOTHING, Column, Letters, Rows
from fp8bench.report.written import Interval, change, number, with_interval
from fp8bench.schema.execution import suffix

WIDTH, GAP = 120, 2
SHORT_MARK = 9
"""Characters of a mark that stands in the row: `published`, `emulated`, `what-if`."""

THOUSANDS = 10_000
"""From this many units for a dollar on, thousands are shown."""

PARETO = "Pareto"


class Density(NamedTuple):
    """recipes: whether a default recipe is named; instance: whether one that all rows have is. tenths: of a step's
    milliseconds, or three digits of these.
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
"""From the roomiest on; the first that fits is taken, or the last."""


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
    """With its heading a word a line."""
    return max(map(len, (*column.heading.split(), *column.cells)))


def _columns(rows: Sequence[Row], density: Density) -> Iterator[Column]:
    column = Rows(rows).column
    yield column("mode", lambda row: _mode(row, density.recipes), "word")
    if density.instance or len({row.instance for row in rows}) > 1:
        yield column("instance", lambda row: row.instance, "word")
    sizes = _sizes(rows)
    if sizes is not None:
        yield column(*sizes)
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
    """`te-fp8:delayed/graphed`, as --reference takes it."""
    entry = next((one for one in registry.BUILTIN_MODES if one.name == row.mode), None)
    default = entry is not None and entry.recipes is not None and row.recipe in entry.recipes[:1]
    return f"{row.mode}{suffix(row.execution)}" if default and not recipes else row.variant_label


def _sizes(rows: Sequence[Row]) -> tuple[str, Callable[[Row], str]] | None:
    """The column of what differs: batch sizes, workers on one instance, or both."""
    batch = len({row.batch_size for row in rows}) > 1
    workers = len({(row.instance, row.world_size) for row in rows}) > len({row.instance for row in rows})
    if batch and workers:
        return "batch", lambda row: f"{row.batch_size} x {row.world_size}"
    if batch:
        return "batch", lambda row: str(row.batch_size)
    return ("GPUs", lambda row: str(row.world_size)) if workers else None


def _rates(rows: Sequence[Row]) -> tuple[str, float]:
    """The heading of what a dollar buys, and what it is multiplied by."""
    least = min((row.units_per_usd for row in rows if row.units_per_usd), default=0.0)
    return (f"k {units_of(rows)}/USD", 1e-3) if least >= THOUSANDS else (f"{units_of(rows)}/USD", 1)


def _three(value: float | None, ci: Interval | None, scale: float) -> str:
    """Whole numbers, but three digits of a small one."""
    largest = max(value or 0.0, ci[1] if ci else 0.0) * scale
    return with_interval(value, ci, ".3g" if largest < 100 else ",.0f", scale=scale)


def marks(row: Row, letters: Letters, said: Sequence[str] = ()) -> str:
    """The notes of a row: its status and cause if it is not ok, marks of a word, whether it is on the Pareto front, and
    letters for the rest. said: marks that stand elsewhere, in a column or under the table.
    """
    words, long = in_row_and_below(row, lambda mark, _words: len(mark) <= SHORT_MARK, said)
    given = sorted({letters.of(text) for text in long}, key=lambda letter: (len(letter), letter))
    return " ".join([*words, *([f"[{' '.join(given)}]"] if given else [])])


def in_row_and_below(
    row: Row, fits: Callable[[str, list[str]], bool], said: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """What stands in the row, and what only its letters do. fits: a mark, beside the words before it."""
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
    """Marks that all measured rows have which ran, where there are several: said once, and not row by row."""
    found = [row.marks for row in rows if row.status == "ok" and row.source == "measured"]
    return tuple(mark for mark in found[0] if all(mark in marks for marks in found)) if len(found) > 1 else ()

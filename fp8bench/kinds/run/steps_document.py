"""A step's breakdown as a document.

A time is followed by its share of that mode's step. Where there are two modes, the last column is the first's time less
the second's.
"""

from functools import partial

from fp8bench.kinds.run.steps import Explained, Line, lines
from fp8bench.kinds.run.steps_figure import step_bars
from fp8bench.report.document import (
    NOTHING,
    Column,
    Document,
    Emphasis,
    Figure,
    Note,
    Sentence,
    Table,
    Tone,
    Warned,
    blocks,
)
from fp8bench.report.written import number

PICTURE = "steps"
"""The name of the figure."""

SMALLEST_S = 0.5e-4
"""Half of the last digit that is shown: a line below it in every mode is left out."""


def document(explained: Explained) -> Document:
    """Machines get the modes with every number unrounded, the cause, its sentence, what each accounts for, notes and
    warnings.
    """
    shown = blocks(
        [_table(explained)],
        [Sentence(explained.sentence)],
        *([Note(note)] for note in explained.notes),
        *([Warned(warning)] for warning in explained.warnings),
    )
    return Document(shown, data=explained, figures=(Figure(PICTURE, partial(step_bars, explained.modes)),))


def _table(explained: Explained) -> Table:
    shown = [line for line in lines(explained.modes) if max(seconds or 0.0 for seconds in line.seconds) >= SMALLEST_S]
    columns = [Column("part of a step", tuple(line.name for line in shown), "word")]
    for place, mode in enumerate(explained.modes):
        # A part that takes no time is none of the step's.
        times = [line.seconds[place] or None for line in shown]
        shares = (number(time and time / mode.length_s, ".1f", 100, " %") for time in times)
        columns.append(Column(mode.label, tuple(number(time, ".1f", 1e3) for time in times), unit="ms"))
        columns.append(Column("share", tuple(shares)))
    if len(explained.modes) > 1:
        cells, tones = tuple(map(_difference_text, shown)), tuple(map(_tone, shown))
        columns.append(Column("differ\u00adence", cells, unit="ms", tones=tones))
    emphasis: tuple[Emphasis, ...] = tuple("strong" if line.total else "" for line in shown)
    return Table(tuple(columns), tight=True, emphasis=emphasis)


def _difference(line: Line) -> float | None:
    first, second = line.seconds
    return None if first is None or second is None else first - second


def _difference_text(line: Line) -> str:
    seconds = _difference(line)
    if seconds is None:
        return NOTHING
    return "0.0" if abs(seconds) < SMALLEST_S else f"{seconds * 1e3:+.1f}"


def _tone(line: Line) -> Tone:
    """A time longer than the reference's is bad, a shorter one good."""
    seconds = _difference(line)
    if seconds is None or abs(seconds) < SMALLEST_S:
        return ""
    return "bad" if seconds > 0 else "good"

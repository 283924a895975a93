"""A step's breakdown as a document, and as a stacked bar for each mode.

In the table, each time is followed by its share of that mode's step. If there are two modes, the last column is the
first's time minus the second's. The figure's yellow is paler than that of other figures: norms and sums should not have
the loudest colour when the question is about GEMMs and casts. Idle time is nearly white, because nothing ran in it.
"""

from collections.abc import Sequence

from fp8bench.kinds.run.explain.steps import IDLE, PARTS, Explained, PartTimes, StepBreakdown, lines
from fp8bench.tables import document as doc
from fp8bench.tables.row_chart import Item, Stack, Stacks
from fp8bench.tables.written import number

PICTURE = "steps"
"""The name of the figure."""

SMALLEST_S = 0.5e-4
"""Half of the last digit that is shown: a line below it in every mode is omitted."""


def document(explained: Explained) -> doc.Document:
    """Return the document. Its data has the modes with every number unrounded, the cause, its sentence, what each cause
    accounts for, notes and warnings.
    """
    shown = doc.blocks(
        [_table(explained)],
        [doc.Sentence(explained.sentence)],
        *([doc.Note(note)] for note in explained.notes),
        *([doc.Warned(warning)] for warning in explained.warnings),
    )
    return doc.Document(shown, data=explained, figures=(doc.Figure(PICTURE, step_bars(explained.modes).write),))


def _table(explained: Explained) -> doc.Table:
    shown = [line for line in lines(explained.modes) if max(seconds or 0.0 for seconds in line.seconds) >= SMALLEST_S]
    columns = [doc.Rows(shown).column("part of a step", lambda line: line.name, "word")]
    for place, mode in enumerate(explained.modes):
        # A part that takes no time is not part of the step.
        times = [line.seconds[place] or None for line in shown]
        shares = [time and time / mode.length_s for time in times]
        columns.append(doc.Rows(times).column(mode.label, lambda time: number(time, ".1f", 1e3), unit="ms"))
        columns.append(doc.Rows(shares).column("share", lambda share: number(share, ".1f", 100, " %")))
    if len(explained.modes) > 1:
        columns.append(doc.Rows(shown).column("difference", _difference_text, unit="ms", tone=_tone))
    emphasis: tuple[doc.Emphasis, ...] = tuple("strong" if line.total else "" for line in shown)
    return doc.Table(tuple(columns), emphasis=emphasis)


def _difference(line: PartTimes) -> float | None:
    first, second = line.seconds
    return None if first is None or second is None else first - second


def _difference_text(line: PartTimes) -> str:
    seconds = _difference(line)
    if seconds is None:
        return doc.NOTHING
    return "0.0" if abs(seconds) < SMALLEST_S else f"{seconds * 1e3:+z.1f}"


def _tone(line: PartTimes) -> doc.Tone:
    """Return the tone: a time longer than the reference's is bad, a shorter one good."""
    seconds = _difference(line)
    if seconds is None or abs(seconds) < SMALLEST_S:
        return ""
    return "bad" if seconds > 0 else "good"


COLOURS = dict(
    zip(
        (*PARTS.values(), IDLE),
        (
            *("#0072b2", "#56b4e9", "#a6d8f5", "#009e73", "#d55e00", "#efe3a0", "#e69f00", "#cc79a7", "#4d2a6b"),
            *("#b0b0b0", "#f2f2f2"),
        ),
        strict=True,
    )
)
"""The colours of a step's parts."""


def step_bars(modes: Sequence[StepBreakdown]) -> Stacks:
    """Return one bar for each mode. A step that was not timed ends where its kernels do."""
    stacks = tuple(
        Stack(
            Item(
                None,
                mode.label,
                f"{(mode.step_time_s or mode.busy_s) * 1e3:.1f} ms",
                ", ".join(
                    filter(None, (mode.instance, mode.workload, f"batch {mode.batch_size}" if mode.batch_size else ""))
                ),
                "" if mode.step_time_s is not None else "of kernels",
            ),
            tuple((name, seconds * 1e3) for name, seconds in mode.parts()),
        )
        for mode in modes
    )
    caption = "By kind of kernel, from a short profile of rank 0 after the timed steps."
    return Stacks(PICTURE, "Where a step goes, ms", caption, stacks, tuple(COLOURS.items()), lambda ms: f"{ms:.1f}")

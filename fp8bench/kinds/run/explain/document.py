"""A step's breakdown as a document, and as a stacked bar for each mode.

In the table, each time is followed by its share of that mode's step. If there are two modes, the last column is the
first's time minus the second's. Segments of the figure show their milliseconds if they are wide enough. The figure's
yellow is paler than that of other figures: norms and sums should not have the loudest colour when the question is about
GEMMs and casts. Idle time is hatched, because nothing ran in it.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.kinds.run.explain.steps import IDLE, PARTS, Explained, PartTimes, StepBreakdown, lines
from fp8bench.report import document as doc
from fp8bench.report import paper
from fp8bench.report.page.drawing import LIGHT, WHITE_TEXT, Look
from fp8bench.report.paper import FAINT, GRID, INK
from fp8bench.report.written import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    return doc.Document(shown, data=explained, figures=(doc.Figure(PICTURE, partial(step_bars, explained.modes)),))


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
        columns.append(doc.Rows(shown).column("differ\u00adence", _difference_text, unit="ms", tone=_tone))
    emphasis: tuple[doc.Emphasis, ...] = tuple("strong" if line.total else "" for line in shown)
    return doc.Table(tuple(columns), tight=True, emphasis=emphasis)


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


BAR_IN = 0.62
AROUND_IN = 1.55
"""Height in addition to the bars: title, legend and axis."""

WIDE_ENOUGH = 0.032
"""The share of the axis that a number of four characters needs."""

LEGEND_COLUMNS = 4

LOOKS: dict[str, Look] = {**{name: f"part-{place}" for place, name in enumerate(PARTS.values(), start=1)}, IDLE: "idle"}
"""The looks of a step's parts, in charts and in the figure."""

COLOURS = {name: LIGHT[look] for name, look in LOOKS.items()}


def step_bars(modes: Sequence[StepBreakdown], path: Path) -> None:
    """Draw one bar for each mode, the first on top. Raises as paper.figure does.

    A step that was not timed ends where its kernels do.
    """
    height = AROUND_IN + BAR_IN * len(modes)
    with paper.figure(height, path, **{"hatch.linewidth": 0.6}) as figure:
        axes = figure.add_subplot()
        longest = max(mode.length_s for mode in modes) * 1e3
        for place, mode in enumerate(modes):
            _bar(axes, place, mode, longest)
        _axis(axes, modes, longest)
        _legend(figure, axes)


def _bar(axes: "Axes", place: int, mode: StepBreakdown, longest_ms: float) -> None:
    left = 0.0
    for name, seconds in mode.parts():
        width = seconds * 1e3
        idle = name == IDLE
        axes.barh(
            place,
            width,
            left=left,
            height=0.66,
            color=COLOURS[name],
            edgecolor=FAINT if idle else "white",
            linewidth=0.6,
            hatch="////" if idle else None,
            label=name,
        )
        if width >= WIDE_ENOUGH * longest_ms:
            colour = "white" if LOOKS[name] in WHITE_TEXT else INK
            box = {"boxstyle": "round,pad=0.15", "facecolor": COLOURS[name], "edgecolor": "none"} if idle else None
            text = f"{width:.1f}"
            axes.text(left + width / 2, place, text, ha="center", va="center", fontsize=9, color=colour, bbox=box)
        left += width
    total = f"{(mode.step_time_s or mode.busy_s) * 1e3:.1f} ms"
    untimed = "" if mode.step_time_s is not None else "\nof kernels"
    axes.text(
        left + 0.008 * longest_ms, place, total + untimed, ha="left", va="center", fontsize=10, weight="bold", color=INK
    )


def _axis(axes: "Axes", modes: Sequence[StepBreakdown], longest_ms: float) -> None:
    # The recipe is on a second line so that labels stay narrow, and bars wide.
    names = [mode.label.replace(":", "\n", 1) if len(mode.label) > 14 else mode.label for mode in modes]
    axes.set_yticks(range(len(modes)), names, fontsize=10, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, longest_ms * 1.1)
    axes.set_xlabel("ms a step", fontsize=9, color=FAINT)
    axes.tick_params(axis="x", labelsize=9, labelcolor=FAINT, color=FAINT)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.grid(True, color=GRID, linewidth=0.6)
    paper.frame(axes, "bottom")


def _legend(figure: Any, axes: "Axes") -> None:
    """Show every part once, in the order of the bars, line by line, although matplotlib fills column by column."""
    handles, names = axes.get_legend_handles_labels()
    known = dict(zip(names, handles, strict=True))
    in_order = [name for name in COLOURS if name in known]
    shown = [name for column in range(LEGEND_COLUMNS) for name in in_order[column::LEGEND_COLUMNS]]
    looks = {"labels": shown, "handlelength": 1.2, "handleheight": 1.0}
    paper.legend(figure, [known[name] for name in shown], LEGEND_COLUMNS, **looks)

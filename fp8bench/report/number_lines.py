"""Number formats as number lines: what they can hold.

The figure shows the positive values of each format on a logarithmic axis, with one row for each format, in two panels,
because formats reach over 84 decades and fp8 over 10. The upper panel shows the reach of every format, as a band from
its smallest value to its max. The lower one is a close-up with a tick for every value of the formats of 8 bits and
fewer. Subnormal values are paler and shorter: in their range, each binade has half the values of the one above it.
Values that were cast are lines across all rows; in the close-up, a diamond in each row shows what that format makes of
the value. A negative value is marked at its magnitude. Values that have no place on the axis are named below it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.report import paper
from fp8bench.report.paper import FAINT, GRID, INK
from fp8bench.schema.formats import FormatReport, Reach, Rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.34
PANEL_IN = 0.9
"""Height of a panel in addition to its rows: title, labels and the numbers of the axis."""

AROUND_IN = 0.55
"""Height in addition to the panels: the legend, and the label of the axis."""

WIDE_DECADES = 20
"""A format that spans more decades does not stretch the close-up."""

FEW_DECADES = 3
"""An axis that spans fewer decades has powers of two as its numbers: powers of ten would be too few."""

MARGIN = 1.6
"""Factor by which an axis extends beyond the outermost value."""

NORMAL = "#0072B2"
SUBNORMAL = "#56B4E9"
CAST = "#D55E00"
TALL, SHORT = 0.36, 0.2
"""Half the height of a normal value's band or tick, and of a subnormal's, in rows."""

DASHES: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 0.9}
DIAMOND: dict[str, Any] = {
    "linestyle": "none",
    "marker": "D",
    "markersize": 5.5,
    "markerfacecolor": "white",
    "markeredgewidth": 1.3,
}

CHARACTER = 0.0105
"""Share of an axis's width that a character of a label needs."""

LABEL_PT = 10
LEVELS = 3
"""Lines for labels, LABEL_PT high each; a label that fits on none is omitted."""

TITLE_PT = 8
"""Points between the labels and the title."""


@dataclass(frozen=True)
class Panel:
    """Rows over one axis from limits[0] to limits[1]: as bands, or with a tick for every value."""

    title: str
    rows: tuple[Reach, ...]
    limits: tuple[float, float]
    every_value: bool

    def has_place(self, value: float) -> bool:
        """Return whether a value or its negative lies on the axis; no axis has zero, inf or nan."""
        return self.limits[0] <= abs(value) <= self.limits[1]


def number_lines(report: FormatReport, path: Path) -> None:
    """Draw the figure. Raises UsageError as require_drawable does, and RunFailed if path cannot be written."""
    shown = panels([one.reach for one in report.formats])
    heights = [PANEL_IN + ROW_IN * len(panel.rows) for panel in shown]
    with paper.figure(AROUND_IN + sum(heights), path) as figure:
        every_axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel in zip(every_axes, shown, strict=True):
            _draw(axes, panel, report.casts)
        every_axes[-1].set_xlabel(_below(shown, report.casts), fontsize=9, color=FAINT)
        _legend(figure, shown, report.casts)


def panels(formats: Sequence[Reach]) -> list[Panel]:
    """Return the close-up, if any format lists its values, after the reach of all, unless the close-up shows that."""
    ticked = tuple(one for one in formats if one.positive)
    narrow = [one for one in ticked if math.log10(one.max / _smallest(one)) < WIDE_DECADES]
    close_up = [Panel("every value, where 8 bits or fewer", ticked, _ends(narrow or ticked), True)] if ticked else []
    if len(ticked) == len(formats) and len(narrow) in (0, len(formats)):
        return close_up
    return [Panel("from the smallest value to max", tuple(formats), _ends(formats), False), *close_up]


def _ends(formats: Sequence[Reach]) -> tuple[float, float]:
    return min(map(_smallest, formats)) / MARGIN, max(one.max for one in formats) * MARGIN


def _smallest(one: Reach) -> float:
    return one.smallest_subnormal or one.smallest_normal


def _draw(axes: "Axes", panel: Panel, casts: Sequence[Rounded]) -> None:
    for place, one in enumerate(panel.rows):
        (_ticks if panel.every_value else _band)(axes, place, one, panel)
    _axis(axes, panel)
    labels = _cast_values(axes, panel, casts)
    if panel.every_value:
        _becomes(axes, panel, casts)
    above = TITLE_PT + LABEL_PT * max((level + 1 for _, level in labels), default=0)
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK, pad=above)


def _band(axes: "Axes", place: int, one: Reach, panel: Panel) -> None:
    if one.smallest_subnormal:
        subnormal = one.smallest_normal - one.smallest_subnormal
        axes.barh(place, subnormal, left=one.smallest_subnormal, height=2 * SHORT, color=SUBNORMAL, linewidth=0)
    axes.barh(
        place, one.max - one.smallest_normal, left=one.smallest_normal, height=2 * TALL, color=NORMAL, linewidth=0
    )


def _ticks(axes: "Axes", place: int, one: Reach, panel: Panel) -> None:
    values = [value for value in one.positive or () if panel.has_place(value)]
    normal = [value for value in values if value >= one.smallest_normal]
    subnormal = [value for value in values if value < one.smallest_normal]
    axes.vlines(subnormal, place - SHORT, place + SHORT, colors=SUBNORMAL, linewidth=1.4)
    axes.vlines(normal, place - TALL, place + TALL, colors=NORMAL, linewidth=0.8)


def _axis(axes: "Axes", panel: Panel) -> None:
    low, high = panel.limits
    few = math.log10(high / low) < FEW_DECADES
    axes.set_xscale("log", base=2 if few else 10)
    axes.set_xlim(low, high)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.rows)), [one.name for one in panel.rows], fontsize=9, color=INK)
    axes.tick_params(axis="x", which="both", labelsize=9, labelcolor=FAINT, color=GRID)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.grid(True, which="major", color=GRID, linewidth=0.6)
    paper.frame(axes, "bottom")


def _cast_values(axes: "Axes", panel: Panel, casts: Sequence[Rounded]) -> list[tuple[float, int]]:
    """Draw a line for each value, and its label above the rows. Returns the labels as `levels` does."""
    on_axis = {one.value for one in casts if panel.has_place(one.value)}
    for magnitude in sorted(map(abs, on_axis)):
        axes.axvline(magnitude, color=CAST, zorder=3, **DASHES)
    labels = levels(sorted(on_axis, key=lambda value: (abs(value), value)), panel.limits)
    for value, level in labels:
        axes.annotate(
            _label(value),
            (abs(value), 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 2 + LABEL_PT * level),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=CAST,
        )
    return labels


def levels(values: Sequence[float], limits: tuple[float, float]) -> list[tuple[float, int]]:
    """Return the line on which each value's label goes, so that labels do not overlap; omits a value without room.

    values: sorted by magnitude, all within limits.
    """
    ends = [-math.inf] * LEVELS
    placed = []
    for value in values:
        at = math.log(abs(value) / limits[0]) / math.log(limits[1] / limits[0])
        half = CHARACTER * (len(_label(value)) + 1) / 2
        level = next((level for level, end in enumerate(ends) if at - half >= end), None)
        if level is not None:
            ends[level] = at + half
            placed.append((value, level))
    return placed


def _label(value: float) -> str:
    return f"{value:.6g}"


def _becomes(axes: "Axes", panel: Panel, casts: Sequence[Rounded]) -> None:
    places = {one.name: place for place, one in enumerate(panel.rows)}
    held = [(abs(one.becomes), places[one.dtype]) for one in casts if one.dtype in places and one.becomes is not None]
    on_axis = [(magnitude, place) for magnitude, place in held if panel.has_place(magnitude)]
    magnitudes, rows = [magnitude for magnitude, _ in on_axis], [place for _, place in on_axis]
    axes.plot(magnitudes, rows, color=CAST, zorder=4, **DIAMOND)


def _below(shown: Sequence[Panel], casts: Sequence[Rounded]) -> str:
    """Return the label of the axis, with the values that have no place on any panel."""
    absent = [_label(one.value) for one in casts if not any(panel.has_place(one.value) for panel in shown)]
    return "magnitude" + (f"; not on the axis: {', '.join(dict.fromkeys(absent))}" if absent else "")


def _legend(figure: Any, shown: Sequence[Panel], casts: Sequence[Rounded]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=NORMAL, label="normal"), Patch(color=SUBNORMAL, label="subnormal")]
    if casts:
        handles.append(Line2D([], [], color=CAST, label="value that is cast", **DASHES))
    if casts and any(panel.every_value for panel in shown):
        handles.append(Line2D([], [], color=CAST, label="what it becomes", **DIAMOND))
    paper.legend(figure, handles, len(handles), handlelength=1.6, columnspacing=1.8)

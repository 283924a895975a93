"""Curves of trainings, drawn: the validation loss over steps, and over time or money.

A line for each mode is the mean over its seeds, and the pale lines around it are the seeds: over steps on the left,
over money, or time without a price, on the right. No two modes differ by colour alone. The table has the gaps.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fp8bench.kinds.converge import gaps
from fp8bench.kinds.converge.gaps import Points
from fp8bench.kinds.converge.rows import Group, Spent
from fp8bench.tables import chart
from fp8bench.tables.chart import FAINT, INK

if TYPE_CHECKING:
    from fp8bench.tables.chart import Axes

PLACES = 60
"""Number of places along an axis at which means are drawn."""

STYLES: tuple[dict[str, Any], ...] = (
    {"color": INK, "linestyle": "-"},
    {"color": "#0072B2", "linestyle": (0, (5, 1.5))},
    {"color": "#D55E00", "linestyle": (0, (1, 1))},
    {"color": "#009E73", "linestyle": (0, (5, 1, 1, 1))},
    {"color": "#CC79A7", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
    {"color": "#E69F00", "linestyle": (0, (7, 1))},
)


def curves(group: Group, path: Path) -> None:
    """Draw the curves. Raises as `chart.figure` does."""
    lines = {row: line for row in group.rows if (line := group.lines[row.run_id, row.mode]).curves}
    styles = {row: STYLES[number % len(STYLES)] for number, row in enumerate(lines)}
    timed = [line for line in lines.values() if not line.emulated]
    priced = bool(timed) and all(line.usd_per_second for line in timed)
    axis: tuple[Spent, str] = ("money", "USD") if priced else ("time", "seconds of training")
    columns: tuple[tuple[Spent, str], ...] = (("steps", "step"), axis)
    with chart.figure(4.2, path) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (spent, label) in zip(panels, columns, strict=True):
            chart.panel(axes, "both", FAINT)
            for row, line in lines.items():
                _losses(axes, [points for seed in line.curves if (points := line.over(spent, seed))], styles[row])
            axes.set_xlabel(label, fontsize=9.5, color=FAINT)
        panels[0].set_title("loss on what is held out, nats a byte", **chart.SMALL_TITLE)
        entries = [{"linewidth": 1.8, "label": group.name(row), **style} for row, style in styles.items()]
        chart.legend(figure, entries, min(3, len(entries)), handlelength=3.2)


def _losses(axes: "Axes", every: Sequence[Points], style: dict[str, Any]) -> None:
    for points in every:
        axes.plot(*zip(*points, strict=True), color=style["color"], linewidth=0.7, alpha=0.35, zorder=2)
    # Up to the least that any of the seeds spent.
    end = min((points[-1][0] for points in every), default=0.0)
    means = []
    for place in (end * number / PLACES for number in range(PLACES + 1)):
        found = [loss for points in every if (loss := gaps.loss_at(points, place)) is not None]
        means += [(place, fmean(found))] if found else []
    if means:
        axes.plot(*zip(*means, strict=True), linewidth=1.8, zorder=3, **style)

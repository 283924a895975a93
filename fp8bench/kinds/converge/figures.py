"""Curves of trainings, drawn: the validation loss over steps, and over time or money.

The upper panels show the loss: a line for each mode is the mean over its seeds, and the pale lines around it are the
seeds. The lower panels show the gap to the reference with its 95 % interval over seeds: at equal steps on the left; at
equal money, or at equal time without a price, on the right. No two modes differ by colour alone.
"""

from collections.abc import Callable, Sequence
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
"""Number of places along an axis at which means and gaps are drawn."""

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
    reference = group.lines[group.rows[0].run_id, group.rows[0].mode]
    axis: tuple[Spent, str] = ("money", "USD") if priced else ("time", "seconds of training")
    columns: tuple[tuple[Spent, str], ...] = (("steps", "step"), axis)
    with chart.figure(6.2, path) as figure:
        panels = figure.subplots(2, 2, height_ratios=(1.5, 1), sharex="col")
        for column, (spent, label) in enumerate(columns):
            above, below = panels[0][column], panels[1][column]
            for axes in (above, below):
                chart.panel(axes, "both", FAINT)
            drawn = False
            for row, line in lines.items():
                _losses(above, [points for seed in line.curves if (points := line.over(spent, seed))], styles[row])
                shared = [seed for seed in line.curves if seed in reference.curves and not row.is_reference]
                pairs = [(line.over(spent, seed), reference.over(spent, seed)) for seed in shared]
                drawn |= _gap(below, [pair for pair in pairs if all(pair)], styles[row])
            if drawn:
                below.axhline(0, color=INK, linewidth=0.9, zorder=2)
            else:
                below.set_yticks([])
                below.text(0.5, 0.5, "nothing to compare", transform=below.transAxes, ha="center", color=FAINT)
            below.set_xlabel(label, fontsize=9.5, color=FAINT)
        panels[0][0].set_title("loss on what is held out, nats a byte", **chart.SMALL_TITLE)
        gap = f"gap to {group.name(group.rows[0])}, nats: below 0 is better"
        panels[1][0].set_title(gap, **chart.SMALL_TITLE)
        entries = [{"linewidth": 1.8, "label": group.name(row), **style} for row, style in styles.items()]
        chart.legend(figure, entries, min(3, len(entries)), handlelength=3.2)


def _losses(axes: "Axes", every: Sequence[Points], style: dict[str, Any]) -> None:
    for points in every:
        axes.plot(*zip(*points, strict=True), color=style["color"], linewidth=0.7, alpha=0.35, zorder=2)

    def mean(place: float) -> float | None:
        found = [loss for points in every if (loss := gaps.loss_at(points, place)) is not None]
        return fmean(found) if found else None

    if means := _along(every, mean):
        axes.plot(*zip(*means, strict=True), linewidth=1.8, zorder=3, **style)


def _gap(axes: "Axes", pairs: Sequence[tuple[Points, Points]], style: dict[str, Any]) -> bool:
    def gap(place: float) -> gaps.Gap | None:
        found = [value for pair in pairs if (value := gaps.gap_at(*pair, place)) is not None]
        return gaps.estimate(found) if len(found) == len(pairs) else None

    found = _along([points for pair in pairs for points in pair], gap)
    if found:
        places = [place for place, _ in found]
        axes.plot(places, [one.value for _, one in found], linewidth=1.8, zorder=3, **style)
        if all(one.low is not None for _, one in found):
            ends = [one.low for _, one in found], [one.high for _, one in found]
            axes.fill_between(places, *ends, color=style["color"], alpha=0.15, linewidth=0, zorder=1)
    return bool(found)


def _along(every: Sequence[Points], found_at: Callable[[float], Any]) -> list[tuple[float, Any]]:
    # Up to the least that any of the curves spent.
    end = min((points[-1][0] for points in every), default=None)
    places = [] if end is None else [end * number / PLACES for number in range(PLACES + 1)]
    return [(place, found) for place in places if (found := found_at(place)) is not None]

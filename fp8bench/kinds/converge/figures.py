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
from fp8bench.kinds.converge.compared import Group, ModeCurves, Row
from fp8bench.kinds.converge.gaps import Estimate, Points
from fp8bench.tables import chart
from fp8bench.tables.chart import FAINT, GRID, INK

if TYPE_CHECKING:
    from fp8bench.tables.chart import Axes

HEIGHT_IN = 6.2
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

Way = Callable[[ModeCurves, int], Points]


def curves(group: Group, path: Path) -> None:
    """Draw the curves. Raises UsageError as require_drawable does, and RunFailed if path cannot be written."""
    lines = {row: group.lines[row.run_id, row.mode] for row in group.rows if group.lines[row.run_id, row.mode].curves}
    styles = {row: STYLES[number % len(STYLES)] for number, row in enumerate(lines)}
    spent, unit = _what_is_spent(lines)
    with chart.figure(HEIGHT_IN, path) as figure:
        panels = figure.subplots(2, 2, height_ratios=(1.5, 1), sharex="col")
        for column, (way, label) in enumerate(((ModeCurves.by_steps, "step"), (spent, unit))):
            above, below = panels[0][column], panels[1][column]
            reference = group.lines[group.reference.run_id, group.reference.mode]
            drawn = False
            for row, line in lines.items():
                _losses(above, line, way, styles[row])
                drawn |= not row.is_reference and _gap(below, line, reference, way, styles[row])
            if drawn:
                below.axhline(0, color=INK, linewidth=0.9, zorder=2)
            else:
                below.set_yticks([])
                below.text(0.5, 0.5, "nothing to compare", transform=below.transAxes, ha="center", color=FAINT)
            below.set_xlabel(label, fontsize=9.5, color=FAINT)
            for axes in (above, below):
                _plain(axes)
        panels[0][0].set_title("loss on what is held out, nats a byte", **_small_title())
        panels[1][0].set_title(f"gap to {group.name(group.reference)}, nats: below 0 is better", **_small_title())
        _legend(figure, {group.name(row): style for row, style in styles.items()})


def _what_is_spent(lines: dict[Row, ModeCurves]) -> tuple[Way, str]:
    """Return money if every line that may have a price has one, else time."""
    timed = [line for line in lines.values() if not line.emulated]
    if timed and all(line.usd_per_second for line in timed):
        return ModeCurves.by_money, "USD"
    return ModeCurves.by_time, "seconds of training"


def _losses(axes: "Axes", line: ModeCurves, way: Way, style: dict[str, Any]) -> None:
    every = [points for seed in line.curves if (points := way(line, seed))]
    for points in every:
        axes.plot(*zip(*points, strict=True), color=style["color"], linewidth=0.7, alpha=0.35, zorder=2)
    means = [(place, fmean(found)) for place in _places(every) if (found := _at(every, place))]
    if means:
        axes.plot(*zip(*means, strict=True), linewidth=1.8, zorder=3, **style)


def _gap(axes: "Axes", line: ModeCurves, reference: ModeCurves, way: Way, style: dict[str, Any]) -> bool:
    """Draw the gap, and return whether there was any."""
    pairs = [(way(line, seed), way(reference, seed)) for seed in line.curves if seed in reference.curves]
    pairs = [(mine, theirs) for mine, theirs in pairs if mine and theirs]
    found: list[tuple[float, Estimate]] = []
    for place in _places([points for pair in pairs for points in pair]):
        each = [gap for mine, theirs in pairs if (gap := gaps.gap_at(mine, theirs, place)) is not None]
        estimate = gaps.estimate(each) if len(each) == len(pairs) else None
        found += [(place, estimate)] if estimate else []
    if not found:
        return False
    places = [place for place, _ in found]
    axes.plot(places, [one.value for _, one in found], linewidth=1.8, zorder=3, **style)
    if all(one.low is not None for _, one in found):
        ends = [one.low or 0.0 for _, one in found], [one.high or 0.0 for _, one in found]
        axes.fill_between(places, *ends, color=style["color"], alpha=0.15, linewidth=0, zorder=1)
    return True


def _places(every: Sequence[Points]) -> list[float]:
    """Return places up to the least that any of them spent."""
    if not every:
        return []
    end = min(points[-1][0] for points in every)
    return [end * number / PLACES for number in range(PLACES + 1)]


def _at(every: Sequence[Points], place: float) -> list[float]:
    found = [gaps.loss_at(points, place) for points in every]
    return [loss for loss in found if loss is not None]


def _small_title() -> dict[str, Any]:
    return {"fontsize": 9.5, "color": INK, "loc": "left", "pad": 4}


def _legend(figure: Any, styles: dict[str, dict[str, Any]]) -> None:
    handles = [dict(linewidth=1.8, label=name, **style) for name, style in styles.items()]
    chart.legend(figure, handles, min(3, len(handles)), handlelength=3.2)


def _plain(axes: "Axes") -> None:
    axes.tick_params(labelsize=9, labelcolor=FAINT, color=GRID)
    axes.grid(True, color=GRID, linewidth=0.7)
    chart.frame(axes, "bottom")

"""Scaling drawn: the rate of a GPU over the number of GPUs and, next to it, by how much each mode is faster than the
reference. Each mode has one colour. Measured or published values are full lines and dots with their intervals;
projections are labelled, with broken lines and hollow dots, and with a band if they are a range.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.records.select import in_micro_batches
from fp8bench.report import paper
from fp8bench.report.paper import FAINT, GRID, INK
from fp8bench.scaling.gather import Scaled
from fp8bench.scaling.points import Key, Point, words_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fp8bench.scaling.projected import Projection

HEIGHT_IN = 4.4
COLOURS = ("#1f2328", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
HOLLOW: dict[str, Any] = {
    "linestyle": (0, (4, 2)), "linewidth": 1.3, "marker": "o", "markersize": 4, "markerfacecolor": "white"
}  # fmt: skip
"""The style of projected values."""


def draw(found: Scaled, projected: "Sequence[Projection]", path: Path) -> None:
    """Draw the figure. Raises UsageError as require_drawable does, and RunFailed if path cannot be written."""
    points = found.points
    series = list(dict.fromkeys(point.series for point in points))
    colour = {key: COLOURS[place % len(COLOURS)] for place, key in enumerate(series)}
    gains = any(point.faster_vs_reference is not None for point in points)
    with paper.figure(HEIGHT_IN, path) as figure:
        left, *right = figure.subplots(1, 2, width_ratios=(1.6, 1)) if gains else (figure.add_subplot(),)
        _rates(left, points, projected, colour)
        for axes in right:
            _gains(axes, points, colour, found.reference)
        whose = ", ".join(sorted({point.source for point in points}))
        title = f"{found.workload}, {whose}{' and projected (broken lines)' if projected else ''}"
        figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")


def _rates(axes: "Axes", points: Sequence[Point], projected: "Sequence[Projection]", colour: dict[Key, str]) -> None:
    for key, shade in colour.items():
        mine = [point for point in points if point.series == key]
        where, values = [point.world_size for point in mine], [point.units_per_s_per_gpu for point in mine]
        axes.plot(where, values, color=shade, marker="o", markersize=4, linewidth=1.8, label=_label(mine[0]))
        for point in mine:
            if point.units_per_s_per_gpu_ci is not None:
                axes.plot([point.world_size] * 2, point.units_per_s_per_gpu_ci, color=shade, linewidth=1.2)
        base = [point for point in mine if point.nodes == 1]
        ahead = [row for row in projected if base and _is_of(row, base[-1])]
        if ahead:
            _projected(axes, base[-1], ahead, shade)
    sizes = sorted({point.world_size for point in points} | {row.world_size for row in projected})
    top = max([*(p.units_per_s_per_gpu for p in points), *(r.units_per_s_per_gpu[1] for r in projected)])
    worker, workers = words_for(point.device for point in points)
    _frame(axes, sizes, f"{points[0].unit}/s a {worker}", workers)
    axes.set_ylim(0, top * 1.08)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    if projected:
        axes.plot([], [], color=FAINT, label="projected", **HOLLOW)
    axes.legend(fontsize=8.5, frameon=False, labelcolor=INK, loc="lower left")


def _label(point: Point) -> str:
    batch = f", batch {point.batch_size}" if point.batch_size else ""
    pieces = point.grad_accumulation or 1
    divided = f", {in_micro_batches(pieces)}" if pieces > 1 else ""
    return f"{point.mode_label}{batch}{divided}{', CPU' * (point.device == 'cpu')}{', emulated' * point.emulated}"


def _is_of(row: "Projection", point: Point) -> bool:
    return row.from_run_ids == point.run_ids and row.mode_label == point.mode_label


def _projected(axes: "Axes", base: Point, rows: "Sequence[Projection]", shade: str) -> None:
    """Draw the projection from the point that it starts from."""
    where = [base.world_size, *(row.world_size for row in rows)]
    low = [base.units_per_s_per_gpu, *(row.units_per_s_per_gpu[0] for row in rows)]
    high = [base.units_per_s_per_gpu, *(row.units_per_s_per_gpu[1] for row in rows)]
    axes.fill_between(where, low, high, color=shade, alpha=0.12, linewidth=0)
    for values in (high, low) if low != high else (high,):
        axes.plot(where, values, color=shade, markevery=slice(1, None), **HOLLOW)


def _gains(axes: "Axes", points: Sequence[Point], colour: dict[Key, str], reference: str) -> None:
    known = [point for point in points if point.faster_vs_reference is not None]
    for key, shade in colour.items():
        mine = [point for point in known if point.series == key]
        if mine:
            where = [point.world_size for point in mine]
            values = [(point.faster_vs_reference or 0.0) * 100 for point in mine]
            axes.plot(where, values, color=shade, marker="o", markersize=4, linewidth=1.8)
        for point in mine:
            if point.faster_vs_reference_ci is not None:
                ends = [end * 100 for end in point.faster_vs_reference_ci]
                axes.plot([point.world_size] * 2, ends, color=shade, linewidth=1.2)
    axes.axhline(0, color=FAINT, linewidth=1)
    _, workers = words_for(point.device for point in points)
    _frame(axes, sorted({point.world_size for point in points}), f"% faster than {reference}", workers)


def _frame(axes: "Axes", sizes: Sequence[int], y: str, x: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, list(map(str, sizes)), fontsize=9)
    axes.minorticks_off()
    axes.set_xlabel(x, fontsize=9, color=FAINT)
    axes.set_ylabel(y, fontsize=9, color=FAINT)
    axes.tick_params(labelsize=9, labelcolor=FAINT, color=FAINT)
    axes.grid(True, color=GRID, linewidth=0.6)
    paper.frame(axes, "left", "bottom")

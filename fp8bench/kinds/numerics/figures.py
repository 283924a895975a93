"""Errors, and the jump under delayed scaling, as pictures.

`error_dots`: a panel for each layer and tensor with a row for each mode. Errors below LEAST are drawn in a strip at the
left, where positions mean nothing. `jump_lines`: the largest magnitude in the tensor and what each scaling could hold
(largest / scale); below it the share that saturated, and the error of the cast. Lines become thinner in the order of
the legend, so that those that coincide are seen. Dots are what Transformer Engine did. No two things differ by colour
alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.schema.numerics import EXACT, TENSORS, LayerError, ScalingTrace
from fp8bench.tables import chart
from fp8bench.tables.chart import FAINT, GRID, INK

if TYPE_CHECKING:
    from fp8bench.tables.chart import Axes

BAND = "#f6f8fa"
ROW_IN, AROUND_IN, PANEL_IN = 0.36, 1.2, 0.42
"""Heights in the figure of errors: of a mode's row, of what surrounds the panels, and of a panel without its rows."""

MARKS = {"normal": ("#0072B2", "o", -0.2), "heavy-tailed": ("#D55E00", "s", 0.0), "outlier": ("#009E73", "^", 0.2)}
"""The colour, the shape and the height in its row of an input's marks, so that equal errors do not hide each other."""

LEAST = 5e-4
STRIP = (2e-4, LEAST)
"""The strip's two ends on the axis. bfloat16's own rounding, 1.7e-3, lies to the right of it."""

IN_STRIP = {True: 2.6e-4, False: 3.8e-4}
"""Where a mark in the strip is drawn, by whether it is hollow: next to each other."""

STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#8fc4e8", "linewidth": 5.6},
    {"color": "#d55e00", "linewidth": 3.6},
    {"color": "#009e73", "linewidth": 2.0},
    {"color": "#cc79a7", "linewidth": 2.0, "linestyle": (0, (1.5, 1.5))},
)
TENSOR: dict[str, Any] = {"color": INK, "linewidth": 1.0, "label": "the tensor"}
DOTS: dict[str, Any] = {"linestyle": "none", "marker": ".", "markeredgecolor": INK}


def scaling_name(trace: ScalingTrace) -> str:
    """Return the scaling in words, e.g. `delayed, max of 1024`."""
    if trace.scaling == "current":
        return "current"
    return "delayed, most recent" if trace.algo == "most_recent" else f"delayed, max of {trace.history_len}"


def error_dots(record: NumericsRecord, path: Path) -> None:
    """Draw the errors; some row is ok. Raises as `chart.figure` does."""
    rows = [row for row in record.rows if row.status == "ok"]
    layers = [layer for layer in record.config.layers if any(row.layer == layer for row in rows)]
    modes = [mode for mode in record.config.modes if any(row.mode == mode for row in rows)]
    right = max(0.2, 1.5 * max(row.relative_error or 0.0 for row in rows))
    decades = [10.0**power for power in range(-3, 3) if 10.0**power < right]
    height = AROUND_IN + len(layers) * (PANEL_IN + ROW_IN * len(modes))
    with chart.figure(height, path) as figure:
        panels = figure.subplots(len(layers), len(TENSORS), squeeze=False, sharex=True, sharey=True)
        for line, layer in zip(panels, layers, strict=True):
            for axes, tensor in zip(line, TENSORS, strict=True):
                _dots(axes, [row for row in rows if (row.layer, row.tensor) == (layer, tensor)], modes)
                axes.set_title(f"{layer}: {tensor.replace('_', ' ')}", **chart.SMALL_TITLE)
        panels[-1, 0].set_xlim(STRIP[0], right)
        names = ["less", *(f"{value:g}" for value in decades)]
        panels[-1, 0].set_xticks([(STRIP[0] * STRIP[1]) ** 0.5, *decades], names)
        chart.title(figure, "Errors of each mode's layers, by input")
        panels[-1, 1].set_xlabel("relative error against float64 (further left is nearer)", fontsize=9.5, color=FAINT)
        shapes: dict[str, Any] = {"linestyle": "none", "markersize": 6, "markeredgewidth": 1.2}
        entries = [
            {"color": colour, "marker": marker, "label": name, **shapes}
            for name, (colour, marker, _) in MARKS.items()
            if any(row.input in (name, name + EXACT) for row in rows)
        ]
        if any((row.input or "").endswith(EXACT) for row in rows):
            label = "hollow: the same, moved to values that fp8 has"
            entries.append({"marker": "o", "markerfacecolor": "white", "color": FAINT, "label": label, **shapes})
        chart.legend(figure, entries, len(entries), handlelength=2.4)


def _dots(axes: "Axes", rows: Sequence[LayerError], modes: Sequence[str]) -> None:
    axes.set_xscale("log")
    for place in range(0, len(modes), 2):
        axes.axhspan(place - 0.5, place + 0.5, color=BAND, linewidth=0, zorder=0)
    for row in rows:
        name, error = row.input or "", row.relative_error or 0.0
        hollow = name.endswith(EXACT)
        colour, marker, offset = MARKS[name.removesuffix(EXACT)]
        x, y = error if error >= LEAST else IN_STRIP[hollow], modes.index(row.mode) + offset
        looks: dict[str, Any] = {"marker": marker, "markersize": 5.5, "linestyle": "none", "zorder": 3}
        looks |= {"markerfacecolor": "white" if hollow else colour, "markeredgecolor": colour, "markeredgewidth": 1.2}
        axes.plot(x, y, **looks)
    names = [mode.replace(":", "\n", 1) if len(mode) > 16 else mode for mode in modes]
    axes.set_yticks(range(len(modes)), names, fontsize=9)
    axes.set_ylim(len(modes) - 0.5, -0.5)
    axes.axvspan(*STRIP, color=GRID, alpha=0.55, linewidth=0, zorder=1)
    chart.panel(axes, "x")
    axes.minorticks_off()
    axes.tick_params(axis="y", length=0)


def jump_lines(record: NumericsRecord, path: Path) -> None:
    """Draw the jump. Raises as `chart.figure` does."""
    history = record.history
    simulated = [trace for trace in history.traces if trace.source == "simulated"]
    measured = [trace for trace in history.traces if trace.source == "transformer_engine"]
    styles = {scaling_name(trace): style for trace, style in zip(simulated, STYLES, strict=False)}
    factor = f"{history.factor:g} times as large"
    with chart.figure(6.4, path) as figure:
        above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
        steps = range(history.steps)
        above.plot(steps, simulated[0].amax, drawstyle="steps-mid", zorder=4, **TENSOR)
        for trace in simulated:
            looks = {"drawstyle": "steps-mid", **styles[scaling_name(trace)]}
            above.plot(steps, [history.largest / scale for scale in trace.scale], **looks)
            middle.plot(steps, [share * 100 for share in trace.saturated], **looks)
            below.plot(steps, trace.relative_error, **looks)
        for trace in measured:
            looks = {"color": styles[scaling_name(trace)]["color"], "markersize": 5, "markeredgewidth": 0.5, **DOTS}
            above.plot(steps, [history.largest / scale for scale in trace.scale], zorder=5, **looks)
        for axes in (above, below):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        chart.title(figure, f"Scaling of a tensor whose values are {factor} for some steps")
        titles = (
            "the largest magnitude in the tensor, and the largest that each scale lets e4m3 hold",
            "values that saturate, %",
            "relative error of the cast",
        )
        middle.set_ylim(-4, 104)
        at = ((history.up_at + history.down_at - 1) / 2, 0.5)
        looks = {"transform": above.get_xaxis_transform(), "ha": "center", "fontsize": 9.5, "color": FAINT}
        above.text(*at, f"values {factor}", **looks)
        below.set_xlabel("step", fontsize=9.5, color=FAINT)
        for axes, text in zip((above, middle, below), titles, strict=True):
            axes.set_title(text, **chart.SMALL_TITLE)
            chart.panel(axes, "both")
            axes.minorticks_off()
            axes.set_xlim(-1, history.steps)
            axes.axvspan(history.up_at - 0.5, history.down_at - 0.5, color=BAND, linewidth=0, zorder=0)
        entries = [TENSOR, *({"label": name, **style} for name, style in styles.items())]
        entries += [{"label": "dots: Transformer Engine", "color": FAINT, **DOTS}] if measured else []
        chart.legend(figure, entries, 3, handlelength=2.4)

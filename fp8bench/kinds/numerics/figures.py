"""Two pictures of one record.

`error_dots`: relative errors on a logarithmic axis, with a panel for each layer and tensor and a row for each mode.
Each input has a colour and a shape; a hollow mark is the same input moved to values that fp8 has, so that its error
does not come from the casts. fp8's errors lie within two decades, and float32's four decades below. Errors below LEAST
are drawn in a strip at the left, where positions mean nothing, so that recipes can be distinguished.

`jump_lines`: the jump over the steps. The upper panel shows the largest magnitude in the tensor, and what each scaling
could hold: largest / scale. Where the black line is above a coloured one, values saturate; far below it, the format's
precision is wasted. The lower panels show the share that saturated, and the error of the cast. Lines become thinner in
the order of the legend, so that those that coincide are all seen. Dots are what Transformer Engine did, if it ran: they
should lie on the lines, which are simulated.

No two things differ by colour alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.kinds.numerics.compared import scaling_name
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.schema.numerics import EXACT, TENSORS, LayerError, ScalingTrace, TensorName
from fp8bench.tables import chart
from fp8bench.tables.chart import FAINT, GRID, INK

if TYPE_CHECKING:
    from fp8bench.tables.chart import Axes

BAND = "#f6f8fa"
ROW_IN = 0.36
AROUND_IN = 1.2
PANEL_IN = 0.42
"""Heights in the figure of errors: of a mode's row, of what surrounds the panels, and of a panel without its rows."""

MARKS = {"normal": ("#0072B2", "o"), "heavy-tailed": ("#D55E00", "s"), "outlier": ("#009E73", "^")}
OFFSETS = {"normal": -0.2, "heavy-tailed": 0.0, "outlier": 0.2}
"""The height of an input's marks in its row, so that equal errors do not hide each other."""

TITLES: dict[TensorName, str] = {
    "output": "output",
    "input_gradient": "input gradient",
    "weight_gradient": "weight gradient",
}
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
TENSOR: dict[str, Any] = {"color": INK, "linewidth": 1.0}
JUMP_HEIGHT_IN = 6.4
SMALL_TITLE: dict[str, Any] = {"fontsize": 9.5, "color": INK, "loc": "left", "pad": 4}


def error_dots(record: NumericsRecord, path: Path) -> None:
    """Draw the errors; some row is ok. Raises UsageError as require_drawable does, RunFailed if it cannot write."""
    rows = [row for row in record.rows if row.status == "ok"]
    layers = [layer for layer in record.config.layers if any(row.layer == layer for row in rows)]
    modes = [mode for mode in record.config.modes if any(row.mode == mode for row in rows)]
    height = AROUND_IN + len(layers) * (PANEL_IN + ROW_IN * len(modes))
    with chart.figure(height, path) as figure:
        panels = figure.subplots(len(layers), len(TENSORS), squeeze=False, sharex=True, sharey=True)
        for line, layer in zip(panels, layers, strict=True):
            for axes, tensor in zip(line, TENSORS, strict=True):
                _dots(axes, [row for row in rows if (row.layer, row.tensor) == (layer, tensor)], modes)
                axes.set_title(f"{layer}: {TITLES[tensor]}", **SMALL_TITLE)
        _errors_axis(panels[-1, 0], max(row.relative_error or 0.0 for row in rows))
        chart.title(figure, "Errors of each mode's layers, by input")
        panels[-1, 1].set_xlabel("relative error against float64 (further left is nearer)", fontsize=9.5, color=FAINT)
        _legend_of_inputs(figure, rows)


def _dots(axes: "Axes", rows: Sequence[LayerError], modes: Sequence[str]) -> None:
    axes.set_xscale("log")
    for place in range(0, len(modes), 2):
        axes.axhspan(place - 0.5, place + 0.5, color=BAND, linewidth=0, zorder=0)
    for row in rows:
        name = (row.input or "").removesuffix(EXACT)
        colour, marker = MARKS[name]
        hollow = (row.input or "").endswith(EXACT)
        error = row.relative_error or 0.0
        axes.plot(
            error if error >= LEAST else IN_STRIP[hollow],
            modes.index(row.mode) + OFFSETS[name],
            marker=marker,
            markersize=5.5,
            markerfacecolor="white" if hollow else colour,
            markeredgecolor=colour,
            markeredgewidth=1.2,
            linestyle="none",
            zorder=3,
        )
    names = [mode.replace(":", "\n", 1) if len(mode) > 16 else mode for mode in modes]
    axes.set_yticks(range(len(modes)), names, fontsize=9, color=INK)
    axes.set_ylim(len(modes) - 0.5, -0.5)
    axes.axvspan(*STRIP, color=GRID, alpha=0.55, linewidth=0, zorder=1)
    _plain_axes(axes)
    axes.xaxis.grid(True, color=GRID, linewidth=0.7)
    axes.tick_params(axis="y", length=0)
    axes.minorticks_off()


def _errors_axis(axes: "Axes", greatest: float) -> None:
    """Set the axis that the panels share. greatest: the largest error, which must fit."""
    right = max(greatest * 1.5, 0.2)
    axes.set_xlim(STRIP[0], right)
    decades = [10.0**power for power in range(-3, 3) if 10.0**power < right]
    names = [f"{value:g}" for value in decades]
    axes.set_xticks([(STRIP[0] * STRIP[1]) ** 0.5, *decades], ["less", *names])


def _legend_of_inputs(figure: Any, rows: Sequence[LayerError]) -> None:
    seen = {row.input for row in rows}
    shapes: dict[str, Any] = {"linestyle": "none", "markersize": 6, "markeredgewidth": 1.2}
    handles = [
        dict(color=colour, marker=marker, label=name, **shapes)
        for name, (colour, marker) in MARKS.items()
        if seen & {name, name + EXACT}
    ]
    if any(name and name.endswith(EXACT) for name in seen):
        label = "hollow: the same, moved to values that fp8 has"
        handles.append(dict(marker="o", markerfacecolor="white", color=FAINT, label=label, **shapes))
    chart.legend(figure, handles, len(handles), handlelength=2.4)


def jump_lines(record: NumericsRecord, path: Path) -> None:
    """Draw the jump. Raises UsageError as require_drawable does, and RunFailed if path cannot be written."""
    history = record.history
    simulated = [trace for trace in history.traces if trace.source == "simulated"]
    measured = [trace for trace in history.traces if trace.source == "transformer_engine"]
    styles = {scaling_name(trace): style for trace, style in zip(simulated, STYLES, strict=False)}
    with chart.figure(JUMP_HEIGHT_IN, path) as figure:
        above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
        steps = range(history.steps)
        above.plot(steps, simulated[0].amax, drawstyle="steps-mid", zorder=4, **TENSOR)
        for trace in simulated:
            style = styles[scaling_name(trace)]
            above.plot(steps, _holds(trace, history.largest), drawstyle="steps-mid", **style)
            middle.plot(steps, [share * 100 for share in trace.saturated], drawstyle="steps-mid", **style)
            below.plot(steps, trace.relative_error, drawstyle="steps-mid", **style)
        for trace in measured:
            dots: dict[str, Any] = {
                "linestyle": "none",
                "marker": ".",
                "markersize": 5,
                "markeredgecolor": INK,
                "markeredgewidth": 0.5,
                "zorder": 5,
            }
            above.plot(steps, _holds(trace, history.largest), color=styles[scaling_name(trace)]["color"], **dots)
        for axes in (above, below):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        chart.title(figure, f"Scaling of a tensor whose values are {history.factor:g} times as large for some steps")
        above.set_title(
            "the largest magnitude in the tensor, and the largest that each scale lets e4m3 hold", **SMALL_TITLE
        )
        middle.set_title("values that saturate, %", **SMALL_TITLE)
        below.set_title("relative error of the cast", **SMALL_TITLE)
        middle.set_ylim(-4, 104)
        between = (history.up_at + history.down_at - 1) / 2
        what = f"values {history.factor:g} times as large"
        above.text(between, 0.5, what, transform=above.get_xaxis_transform(), ha="center", fontsize=9.5, color=FAINT)
        below.set_xlabel("step", fontsize=9.5, color=FAINT)
        for axes in (above, middle, below):
            _plain_axes(axes)
            axes.grid(True, color=GRID, linewidth=0.7)
            axes.minorticks_off()
            axes.set_xlim(-1, history.steps)
            axes.axvspan(history.up_at - 0.5, history.down_at - 0.5, color=BAND, linewidth=0, zorder=0)
        _legend_of_scalings(figure, styles, with_dots=bool(measured))


def _holds(trace: ScalingTrace, largest: float) -> list[float]:
    return [largest / scale for scale in trace.scale]


def _legend_of_scalings(figure: Any, styles: dict[str, dict[str, Any]], with_dots: bool) -> None:
    handles = [dict(label="the tensor", **TENSOR)]
    handles += [dict(label=name, **style) for name, style in styles.items()]
    if with_dots:
        dot: Any = {"color": FAINT, "linestyle": "none", "marker": ".", "markeredgecolor": INK}
        handles.append(dict(label="dots: Transformer Engine", **dot))
    chart.legend(figure, handles, 3, handlelength=2.4)


def _plain_axes(axes: "Axes") -> None:
    axes.tick_params(labelsize=9, labelcolor=FAINT, color=GRID)
    axes.tick_params(axis="y", labelcolor=INK)
    chart.frame(axes, "bottom")

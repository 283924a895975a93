"""Errors of precision modes as a document: one record, or records of the same work side by side, and as pictures.

A record has a row for each layer, input and mode; a second table shows the jump: steps that saturated, the worst cast,
and how many steps after the fall the scale was back. Side by side, each error has its ratio to the first record's:
above 1, it is less exact; equal errors have 1, even if both are 0. The data has each record by itself, unrounded.

`error_dots`: a panel for each layer and tensor with a row for each mode. Errors below LEAST are drawn in a strip at the
left, where positions mean nothing. `jump_lines`: the largest magnitude in the tensor and what each scaling could hold
(largest / scale); below it the share that saturated, and the error of the cast. Lines become thinner in the order of
the legend, so that those that coincide are seen. Dots are what Transformer Engine did. No two things differ by colour
alone.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.records.select import same_work
from fp8bench.schema.numerics import EXACT, INPUTS, LAYERS, TENSORS, AmaxJump, LayerError, ScalingTrace, TensorName
from fp8bench.tables import chart
from fp8bench.tables import document as doc
from fp8bench.tables.chart import FAINT, GRID, INK
from fp8bench.tables.side_by_side import differences_line, labels, where
from fp8bench.tables.study import Aligned, Column, StudyTable, beside, word
from fp8bench.tables.written import error, ratio, share

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


SHORT = {"output": "output", "input_gradient": "input grad.", "weight_gradient": "weight grad."}

MANY = 0.01
"""The share of saturated values above which a step saturates; single values saturate all the time."""

NEAR = 2.0
"""A scale is near current scaling's if it is off by less than this factor."""

Way = tuple[ScalingTrace, AmaxJump]
"""A way of scaling, and the jump that it answers."""


def _come_back(way: Way) -> str:
    """Return the steps from the fall until the scale is near current scaling's; `> 40`: in none of 40."""
    trace, jump = way
    after = range(jump.down_at, jump.steps)
    wanted = {step: jump.largest / trace.amax[step] for step in after}
    back = next((step for step in after if wanted[step] / NEAR < trace.scale[step] < wanted[step] * NEAR), None)
    return f"> {len(after)}" if back is None else str(back - jump.down_at)


SATURATE = Column[Way]("steps that saturate", lambda way: sum(one > MANY for one in way[0].saturated), "d")
WORST_ERROR = Column[Way]("worst error", lambda way: max(way[0].relative_error), error)
COME_BACK = Column[Way]("steps to come back", _come_back, str)
BY = {"transformer_engine": "Transformer Engine", "simulated": "simulation"}
JUMP_TABLE = StudyTable[Way](
    naming=(word("scaling", lambda way: scaling_name(way[0]), once=True), word("by", lambda way: BY[way[0].source])),
    columns=(SATURATE, Column("worst share", lambda way: max(way[0].saturated), share), WORST_ERROR, COME_BACK),
    beside=(SATURATE, WORST_ERROR, COME_BACK),
    key=lambda way: (scaling_name(way[0]), way[0].source),
)

Name = tuple[str | None, str | None, str, str | None]
NAMES = ("layer", "input", "mode", "tensor")


def _name(row: LayerError) -> Name:
    return row.layer, row.input, row.mode, row.tensor


ERROR_TABLE = StudyTable[LayerError](
    naming=(
        word("input", lambda row: row.input, once=True),
        word("mode", lambda row: row.mode, once=True),
        word("tensor", lambda row: SHORT.get(row.tensor or "")),
    ),
    columns=(),
    beside=(Column("error", lambda row: row.relative_error, error),),
    key=_name,
    against=lambda row, first: (ratio(error_ratio(row, first)), ""),
    refused=lambda row: (row.status, row.reason) if row.reason is not None else None,
)
"""Records side by side: a row for each tensor."""

Line = tuple[LayerError, ...]
"""The errors of one mode, layer and input, by tensor; or one row without a tensor that says why there are none."""


def _error_of(line: Line, tensor: TensorName) -> float | None:
    return next((row.relative_error for row in line if row.tensor == tensor), None)


def _worst(line: Line, name: str) -> float | None:
    return max((value for row in line if (value := getattr(row, name)) is not None), default=None)


OF_A_LINE: tuple[Column[Line], ...] = (
    word("input", lambda line: line[0].input, once=True),
    word("mode", lambda line: line[0].mode),
    *(Column(SHORT[tensor], partial(_error_of, tensor=tensor), error) for tensor in TENSORS),
    Column("saturated", partial(_worst, name="saturated"), share, spare=True),
    Column("flushed", partial(_worst, name="flushed"), share),
)


def document(records: Sequence[NumericsRecord], *_: object) -> doc.Document:
    """Return the document. records: in the order of the columns. Figures are only drawn for a single record."""
    rows = ((one.instance, one.run_id, *row.model_dump(mode="json").values()) for one in records for row in one.rows)
    drawn = {"errors": error_dots} if records[0].status == "ok" else {}
    figures = {**drawn, "jump": jump_lines} if len(records) == 1 else {}
    return doc.Document(
        tuple(block for group in same_work(records) for block in _blocks(group)),
        data=records,
        lines=doc.CsvLines(("instance", "run_id", *LayerError.model_fields), tuple(rows)),
        figures=tuple(doc.Figure(name, partial(draw, records[0])) for name, draw in figures.items()),
    )


def _blocks(group: Sequence[NumericsRecord]) -> tuple[tuple[doc.Part, ...], ...]:
    config, history, names, letters = group[0].config, group[0].history, labels(group), doc.Letters()
    heading = f"numerics, width {config.width}, {config.tokens} tokens, seed {config.seed}, on {where(group, names)}"
    jump = (
        f"A jump: values {history.factor:g} times as large from step {history.up_at} to step {history.down_at}, "
        f"{history.steps} steps, cast to e4m3"
    )
    ways = [[(trace, record.history) for trace in record.history.traces] for record in group]
    said: list[str] = []
    if len(group) == 1:
        tables = _errors(group[0], letters)
    else:
        found = side_by_side(group)
        tables = [
            [doc.Heading(_heading(layer)), ERROR_TABLE.of(list(rows), names, letters)]
            for layer, rows in groupby(found, key=lambda rows: next(row.layer for row in rows if row))
        ]
        said = [
            *differences_line(group, names),
            f"ratio: the error over that of {names[0]}; above 1 it is less exact.",
        ]
    jumped = JUMP_TABLE.of(JUMP_TABLE.aligned(ways), names, letters)
    below: list[doc.Part] = [*map(doc.Note, letters.lines()), *map(doc.Sentence, said)]
    return doc.blocks([doc.Heading(heading)], *tables, below, [doc.Heading(jump), jumped])


def _heading(layer: str | None) -> str:
    return f"{layer}: relative errors against float64" if layer else "not run"


def _errors(record: NumericsRecord, letters: doc.Letters) -> list[list[doc.Part]]:
    blocks: list[list[doc.Part]] = []
    for layer, given in groupby(error_lines(record), key=lambda line: line[0].layer):
        lines = list(given)
        refused = [[letters.refer(row.status, row.reason) for row in line if row.reason] for line in lines]
        notes = doc.Cells("notes", tuple(", ".join(dict.fromkeys(statuses)) for statuses in refused), "note")
        cells = doc.telling(*(column.cells(lines) for column in OF_A_LINE), notes)
        blocks.append([doc.Heading(_heading(layer)), doc.Table(tuple(cells), naming=2 if layer else 1)])
    return blocks


def error_lines(record: NumericsRecord) -> list[Line]:
    """Return lines by layer, input, and mode in the requested order; modes that did not run are last."""
    ordered = sorted(record.rows, key=partial(_place, record.config.modes))
    return [tuple(rows) for _, rows in groupby(ordered, key=lambda row: _name(row)[:3])]


def _place(modes: Sequence[str], row: LayerError) -> tuple[int, int, int, int]:
    return (
        LAYERS.index(row.layer) if row.layer else len(LAYERS),
        INPUTS.index(row.input) if row.input else len(INPUTS),
        modes.index(row.mode),
        TENSORS.index(row.tensor) if row.tensor else len(TENSORS),
    )


def side_by_side(group: Sequence[NumericsRecord]) -> Aligned[LayerError]:
    """Return each record's errors, by `Name`. A refusal counts for each of its tensors that another record has."""
    every = {_name(row) for record in group for row in record.rows}
    leaves = [name for name in every if not any(_covers(name, other) for other in every if other != name)]
    modes = list(dict.fromkeys(mode for record in group for mode in record.config.modes))
    rows = [
        [
            row.model_copy(update=dict(zip(NAMES, leaf, strict=True)))
            # Of several rows that cover a tensor the last one counts: the narrowest.
            for row in sorted(record.rows, key=lambda row: -_name(row).count(None))
            for leaf in leaves
            if _covers(_name(row), leaf)
        ]
        for record in group
    ]
    return beside(rows, _name, partial(_place, modes))


def _covers(wide: Name, name: Name) -> bool:
    return all(own in (None, other) for own, other in zip(wide, name, strict=True))


def error_ratio(row: LayerError, first: LayerError) -> float | None:
    """Return the error over the first's; None if either is unknown, or only the first is 0."""
    if row.relative_error is None or first.relative_error is None:
        return None
    if row.relative_error == first.relative_error:
        return 1.0
    return row.relative_error / first.relative_error if first.relative_error else None


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

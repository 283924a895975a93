"""What error each precision mode adds to a layer, measured against float64, and how delayed scaling answers a jump.

A record has a row for each layer, input and mode; a second table shows the jump: steps that saturated, the worst cast,
and how many steps after the fall the scale was back. In pictures no two things differ by colour alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from fp8bench import registry
from fp8bench.kinds.kind import Log
from fp8bench.kinds.one_record import OneRecord, Prepared, Request, head, of_run, place_of
from fp8bench.machine.gpus import this_machine
from fp8bench.records.select import grouped
from fp8bench.schema import option as limits
from fp8bench.schema.config import Device, mode_label
from fp8bench.schema.errors import Status, UsageError
from fp8bench.schema.gemm import ALIGNMENT, padded
from fp8bench.schema.numerics import (
    EXACT,
    INPUTS,
    LAYERS,
    TENSORS,
    AmaxJump,
    LayerError,
    LayerName,
    NumericsConfig,
    ScalingTrace,
    TensorName,
)
from fp8bench.schema.option import ByDevice, Option
from fp8bench.schema.record import METHOD_VERSION, RecordHead
from fp8bench.tables import document as doc
from fp8bench.tables.chart import FAINT, INK, Figure, Looks, Panel, Series
from fp8bench.tables.study import Column, Study, StudyTable, where, word
from fp8bench.tables.written import error, ratio, share

MODES = ("baseline-fp32", "baseline-bf16", "torchao-float8", "te-fp8")
"""Modes that are examined if none is named, each with all its recipes: those to compare with come first."""

TOKENS: dict[Device, int] = {"cuda": 2048, "cpu": 64}
WORST_FIRST: tuple[Status, ...] = ("failed", "invalid", "unsupported")


class NumericsRequest(Request):
    command = "numerics"

    modes: Annotated[
        tuple[str, ...],
        of_run("mode", "Only this mode, with its recipe: te-fp8:current. Repeatable", if_unset="all"),
    ] = ()
    layers: Annotated[tuple[str, ...], Option("Only this layer. Repeatable", metavar="linear|block")] = ()
    inputs: Annotated[
        tuple[str, ...],
        Option(
            "Only normal, heavy-tailed or outlier; with -exact, moved to values that fp8 has. Repeatable",
            metavar="DISTRIBUTION",
        ),
    ] = ()
    width: Annotated[
        Annotated[int, Field(ge=ALIGNMENT)] | None,
        Option("Of the layers, a multiple of 16", default=ByDevice(cuda=1280, cpu=64), limit=limits.WIDTH, metavar="N"),
    ] = None
    seed: Annotated[NonNegativeInt, of_run("seed", "Seed of weights and inputs")] = 0


class NumericsRecord(RecordHead):
    """The record of one call of `fp8bench numerics`. Its status is ok if any mode ran."""

    kind: Literal["numerics"] = "numerics"
    config: NumericsConfig
    rows: tuple[LayerError, ...]
    history: AmaxJump
    warnings: ClassVar[tuple[str, ...]] = ()

    def model_post_init(self, _context: Any) -> None:
        if (self.status == "ok") != any(row.status == "ok" for row in self.rows):
            raise ValueError("a record of numerics is ok where one of its rows is, and not otherwise")


def prepare(request: NumericsRequest, environ: Mapping[str, str]) -> Prepared[NumericsConfig]:
    """Check the request, then the machine. Writes nothing. Raises UsageError and ModeUnavailable."""
    if request.width is not None and request.width != padded(request.width):
        why = f"--width {request.width} is not divisible by {ALIGNMENT}, as fp8 GEMMs need it"
        raise UsageError(why, f"Pad it: --width {padded(request.width)}")
    found = [registry.find_mode(label) for label in request.modes]
    if not found:
        entries = [registry.find_mode(name)[0] for name in MODES]
        found = [(entry, recipe) for entry in entries for recipe in (entry.recipes or (None,))]
    layers = request.chosen("layer", request.layers, LAYERS)
    inputs = request.chosen("input", request.inputs, INPUTS)
    if "linear" not in layers and all(name.endswith(EXACT) for name in inputs):
        why = f"{', '.join(inputs)} are inputs of the linear layer alone: a block makes its operands itself"
        raise UsageError(why, "Add --layer linear, or another --input")
    machine = this_machine(environ)
    place = place_of(request, machine)
    device: Device = "cuda" if machine.has_gpu else "cpu"
    config = NumericsConfig(
        device=device,
        modes=tuple(dict.fromkeys(mode_label(entry.name, recipe) for entry, recipe in found)),
        layers=layers,
        inputs=inputs,
        width=request.on(device, "width"),
        tokens=TOKENS[device],
        seed=request.seed,
    )
    return Prepared(config, **vars(place))


def measure(prepared: Prepared[NumericsConfig], log: Log) -> NumericsRecord:
    """Examine the modes in this process. log: takes a line per stage. Raises ModeUnavailable and RunFailed."""
    from fp8bench.numerics.examination import examine
    from fp8bench.numerics.memory import device_for
    from fp8bench.worker.subject import environment

    config = prepared.config
    rows, history = examine(config, log)
    outcome: dict[str, Any] = {"status": "ok"}
    if all(row.status != "ok" for row in rows):
        worst = min(rows, key=lambda row: WORST_FIRST.index(row.status))
        outcome = worst.model_dump(include={"status", "reason", "remedy"})
    # What must be equal for errors to be compared; modes, layers and inputs need not be.
    same = config.model_dump(include={"width", "tokens", "seed"})
    return NumericsRecord(
        **head(prepared, "numerics"),
        **outcome,
        fingerprint={"kind": "numerics", **same, "method_version": METHOD_VERSION},
        environment=environment(device_for(config.device)),
        config=config,
        rows=rows,
        history=history,
    )


MANY = 0.01
"""The share of saturated values above which a step saturates; single values saturate all the time."""

NEAR = 2.0
"""A scale is near current scaling's if it is off by less than this factor."""

LEAST = 5e-4
"""The least error that a picture tells from none. bfloat16's own rounding, 1.7e-3, lies to the right of it."""

MARKS = {
    "normal": (Looks("#0072b2", "", marker="o"), -0.2),
    "heavy-tailed": (Looks("#d55e00", "", marker="s"), 0.0),
    "outlier": (Looks("#009e73", "", marker="^"), 0.2),
}
"""An input's marks and their height in its row, so that equal errors do not hide each other."""

STYLES = (
    Looks("#4a98cc", width=5.6),
    Looks("#d55e00", width=3.6),
    Looks("#009e73", width=2.0),
    Looks("#c0649a", (0, (1.5, 1.5)), width=2.0),
)
"""Of scalings in a picture: lines become thinner, so that those that coincide are seen."""

HOLLOW = Looks(FAINT, "", marker="o", hollow=True)

Way = tuple[ScalingTrace, AmaxJump]
"""A way of scaling, and the jump that it answers."""

Line = tuple[LayerError, ...]
"""The errors of one mode, layer and input, by tensor; or one row without a tensor that says why there are none."""


def scaling_name(trace: ScalingTrace) -> str:
    """Return the scaling in words, e.g. `delayed, max of 1024`."""
    if trace.scaling == "current":
        return "current"
    return "delayed, most recent" if trace.algo == "most_recent" else f"delayed, max of {trace.history_len}"


def _come_back(way: Way) -> str:
    # The steps from the fall until the scale is near current scaling's; `> 40`: in none of 40.
    trace, jump = way
    off = [scale * amax / jump.largest for scale, amax in zip(trace.scale, trace.amax, strict=True)][jump.down_at :]
    back = [str(step) for step, factor in enumerate(off) if 1 / NEAR < factor < NEAR]
    return back[0] if back else f"> {len(off)}"


SATURATE = Column[Way]("steps that saturate", lambda way: sum(one > MANY for one in way[0].saturated), "d")
WORST_ERROR = Column[Way]("worst error", lambda way: max(way[0].relative_error), error)
COME_BACK = Column[Way]("steps to come back", _come_back, str)
BY = {"transformer_engine": "Transformer Engine", "simulated": "simulation"}
JUMP = StudyTable[Way](
    rows=lambda record: [(trace, record.history) for trace in record.history.traces],
    heading="A jump in the size of values, cast to e4m3",
    naming=(word("scaling", lambda way: scaling_name(way[0]), once=True), word("by", lambda way: BY[way[0].source])),
    columns=(SATURATE, Column("worst share", lambda way: max(way[0].saturated), share), WORST_ERROR, COME_BACK),
    beside=(SATURATE, WORST_ERROR, COME_BACK),
    key=lambda way: (scaling_name(way[0]), way[0].source),
)


def _lines(record: NumericsRecord, layer: LayerName) -> list[Line]:
    rows = sorted(
        (row for row in record.rows if row.layer == layer), key=lambda row: INPUTS.index(row.input or "normal")
    )
    return [tuple(of) for _, of in groupby(rows, key=lambda row: (row.input, row.mode))]


def _error_of(line: Line, tensor: str) -> float | str | None:
    return next((row.status if row.reason else row.relative_error for row in line if row.tensor == tensor), None)


def _worst(line: Line, name: str) -> float | None:
    return max((value for row in line if (value := getattr(row, name)) is not None), default=None)


def _against(line: Line, first: Line) -> tuple[str, doc.Tone]:
    ours, reference = (_error_of(one, TENSORS[0]) for one in (line, first))
    if not isinstance(ours, float) or not isinstance(reference, float):
        return doc.NOTHING, ""
    return ratio(1.0 if ours == reference else ours / reference if reference else None), ""


def _errors(layer: LayerName) -> StudyTable[Line]:
    output, *gradients = (
        Column[Line](
            name, partial(_error_of, tensor=tensor), lambda found: error(found) if isinstance(found, float) else found
        )
        for tensor, name in zip(TENSORS, ("output", "input grad.", "weight grad."), strict=True)
    )
    return StudyTable[Line](
        rows=partial(_lines, layer=layer),
        heading=f"{layer}: relative errors against float64",
        naming=(word("input", lambda line: line[0].input, once=True), word("mode", lambda line: line[0].mode)),
        columns=(
            *(output, *gradients),
            Column("saturated", partial(_worst, name="saturated"), share, spare=True),
            Column("flushed", partial(_worst, name="flushed"), share),
        ),
        beside=(output, *(replace(one, spare=True) for one in gradients)),
        key=lambda line: (line[0].input, line[0].mode),
        order=lambda line: INPUTS.index(line[0].input or "normal"),
        against=_against,
        refused=lambda line: None if line[0].tensor or line[0].reason is None else (line[0].status, line[0].reason),
    )


def _not_run(record: NumericsRecord) -> list[str]:
    alike = grouped((row for row in record.rows if row.layer is None), lambda row: f"{row.status}: {row.reason}.")
    return [f"{', '.join(row.mode for row in rows)}: {why}" for why, rows in alike.items()]


def _title(records: Sequence[NumericsRecord], names: Sequence[str]) -> str:
    config = records[0].config
    return f"numerics, width {config.width}, {config.tokens} tokens, seed {config.seed}, on {where(records, names)}"


def _notes(records: Sequence[NumericsRecord], names: Sequence[str]) -> list[str]:
    jump = records[0].history
    grown = f"{jump.factor:g} times as large from step {jump.up_at} to {jump.down_at} of {jump.steps}"
    ratio = f"ratio: the output's error over that of {names[0]}; above 1 it is less exact."
    return [*([ratio] if names[1:] else []), f"The jump: values are {grown}."]


def _csv(records: Sequence[NumericsRecord]) -> doc.CsvLines:
    rows = ((one.instance, one.run_id, *row.model_dump(mode="json").values()) for one in records for row in one.rows)
    return doc.CsvLines(("instance", "run_id", *LayerError.model_fields), tuple(rows))


def error_dots(record: NumericsRecord) -> Figure:
    """Return the errors as dots, a panel for each layer and tensor; some row is ok."""
    rows = [row for row in record.rows if row.status == "ok"]
    layers = [layer for layer in LAYERS if any(row.layer == layer for row in rows)]
    modes = [mode for mode in record.config.modes if any(row.mode == mode for row in rows)]
    inputs = {row.input for row in rows if row.input}
    legend = [Series((), looks, name) for name, (looks, _) in MARKS.items() if {name, name + EXACT} & inputs]
    if any(name.endswith(EXACT) for name in inputs):
        legend.append(Series((), HOLLOW, "hollow: the same, moved to values that fp8 has"))
    common: dict[str, Any] = {
        "names": [mode.replace(":", "\n", 1) if len(mode) > 16 else mode for mode in modes],
        "within": (LEAST / 2, max(0.2, *(1.5 * (row.relative_error or 0.0) for row in rows))),
        "height": 0.45 + 0.4 * len(modes),
    }

    def panel(layer: LayerName, tensor: TensorName) -> Panel:
        dots = []
        for row in rows:
            if row.input is not None and (row.layer, row.tensor) == (layer, tensor):
                looks, offset = MARKS[row.input.removesuffix(EXACT)]
                hollow = row.input.endswith(EXACT)
                # At the left edge, too, what is hollow stands beside what is not.
                error = max(row.relative_error or 0.0, LEAST * (0.75 if hollow else 1))
                dots.append(Series([(error, modes.index(row.mode) + offset)], replace(looks, hollow=hollow)))
        title = f"{layer}: {tensor.replace('_', ' ')}"
        return Panel((*dots, *legend), title, "relative error", log="x", **common)

    title = f"Errors of each mode's layers against float64, by input (below {LEAST:g}: at the left edge)"
    return Figure(title, [[panel(layer, tensor) for tensor in TENSORS] for layer in layers], share_x=True, share_y=True)


def jump_lines(record: NumericsRecord) -> Figure:
    """Return the jump: what each scaling can hold beside the largest magnitude, and below it what is lost; dots are
    what Transformer Engine did.
    """
    history = record.history
    of_source = grouped(history.traces, lambda trace: trace.source)
    simulated = [(scaling_name(trace), trace) for trace in of_source["simulated"]]

    def held(trace: ScalingTrace) -> list[float]:
        return [history.largest / scale for scale in trace.scale]

    def lines(values: Callable[[ScalingTrace], Sequence[float]]) -> list[Series]:
        return [
            Series([*enumerate(values(trace))], looks, name, stairs=True)
            for (name, trace), looks in zip(simulated, STYLES, strict=False)
        ]

    tensor = Series([*enumerate(simulated[0][1].amax)], Looks(INK, width=1.0), "the tensor", stairs=True)
    dots = [
        Series([*enumerate(held(trace))], replace(HOLLOW, size=3.2), "dots: Transformer Engine")
        for trace in of_source.get("transformer_engine", ())
    ]
    above = "the largest magnitude in the tensor, and the largest that each scale lets e4m3 hold"
    panels = [
        [Panel(series, title, "step", log, height=height, shaded=(history.up_at - 0.5, history.down_at - 0.5))]
        for title, height, log, series in (
            (above, 2.7, "y", [*lines(held), tensor, *dots]),
            ("values that saturate, %", 1.2, "", lines(lambda trace: [100 * one for one in trace.saturated])),
            ("relative error of the cast", 1.5, "y", lines(lambda trace: trace.relative_error)),
        )
    ]
    title = f"Scaling of a tensor whose values are {history.factor:g} times as large for some steps"
    return Figure(title, panels, share_x=True)


STUDY = Study[NumericsRecord, NumericsRecord](
    reports=lambda records, _catalog, _options: records,
    title=_title,
    tables=(*map(_errors, LAYERS), JUMP),
    found=_not_run,
    notes=_notes,
    lines=_csv,
    # Of errors if some mode ran.
    figures=lambda record: {
        "jump": jump_lines,
        **({"errors": error_dots} if record.status == "ok" else {}),
    },
)


KIND = OneRecord(
    name="numerics",
    request=NumericsRequest,
    record=NumericsRecord,
    prepare=prepare,
    measure=measure,
    statuses=lambda record, _request: (row.status for row in record.rows),
    study=STUDY,
    figures={"plot": ("errors", "the errors"), "history_plot": ("jump", "the jump")},
)

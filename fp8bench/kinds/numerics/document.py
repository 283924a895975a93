"""Errors of precision modes as a document: one record, or records of the same work side by side.

A record has a row for each layer, input and mode; a second table shows the jump: steps that saturated, the worst cast,
and how many steps after the fall the scale was back. Side by side, each error has its ratio to the first record's:
above 1, it is less exact; equal errors have 1, even if both are 0. The data has each record by itself, unrounded.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from fp8bench.kinds.numerics import figures
from fp8bench.kinds.numerics.figures import scaling_name
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.records.select import same_work
from fp8bench.schema.instance import Catalog
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS, AmaxJump, LayerError, ScalingTrace, TensorName
from fp8bench.tables import document as doc
from fp8bench.tables.side_by_side import differences_line, labels, where
from fp8bench.tables.study import Aligned, Column, StudyTable, beside, word
from fp8bench.tables.written import error, ratio, share

ERRORS, JUMP = "errors", "jump"
"""The names of the figures."""

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


def document(records: Sequence[NumericsRecord], _catalog: Catalog | None = None) -> doc.Document:
    """Return the document. records: in the order of the columns. Figures are only drawn for a single record."""
    rows = ((one.instance, one.run_id, *row.model_dump(mode="json").values()) for one in records for row in one.rows)
    drawn = {ERRORS: figures.error_dots, JUMP: figures.jump_lines} if len(records) == 1 else {}
    return doc.Document(
        tuple(block for group in same_work(records) for block in _blocks(group)),
        data=records,
        lines=doc.CsvLines(("instance", "run_id", *LayerError.model_fields), tuple(rows)),
        figures=tuple(
            doc.Figure(name, partial(draw, records[0]))
            for name, draw in drawn.items()
            if name == JUMP or records[0].status == "ok"
        ),
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
        tables, jumped = _errors(group[0], letters), JUMP_TABLE.of_one(ways[0], letters)
    else:
        found = side_by_side(group)
        tables = [
            [doc.Heading(_heading(layer)), ERROR_TABLE.of_several(list(rows), names, letters)]
            for layer, rows in groupby(found, key=lambda rows: next(row.layer for row in rows if row))
        ]
        said = [
            *differences_line(group, names),
            f"ratio: the error over that of {names[0]}; above 1 it is less exact.",
        ]
        answers = beside(ways, JUMP_TABLE.key)
        jumped = JUMP_TABLE.of_several(answers, names, letters)
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

"""What precision modes add to a layer on several machines side by side, as numbers: each error of each record, its
ratio to the first record's, how far the errors agree, and where delayed scaling answered the jump differently. Numbers
only; `document` shows them.

A ratio is this record's error over the first's: above 1, this record is less exact. Equal errors have a ratio of 1,
even if both are 0.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.schema.errors import Status
from fp8bench.schema.numerics import (
    INPUTS,
    LAYERS,
    TENSORS,
    AmaxJump,
    InputName,
    LayerError,
    LayerName,
    ScalingTrace,
    TensorName,
)
from fp8bench.tables.side_by_side import Difference, against_first, differences, labels

CLOSE = 0.05
"""Errors whose ratio differs from 1 by at most this are called alike: such a difference changes no choice of a mode."""

MANY = 0.01
"""The share of saturated values above which a step saturates; single values saturate all the time."""

NEAR = 2.0
"""A scale is near current scaling's if it is off by less than this factor."""

Quantity = Literal["steps that saturate", "worst error", "steps to come back"]
Name = tuple[LayerName | None, InputName | None, str, TensorName | None]


@dataclass(frozen=True)
class Reading:
    """What one record says about a row. status: None if not examined. ratio: its error over the first record's; None
    for the first record.
    """

    status: Status | None = None
    reason: str | None = None
    error: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class ErrorRow:
    """The error of one tensor. A mode that no record could run has one row, with None for what is unknown."""

    layer: LayerName | None
    input: InputName | None
    mode: str
    tensor: TensorName | None
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Agreement:
    """A record compared with the first. both: the number of errors that both have. alike: how many of these are within
    CLOSE. furthest: the row whose ratio is furthest from 1, and that ratio; None if no error is in both.
    """

    label: str
    both: int
    alike: int
    furthest: tuple[ErrorRow, float] | None


@dataclass(frozen=True)
class JumpResponse:
    """How one way of scaling answered. worst_share: of values saturated at any step. worst_error: of any step,
    relative.

    steps_to_come_back: from the fall until the scale is near current scaling's; None: in none of the steps_after.
    """

    steps_that_saturate: int
    worst_share: float
    worst_error: float
    steps_to_come_back: int | None
    steps_after: int


def response_to(trace: ScalingTrace, history: AmaxJump) -> JumpResponse:
    """Return how a trace answered the jump. history: the jump that the trace belongs to."""
    after = range(history.down_at, history.steps)
    wanted = {step: history.largest / trace.amax[step] for step in after}
    back = next((step for step in after if wanted[step] / NEAR < trace.scale[step] < wanted[step] * NEAR), None)
    return JumpResponse(
        steps_that_saturate=sum(share > MANY for share in trace.saturated),
        worst_share=max(trace.saturated),
        worst_error=max(trace.relative_error),
        steps_to_come_back=None if back is None else back - history.down_at,
        steps_after=len(after),
    )


def scaling_name(trace: ScalingTrace) -> str:
    """Return the scaling in words, e.g. `delayed, max of 1024`."""
    if trace.scaling == "current":
        return "current"
    return "delayed, most recent" if trace.algo == "most_recent" else f"delayed, max of {trace.history_len}"


def source_name(trace: ScalingTrace) -> str:
    return "Transformer Engine" if trace.source == "transformer_engine" else "simulation"


def come_back_text(found: JumpResponse) -> str:
    """Write the steps to come back; `> 40` means in none of the 40 steps."""
    return f"> {found.steps_after}" if found.steps_to_come_back is None else str(found.steps_to_come_back)


@dataclass(frozen=True)
class JumpRow:
    """A quantity that differs between records. trace: the first record's that has it, for its names. responses: one for
    each record; None if not tried.
    """

    trace: ScalingTrace
    quantity: Quantity
    responses: tuple[JumpResponse | None, ...]


@dataclass(frozen=True)
class NumericsComparison:
    """Records of the same work. Every field with one value for each record has the values in the records' order."""

    labels: tuple[str, ...]
    rows: tuple[ErrorRow, ...]
    agreements: tuple[Agreement, ...]
    jump: tuple[JumpRow, ...]
    differences: tuple[Difference, ...]


def compare_errors(records: Sequence[NumericsRecord]) -> NumericsComparison:
    """Compare records with the first. records: of one fingerprint, at least one."""
    named = labels(records)
    rows = tuple(_rows(records))
    return NumericsComparison(
        labels=named,
        rows=rows,
        agreements=tuple(_agreement(label, rows, place) for place, label in enumerate(named) if place),
        jump=tuple(_jump(records)),
        differences=differences(records),
    )


def _rows(records: Sequence[NumericsRecord]) -> Iterator[ErrorRow]:
    """Yield rows by layer, input, mode in the requested order, and tensor; modes that ran nowhere are last."""
    known = [{(row.layer, row.input, row.mode, row.tensor): row for row in record.rows} for record in records]
    modes = list(dict.fromkeys(mode for record in records for mode in record.config.modes))
    names = {name for rows in known for name in rows}
    covered = {wider for name in names for wider in _wider(name)}
    for name in sorted(names - covered, key=lambda name: _place(name, modes)):
        yield ErrorRow(*name, readings=against_first((_reading(rows, name) for rows in known), _beside))


def _wider(name: Name) -> tuple[Name, ...]:
    """Return the names under which this row's refusal may be recorded: for all tensors, or for the entire mode."""
    layer, given, mode, _ = name
    return tuple(wider for wider in ((layer, given, mode, None), (None, None, mode, None)) if wider != name)


def _place(name: Name, modes: Sequence[str]) -> tuple[int, int, int, int]:
    layer, given, mode, tensor = name
    return (
        LAYERS.index(layer) if layer else len(LAYERS),
        INPUTS.index(given) if given else len(INPUTS),
        modes.index(mode),
        TENSORS.index(tensor) if tensor else len(TENSORS),
    )


def _reading(rows: dict[Name, LayerError], name: Name) -> Reading:
    row = next((rows[one] for one in (name, *_wider(name)) if one in rows), None)
    return Reading() if row is None else Reading(row.status, row.reason, row.relative_error)


def _beside(one: Reading, first: Reading) -> Reading:
    return replace(one, ratio=_ratio(one.error, first.error))


def _ratio(error: float | None, first: float | None) -> float | None:
    if error is None or first is None:
        return None
    if error == first:
        return 1.0
    return error / first if first else None


def _agreement(label: str, rows: Sequence[ErrorRow], place: int) -> Agreement:
    found = [(row, ratio) for row in rows if (ratio := row.readings[place].ratio) is not None]
    return Agreement(
        label=label,
        both=len(found),
        alike=sum(abs(ratio - 1) <= CLOSE for _, ratio in found),
        furthest=max(found, key=lambda one: _distance(one[1]), default=None),
    )


def _distance(ratio: float) -> float:
    """Return the distance from 1, which is the same for half as large and twice as large."""
    return abs(math.log(ratio)) if ratio else math.inf


def _jump(records: Sequence[NumericsRecord]) -> Iterator[JumpRow]:
    """Yield only what differs."""
    way_of = attrgetter("source", "scaling", "algo", "history_len")
    known = [{way_of(trace): trace for trace in record.history.traces} for record in records]
    every = {way: trace for traces in reversed(known) for way, trace in traces.items()}
    for way in dict.fromkeys(way for traces in known for way in traces):
        responses = tuple(
            response_to(traces[way], record.history) if way in traces else None
            for traces, record in zip(known, records, strict=True)
        )
        yield from (JumpRow(every[way], quantity, responses) for quantity in _unlike(responses))


def _unlike(responses: Sequence[JumpResponse | None]) -> Iterator[Quantity]:
    """Yield the quantities that differ. A way that a record did not try is shown once, by its worst error."""
    tried = [one for one in responses if one is not None]
    if len({one.steps_that_saturate for one in tried}) > 1:
        yield "steps that saturate"
    errors = [one.worst_error for one in tried]
    if len(tried) < len(responses) or max(errors) > min(errors) * (1 + CLOSE):
        yield "worst error"
    if len({one.steps_to_come_back for one in tried}) > 1:
        yield "steps to come back"

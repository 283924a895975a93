"""How far the model is off, from predictions of machines that were measured. Pure numbers.

A machine whose records exist is left out: its step is predicted from another machine's record, and compared with the
step that was measured. The largest error of such cases, either way, is the model's error for a change of the same kind.
That is no 95 % interval: few machines are known, and all modes of one pair of machines err together.

Kinds of change are apart, since they are not equally hard: to another GPU of the same architecture, to another
architecture, and to another number of GPUs. Where nothing tests a change of both at once, the two errors add up (of
logarithms). Of the same architecture, cases speak for their own two GPUs: what limits kernels was found on these. Two
others take the error of another architecture.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Literal

from pydantic import Field

from fp8bench.predict.machine import Machine
from fp8bench.predict.step import PartName
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen

GpuChange = Literal["same GPU", "same architecture", "another architecture"]
Scale = Literal["as many GPUs", "another number of GPUs"]


class Change(Frozen):
    """From one machine to another."""

    gpu: GpuChange
    scale: Scale

    @property
    def words(self) -> str:
        """`another architecture, another number of GPUs`."""
        return ", ".join(word for word in (self.gpu, self.scale) if word not in ("same GPU", "as many GPUs"))


NO_CHANGE = Change(gpu="same GPU", scale="as many GPUs")
OF_SCALE = Change(gpu="same GPU", scale="another number of GPUs")


class PartCase(Frozen):
    """One part of a step, as predicted and as measured on the target, seconds."""

    name: PartName
    predicted_s: float = Field(ge=0)
    measured_s: float = Field(ge=0)


class Case(Frozen):
    """One prediction of what was measured (or published). Seconds; of a `ratio` the ratio of two machines' steps.

    counted: whether it is a case of the model's error; note: why not, or what it is.
    """

    source: str = Field(description="where the record is of")
    target: str
    mode: str
    execution: Variant | None
    workload: str
    batch_size: int
    machines: tuple[str, str] = Field(description="GPUs of the record and of the target; of a ratio those of its terms")
    gpus: tuple[int, int] = Field(description="how many of them")
    change: Change
    what: Literal["step", "ratio"] = "step"
    predicted: float = Field(gt=0)
    measured: float = Field(gt=0)
    counted: bool = True
    note: str | None = None
    parts: tuple[PartCase, ...] = Field(default=(), description="where both steps were profiled")
    run_ids: tuple[str, ...] = Field(default=(), description="on which it rests")
    as_of: date = Field(description="of the latest of these")

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1: 0.07 is 7 % too slow."""
        return self.predicted / self.measured - 1

    @property
    def log_error(self) -> float:
        """Without sign, so that twice and half are equally far."""
        return abs(math.log(self.predicted / self.measured))

    @property
    def key(self) -> tuple[object, ...]:
        """Of two cases with one key the newer holds."""
        return (self.source, self.target, self.mode, self.execution, self.workload, self.batch_size, self.what)


class ModelError(Frozen):
    """value: at most so far off, on the logarithm's scale. worst: the case (or cases, which add up) that it is of,
    without its parts. cases: how many there were. basis: in words.
    """

    value: float = Field(ge=0)
    cases: int
    worst: tuple[Case, ...]
    basis: str

    @property
    def share(self) -> float:
        """0.12: up to 12 % too fast or too slow."""
        return math.exp(self.value) - 1


def change(source: Machine, target: Machine) -> Change:
    """What differs between two machines."""
    gpu: GpuChange = "another architecture"
    if source.gpu == target.gpu:
        gpu = "same GPU"
    elif source.compute_capability == target.compute_capability:
        gpu = "same architecture"
    return Change(gpu=gpu, scale="as many GPUs" if source.gpus == target.gpus else "another number of GPUs")


def model_error(cases: Sequence[Case], wanted: Change) -> ModelError | None:
    """For a change of this kind; None where nothing tests it. No change has no error."""
    if wanted == NO_CHANGE:
        return ModelError(value=0.0, cases=0, worst=(), basis="the same GPU and as many of them")
    of_both = _largest(cases, wanted) if wanted.gpu != "same GPU" and wanted.scale != "as many GPUs" else None
    if of_both is not None:
        return of_both
    alone = [
        *([] if wanted.gpu == "same GPU" else [_of_gpu(cases, wanted.gpu)]),
        *([] if wanted.scale == "as many GPUs" else [_largest(cases, OF_SCALE)]),
    ]
    found = [one for one in alone if one is not None]
    if len(found) < len(alone):
        return None
    return ModelError(
        value=sum(one.value for one in found),
        cases=sum(one.cases for one in found),
        worst=tuple(case for one in found for case in one.worst),
        basis=" and ".join(one.basis for one in found),
    )


def speaking_for(cases: Iterable[Case], source: Machine, target: Machine) -> list[Case]:
    """Those that test a prediction from one machine for the other: of the same architecture, of these two GPUs."""
    gpus = {source.gpu, target.gpu}
    return [case for case in cases if case.change.gpu != "same architecture" or {*case.machines} == gpus]


def merged(kept: Iterable[Case], here: Iterable[Case]) -> list[Case]:
    """The cases that were kept, but for those that records here give again."""
    return list({case.key: case for case in (*kept, *here)}.values())


def _of_gpu(cases: Sequence[Case], gpu: GpuChange) -> ModelError | None:
    """What is harder is not better known than what is easier, and what nothing tests no better than what is harder."""
    easier, harder = (
        _largest(cases, Change(gpu=one, scale="as many GPUs")) for one in ("same architecture", "another architecture")
    )
    if gpu == "same architecture":
        return easier or harder
    return max((one for one in (easier, harder) if one), key=lambda one: one.value) if harder else None


def _largest(cases: Sequence[Case], wanted: Change) -> ModelError | None:
    of_kind = [case for case in cases if case.counted and case.change == wanted]
    if not of_kind:
        return None
    worst = max(of_kind, key=lambda case: case.log_error)
    without_parts = worst.model_copy(update={"parts": ()})
    return ModelError(value=worst.log_error, cases=len(of_kind), worst=(without_parts,), basis=wanted.words)

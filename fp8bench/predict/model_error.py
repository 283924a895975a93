"""How far the model is off, from predictions of machines that were measured. Pure numbers.

A machine whose records exist is left out: its step is predicted from another machine's record, and compared with the
measured step. The largest error of such cases, in either direction, is the model's error for a change of the same kind.
It is not a 95 % interval: few machines are known, and all modes of one pair of machines err together.

Kinds of change are separate, because they are not equally hard: to another GPU of the same architecture, to another
architecture, and to another number of GPUs. If nothing tests a change of both at once, the two errors (logarithms) add
up. Cases of one architecture hold only for their own two GPUs, because what limits kernels was found on these. Other
pairs take the error of another architecture.
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
    """A change from one machine to another."""

    gpu: GpuChange
    scale: Scale

    @property
    def words(self) -> str:
        """The change in words, e.g. `another architecture, another number of GPUs`."""
        return ", ".join(word for word in (self.gpu, self.scale) if word not in ("same GPU", "as many GPUs"))


NO_CHANGE = Change(gpu="same GPU", scale="as many GPUs")
OF_SCALE = Change(gpu="same GPU", scale="another number of GPUs")


class PartCase(Frozen):
    """One part of a step, as predicted and as measured on the target, in seconds."""

    name: PartName
    predicted_s: float = Field(ge=0)
    measured_s: float = Field(ge=0)


class Case(Frozen):
    """One prediction of a step that was measured (or published), in seconds. A `ratio` is that of two machines' steps.

    counted: whether this is a case of the model's error. note: why it is not counted, or what it is.
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
        """The error as a logarithm without sign, so that twice and half are equally far off."""
        return abs(math.log(self.predicted / self.measured))

    @property
    def key(self) -> tuple[object, ...]:
        """The key of a case. If two cases have the same key, the newer one replaces the older."""
        return (self.source, self.target, self.mode, self.execution, self.workload, self.batch_size, self.what)


class ModelError(Frozen):
    """The model's error. value: the largest error, on the logarithmic scale. worst: the case with this error (or the
    cases, whose errors add up), without its parts. cases: their number. basis: the change in words.
    """

    value: float = Field(ge=0)
    cases: int
    worst: tuple[Case, ...]
    basis: str

    @property
    def share(self) -> float:
        """The error as a share, e.g. 0.12: up to 12 % too fast or too slow."""
        return math.exp(self.value) - 1


def change(source: Machine, target: Machine) -> Change:
    """Return what differs between two machines."""
    gpu: GpuChange = "another architecture"
    if source.gpu == target.gpu:
        gpu = "same GPU"
    elif source.compute_capability == target.compute_capability:
        gpu = "same architecture"
    return Change(gpu=gpu, scale="as many GPUs" if source.gpus == target.gpus else "another number of GPUs")


def model_error(cases: Sequence[Case], wanted: Change) -> ModelError | None:
    """Return the error for a change of this kind; None if nothing tests it. The error of no change is 0."""
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
    """Return the cases that test a prediction from source to target: within an architecture, of only these GPUs."""
    gpus = {source.gpu, target.gpu}
    return [case for case in cases if case.change.gpu != "same architecture" or {*case.machines} == gpus]


def merged(kept: Iterable[Case], here: Iterable[Case]) -> list[Case]:
    """Return all cases; a case from the records here replaces the kept case with the same key."""
    return list({case.key: case for case in (*kept, *here)}.values())


def _of_gpu(cases: Sequence[Case], gpu: GpuChange) -> ModelError | None:
    """Return the error for another GPU. Harder changes never get a smaller error than easier ones, untested easier
    changes get that of harder ones, and untested harder changes get none.
    """
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

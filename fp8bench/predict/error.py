"""How far the model is off, as shipped in configs/prediction-errors.json: found by benchmarks/prediction_errors.py,
which predicts every measured machine from another one's record. The largest error, in either direction, is the error
for a change of the same kind; no 95 % interval, since few machines are known. Between the two GPU types that the
limits were fitted to it is that of a mode whose own records are left out, elsewhere that with a whole GPU type left
out. A workload without cases has no error: it is untested.
"""

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from fp8bench.predict.step import Limits, Machine
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import PREDICTION_ERRORS_JSON, Frozen, first_fault, read_text

GpuChange = Literal["same GPU", "same architecture", "another architecture"]
Scale = Literal["as many GPUs", "another number of GPUs"]
LeftOut = Literal["mode", "GPU type"]


class Case(Frozen):
    """One prediction of a step that was measured, in seconds; a `ratio` is that of two published steps."""

    source: str
    target: str
    mode: str
    execution: Variant | None
    workload: str
    batch_size: int
    what: Literal["step", "ratio"] = "step"
    predicted: float = Field(gt=0)
    measured: float = Field(gt=0)

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1: 0.07 is 7 % too slow."""
        return self.predicted / self.measured - 1

    @property
    def log_error(self) -> float:
        """The error as a logarithm without sign, so that twice and half are equally far off."""
        return abs(math.log1p(self.error))


class ModelError(Frozen):
    """The error of a prediction. value: on the logarithmic scale. worst: the case with this error, or those whose
    errors add up. basis: the change in words.
    """

    value: float = Field(ge=0)
    cases: int
    worst: tuple[Case, ...]
    basis: str

    @property
    def share(self) -> float:
        """The error as a share, e.g. 0.12: up to 12 % too fast or too slow."""
        return math.exp(self.value) - 1


class Tested(ModelError):
    """The error for one kind of change. left_out: what the limits of kernels were fitted without to find it."""

    gpu: GpuChange
    scale: Scale
    left_out: LeftOut


class Known(Frozen):
    """What travels with the program. gpus: the types that the limits were fitted to. workloads: those of the cases,
    with their batch sizes. most_gpus: of any case of another number of GPUs.
    """

    limits: Limits
    gpus: tuple[str, ...]
    workloads: dict[str, tuple[int, ...]]
    most_gpus: int
    errors: tuple[Tested, ...]


def known(path: Path = PREDICTION_ERRORS_JSON) -> Known:
    """Return what is installed with the program. Raises RunFailed if the file was changed by hand."""
    try:
        return Known.model_validate_json(read_text(path))
    except ValidationError as error:
        field, reason = first_fault(error)
        remedy = "Reinstall fp8bench; in a checkout, run `make prediction-errors`"
        raise RunFailed(f"{path}, field {field}: {reason}", remedy) from error


def change(source: Machine, target: Machine) -> tuple[GpuChange, Scale]:
    """Return what differs between two machines."""
    alike = source.gpu.compute_capability == target.gpu.compute_capability
    gpu: GpuChange = "same architecture" if alike else "another architecture"
    gpu = "same GPU" if source.gpu.name == target.gpu.name else gpu
    return gpu, "as many GPUs" if source.gpus == target.gpus else "another number of GPUs"


def model_error(found: Known, workload: str, source: Machine, target: Machine) -> ModelError | None:
    """Return the error of a prediction; None if nothing tests it: no case is of this workload, or of such a change."""
    gpu, scale = change(source, target)
    if (gpu, scale) == ("same GPU", "as many GPUs"):
        return ModelError(value=0.0, cases=0, worst=(), basis="the same GPU and as many of them")
    if workload not in found.workloads:
        return None
    unknown = sorted({source.gpu.name, target.gpu.name} - {*found.gpus})
    left_out: LeftOut = "GPU type" if unknown else "mode"
    why = f"; with a whole GPU type left out, since {' and '.join(unknown)} has no records here" if unknown else ""
    for one in found.errors:
        if (one.gpu, one.scale, one.left_out) == (gpu, scale, left_out):
            return ModelError(value=one.value, cases=one.cases, worst=one.worst, basis=one.basis + why)
    return None

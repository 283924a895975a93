"""A step on another machine, predicted from where the time of a measured step goes. Pure numbers.

Each kind of kernel is scaled by what limits it (the roofline model: Williams, Waterman & Patterson, CACM 2009): GEMMs
by the dense peak of their type, other kernels by gigabytes / bandwidth + SM cycles / (SMs x clock), communication by
the links: a ring of n GPUs sends 2 (n - 1) / n of the gradients' bytes over each (Patarasuk & Yuan, 2009). `Limits` and
errors are those that benchmarks/prediction_errors.py finds in measured machines.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from fp8bench.schema.collectives import bus_factor
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import PREDICTION_ERRORS_JSON, Frozen, fault, read_text
from fp8bench.schema.instance import BOTH_DIRECTIONS, Gpu
from fp8bench.schema.rank import Category

PEAKS: Mapping[Category, str] = {"gemm_fp8": "dense_fp8_tflops", "gemm_bf16": "dense_bf16_tflops"}
CARRIED_OVER: tuple[Category, ...] = ("gemm_fp32", "other")
RULES: Mapping[Category, str] = {
    "gemm_fp8": "dense fp8 peak",
    "gemm_bf16": "dense bf16 peak",
    "attention": "memory, SMs and peak",
    "nccl": "links",
    **dict.fromkeys(CARRIED_OVER, "carried over"),
    **dict.fromkeys(("cast", "elementwise", "copy", "optimizer"), "memory and SMs"),
}

ATTENTION_FLOPS_A_BYTE = 14 / 24
"""Operations per byte and token; half of it for causal attention. Over n tokens a flash kernel makes 14 n^2 d
operations a head, forward and backward (Dao, FlashAttention-2, 2023), and moves at least 24 n d bytes in 16 bits.
"""


class Machine(NamedTuple):
    """GPUs of one host that train together, with the catalogue's figures of one of them."""

    gpu: Gpu
    gpus: int

    def figure(self, field: str) -> float:
        """Return a figure of the catalogue. Raises UsageError if the catalogue has none."""
        value: float | None = getattr(self.gpu, field)
        if value is None:
            instead = "Give --gpus 1" if field == "nvlink_gb_s" else "Name another instance"
            raise UsageError(
                f"{field} of {self.gpu.name} is not known, and a prediction needs it",
                f"{instead}, or give the figure in the catalogue with its source",
            )
        return value


class Amounts(Frozen):
    """What all kernels of a kind need; only the ratio of the two matters. sm_gcycles: billions of cycles of an SM."""

    dram_gb: float = Field(ge=0)
    sm_gcycles: float = Field(ge=0)


class Limits(Frozen):
    """kinds: what each kind of kernel needs; DRAM alone if nothing is known. beside_s: by how many seconds kernels take
    longer for each second of communication that they hide.
    """

    kinds: Mapping[Category, Amounts] = Field(default_factory=dict)
    beside_s: float = Field(default=0.0, ge=0)


def seconds(amounts: Amounts, machine: Machine, flops_a_byte: float = 0.0) -> float:
    """Return the seconds for these amounts. flops_a_byte: of the tensor cores. Raises UsageError as `figure`."""
    needed_s = amounts.dram_gb / machine.figure("memory_bandwidth_gb_s")
    if amounts.sm_gcycles:
        needed_s += amounts.sm_gcycles * 1e3 / (machine.figure("sm_count") * machine.figure("sm_clock_mhz"))
    if flops_a_byte:
        needed_s += amounts.dram_gb * flops_a_byte / (machine.figure("dense_bf16_tflops") * 1e3)
    return needed_s


@dataclass(frozen=True)
class Work:
    """One GPU's step as measured, in seconds. by_category: from the profile; its `nccl` is exposed communication only.
    nccl_s: all communication. host_bound: whether the GPU waits for its host. tokens: of a sequence. causal: whether no
    token sees a later one. gradient_bytes: of all weights, in float32. None means unknown.
    """

    step_s: float
    by_category: Mapping[Category, float]
    nccl_s: float = 0.0
    host_bound: bool = False
    tokens: int | None = None
    causal: bool = False
    gradient_bytes: float | None = None

    @property
    def busy_s(self) -> float:
        """Time in which at least one kernel ran."""
        return sum(self.by_category.values())

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran; 0 if profiled steps were busier than timed ones."""
        return max(0.0, self.step_s - self.busy_s)

    @property
    def hidden_s(self) -> float:
        """Communication that other kernels hid."""
        return max(0.0, self.nccl_s - self.by_category.get("nccl", 0.0))

    @property
    def attention_flops_a_byte(self) -> float:
        """Attention's tensor-core operations per byte; 0 if the number of tokens is unknown."""
        return ATTENTION_FLOPS_A_BYTE * (self.tokens or 0) / (2 if self.causal else 1)


class Part(Frozen):
    """One kind of work of a step. ratio: predicted over measured seconds; None if no rule applies."""

    name: Category | Literal["idle"]
    rule: str
    measured_s: float
    predicted_s: float
    ratio: float | None = None


class Step(NamedTuple):
    """A predicted step, in seconds. least_s: the step if kernels hide all communication that was not measured; else
    equal to step_s. Neither includes the model's error. assumed: sentences for a reader.
    """

    step_s: float
    least_s: float
    parts: tuple[Part, ...]
    assumed: tuple[str, ...]


def predict(work: Work, measured_on: Machine, target: Machine, limits: Limits) -> Step:
    """Predict the step on the target. Raises UsageError, with the field's name, for a figure that is not known."""
    longest_first = sorted(work.by_category.items(), key=lambda item: -item[1])
    measured: dict[Category, float] = {kind: of_kind for kind, of_kind in longest_first if kind != "nccl"}
    ratios = {kind: _ratio(kind, work, measured_on, target, limits) for kind in measured}
    # Without the communication that they hid, kernels are shorter.
    alone = _longer(measured, -work.hidden_s * limits.beside_s)
    kernels = {kind: alone[kind] * (1.0 if ratio is None else ratio) for kind, ratio in ratios.items()}
    shared, hidden_s, said = _communication(work, measured_on, target, sum(kernels.values()))
    parts = []
    for kind, found_s in _longer(kernels, hidden_s * limits.beside_s).items():
        ratio = None if ratios[kind] is None or not measured[kind] else found_s / measured[kind]
        parts.append(Part(name=kind, rule=RULES[kind], measured_s=measured[kind], predicted_s=found_s, ratio=ratio))
    if shared.measured_s or shared.predicted_s:
        parts.append(shared)
    busy_s = sum(part.predicted_s for part in parts)

    def idle_beside(kernels_s: float) -> float:
        return max(0.0, work.step_s - kernels_s) if work.host_bound else work.idle_s

    parts.append(Part(name="idle", rule="carried over", measured_s=work.idle_s, predicted_s=idle_beside(busy_s)))
    if measured_on.gpu.name != target.gpu.name:
        said.append(
            "GEMMs reach the share of the dense peak that was measured; other kernels need as much of DRAM and of the "
            "SMs as they did on the GPUs that this was fitted to"
        )
    if "attention" in work.by_category and work.tokens is None:
        said.append("attention goes by no dense peak: the record does not say how long a sequence is")
    if work.nccl_s and limits.beside_s:
        said.append(f"kernels take {limits.beside_s:.2f} s longer for each second of communication that they hide")
    if work.host_bound:
        said.append("the GPU waited for its host, which is taken to be as fast there: no step is shorter than measured")
    else:
        said.append("gaps between kernels, the host's launches and the loader take as long as measured")
    # Profiled steps that were busier than the timed step is long are scaled to the timed step.
    to_timed = work.step_s / (work.busy_s + work.idle_s)
    least_busy_s = busy_s - (shared.predicted_s if measured_on.gpus == 1 else 0.0)
    return Step(
        step_s=(busy_s + idle_beside(busy_s)) * to_timed,
        least_s=(least_busy_s + idle_beside(least_busy_s)) * to_timed,
        parts=tuple(parts),
        assumed=tuple(said),
    )


def _longer(kernels: Mapping[Category, float], more_s: float) -> dict[Category, float]:
    """Return the seconds of each kind, so many more of them beside communication, which the optimizer waits for."""
    beside_s = sum(of_kind for kind, of_kind in kernels.items() if kind != "optimizer")
    factor = max(0.0, 1 + more_s / beside_s) if beside_s else 1.0
    return {kind: of_kind * (1.0 if kind == "optimizer" else factor) for kind, of_kind in kernels.items()}


def _ratio(kind: Category, work: Work, measured_on: Machine, target: Machine, limits: Limits) -> float | None:
    same, share = measured_on.gpu.name == target.gpu.name, work.by_category[kind] / work.step_s
    # The catalogue has no float32 peak: a negligible share of the step is carried over.
    if kind == "gemm_fp32" and not same and share > 0.01:
        raise UsageError(
            f"{share * 100:.0f} % of this step is float32 GEMMs, and no float32 peak of {target.gpu.name} is known",
            "Predict a mode of 16 or 8 bits",
        )
    if kind in CARRIED_OVER:
        return None
    if same:
        return 1.0
    if kind in PEAKS:
        return measured_on.figure(PEAKS[kind]) / target.figure(PEAKS[kind])
    amounts = limits.kinds.get(kind, Amounts(dram_gb=1.0, sm_gcycles=0.0))
    flops_a_byte = work.attention_flops_a_byte if kind == "attention" else 0.0
    return seconds(amounts, target, flops_a_byte) / seconds(amounts, measured_on, flops_a_byte)


def _communication(work: Work, one: Machine, target: Machine, kernels_s: float) -> tuple[Part, float, list[str]]:
    """Return exposed communication, the seconds that are hidden, and what is assumed. one: which was measured."""
    exposed_s, hidden_s, ratio, said = 0.0, 0.0, None, []
    if target.gpus > 1 and one.gpus == 1:
        if (gradients := work.gradient_bytes) is None:
            raise UsageError(
                f"{target.gpus} GPUs share gradients whose size this record does not say",
                "Name a record of several GPUs, or give --gpus 1",
            )
        link_gb_s = target.figure("nvlink_gb_s") / BOTH_DIRECTIONS
        exposed_s = bus_factor("all-reduce", target.gpus) * gradients / (link_gb_s * 1e9)
        said.append(
            f"communication of {target.gpus} GPUs was not measured: {gradients / 1e9:.1f} GB of gradients are "
            f"all-reduced at a link's full {link_gb_s:.0f} GB/s, hidden behind nothing; at a range's lower end all of "
            "it is hidden"
        )
    elif target.gpus > 1:
        ratio = bus_factor("all-reduce", target.gpus) / bus_factor("all-reduce", one.gpus)
        if one.gpu.name != target.gpu.name:
            ratio *= one.figure("nvlink_gb_s") / target.figure("nvlink_gb_s")
        all_s, share = work.nccl_s * ratio, work.hidden_s / work.nccl_s if work.nccl_s > 0 else 0.0
        exposed_s = max(all_s * (1 - share), all_s - kernels_s)
        hidden_s = all_s - exposed_s
        hidden = f"{share * 100:.0f} % of it is hidden, as measured"
        said.append(f"communication takes {ratio:.2f} times as long, by links; {hidden}")
    measured_s = work.by_category.get("nccl", 0.0)
    part = Part(name="nccl", rule=RULES["nccl"], measured_s=measured_s, predicted_s=exposed_s, ratio=ratio)
    return part, hidden_s, said


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
    text = read_text(path)
    try:
        return Known.model_validate_json(text)
    except ValidationError as error:
        remedy = "Reinstall fp8bench; in a checkout, run `make prediction-errors`"
        raise RunFailed(f"{path} {fault(error, text.encode())}", remedy) from error


def change(source: Machine, target: Machine) -> tuple[GpuChange, Scale]:
    gpu: GpuChange = "another architecture"
    if source.gpu.compute_capability == target.gpu.compute_capability:
        gpu = "same GPU" if source.gpu.name == target.gpu.name else "same architecture"
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

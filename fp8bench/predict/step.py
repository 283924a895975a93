"""A step on another machine, from where it goes on the one that it was measured on. Pure numbers.

Each kind of kernel is scaled by what limits it (the roofline model: Williams, Waterman & Patterson, Communications of
the ACM 2009), from the figures that datasheets give for both GPUs:

- GEMMs by the dense peak of their type. So they keep the share of the peak that was measured.
- Norms, activations, casts, copies and the optimizer by memory bandwidth: they compute a few operations a byte.
- Attention by both. A flash kernel over n tokens makes 14 n^2 d operations a head, forward and backward (Dao,
  FlashAttention-2, 2023: the backward takes 2.5 times the forward's 4 n^2 d), and moves at least 24 n d bytes in 16
  bits: q, k, v, o forward; q, k, v, o, do, dq, dk, dv backward. That is 7 n / 12 operations a byte. A causal one skips
  half of the operations and none of the bytes. Where this is r times the operations a byte that the measured GPU can
  do, r / (1 + r) of the kernel is limited by the peak, the rest by bandwidth.
- Communication by links. A ring of n GPUs sends 2 (n - 1) / n of the gradients' bytes over each link (Patarasuk & Yuan,
  2009). What was hidden behind other kernels stays hidden in the same share, as far as there is anything to hide it.
- What no rule covers is carried over: idle time, which is the host's and the gaps between kernels, and other kernels.

What a machine's clocks do under its power limit, how well a library's kernels suit another GPU, and how caches serve it
are in none of these. They are the model's error, which is found by predicting machines that were measured
(`predict.model_error`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import Category

Rule = Literal[
    "dense bf16 peak",
    "dense fp8 peak",
    "memory bandwidth",
    "peak and bandwidth",
    "links",
    "carried over",
]

PartName = Category | Literal["idle"]

RULES: dict[Category, Rule] = {
    "gemm_fp8": "dense fp8 peak",
    "gemm_bf16": "dense bf16 peak",
    "gemm_fp32": "carried over",
    "attention": "peak and bandwidth",
    "cast": "memory bandwidth",
    "elementwise": "memory bandwidth",
    "copy": "memory bandwidth",
    "optimizer": "memory bandwidth",
    "nccl": "links",
    "other": "carried over",
}

NEGLIGIBLE = 0.01
"""Share of a step up to which float32 GEMMs, for which the catalogue has no peak, are carried over."""

ATTENTION_FLOPS_A_BYTE = 14 / 24
"""Times the number of tokens; of causal attention half as many; see above."""

BOTH_DIRECTIONS = 2
"""What datasheets print of NVLink is the sum of its directions."""

BYTES_A_GRADIENT = 4
"""Gradients of float32 weights, which every mode keeps: NCCL's kernels in the records add up float32."""

FLOPS_A_WEIGHT_AND_TOKEN = 6
"""Forward and backward (Kaplan et al., Scaling laws for neural language models, 2020)."""


@dataclass(frozen=True)
class Machine:
    """GPUs of one host that train together. Peaks are dense, TFLOP/s; bandwidths GB/s, NVLink's in both directions
    together; each of one GPU. None: the catalogue has no such figure.
    """

    gpu: str
    gpus: int
    compute_capability: str
    dense_bf16_tflops: float | None
    dense_fp8_tflops: float | None
    memory_bandwidth_gb_s: float | None
    nvlink_gb_s: float | None

    def figure(self, field: str) -> float:
        """One of the catalogue's. Raises UsageError where it has none."""
        value: float | None = getattr(self, field)
        if value is None:
            raise UsageError(
                f"{field} of {self.gpu} is not known, and a prediction needs it",
                "Name an instance whose GPU has it, or give the figure in the catalogue with its source",
            )
        return value


@dataclass(frozen=True)
class Work:
    """One GPU's step as measured, seconds. by_category: of the profile, whose `nccl` is exposed communication alone;
    nccl_s: all of it. host_bound: the GPU waits for its host. tokens: of a sequence; causal: none sees a later one;
    flops: of one GPU's step. None: unknown.
    """

    step_s: float
    by_category: Mapping[Category, float]
    nccl_s: float = 0.0
    host_bound: bool = False
    tokens: int | None = None
    sequences: int | None = None
    flops: float | None = None
    causal: bool = False

    @property
    def busy_s(self) -> float:
        """Time in which anything ran."""
        return sum(self.by_category.values())

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran; 0 where profiled steps were busier than timed ones."""
        return max(0.0, self.step_s - self.busy_s)

    @property
    def gradient_bytes(self) -> float | None:
        """Of all weights, estimated from the operations of a step: 6 for each weight and token."""
        if self.flops is None or self.tokens is None or self.sequences is None:
            return None
        return BYTES_A_GRADIENT * self.flops / (FLOPS_A_WEIGHT_AND_TOKEN * self.tokens * self.sequences)


class Part(Frozen):
    """One kind of work of a step. ratio: predicted over measured, of its rule; None where none applies."""

    name: PartName
    rule: Rule
    measured_s: float
    predicted_s: float
    ratio: float | None = None


class Step(Frozen):
    """A predicted step, seconds. least_s: where kernels hide all communication that was not measured; else equal to
    step_s. Both are without the model's error. assumed: sentences, for a reader.
    """

    step_s: float
    least_s: float
    parts: tuple[Part, ...]
    assumed: tuple[str, ...]


def predict(work: Work, measured_on: Machine, target: Machine) -> Step:
    """The step on the target. Raises UsageError where the catalogue lacks a figure that it needs, by field."""
    parts = [
        _scaled(category, seconds, _ratio(category, seconds, work, measured_on, target))
        for category, seconds in sorted(work.by_category.items(), key=lambda item: -item[1])
        if category != "nccl"
    ]
    shared = _communication(work, measured_on, target, sum(part.predicted_s for part in parts))
    parts += [shared.part] if shared.part.measured_s or shared.part.predicted_s else []
    # Profiled steps that were busier than timed ones last are brought to the timed step.
    to_timed = work.step_s / (work.busy_s + work.idle_s)
    busy_s = sum(part.predicted_s for part in parts)

    def idle_beside(kernels_s: float) -> float:
        return max(0.0, work.step_s - kernels_s) if work.host_bound else work.idle_s

    parts.append(Part(name="idle", rule="carried over", measured_s=work.idle_s, predicted_s=idle_beside(busy_s)))
    least_busy_s = busy_s - shared.may_be_hidden_s
    return Step(
        step_s=(busy_s + idle_beside(busy_s)) * to_timed,
        least_s=(least_busy_s + idle_beside(least_busy_s)) * to_timed,
        parts=tuple(parts),
        assumed=(*shared.assumed, *_assumed(work, measured_on, target)),
    )


def share_of_peak(work: Work, machine: Machine) -> float | None:
    """Model FLOPs over what the time of its GEMMs could do at the dense peaks; None where that is unknown."""
    in_16_bits, in_fp8 = (work.by_category.get(category, 0.0) for category in ("gemm_bf16", "gemm_fp8"))
    peak, fp8_peak = machine.dense_bf16_tflops, machine.dense_fp8_tflops
    if (in_16_bits and peak is None) or (in_fp8 and fp8_peak is None):
        return None
    capacity = (in_16_bits * (peak or 0.0) + in_fp8 * (fp8_peak or 0.0)) * 1e12
    return work.flops / capacity if work.flops and capacity else None


def attention_by_peak(work: Work, machine: Machine) -> float:
    """The share of attention that the peak limits on the measured machine, without unit; half where the number of
    tokens is unknown.
    """
    operations_a_byte = _attention_flops_a_byte(work)
    if operations_a_byte is None:
        return 0.5
    can_do = machine.figure("dense_bf16_tflops") * 1e3 / machine.figure("memory_bandwidth_gb_s")
    return operations_a_byte / (operations_a_byte + can_do)


def _attention_flops_a_byte(work: Work) -> float | None:
    """None where the number of tokens is unknown."""
    return None if work.tokens is None else ATTENTION_FLOPS_A_BYTE * work.tokens / (2 if work.causal else 1)


def ring_share(gpus: int) -> float:
    """Of the gradients' bytes, what a ring of so many GPUs sends over each link."""
    return 2 * (gpus - 1) / gpus


@dataclass(frozen=True)
class _Communication:
    """may_be_hidden_s: by how much less the step takes where other kernels hide what is predicted."""

    part: Part
    may_be_hidden_s: float = 0.0
    assumed: tuple[str, ...] = ()


def _scaled(category: Category, seconds: float, ratio: float | None) -> Part:
    predicted_s = seconds if ratio is None else seconds * ratio
    return Part(name=category, rule=RULES[category], measured_s=seconds, predicted_s=predicted_s, ratio=ratio)


def _ratio(category: Category, seconds: float, work: Work, measured_on: Machine, target: Machine) -> float | None:
    """Seconds on the target over seconds measured."""
    if category == "gemm_fp32" and measured_on.gpu != target.gpu and seconds > NEGLIGIBLE * work.step_s:
        raise UsageError(
            f"{_per_cent(seconds / work.step_s)} of this step is float32 GEMMs, and no float32 peak of {target.gpu} is "
            "known",
            "Predict a mode of 16 or 8 bits",
        )
    rule = RULES[category]
    if rule == "carried over":
        return None
    if measured_on.gpu == target.gpu:
        return 1.0

    def slower(field: str) -> float:
        return measured_on.figure(field) / target.figure(field)

    if rule == "peak and bandwidth":
        by_peak = attention_by_peak(work, measured_on)
        return by_peak * slower("dense_bf16_tflops") + (1 - by_peak) * slower("memory_bandwidth_gb_s")
    fields = {"dense bf16 peak": "dense_bf16_tflops", "dense fp8 peak": "dense_fp8_tflops"}
    return slower(fields.get(rule, "memory_bandwidth_gb_s"))


def _communication(work: Work, measured_on: Machine, target: Machine, kernels_s: float) -> _Communication:
    """kernels_s: predicted time of all else that the GPU does, which is what can hide it."""
    measured_s = work.by_category.get("nccl", 0.0)
    if target.gpus == 1:
        return _Communication(_nccl(measured_s, 0.0))
    if measured_on.gpus == 1:
        return _all_reduce(work, target)
    ratio = ring_share(target.gpus) / ring_share(measured_on.gpus) * _slower_links(measured_on, target)
    all_s = work.nccl_s * ratio
    hidden = max(0.0, 1 - measured_s / work.nccl_s) if work.nccl_s > 0 else 0.0
    return _Communication(
        _nccl(measured_s, max(all_s * (1 - hidden), all_s - kernels_s), ratio),
        assumed=(
            f"communication takes {ratio:.2f} times as long, by links; {_per_cent(hidden)} of it is hidden behind "
            "other kernels, as measured",
        ),
    )


def _all_reduce(work: Work, target: Machine) -> _Communication:
    """Of GPUs that were measured one by one: at the full speed of the links, and hidden behind nothing."""
    gradients = work.gradient_bytes
    if gradients is None:
        raise UsageError(
            f"{target.gpus} GPUs share gradients whose size this record does not say",
            "Name a record of several GPUs, or give --gpus 1",
        )
    link_gb_s = _link(target) / BOTH_DIRECTIONS
    all_s = ring_share(target.gpus) * gradients / (link_gb_s * 1e9)
    return _Communication(
        _nccl(0.0, all_s),
        may_be_hidden_s=all_s,
        assumed=(
            f"communication of {target.gpus} GPUs was not measured: {gradients / 1e9:.1f} GB of gradients are "
            f"all-reduced at a link's full {link_gb_s:.0f} GB/s, and no kernel hides that; at a range's lower end "
            "kernels hide all of it",
        ),
    )


def _nccl(measured_s: float, predicted_s: float, ratio: float | None = None) -> Part:
    return Part(name="nccl", rule=RULES["nccl"], measured_s=measured_s, predicted_s=predicted_s, ratio=ratio)


def _slower_links(measured_on: Machine, target: Machine) -> float:
    return 1.0 if measured_on.gpu == target.gpu else _link(measured_on) / _link(target)


def _link(machine: Machine) -> float:
    """GB/s in both directions together. Raises UsageError where it is unknown, as of GPUs that have PCIe alone."""
    if machine.nvlink_gb_s is None:
        raise UsageError(
            f"nvlink_gb_s of {machine.gpu} is not known, so neither is how long several of them communicate",
            "Give --gpus 1, or give the figure in the catalogue with its source",
        )
    return machine.nvlink_gb_s


def _assumed(work: Work, measured_on: Machine, target: Machine) -> list[str]:
    said = []
    if measured_on.gpu != target.gpu:
        said.append("GEMMs reach the share of the dense peak that was measured")
        said.append(
            "norms, activations, casts, copies and the optimizer keep the share of memory bandwidth that they reached"
        )
        if "attention" in work.by_category:
            said.append(_about_attention(work, measured_on))
    if work.host_bound:
        said.append(
            "the GPU waited for its host, which is taken to be as fast there: no step is shorter than the one measured"
        )
    else:
        said.append("gaps between kernels, the host's launches and the loader take as long as measured")
    return said


def _about_attention(work: Work, machine: Machine) -> str:
    by_peak, operations_a_byte = attention_by_peak(work, machine), _attention_flops_a_byte(work)
    if operations_a_byte is None:
        return "attention goes by peak and by bandwidth, half by each: the record does not say how long a sequence is"
    return (
        f"attention goes {_per_cent(by_peak)} by peak and {_per_cent(1 - by_peak)} by bandwidth: over {work.tokens} "
        f"tokens{', none of which sees a later one,' if work.causal else ''} it makes {operations_a_byte:.0f} "
        "operations a byte"
    )


def _per_cent(share: float) -> str:
    return f"{share * 100:.0f} %"

"""A step on another machine, predicted from where the time of a measured step goes. Pure numbers.

Each kind of kernel is scaled by what limits it (the roofline model: Williams, Waterman & Patterson, Communications of
the ACM 2009), with the figures that datasheets give for both GPUs:

- GEMMs scale with the dense peak of their type. So they keep the share of the peak that was measured.
- Norms, activations, casts, copies and the optimizer scale partly with memory bandwidth and partly with the SMs, their
  number and clock; attention scales also with the dense peak. The parts were measured on GPUs that differ only in
  memory (`limits`, `pairs`).
- Communication scales with the links. A ring of n GPUs sends 2 (n - 1) / n of the gradients' bytes over each link
  (Patarasuk & Yuan, 2009). The share that was hidden behind other kernels stays hidden, as far as there is work to hide
  it. Those kernels take longer for each second that they hide, as one GPU compared with several shows (`pairs`).
- What no rule covers is carried over: idle time, which is the host's and the gaps between kernels, and other kernels.

No rule covers what a machine's clocks do under its power limit, how well a library's kernels suit another GPU, and how
caches serve it. These are the model's error, which is found by predicting machines that were measured
(`predict.model_error`).
"""

from dataclasses import dataclass
from typing import Literal

from fp8bench.predict.assumed import assumed, per_cent
from fp8bench.predict.limits import Limits
from fp8bench.predict.machine import Machine
from fp8bench.predict.work import Work, shares_of
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import Category

Rule = Literal[
    "dense bf16 peak",
    "dense fp8 peak",
    "memory and SMs",
    "memory, SMs and peak",
    "links",
    "carried over",
]

PartName = Category | Literal["idle"]

RULES: dict[Category, Rule] = {
    "gemm_fp8": "dense fp8 peak",
    "gemm_bf16": "dense bf16 peak",
    "gemm_fp32": "carried over",
    "attention": "memory, SMs and peak",
    "cast": "memory and SMs",
    "elementwise": "memory and SMs",
    "copy": "memory and SMs",
    "optimizer": "memory and SMs",
    "nccl": "links",
    "other": "carried over",
}

NEGLIGIBLE = 0.01
"""The share of a step up to which float32 GEMMs are carried over; the catalogue has no peak for them."""

AFTER: tuple[PartName, ...] = ("optimizer", "nccl")
"""The parts that hidden communication does not slow: the optimizer waits for all communication."""

BOTH_DIRECTIONS = 2
"""The NVLink bandwidth in datasheets is the sum of its directions."""


class Part(Frozen):
    """One kind of work of a step. ratio: predicted over measured seconds; None if no rule applies."""

    name: PartName
    rule: Rule
    measured_s: float
    predicted_s: float
    ratio: float | None = None


class Step(Frozen):
    """A predicted step, in seconds. least_s: the step if kernels hide all communication that was not measured; else
    equal to step_s. Neither includes the model's error. assumed: sentences for a reader.
    """

    step_s: float
    least_s: float
    parts: tuple[Part, ...]
    assumed: tuple[str, ...]


def predict(work: Work, measured_on: Machine, target: Machine, limits: Limits) -> Step:
    """Predict the step on the target. limits: what limits kinds of kernels. Raises UsageError, with the name of the
    field, if the catalogue lacks a figure that the prediction needs.
    """
    alone = _without_communication(work, limits)
    parts = [
        _scaled(category, seconds, alone[category], _ratio(category, seconds, work, measured_on, target, limits))
        for category, seconds in sorted(work.by_category.items(), key=lambda item: -item[1])
        if category != "nccl"
    ]
    shared = _communication(work, measured_on, target, sum(part.predicted_s for part in parts))
    parts = _beside(parts, shared.hidden_s * limits.beside_s)
    parts += [shared.part] if shared.part.measured_s or shared.part.predicted_s else []
    # Profiled steps that were busier than the timed step is long are scaled to the timed step.
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
        assumed=(*shared.assumed, *assumed(work, measured_on, target, limits)),
    )


def share_of_peak(work: Work, machine: Machine) -> float | None:
    """Return the model's FLOPs over what its GEMMs' time allows at the dense peaks; None if either is unknown."""
    in_16_bits, in_fp8 = (work.by_category.get(category, 0.0) for category in ("gemm_bf16", "gemm_fp8"))
    peak, fp8_peak = machine.dense_bf16_tflops, machine.dense_fp8_tflops
    if (in_16_bits and peak is None) or (in_fp8 and fp8_peak is None):
        return None
    capacity = (in_16_bits * (peak or 0.0) + in_fp8 * (fp8_peak or 0.0)) * 1e12
    return work.flops / capacity if work.flops and capacity else None


def ring_share(gpus: int) -> float:
    """Return the bytes that a ring of this many GPUs sends over each link, over the gradients' bytes."""
    return 2 * (gpus - 1) / gpus


@dataclass(frozen=True)
class _Communication:
    """Predicted communication. hidden_s: the part that is predicted to be hidden behind other kernels. may_be_hidden_s:
    by how much shorter the step is if kernels hide the communication that is predicted to be exposed.
    """

    part: Part
    hidden_s: float = 0.0
    may_be_hidden_s: float = 0.0
    assumed: tuple[str, ...] = ()


def _without_communication(work: Work, limits: Limits) -> dict[Category, float]:
    """Return the seconds of kernels if they hid no communication. The optimizer runs after all communication."""
    hidden_s = max(0.0, work.nccl_s - work.by_category.get("nccl", 0.0))
    beside_s = sum(seconds for category, seconds in work.by_category.items() if category not in AFTER)
    left = max(0.0, 1 - hidden_s * limits.beside_s / beside_s) if beside_s else 1.0
    return {
        category: seconds if category in AFTER else seconds * left for category, seconds in work.by_category.items()
    }


def _beside(parts: list[Part], longer_s: float) -> list[Part]:
    """Return the parts with the time that hiding communication costs, distributed in proportion to their length."""
    beside_s = sum(part.predicted_s for part in parts if part.name not in AFTER)
    if not longer_s or not beside_s:
        return parts
    more = 1 + longer_s / beside_s
    return [
        part
        if part.name in AFTER
        else part.model_copy(
            update={"predicted_s": part.predicted_s * more, "ratio": None if part.ratio is None else part.ratio * more}
        )
        for part in parts
    ]


def _scaled(category: Category, measured_s: float, alone_s: float, ratio: float | None) -> Part:
    """Return the predicted part. alone_s: the measured time that scales with the ratio."""
    predicted_s = alone_s if ratio is None else alone_s * ratio
    shown = None if ratio is None or not measured_s else predicted_s / measured_s
    return Part(name=category, rule=RULES[category], measured_s=measured_s, predicted_s=predicted_s, ratio=shown)


def _ratio(
    category: Category, seconds: float, work: Work, measured_on: Machine, target: Machine, limits: Limits
) -> float | None:
    """Return the seconds on the target over the seconds measured; None if the part is carried over."""
    if category == "gemm_fp32" and measured_on.gpu != target.gpu and seconds > NEGLIGIBLE * work.step_s:
        raise UsageError(
            f"{per_cent(seconds / work.step_s)} of this step is float32 GEMMs, and no float32 peak of {target.gpu} is "
            "known",
            "Predict a mode of 16 or 8 bits",
        )
    rule = RULES[category]
    if rule == "carried over":
        return None
    if measured_on.gpu == target.gpu:
        return 1.0
    peak = {"dense bf16 peak": "dense_bf16_tflops", "dense fp8 peak": "dense_fp8_tflops"}.get(rule)
    if peak is not None:
        return measured_on.figure(peak) / target.figure(peak)
    return shares_of(category, work, measured_on, limits).slower(measured_on, target)


def _communication(work: Work, measured_on: Machine, target: Machine, kernels_s: float) -> _Communication:
    """Predict communication. kernels_s: predicted time of all other work of the GPU, which is what can hide it."""
    measured_s = work.by_category.get("nccl", 0.0)
    if target.gpus == 1:
        return _Communication(_nccl(measured_s, 0.0))
    if measured_on.gpus == 1:
        return _all_reduce(work, target)
    ratio = ring_share(target.gpus) / ring_share(measured_on.gpus) * _slower_links(measured_on, target)
    all_s = work.nccl_s * ratio
    hidden = max(0.0, 1 - measured_s / work.nccl_s) if work.nccl_s > 0 else 0.0
    exposed_s = max(all_s * (1 - hidden), all_s - kernels_s)
    return _Communication(
        _nccl(measured_s, exposed_s, ratio),
        hidden_s=all_s - exposed_s,
        assumed=(
            f"communication takes {ratio:.2f} times as long, by links; {per_cent(hidden)} of it is hidden behind "
            "other kernels, as measured",
        ),
    )


def _all_reduce(work: Work, target: Machine) -> _Communication:
    """Predict the communication of GPUs that were measured one by one: at full link speed, hidden behind nothing."""
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
    """Return GB/s, both directions together. Raises UsageError if unknown, e.g. for GPUs that have only PCIe."""
    if machine.nvlink_gb_s is None:
        raise UsageError(
            f"nvlink_gb_s of {machine.gpu} is not known, so neither is how long several of them communicate",
            "Give --gpus 1, or give the figure in the catalogue with its source",
        )
    return machine.nvlink_gb_s

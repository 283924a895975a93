"""What one GPU does in a step, as measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from fp8bench.predict.limits import Limits, Shares, attention_flops_a_byte, shares
from fp8bench.predict.machine import Machine
from fp8bench.schema.rank import Category

BYTES_A_GRADIENT = 4
"""The gradients of float32 weights, which every mode keeps: NCCL's kernels in the records add up float32."""

FLOPS_A_WEIGHT_AND_TOKEN = 6
"""Operations of forward and backward (Kaplan et al., Scaling laws for neural language models, 2020)."""


@dataclass(frozen=True)
class Work:
    """One GPU's step as measured, in seconds. by_category: from the profile; its `nccl` is exposed communication only.
    nccl_s: all communication. host_bound: whether the GPU waits for its host. tokens: tokens of a sequence. causal:
    whether no token sees a later one. flops: operations of one GPU's step. None means unknown.
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
        """Time in which at least one kernel ran."""
        return sum(self.by_category.values())

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran; 0 if profiled steps were busier than timed ones."""
        return max(0.0, self.step_s - self.busy_s)

    @property
    def gradient_bytes(self) -> float | None:
        """Bytes of all weights' gradients, estimated from the operations of a step: 6 for each weight and token."""
        if self.flops is None or self.tokens is None or self.sequences is None:
            return None
        return BYTES_A_GRADIENT * self.flops / (FLOPS_A_WEIGHT_AND_TOKEN * self.tokens * self.sequences)


def shares_of(category: Category, work: Work, machine: Machine, limits: Limits) -> Shares:
    """Return what limits kernels of a kind on this machine. Raises UsageError if the catalogue lacks a figure."""
    flops_a_byte = attention_flops_a_byte(work.tokens, work.causal) if category == "attention" else None
    return shares(limits.of(category), machine, flops_a_byte or 0.0)

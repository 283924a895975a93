"""What limits kernels other than GEMMs: the shares of memory and of the SMs and, for attention, of the dense peak.

For each byte of DRAM, a kernel that moves data takes a time set by the DRAM's bandwidth, plus a time set by how fast
the SMs work (their L2, their launches, their arithmetic). The two add up:

    seconds = gigabytes / bandwidth + SM cycles / (SMs x clock)

This is a roofline whose limits do not hide one another. Datasheets do not say how much of each a kind of kernel has.
Two GPUs that differ only in memory show it, if both ran the same work (`predict.pairs`): the difference is due to DRAM,
and the rest to the SMs. Gigabytes are those that DRAM would move at full bandwidth in its part of the time.

Attention also has tensor-core operations, whose time depends on the dense peak: see ATTENTION_FLOPS_A_BYTE.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from fp8bench.predict.machine import Machine
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import Category

ATTENTION_FLOPS_A_BYTE = 14 / 24
"""Operations per byte and token; half of it for causal attention. Over n tokens a flash kernel makes 14 n^2 d
operations a head, forward and backward (Dao, FlashAttention-2, 2023: the backward takes 2.5 times the forward's 4 n^2
d), and moves at least 24 n d bytes in 16 bits: q, k, v, o forward; q, k, v, o, do, dq, dk, dv backward. A causal kernel
skips half of the operations and none of the bytes.
"""


class Amounts(Frozen):
    """What all kernels of a kind need together; only the ratio of the two fields matters. dram_gb: gigabytes of DRAM
    traffic. sm_gcycles: billions of cycles of an SM.
    """

    dram_gb: float = Field(ge=0)
    sm_gcycles: float = Field(ge=0)


MEMORY_ALONE = Amounts(dram_gb=1.0, sm_gcycles=0.0)
"""The amounts of a kind that was never seen on two GPUs: the plain roofline."""


class Limits(Frozen):
    """What limits each kind of kernel. kinds: the amounts of each kind; memory limits a kind without any. beside_s: by
    how many seconds kernels take longer for each second of communication that they hide.
    """

    kinds: Mapping[Category, Amounts] = Field(default_factory=dict)
    beside_s: float = Field(default=0.0, ge=0)

    def of(self, kind: Category) -> Amounts:
        return self.kinds.get(kind, MEMORY_ALONE)


@dataclass(frozen=True)
class Shares:
    """The shares of a kernel's time on one GPU that memory, the SMs and the dense peak limit; their sum is 1."""

    memory: float
    sms: float
    peak: float = 0.0

    def slower(self, measured_on: Machine, target: Machine) -> float:
        """Return the target's seconds over the measured seconds. Raises UsageError if a figure is missing."""
        found = self.memory * _over(measured_on, target, "memory_bandwidth_gb_s")
        if self.sms:
            found += self.sms * measured_on.sm_gcycles_s / target.sm_gcycles_s
        if self.peak:
            found += self.peak * _over(measured_on, target, "dense_bf16_tflops")
        return found


def shares(amounts: Amounts, machine: Machine, flops_a_byte: float = 0.0) -> Shares:
    """Return the shares on one GPU. flops_a_byte: of the tensor cores. Raises UsageError if a figure is unknown."""
    memory_s = amounts.dram_gb / machine.figure("memory_bandwidth_gb_s")
    sms_s = amounts.sm_gcycles / machine.sm_gcycles_s if amounts.sm_gcycles else 0.0
    peak_s = amounts.dram_gb * flops_a_byte / (machine.figure("dense_bf16_tflops") * 1e3) if flops_a_byte else 0.0
    all_s = memory_s + sms_s + peak_s
    return Shares(memory_s / all_s, sms_s / all_s, peak_s / all_s)


def attention_flops_a_byte(tokens: int | None, causal: bool) -> float | None:
    """Return attention's tensor-core operations per byte; None if the number of tokens is unknown."""
    return None if tokens is None else ATTENTION_FLOPS_A_BYTE * tokens / (2 if causal else 1)


def _over(measured_on: Machine, target: Machine, field: str) -> float:
    return measured_on.figure(field) / target.figure(field)

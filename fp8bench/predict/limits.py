"""What limits kernels that are no GEMMs: by which share memory, by which the SMs, and of attention the peak.

A kernel that moves data takes, for each byte of DRAM, a time that goes by DRAM's bandwidth, and beside it a time that
goes by how fast the SMs work: their L2, their launches, their arithmetic. Both add up:

    seconds = gigabytes / bandwidth + SM cycles / (SMs x clock)

That is a roofline whose limits do not hide one another. How much of each a kind of kernel has, datasheets do not say.
Two GPUs that differ in memory alone do, where both ran the same work (`predict.pairs`): what differs goes by DRAM, and
the rest by the SMs. Gigabytes are those that DRAM would move at its full bandwidth in the time that goes by it.

Attention has operations of the tensor cores beside, which go by the dense peak: see ATTENTION_FLOPS_A_BYTE.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from fp8bench.predict.machine import Machine
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import Category

ATTENTION_FLOPS_A_BYTE = 14 / 24
"""Times the number of tokens; of causal attention half as many. Over n tokens a flash kernel makes 14 n^2 d operations
a head, forward and backward (Dao, FlashAttention-2, 2023: the backward takes 2.5 times the forward's 4 n^2 d), and
moves at least 24 n d bytes in 16 bits: q, k, v, o forward; q, k, v, o, do, dq, dk, dv backward. A causal one skips half
of the operations and none of the bytes.
"""


class Amounts(Frozen):
    """What all kernels of a kind need together; only their ratio matters. dram_gb: gigabytes; sm_gcycles: billions of
    cycles of an SM.
    """

    dram_gb: float = Field(ge=0)
    sm_gcycles: float = Field(ge=0)


MEMORY_ALONE = Amounts(dram_gb=1.0, sm_gcycles=0.0)
"""Of a kind that was never seen on two GPUs: the plain roofline."""


class Limits(Frozen):
    """Of each kind of kernel, and beside_s: by how many seconds kernels take longer for each second of communication
    that they hide. Empty: memory limits every kind, and nothing slows it.
    """

    kinds: Mapping[Category, Amounts] = Field(default_factory=dict)
    beside_s: float = Field(default=0.0, ge=0)

    def of(self, kind: Category) -> Amounts:
        return self.kinds.get(kind, MEMORY_ALONE)


@dataclass(frozen=True)
class Shares:
    """Of a kernel's time on one GPU, by what it goes; together 1."""

    memory: float
    sms: float
    peak: float = 0.0

    def slower(self, measured_on: Machine, target: Machine) -> float:
        """Seconds on the target over seconds measured. Raises UsageError where the catalogue lacks a figure."""
        found = self.memory * _over(measured_on, target, "memory_bandwidth_gb_s")
        if self.sms:
            found += self.sms * measured_on.sm_gcycles_s / target.sm_gcycles_s
        if self.peak:
            found += self.peak * _over(measured_on, target, "dense_bf16_tflops")
        return found


def shares(amounts: Amounts, machine: Machine, flops_a_byte: float = 0.0) -> Shares:
    """On one GPU. flops_a_byte: operations of the tensor cores. Raises UsageError where a figure is unknown."""
    memory_s = amounts.dram_gb / machine.figure("memory_bandwidth_gb_s")
    sms_s = amounts.sm_gcycles / machine.sm_gcycles_s if amounts.sm_gcycles else 0.0
    peak_s = amounts.dram_gb * flops_a_byte / (machine.figure("dense_bf16_tflops") * 1e3) if flops_a_byte else 0.0
    all_s = memory_s + sms_s + peak_s
    return Shares(memory_s / all_s, sms_s / all_s, peak_s / all_s)


def attention_flops_a_byte(tokens: int | None, causal: bool) -> float | None:
    """None where the number of tokens is unknown."""
    return None if tokens is None else ATTENTION_FLOPS_A_BYTE * tokens / (2 if causal else 1)


def _over(measured_on: Machine, target: Machine, field: str) -> float:
    return measured_on.figure(field) / target.figure(field)

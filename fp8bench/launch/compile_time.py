"""Estimates the time torch.compile takes in a process, for when no record of this machine tells it. Pure; no torch.

The first process of a configuration compiles with cold caches. Later processes find most of its kernels in the caches
on disk, as long as nothing changes: another batch size is compiled anew.
"""

from typing import NamedTuple

from fp8bench import registry
from fp8bench.schema.config import RunConfig


class ColdCompile(NamedTuple):
    """Seconds with cold caches. alone: on one GPU. ddp: in each of several processes."""

    alone: float
    ddp: float


COLD_S = {"torchao-float8": ColdCompile(150.0, 120.0)}
"""Measured with ViT-Huge, compiled as a whole, on a host of H100s. For other models it is the nearest measurement."""

OTHERS_COLD_S = ColdCompile(45.0, 80.0)
"""The same measurement of baseline-bf16, which stands in for every other mode."""

WARM = ColdCompile(alone=0.4, ddp=0.9)
"""The share of the cold time that the next process takes: on one H200 from a tenth (baseline-bf16: 47.7 s, then 4.6 and
5.5) to 0.39 (torchao-float8 at batch 256: 114 s, then 44), on two at most 0.9 (baseline-bf16: 42.5 s, then 38.2 and
34.4).
"""


def compiles(config: RunConfig) -> bool | None:
    """Return whether a run of this configuration uses torch.compile, as far as its settings tell; None if it is unknown
    what `auto` does with the mode of an outside package. On a CPU, `auto` compiles nothing.
    """
    if config.compile != "auto":
        return config.compile != "off"
    return registry.modes()[config.mode].compiled_by_auto if config.device == "cuda" else False


def is_compiled(config: RunConfig) -> bool:
    """Return whether compile time is to be counted. On a CPU it was not measured."""
    return config.device == "cuda" and compiles(config) is True


def cold_s(config: RunConfig) -> float:
    """Return the seconds with cold caches; 0 if nothing is compiled."""
    if not is_compiled(config):
        return 0.0
    found = COLD_S.get(config.mode, OTHERS_COLD_S)
    return found.ddp if config.world_size > 1 else found.alone


def warm_share(config: RunConfig) -> float:
    """Return the largest share of its cold time that a process takes with warm caches."""
    return WARM.ddp if config.world_size > 1 else WARM.alone

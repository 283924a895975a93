"""What torch.compile takes of a process, where no record of this machine tells it. Pure, and without torch.

The first process of a configuration compiles with cold caches. Later ones find most of its kernels in the caches on
disk, as long as nothing of it changes: another batch size is compiled anew.
"""

from typing import NamedTuple

from fp8bench import registry
from fp8bench.schema.config import RunConfig


class ColdCompile(NamedTuple):
    """Seconds with cold caches. alone: on one GPU. ddp: in each process of several."""

    alone: float
    ddp: float


COLD_S = {"torchao-float8": ColdCompile(150.0, 120.0)}
"""ViT-Huge on a host of H100s, the whole model. For another model it is the nearest that was measured."""

OTHERS_COLD_S = ColdCompile(45.0, 80.0)
"""The same of baseline-bf16, which stands in for every other mode."""

WARM = ColdCompile(alone=0.4, ddp=0.9)
"""The share of it that the next process takes: on one H200 a tenth (baseline-bf16: 47.7 s, then 4.6 and 5.5) to 0.39
(torchao-float8 at batch 256: 114 s, then 44), on two at most 0.9 (baseline-bf16: 42.5 s, then 38.2 and 34.4).
"""


def compiles(config: RunConfig) -> bool | None:
    """Whether torch.compile is at work in a run of it, as far as settings tell; None: what `auto` does with a mode of
    an outside package is not known. On a CPU, `auto` compiles nothing.
    """
    if config.compile != "auto":
        return config.compile != "off"
    return registry.modes()[config.mode].compiled_by_auto if config.device == "cuda" else False


def is_compiled(config: RunConfig) -> bool:
    """Whether its time is to be counted. On a CPU it was not measured."""
    return config.device == "cuda" and compiles(config) is True


def cold_s(config: RunConfig) -> float:
    """Seconds with cold caches; 0 where nothing is compiled."""
    if not is_compiled(config):
        return 0.0
    found = COLD_S.get(config.mode, OTHERS_COLD_S)
    return found.ddp if config.world_size > 1 else found.alone


def warm_share(config: RunConfig) -> float:
    """What a process takes with warm caches, at most, as a share of what it takes with cold ones."""
    return WARM.ddp if config.world_size > 1 else WARM.alone

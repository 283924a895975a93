"""What torch.compile takes of a model: nothing, the whole, or each of its blocks.

The whole model goes inside DDP. On several GPUs torch then cuts the graph at DDP's gradient buckets, so that all-reduce
can begin before backward ends (torch._dynamo.config.optimize_ddp; ViT-Huge's one graph becomes 98). On a single GPU
nothing is reduced and the cuts would only cost, so the graph stays whole. The record's evidence has both counts.

Blocks are compiled in place, as large-model trainers do: one of them is compiled and the others, being alike, share it,
so that it takes seconds where the whole model takes minutes. Nothing needs cutting then: gradients of a block are ready
when its backward is.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import nn

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import CompileScope


def wrap(model: nn.Module, scope: CompileScope | None, world_size: int) -> nn.Module:
    """The model, as DDP shall see it. Raises ModeUnavailable for `blocks` of a model that has none."""
    if scope is None:
        return model
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = scope == "model" and world_size > 1
    if scope == "model":
        return cast(nn.Module, torch.compile(model))
    blocks = list(repeated_blocks(model))
    if not blocks:
        raise ModeUnavailable(
            "this model has no list of like blocks to compile one by one", "Use --compile on, which takes it whole"
        )
    for block in blocks:
        block.compile()
    return model


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The members of each outermost list of two or more modules of one class (a transformer's layers)."""
    for child in model.children():
        members = list(child.children())
        alike = len(members) > 1 and len({type(member) for member in members}) == 1
        if alike and isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            yield from members
        else:
            yield from repeated_blocks(child)


def uncompiled() -> AbstractContextManager[object]:
    """While it lasts nothing that torch.compile made is run: not the model, not its blocks, not a library's helpers.

    A block that is compiled in place has no uncompiled twin to be compared with, but for this.
    """
    return cast(AbstractContextManager[object], torch.compiler.set_stance("force_eager"))

"""A model's repeated blocks, a transformer's layers, which are compiled, sharded and checkpointed one by one; and
activation checkpointing: what a block's forward pass computes is dropped, and recomputed in the backward pass.

full: each block keeps only its input. selective: as in torchtitan, attention and every second GEMM keep their outputs.
Both use torch.utils.checkpoint without re-entry, so that blocks may be compiled and sharded. The second forward pass
runs outside of the mode's context; a mode that needs it has a `checkpoint` of its own, as for Transformer Engine. Only
a block's forward method is replaced, not its name and weights.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from fp8bench.modes.protocol import Mode
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import CheckpointChoice


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of each outermost list of two or more modules of one class (a transformer's layers), or, if
    these are mostly lists of blocks (stages of ConvNeXt, Swin), those blocks; without such a list the only member of a
    list, if it has layers of its own. Of a module with `block_names`, yield those.
    """
    yield from [*_blocks(model, least=2)] or _blocks(model, least=1)


def _blocks(model: nn.Module, least: int) -> Iterator[nn.Module]:
    named: tuple[str, ...] = getattr(model, "block_names", ())
    if named:
        yield from map(model.get_submodule, named)
        return
    for child in model.children():
        members = list(child.children())
        alike = len(members) >= least and len({type(member) for member in members}) == 1
        composite = least > 1 or any(True for member in members for _ in member.children())
        if alike and composite and isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            for member in members:
                inner = list(_blocks(member, least=2))
                yield from inner if 2 * weights_of(*inner) > weights_of(member) else [member]
        else:
            yield from _blocks(child, least)


def weights_of(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)


def apply(kind: CheckpointChoice, model: nn.Module, mode: Mode) -> list[nn.Module]:
    """Checkpoint each block in place, before it is compiled. Return blocks; without any, raises ModeUnavailable."""
    blocks = [] if kind == "none" else list(repeated_blocks(model))
    if kind != "none" and not blocks:
        why = "this model has no list of identical blocks to checkpoint one by one"
        raise ModeUnavailable(why, "Use --activation-checkpointing none")
    again = partial(checkpoint, use_reentrant=False)
    if kind == "selective":
        # Each call counts its own GEMMs.
        again = partial(again, context_fn=lambda: create_selective_checkpoint_contexts(_every_second()))
    again = getattr(mode, "checkpoint", again)
    for block in blocks:
        block.forward = lambda *args, plain=block.forward, **named: again(plain, *args, **named)
    return blocks


def _every_second() -> Callable[..., CheckpointPolicy]:
    kept = {getattr(torch.ops.aten, name).default for name in _ATTENTION if hasattr(torch.ops.aten, name)}
    kept.add(torch.ops._c10d_functional.reduce_scatter_tensor.default)
    gemms = {getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "_scaled_mm")}
    seen = {False: 0, True: 0}

    def policy(ctx: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        keep = operation in kept
        if operation in gemms:
            seen[ctx.is_recompute] += 1
            keep = seen[ctx.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy

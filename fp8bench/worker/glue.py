"""What lies between a model's blocks: it runs with each block replaced by what the plain one gave.

So the arguments of each call, the order of the calls and the loss show what the rest of the model does, and a backward
pass shows the rest's gradients, however deep the model is.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.worker import recorded
from fp8bench.worker.judged import Judged, Kind, Part, Rounded, judged, of_weights
from fp8bench.worker.plain_weights import SHOWN, gradient_of, trained_weights
from fp8bench.worker.recorded import Call, differentiable, gradient_at, leaf, leaves, numbers
from fp8bench.worker.relative import norm

SIMPLE = (bool, int, float, str)


@dataclass(frozen=True)
class Glue:
    """A pass between blocks. calls: in order, the block and of what kind its arguments were. parts: what it shows."""

    calls: list[tuple[str, list[Any]]]
    parts: dict[str, Part]


def between(
    model: nn.Module,
    lossy: Callable[[], tuple[Tensor, Tensor]],
    calls: Sequence[Call],
    names: Callable[[Mapping[str, Tensor | None]], Mapping[str, Tensor | None]] = dict,
    scale: float = 1.0,
) -> Glue:
    """Run what lies between the blocks, forward and backward: from the loss, and from seeded noise at the arguments of
    each call, as large as the gradients that went through it. lossy: runs the model, and returns the tensor that takes
    the gradient at the input, and the loss. names: gives gradients the plain model's names. scale: of the backward
    pass, whose results are divided by it again.
    """
    waiting: dict[str, deque[Call]] = {call.block: deque() for call in calls}
    for call in calls:
        waiting[call.block].append(call)
    device = next(model.parameters()).device
    came: list[tuple[str, list[Any], list[Tensor]]] = []
    roots: list[tuple[Tensor, Tensor]] = []

    def stand_in(name: str, *args: Any, **kwargs: Any) -> Any:
        queue = waiting[name]
        # A call too many is found by the order of calls.
        call = queue.popleft() if len(queue) > 1 else queue[0]
        size = max((norm(numbers(one)) for one in call.at_outputs), default=0.0)
        given = leaves((args, kwargs))
        for one in differentiable(given):
            generator = torch.Generator(one.device).manual_seed(len(roots))
            noise = torch.empty(one.shape, device=one.device).normal_(0, 1, generator=generator)
            roots.append((one, (noise * (size / max(1, one.numel()) ** 0.5)).to(one.dtype)))
        output = recorded.mapped(
            partial(leaf, device=device, dtype=recorded.without_autocast(call, device)), call.output
        )
        kept = [leaf(one, one.device) if isinstance(one, Tensor) else one for one in given]
        came.append((name, kept, differentiable(output)))
        # Copies, since the model may change them in place; without a gradient where the model wants none.
        return recorded.copied(output)

    model.zero_grad(set_to_none=True)
    with _standing_in(model, list(waiting), stand_in) as blocks:
        inputs, loss = lossy()
    if loss.grad_fn is not None:
        roots.append((loss, torch.ones_like(loss)))
    if roots:
        torch.autograd.backward([one for one, _ in roots], [scale * gradient for _, gradient in roots])
    inside = {weight for block in blocks for weight in block.parameters()}
    weights = {name: one.grad if one in inside else gradient_of(one) for name, one in trained_weights(model).items()}
    scaled = names({name: None if one is None else one / scale for name, one in weights.items()})
    parts = [
        Part("the loss", "output", [loss.detach()]),
        Part("the input gradient", "input gradient", [gradient_at(inputs) / scale]),
    ]
    for number, (name, given, outputs) in enumerate(came, 1):
        where, tensors = f"{name} in call {number}", [_finite(one) for one in given if isinstance(one, Tensor)]
        gradients = [gradient_at(one) / scale for one in outputs]
        parts.append(Part(f"what is given to {where}", "output", tensors))
        parts.append(Part(f"the gradient given to {where}", "input gradient", gradients))
    parts += of_weights(scaled, " beside the blocks")
    model.zero_grad(set_to_none=True)
    return Glue([(name, _kinds(given)) for name, given, _ in came], {part.what: part for part in parts})


@contextmanager
def _standing_in(model: nn.Module, names: Sequence[str], stand_in: Callable[..., Any]) -> Iterator[list[nn.Module]]:
    blocks = [model.get_submodule(name) for name in names]
    own = {id(block): block.__dict__.get("forward") for block in blocks}
    for name, block in zip(names, blocks, strict=True):
        block.__dict__["forward"] = partial(stand_in, name)
    try:
        yield blocks
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)
            if own[id(block)] is not None:
                block.__dict__["forward"] = own[id(block)]


def of_glue(
    plain: Glue, bf16: Sequence[Glue], fp8: Sequence[Glue], converted: Glue, more: Mapping[Kind, float]
) -> tuple[list[Judged], list[str]]:
    """Compare what lies between the blocks. bf16, fp8: the plain model's, rounded. Returns comparisons, and faults."""
    names, others = ([block for block, _ in glue.calls] for glue in (plain, converted))
    if names != others:
        return [], [_other_calls(names, others)]
    faults = [
        f"what {block} is given is of another kind"
        for (block, kinds), (_, theirs) in zip(plain.calls, converted.calls, strict=True)
        if kinds != theirs
    ]
    rounding = Rounded([one.parts for one in bf16], [one.parts for one in fp8], more)
    return judged(plain.parts, rounding, converted.parts), faults[:SHOWN]


def _kinds(given: Sequence[Any]) -> list[Any]:
    tensors = [(one.shape, one.requires_grad) for one in given if isinstance(one, Tensor)]
    return [tensors, [one for one in given if isinstance(one, SIMPLE)]]


def _other_calls(plain: Sequence[str], converted: Sequence[str]) -> str:
    missing = [name for name in dict.fromkeys(plain) if name not in converted]
    if missing:
        return f"its forward pass leaves out {', '.join(missing[:SHOWN])}"
    for number, (mine, theirs) in enumerate(zip(plain, converted, strict=False), 1):
        if mine != theirs:
            return f"its forward pass calls {theirs} where the plain model calls {mine}, in call {number}"
    longer = "more" if len(converted) > len(plain) else "fewer"
    return f"its forward pass makes {longer} calls than the plain model's, after {min(plain, converted, key=len)[-1]}"


def _finite(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.requires_grad:
        return tensor
    return torch.nan_to_num(tensor, nan=math.nan, posinf=1.0, neginf=-1.0)

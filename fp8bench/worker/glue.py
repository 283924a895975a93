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

from fp8bench.worker.judged import Judged, Kind, Part, Rounded, judged, of_weights
from fp8bench.worker.plain_weights import gradient_of, trained_weights
from fp8bench.worker.recorded import (
    Call,
    copied,
    differentiable,
    gradient_at,
    leaf,
    leaves,
    mapped,
    numbers,
    without_autocast,
)
from fp8bench.worker.relative import norm

SIMPLE = (bool, int, float, str)

SHOWN = 3
"""The most faults of a kind, and names, in words."""


@dataclass(frozen=True)
class Passed:
    """A call of a block that gave what the plain one had given. given: the tensors among its arguments. simple: numbers
    and words among them. at_outputs: the gradients there.
    """

    block: str
    given: list[Tensor]
    simple: list[Any]
    at_outputs: list[Tensor]


@dataclass(frozen=True)
class Glue:
    """A pass in which every block gave what the plain one had given. calls: in order. at_inputs: the gradient at the
    model's input. weights: gradients of what lies between alone, by the plain model's names.
    """

    calls: list[Passed]
    loss: Tensor
    at_inputs: Tensor
    weights: Mapping[str, Tensor | None]


def between(
    model: nn.Module,
    lossy: Callable[[], tuple[Tensor, Tensor]],
    calls: Sequence[Call],
    names: Callable[[Mapping[str, Tensor | None]], Mapping[str, Tensor | None]] = dict,
    scale: float = 1.0,
) -> Glue:
    """Run what lies between the blocks, forward and backward. lossy: runs the model, and returns the tensor that takes
    the gradient at the input, and the loss. names: turns gradients of the model's weights into those of the plain
    model's. scale: of the backward pass, whose results are divided by it again.

    Backward starts from the loss, and from seeded noise at the arguments of each call, as large as the gradients that
    went through it.
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
            roots.append((one, _noise(one, size, seed=len(roots))))
        output = mapped(partial(leaf, device=device, dtype=without_autocast(call, device)), call.output)
        kept = [leaf(one, one.device) if isinstance(one, Tensor) else one for one in given]
        came.append((name, kept, differentiable(output)))
        # Copies, since the model may change them in place; without a gradient where the model wants none.
        return copied(output)

    model.zero_grad(set_to_none=True)
    with _standing_in(model, list(waiting), stand_in) as blocks:
        inputs, loss = lossy()
    if loss.grad_fn is not None:
        roots.append((loss, torch.ones_like(loss)))
    if roots:
        torch.autograd.backward([one for one, _ in roots], [scale * gradient for _, gradient in roots])
    inside = {weight for block in blocks for weight in block.parameters()}
    weights = {name: one.grad if one in inside else gradient_of(one) for name, one in trained_weights(model).items()}
    passed = [
        Passed(
            name,
            [_finite(one) for one in given if isinstance(one, Tensor)],
            [one for one in given if isinstance(one, SIMPLE)],
            [gradient_at(one) / scale for one in outputs],
        )
        for name, given, outputs in came
    ]
    scaled = {name: None if one is None else one / scale for name, one in weights.items()}
    result = Glue(passed, loss.detach(), gradient_at(inputs) / scale, names(scaled))
    model.zero_grad(set_to_none=True)
    return result


@contextmanager
def _standing_in(model: nn.Module, names: Sequence[str], stand_in: Callable[..., Any]) -> Iterator[list[nn.Module]]:
    blocks = [model.get_submodule(name) for name in names]
    own = []
    for name, block in zip(names, blocks, strict=True):
        own.append(block.__dict__.get("forward"))
        block.__dict__["forward"] = partial(stand_in, name)
    try:
        yield blocks
    finally:
        # Backwards, since one block may have several names.
        for block, forward in reversed(list(zip(blocks, own, strict=True))):
            if forward is None:
                del block.__dict__["forward"]
            else:
                block.__dict__["forward"] = forward


def of_glue(
    plain: Glue, bf16: Sequence[Glue], fp8: Sequence[Glue], converted: Glue, more: Mapping[Kind, float]
) -> tuple[list[Judged], list[str]]:
    """Compare what lies between the blocks. bf16, fp8: the plain model's under other rounding. Returns what was
    compared, and what is of another kind, in words.
    """
    names, others = [one.block for one in plain.calls], [one.block for one in converted.calls]
    if names != others:
        return [], [_other_calls(names, others)]
    faults = [
        f"what {one.block} is given is of another kind"
        for one, other in zip(plain.calls, converted.calls, strict=True)
        if one.simple != other.simple or list(map(_kind, one.given)) != list(map(_kind, other.given))
    ]
    rounding = Rounded(list(map(_glue_parts, bf16)), list(map(_glue_parts, fp8)), more)
    return judged(_glue_parts(plain), rounding, _glue_parts(converted)), faults[:SHOWN]


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.requires_grad


def _glue_parts(glue: Glue) -> dict[str, Part]:
    parts = [Part("the loss", "output", [glue.loss]), Part("the input gradient", "input gradient", [glue.at_inputs])]
    for number, one in enumerate(glue.calls, 1):
        where = f"{one.block} in call {number}"
        parts.append(Part(f"what is given to {where}", "output", one.given))
        parts.append(Part(f"the gradient given to {where}", "input gradient", one.at_outputs))
    parts += of_weights(glue.weights, " beside the blocks")
    return {part.what: part for part in parts}


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


def _noise(like: Tensor, size: float, seed: int) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(seed)
    noise = torch.empty(like.shape, device=like.device).normal_(0, 1, generator=generator)
    sized: Tensor = noise * (size / max(1, like.numel()) ** 0.5)
    return sized.to(like.dtype)

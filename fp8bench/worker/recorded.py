"""Calls of a model's blocks: recorded in one pass, run again on one block, or left out to run what lies between.

A block is an element of the model's list of repeated blocks, or an outermost module that is called beside them and has
weights: the embedding, the last norm, the head. What a block gives in an object that is neither a container nor a
dataclass cannot be told apart; such a block counts as part of what lies between.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fp8bench.worker.execution.blocks import repeated_blocks
from fp8bench.worker.plain_weights import gradient_of, trained_weights
from fp8bench.worker.relative import norm

SIMPLE = (bool, int, float, str)


@dataclass(frozen=True)
class Call:
    """One call of a block in the plain model's pass. arguments: (args, kwargs) as they were before it; those that had a
    gradient require one. output: as the block gave it. autocast: whether the model left it on. gradients: at the
    output's differentiable tensors; None where the backward pass did not come.
    """

    block: str
    arguments: Any
    output: Any
    autocast: bool
    gradients: list[Tensor | None]

    @property
    def at_outputs(self) -> list[Tensor]:
        """The gradients at the outputs, zero where the loss does not depend on one."""
        pairs = zip(self.gradients, differentiable(self.output), strict=True)
        return [torch.zeros_like(output) if gradient is None else gradient for gradient, output in pairs]


@dataclass(frozen=True)
class Run:
    """One run of a block. weights: gradients by the plain model's names; None for a weight without one."""

    outputs: list[Tensor]
    inputs: list[Tensor]
    weights: Mapping[str, Tensor | None]


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


def _candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with weights that are blocks if they are not called within another one: not the model, what
    holds repeated blocks, or a plain sequence with most of the weights.
    """
    repeated = set(map(id, repeated_blocks(model)))
    whole = _size(model)

    def holds_blocks(module: nn.Module) -> bool:
        trunk = type(module).forward is nn.Sequential.forward and 2 * _size(module) > whole
        return trunk or any(id(inner) in repeated for inner in module.modules() if inner is not module)

    return {
        name: module
        for name, module in model.named_modules()
        if module is not model and trained_weights(module) and (id(module) in repeated or not holds_blocks(module))
    }


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@dataclass(frozen=True)
class Recording:
    """What a forward pass recorded, kept at `place`. marks: leaves of its graph, to which a backward pass goes that
    fills in the gradients.
    """

    place: torch.device
    calls: list[Call] = field(default_factory=list)
    marks: list[Tensor] = field(default_factory=list)


@contextmanager
def recording(model: nn.Module, found: Recording) -> Iterator[None]:
    """Record the calls of blocks in forward passes with gradients."""
    kind = next(model.parameters()).device.type
    keep = partial(_leaf, device=found.place)

    running: list[Any] = []

    def record(name: str, block: nn.Module) -> None:
        def before(_module: nn.Module, args: Any, kwargs: Any) -> None:
            outermost = torch.is_grad_enabled() and not any(running)
            # Before the block, which may change its input in place.
            running.append(mapped(keep, (args, kwargs)) if outermost else None)

        def after(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            arguments = running.pop()
            if arguments is None or _opaque((arguments, output)) or not differentiable(output):
                return None
            gradients: list[Tensor | None] = [None] * len(differentiable(output))
            call = Call(name, arguments, mapped(keep, output), torch.is_autocast_enabled(kind), gradients)
            places = count()

            def tapped(one: Tensor) -> Tensor:
                if not one.requires_grad:
                    return one
                found.marks.append(torch.zeros((), device=one.device, requires_grad=True))
                through: Tensor = _Tap.apply(
                    one, found.marks[-1], partial(_caught, gradients, next(places), found.place)
                )
                return through

            found.calls.append(call)
            return mapped(tapped, output)

        hooks.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
        hooks.callback(block.register_forward_hook(after, with_kwargs=True).remove)

    with ExitStack() as hooks:
        for name, block in _candidates(model).items():
            record(name, block)
        yield


def _caught(found: list[Tensor | None], number: int, place: torch.device, gradient: Tensor) -> None:
    found[number] = gradient.detach().to(place, copy=True)


class _Tap(torch.autograd.Function):
    """A copy, which no later module can change in place, and whose gradient goes to `catch` as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mark: Tensor, catch: Callable[[Tensor], None]) -> Tensor:
        ctx.catch = catch
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.catch(gradients[0])
        return gradients[0], torch.zeros((), device=gradients[0].device), None


def forward(
    block: nn.Module, call: Call, device: torch.device, dtype: torch.dtype | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the arguments of the call that take a gradient, and the outputs. dtype: of floats, without autocast."""
    with torch.autocast(device.type, enabled=False) if dtype or not call.autocast else nullcontext():
        arguments = mapped(
            partial(_leaf, device=device, dtype=dtype or _without_autocast(call, device)), call.arguments
        )
        # Copies, since a block may change its input in place.
        args, kwargs = mapped(lambda one: one.clone() if one.requires_grad else one, arguments)
        return differentiable(arguments), differentiable(block(*args, **kwargs))


def backward(call: Call, outputs: Sequence[Tensor], scale: float = 1.0) -> None:
    """Run backward from the gradients that the plain block had at its outputs."""
    tensors = [scale * one.to(output) for one, output in zip(call.at_outputs, outputs, strict=True)]
    torch.autograd.backward(list(outputs), tensors)


def run(
    block: nn.Module,
    call: Call,
    names: Mapping[nn.Parameter, str],
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Run:
    """Run one call on the plain block in its own pass, under bf16 autocast, or with arguments and weights of a dtype."""
    if dtype is not None and any(weight.dtype != dtype for weight in block.parameters()):
        own, block = block, _cast(deepcopy(block), dtype)
        pairs = zip(block.parameters(), own.parameters(), strict=True)
        names = {mine: names[of] for mine, of in pairs if of in names}
    with torch.autocast(device.type, dtype=torch.bfloat16):
        inputs, outputs = forward(block, call, device, dtype)
    backward(call, outputs)
    weights = {names[weight]: gradient_of(weight) for weight in block.parameters() if weight in names}
    block.zero_grad(set_to_none=True)
    return Run([one.detach() for one in outputs], list(map(gradient_at, inputs)), weights)


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
        output = mapped(partial(_leaf, device=device, dtype=_without_autocast(call, device)), call.output)
        kept = [_leaf(one, one.device) if isinstance(one, Tensor) else one for one in given]
        came.append((name, kept, differentiable(output)))
        # Copies, since the model may change them in place; without a gradient where the model wants none.
        return mapped(lambda one: one.clone() if one.requires_grad else one, output)

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
    """Let `stand_in` compute for the blocks of these names, each called with its name; yields the blocks."""
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


def mapped(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Return the same containers and dataclasses with other tensors in them; anything else stays."""

    def at_leaf(one: Any) -> Any:
        if isinstance(one, Tensor):
            return function(one)
        if not is_dataclass(one) or isinstance(one, type):
            return one
        other = copy(one)
        for own in fields(one):
            object.__setattr__(other, own.name, mapped(function, getattr(one, own.name)))
        return other

    return tree_map(at_leaf, values)


def leaves(values: Any) -> list[Any]:
    """Return what is in containers and dataclasses, in order."""
    found: list[Any] = []
    for one in tree_leaves(values):
        is_data = is_dataclass(one) and not isinstance(one, type)
        found += leaves([getattr(one, own.name) for own in fields(one)]) if is_data else [one]
    return found


def differentiable(values: Any) -> list[Tensor]:
    """Return the tensors that take a gradient."""
    return [one for one in leaves(values) if isinstance(one, Tensor) and one.requires_grad]


def gradient_at(tensor: Tensor) -> Tensor:
    """Return the gradient of a tensor that takes one, zero if none came."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def numbers(tensor: Tensor) -> Tensor:
    """Return a tensor as real floating-point numbers of at least 32 bits."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor.double()


def _opaque(values: Any) -> bool:
    """Return whether tensors with a gradient are hidden in an object."""
    objects = [vars(one) for one in leaves(values) if not isinstance(one, Tensor) and hasattr(one, "__dict__")]
    return any(isinstance(one, Tensor) and one.requires_grad for held in objects for one in held.values())


def _without_autocast(call: Call, device: torch.device) -> torch.dtype | None:
    """Return float32 where a model runs without the bf16 autocast under which the call was recorded."""
    on = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16
    return torch.float32 if call.autocast and not on else None


def _leaf(value: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy that takes a gradient if the tensor does. dtype: of floats other than float64."""
    to = dtype if value.is_floating_point() and value.dtype != torch.float64 else None
    copied = value.detach().to(device=device, dtype=to or value.dtype, copy=True)
    return copied.requires_grad_(value.requires_grad)


def _finite(tensor: Tensor) -> Tensor:
    """Return a mask's infinities as ones, to be compared."""
    if not tensor.is_floating_point() or tensor.requires_grad:
        return tensor
    return torch.nan_to_num(tensor, nan=math.nan, posinf=1.0, neginf=-1.0)


def _cast(block: nn.Module, dtype: torch.dtype) -> nn.Module:
    return block._apply(partial(_cast_one, dtype=dtype))


def _cast_one(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def _noise(like: Tensor, size: float, seed: int) -> Tensor:
    """Return seeded noise of this norm."""
    generator = torch.Generator(like.device).manual_seed(seed)
    noise = torch.empty(like.shape, device=like.device).normal_(0, 1, generator=generator)
    return (noise * (size / max(1, like.numel()) ** 0.5)).to(like.dtype)

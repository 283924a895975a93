"""Calls of a model's blocks: recorded in one pass, and run again on one block; and tensors within containers and
dataclasses, which their arguments and outputs are.

A block is an element of the model's list of repeated blocks, or an outermost module that is called beside them and has
weights: the embedding, the last norm, the head. One that gives an object that is neither a container nor a dataclass
counts as part of what lies between.
"""

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

from fp8bench.worker.execution.checkpointing import repeated_blocks, weights_of
from fp8bench.worker.execution.step import bf16_autocast
from fp8bench.worker.plain_weights import gradient_of, trained_weights


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
    found: list[Any] = []
    for one in tree_leaves(values):
        is_data = is_dataclass(one) and not isinstance(one, type)
        found += leaves([getattr(one, own.name) for own in fields(one)]) if is_data else [one]
    return found


def differentiable(values: Any) -> list[Tensor]:
    return [one for one in leaves(values) if isinstance(one, Tensor) and one.requires_grad]


def copied(values: Any) -> Any:
    return mapped(lambda one: one.clone() if one.requires_grad else one, values)


def leaf(value: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy that takes a gradient if the tensor does. dtype: of floats other than float64."""
    to = dtype if value.is_floating_point() and value.dtype != torch.float64 else None
    copied = value.detach().to(device=device, dtype=to or value.dtype, copy=True)
    return copied.requires_grad_(value.requires_grad)


def gradient_at(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def numbers(tensor: Tensor) -> Tensor:
    """Return a tensor as real floating-point numbers of at least 32 bits."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor.double()


def opaque(values: Any) -> bool:
    objects = [vars(one) for one in leaves(values) if not isinstance(one, Tensor) and hasattr(one, "__dict__")]
    return any(isinstance(one, Tensor) and one.requires_grad for held in objects for one in held.values())


@dataclass(frozen=True)
class Call:
    """A call of a block in the plain pass. arguments: (args, kwargs) as before it; those that had a gradient require
    one. autocast: whether it was left on. gradients: at the output's tensors; None where the backward pass did not
    come.
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


Run = tuple[list[Tensor], list[Tensor], Mapping[str, Tensor | None]]
"""Outputs, gradients at inputs, and gradients of weights."""


def _candidates(model: nn.Module) -> dict[str, nn.Module]:
    # Blocks if they are not called within another: not what holds repeated blocks, nor a sequence with most weights.
    repeated = set(map(id, repeated_blocks(model)))
    whole = weights_of(model)

    def holds_blocks(module: nn.Module) -> bool:
        trunk = type(module).forward is nn.Sequential.forward and 2 * weights_of(module) > whole
        return trunk or any(id(inner) in repeated for inner in module.modules() if inner is not module)

    return {
        name: module
        for name, module in model.named_modules()
        if module is not model and trained_weights(module) and (id(module) in repeated or not holds_blocks(module))
    }


@dataclass(frozen=True)
class Recording:
    """What a forward pass recorded, kept at `place`. marks: leaves of its graph, by which backward comes there. like:
    calls of another pass. With them no graph outlives its block, and the gradient at an output is seeded noise, as
    large by number as that of the same block there.
    """

    place: torch.device
    like: Sequence[Call] = ()
    calls: list[Call] = field(default_factory=list)
    marks: list[Tensor] = field(default_factory=list)


@contextmanager
def recording(model: nn.Module, found: Recording) -> Iterator[None]:
    kind, home = next(model.parameters()).device.type, found.place
    keep = partial(leaf, device=home)
    running: list[Any] = []

    def record(name: str, block: nn.Module) -> None:
        def before(_module: nn.Module, args: Any, kwargs: Any) -> None:
            outermost = torch.is_grad_enabled() and not any(running)
            # Before the block, which may change its input in place.
            running.append(mapped(keep, (args, kwargs)) if outermost else None)

        def after(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            arguments = running.pop()
            if arguments is None or opaque((arguments, output)) or not differentiable(output):
                return None
            gradients: list[Tensor | None] = [None] * len(differentiable(output))
            call = Call(name, arguments, mapped(keep, output), torch.is_autocast_enabled(kind), gradients)
            if found.like:
                gradients[:] = map(keep, _gradients_like(found, name, differentiable(output)))
                found.calls.append(call)
                return copied(mapped(lambda one: leaf(one, one.device), output))
            places = count()

            def tapped(one: Tensor) -> Tensor:
                if not one.requires_grad:
                    return one
                found.marks.append(torch.zeros((), device=one.device, requires_grad=True))
                place = next(places)

                def caught(gradient: Tensor) -> None:
                    gradients[place] = gradient.detach().to(home, copy=True)

                through: Tensor = _Tap.apply(one, found.marks[-1], caught)
                return through

            found.calls.append(call)
            return mapped(tapped, output)

        hooks.enter_context(block.register_forward_pre_hook(before, with_kwargs=True))
        hooks.enter_context(block.register_forward_hook(after, with_kwargs=True))

    with ExitStack() as hooks:
        for name, block in _candidates(model).items():
            record(name, block)
        yield


def _gradients_like(found: Recording, block: str, outputs: Sequence[Tensor]) -> list[Tensor]:
    like = next((call.at_outputs for call in found.like if call.block == block), [])
    sizes = [float(one.float().square().mean().sqrt()) for one in like]
    return [noise(one, len(found.calls), size) for one, size in zip(outputs, sizes, strict=True)]


def noise(like: Tensor, seed: int, size: float) -> Tensor:
    """Return seeded normal noise. size: its root mean square."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return (torch.empty(like.shape, device=like.device).normal_(0, 1, generator=generator) * size).to(like.dtype)


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
        arguments = mapped(partial(leaf, device=device, dtype=dtype or without_autocast(call, device)), call.arguments)
        # Copies, since a block may change its input in place.
        args, kwargs = copied(arguments)
        return differentiable(arguments), differentiable(block(*args, **kwargs))


def backward(call: Call, outputs: Sequence[Tensor], scale: float = 1.0) -> None:
    tensors = [scale * one.to(output) for one, output in zip(call.at_outputs, outputs, strict=True)]
    torch.autograd.backward(list(outputs), tensors)


def run(
    block: nn.Module,
    call: Call,
    names: Mapping[nn.Parameter, str],
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Run:
    """Run one call on the plain block alone, under bf16 autocast, or with arguments and weights of a dtype."""
    if dtype is not None and any(weight.dtype != dtype for weight in block.parameters()):
        own, block = block, deepcopy(block)
        block._apply(lambda one: one.to(dtype) if one.is_floating_point() and one.dtype != torch.float64 else one)
        pairs = zip(block.parameters(), own.parameters(), strict=True)
        names = {mine: names[of] for mine, of in pairs if of in names}
    with bf16_autocast(device):
        inputs, outputs = forward(block, call, device, dtype)
    backward(call, outputs)
    weights = {names[weight]: gradient_of(weight) for weight in block.parameters() if weight in names}
    block.zero_grad(set_to_none=True)
    return [one.detach() for one in outputs], list(map(gradient_at, inputs)), weights


def without_autocast(call: Call, device: torch.device) -> torch.dtype | None:
    """Return float32 where a model runs without the bf16 autocast under which the call was recorded."""
    on = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16
    return torch.float32 if call.autocast and not on else None

"""Proves a converted model block by block, so that a fault cannot hide in the rounding of a deep model.

A block is an element of the model's list of repeated blocks, or an outermost module beside them that has weights: the
embedding, the last norm, the head. In one pass of the plain model each call of a block is recorded: its arguments and
the gradient at its output. The same call then goes to the block of the same dotted name in the converted model, and
compared are

  the output           |y' - y| / min(|y|, |y - x|): x, the block's input, is subtracted where a residual stream goes
                       through it, since that would hide what the block adds
  the input gradient   |dx' - dx| / min(|dx|, |dx - dy|), likewise
  each weight's        |dw' - dw| / |dw|, by the plain model's names (`plain_weights`)

Each has a bound of its own: what rounding alone does to this block in this number. The plain block therefore runs three
times: as it is (bf16 autocast), in float32, and for an fp8 mode with its linear layers rounded (`rounding`). A weight
whose gradient is nothing but rounding (a key's bias, by theory 0) has no error worth the name: it is judged by its
size, and named in the record.

What lies between blocks, the glue, is proved in the same way: the model runs with each block replaced by what the plain
one gave, so that the arguments of each call, the order of the calls and the loss show what the rest of the model does,
and a backward pass from the plain blocks' input gradients shows the rest's gradients. A block that a model skips, calls
twice or feeds with something else is found here, however deep the model is.

All blocks of the converted model run in one pass and in one context of the mode: Transformer Engine takes the end of an
autocast for the end of a pass, and the backward of the first module for the end of a step.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fp8bench.modes.layers import counted
from fp8bench.modes.protocol import Rounding
from fp8bench.schema.rank import BlockParity
from fp8bench.worker.execution.blocks import repeated_blocks
from fp8bench.worker.execution.step import bf16_autocast
from fp8bench.worker.plain_weights import Tie, as_plain, gradient_of, trained_weights
from fp8bench.worker.relative import finite, norm, ratio
from fp8bench.worker.rounding import rounded

OF_FP8, OF_BF16, FLOOR = 2.0, 3.0, 0.01
"""A bound, by squares: so many times what rounding to fp8 and to bf16 do, and what no computation need stay below."""

MOST = 0.8
"""No bound exceeds this: a fault has an error of about 1."""

NOISE = 0.5
"""From this error on by rounding alone, a weight's gradient is rounding itself."""

OF_NOISE = 10.0
"""How many times larger than the plain block's such a gradient may be."""

GLUE = 0.03
"""The bound on what lies between blocks: sums and reshapes, in float32 or bf16."""

SHOWN = 3


@dataclass(frozen=True)
class Errors:
    """What sets two runs of a block apart. weights: by the plain model's names."""

    output: float = 0.0
    input_gradient: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Whether every error is a number."""
        return all(map(math.isfinite, (self.output, self.input_gradient, *self.weights.values())))


@dataclass(frozen=True)
class Result:
    """One run of a block, or of what lies between: outputs, gradients at its inputs, and those of its weights by the
    plain model's names; None for a weight without one.
    """

    outputs: list[Tensor]
    inputs: list[Tensor]
    weights: Mapping[str, Tensor | None]


@dataclass
class Call:
    """One call of a block in the plain model's pass. arguments: (args, kwargs); those that had a gradient require one.
    output: as the block gave it. autocast: whether the model left it on. at_inputs, at_outputs: the gradients.
    """

    block: str
    arguments: Any
    output: Any
    autocast: bool
    taken: list[Tensor]
    at_inputs: list[Tensor] = field(default_factory=list)
    at_outputs: list[Tensor] = field(default_factory=list)

    def through(self) -> tuple[Tensor, Tensor] | None:
        """Return input and gradient at the output if a residual stream may go through: one of each, of one shape."""
        inputs = _differentiable(self.arguments)
        if len(inputs) == len(self.at_outputs) == 1 and inputs[0].shape == self.at_outputs[0].shape:
            return inputs[0], self.at_outputs[0]
        return None


@dataclass(frozen=True)
class Compared:
    """A call on both models. errors and bounds: by output, input gradient and weight; an infinite bound is that of a
    gradient which is rounding, whose error is then its size in units of what rounding makes.
    """

    call: Call
    errors: Errors
    bounds: Errors


def block_names(model: nn.Module) -> list[str]:
    """Return the dotted names of the model's blocks, in the model's order."""
    repeated = set(map(id, repeated_blocks(model)))

    def walk(module: nn.Module, prefix: str) -> Iterator[str]:
        for name, child in module.named_children():
            if id(child) in repeated:
                yield prefix + name
            elif any(id(inner) in repeated for inner in child.modules()):
                yield from walk(child, f"{prefix}{name}.")
            elif trained_weights(child):
                yield prefix + name

    return list(walk(model, ""))


@contextmanager
def recording(model: nn.Module, place: torch.device) -> Iterator[list[Call]]:
    """Record the calls of blocks in passes with gradients. `tensors_of` tells which tensors need theirs; `recorded`
    takes them after the backward pass. place: where what is recorded is kept.
    """
    calls: list[Call] = []
    kind = next(model.parameters()).device.type
    with ExitStack() as hooks:
        for name in block_names(model):
            own: list[list[Tensor]] = []

            def before(_module: nn.Module, args: Any, kwargs: Any, own: Any = own) -> Any:
                if not torch.is_grad_enabled():
                    return None
                # A view that this call alone uses: its gradient is the block's, without what goes around it.
                alone = tree_map(_view, (args, kwargs))
                own.append(_differentiable(alone))
                return alone

            def after(
                _module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name, own: Any = own
            ) -> None:
                if torch.is_grad_enabled():
                    on = torch.is_autocast_enabled(kind)
                    kept = tree_map(partial(_leaf, device=place), (args, kwargs))
                    calls.append(Call(name, kept, output, on, own.pop()))

            block = model.get_submodule(name)
            hooks.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(block.register_forward_hook(after, with_kwargs=True).remove)
        yield calls


def tensors_of(calls: Sequence[Call]) -> list[Tensor]:
    """Return the tensors of a recorded pass whose gradients `recorded` takes."""
    return [tensor for call in calls for tensor in (*call.taken, *_differentiable(call.output))]


def recorded(calls: list[Call]) -> None:
    """Take the gradients after the backward pass, and let its graph go."""
    for call in calls:
        kept = partial(_leaf, device=_home(call.arguments))
        call.at_inputs = [kept(_gradient(one)) for one in call.taken]
        call.at_outputs = [kept(_gradient(one)) for one in _differentiable(call.output)]
        call.output = tree_map(kept, call.output)
        call.taken = []


def _bounds(rounding: Sequence[Errors], extra: tuple[float, float]) -> Errors:
    """Return the bounds that follow from the errors by rounding to bf16 and, if there is a second, to fp8. A weight
    whose gradient is rounding has an infinite one.
    """
    factors = (OF_BF16, OF_FP8)

    def bound(errors: Sequence[float], more: float) -> float:
        return min(MOST, math.hypot(FLOOR, more, *(f * e for f, e in zip(factors, errors, strict=False))))

    def of_weight(name: str) -> float:
        errors = [one.weights[name] for one in rounding]
        return bound(errors, extra[1]) if max(errors) <= NOISE else math.inf

    return Errors(
        bound([one.output for one in rounding], extra[0]),
        bound([one.input_gradient for one in rounding], extra[1]),
        {name: of_weight(name) for name in rounding[0].weights},
    )


@dataclass(frozen=True)
class Glue:
    """A pass in which every block gave what the plain one had given. calls: the blocks' names, in order. result: the
    arguments of all calls and the loss; the gradients at the blocks' outputs and at the input; the weights outside.
    """

    calls: list[str]
    result: Result


def between(
    model: nn.Module,
    lossy: Callable[[], tuple[list[Tensor], Tensor]],
    calls: Sequence[Call],
    names: Callable[[Mapping[str, Tensor | None]], Mapping[str, Tensor | None]] = dict,
) -> Glue:
    """Run what lies between the blocks. lossy: runs the model, and returns the tensors that take the gradient at the
    input, and the loss. names: turns gradients of the model's weights into those of the plain model's.
    """
    waiting: dict[str, deque[Call]] = {call.block: deque() for call in calls}
    for call in calls:
        waiting[call.block].append(call)
    device = next(model.parameters()).device
    came: list[str] = []
    given: list[Tensor] = []
    taken: list[Tensor] = []

    def stand_in(name: str) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            came.append(name)
            queue = waiting[name]
            # A call too many is found by the order of calls.
            call = queue.popleft() if len(queue) > 1 else queue[0]
            taken.extend(_differentiable((args, kwargs)))
            output = tree_map(partial(_leaf, device=device), call.output)
            given.extend(_differentiable(output))
            return output

        return forward

    blocks = {name: model.get_submodule(name) for name in waiting}
    for name, block in blocks.items():
        block.__dict__["forward"] = stand_in(name)
    try:
        inputs, loss = lossy()
    finally:
        for block in blocks.values():
            del block.__dict__["forward"]
    pairs = zip(taken, (gradient for call in calls for gradient in call.at_inputs), strict=False)
    roots = [(one, gradient.to(one)) for one, gradient in pairs if one.shape == gradient.shape]
    tensors, gradients = [one for one, _ in roots], [gradient for _, gradient in roots]
    if loss.grad_fn is not None:
        tensors, gradients = [*tensors, loss], [*gradients, torch.ones_like(loss)]
    if tensors:
        torch.autograd.backward(tensors, gradients)
    inside = {weight for block in blocks.values() for weight in block.parameters()}
    outside = {
        name: one.grad if one in inside else gradient_of(one)
        for name, one in trained_weights(model).items()
        if one.grad is not None or one not in inside
    }
    found = [_gradient(one) for one in (*given, *inputs)]
    result = Result([*(one.detach() for one in taken), loss.detach()], found, names(outside))
    model.zero_grad(set_to_none=True)
    return Glue(came, result)


@dataclass(frozen=True)
class Pair:
    """The plain model and the converted one with its ties. context: makes the mode's. rounding: what it rounds; None
    without fp8, or if the mode does not say it. stated: bounds on outputs and gradients that such a mode states.
    """

    plain: nn.Module
    converted: nn.Module
    ties: Sequence[Tie]
    context: Callable[[], AbstractContextManager[Any]]
    rounding: Rounding | None = None
    stated: tuple[float, float] = (0.0, 0.0)


def examine(
    pair: Pair, calls: Sequence[Call], scale: float = 1.0, look: bool = True
) -> tuple[list[Compared], list[str]]:
    """Run every call on the converted model, in one context, and on the plain one. Returns what was compared, and in
    words which blocks are missing or give something of another kind. scale: multiplies gradients at outputs, for
    float16. look: False only runs the converted model, for a recipe whose scales come from earlier passes.
    """
    device = next(pair.converted.parameters()).device
    faults, running = [], []
    with bf16_autocast(device), pair.context():
        for call in calls:
            try:
                block = pair.converted.get_submodule(call.block)
            except AttributeError:
                faults.append(f"it has no block {call.block!r}")
                continue
            running.append((call, block, *_forward(block, call, device)))
    shapes = {name: weight.shape for name, weight in trained_weights(pair.plain).items()}
    names = {weight: name for name, weight in trained_weights(pair.converted).items()}
    compared = []
    # As in a step, the block that came first is the last to go back.
    for call, block, arguments, outputs in reversed(running):
        expected = [list(one.shape) for one in call.at_outputs]
        if [list(one.shape) for one in outputs] != expected:
            faults.append(f"its block {call.block!r} gives {[list(one.shape) for one in outputs]}, not {expected}")
            continue
        torch.autograd.backward(outputs, [scale * one.to(output) for one, output in zip(call.at_outputs, outputs)])
        here = {names[weight]: gradient_of(weight) for weight in block.parameters() if weight in names}
        if look:
            scaled = {name: None if one is None else one.float() / scale for name, one in here.items()}
            inputs = [_gradient(one) / scale for one in _differentiable(arguments)]
            found = Result([one.detach() for one in outputs], inputs, by_plain_names(pair.ties, scaled, shapes))
            compared.append(_compared(pair, call, found, device))
        block.zero_grad(set_to_none=True)
    return compared[::-1], faults


def _compared(pair: Pair, call: Call, found: Result, device: torch.device) -> Compared:
    """Run the call on the plain block: as it is, in float32, and rounded to fp8 if the mode says what it rounds."""
    block = pair.plain.get_submodule(call.block)
    home = next(block.parameters()).device
    names = {weight: name for name, weight in trained_weights(pair.plain).items()}
    block.to(device)
    as_is, exact = _alone(block, call, names, device), _cast(block, call, names, device, torch.float32)
    through = None if (pass_by := call.through()) is None else (pass_by[0].to(device), pass_by[1].to(device))
    rounding = [_hypot(_errors(as_is, exact, through), _storage(as_is, through))]
    sizes = [_sizes(as_is), _sizes(exact)]
    if device.type == "cpu":
        # There torch's norms add up 16-bit gradients in 16 bits: what rounding does to them depends on their input.
        in_bf16 = _cast(block, call, names, device, torch.bfloat16)
        rounding[0] = _hypot(rounding[0], _errors(as_is, in_bf16, through))
        sizes.append(_sizes(in_bf16))
    if pair.rounding is not None:
        with rounded(pair.plain, pair.rounding):
            in_fp8 = _alone(block, call, names, device)
        rounding.append(_errors(as_is, in_fp8, through))
        sizes.append(_sizes(in_fp8))
    bounds = _bounds(rounding, pair.stated)
    errors = _errors(as_is, found, through)
    of_rounding = {
        name: _times(found.weights.get(name), max(of[name] for of in sizes))
        for name, bound in bounds.weights.items()
        if math.isinf(bound)
    }
    block.to(home)
    return Compared(call, replace(errors, weights={**errors.weights, **of_rounding}), bounds)


def by_plain_names(
    found: Sequence[Tie], gradients: Mapping[str, Tensor | None], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor | None]:
    """Return gradients by the plain model's names; None where one is missing."""
    result: dict[str, Tensor | None] = {}
    for tie in found:
        here = {name: gradients.get(name) for name in tie.trained}
        came = {name: one for name, one in here.items() if one is not None}
        if len(came) < len(here) or not set(tie.plain) <= set(shapes):
            result |= dict.fromkeys(tie.plain)
        else:
            result |= as_plain(tie, came, shapes)
    return result


def judged(compared: Sequence[Compared], plain: Glue, converted: Glue) -> tuple[BlockParity, list[str]]:
    """Return the numbers for the record, and what exceeds its bound, in words."""
    faults: list[tuple[float, str]] = []
    worst = {"output": 0.0, "input gradient": 0.0, "weight gradient": 0.0}
    margins: list[tuple[float, str]] = []
    noise: set[str] = set()
    seen: set[str] = set()

    def judge(what: str, kind: str, error: float, bound: float) -> None:
        share = error / bound if not math.isnan(error) else math.inf
        margins.append((share, what))
        worst[kind] = max(worst[kind], error) if not math.isnan(error) else math.inf
        if not error <= bound:
            faults.append((share, f"{what} differs by {error:.3g} (at most {bound:.3g})"))

    for one in compared:
        name, errors, bounds = one.call.block, one.errors, one.bounds
        judge(f"the output of {name}", "output", errors.output, bounds.output)
        judge(f"the input gradient of {name}", "input gradient", errors.input_gradient, bounds.input_gradient)
        for weight, error in errors.weights.items():
            bound = bounds.weights[weight]
            (noise if math.isinf(bound) else seen).add(weight)
            if not math.isinf(bound):
                judge(f"the gradient of {weight}", "weight gradient", error, bound)
            elif not error <= OF_NOISE:
                faults.append((error, f"the gradient of {weight} is {error:.3g} times what rounding makes of it"))
    if converted.calls != plain.calls:
        faults.append((math.inf, _other_calls(plain.calls, converted.calls)))
    else:
        glue = _errors_of(plain.result, converted.result)
        judge("what blocks are given, or the loss made of them,", "output", glue.output, GLUE)
        judge("the gradient that blocks are given", "input gradient", glue.input_gradient, GLUE)
        for weight, error in glue.weights.items():
            seen.add(weight)
            judge(f"the gradient of {weight}", "weight gradient", error, GLUE)
    closest = max(margins, default=(0.0, ""))
    numbers = BlockParity(
        blocks=len({one.call.block for one in compared}),
        output_error=finite(worst["output"]),
        input_gradient_error=finite(worst["input gradient"]),
        weight_gradient_error=finite(worst["weight gradient"]),
        of_bound=finite(closest[0]),
        closest=closest[1],
        compared_weights=len(seen),
        rounding_weights=tuple(counted(sorted(noise - seen))),
    )
    faults.sort(key=lambda fault: -fault[0])
    return numbers, [words for _, words in faults[:SHOWN]]


def _other_calls(plain: Sequence[str], converted: Sequence[str]) -> str:
    missing = [name for name in dict.fromkeys(plain) if name not in converted]
    if missing:
        return f"its forward pass leaves out {', '.join(missing[:SHOWN])}"
    place = next((n for n, pair in enumerate(zip(plain, converted, strict=False)) if pair[0] != pair[1]), len(plain))
    return f"its forward pass calls blocks in another order or more often, from call {place + 1} on"


def _forward(
    block: nn.Module, call: Call, device: torch.device, dtype: torch.dtype | None = None
) -> tuple[Any, list[Tensor]]:
    """Return new arguments of the call, and the outputs that it gives. dtype: of floats, without autocast."""
    arguments = tree_map(partial(_leaf, device=device, dtype=dtype), call.arguments)
    off = dtype is not None or not call.autocast
    with torch.autocast(device.type, enabled=False) if off else nullcontext():
        return arguments, _differentiable(block(*arguments[0], **arguments[1]))


def _alone(
    block: nn.Module,
    call: Call,
    names: Mapping[nn.Parameter, str],
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Result:
    """Run one call on the plain block, in its own pass."""
    with bf16_autocast(device):
        arguments, outputs = _forward(block, call, device, dtype)
    torch.autograd.backward(outputs, [one.to(made) for one, made in zip(call.at_outputs, outputs, strict=True)])
    weights = {names[weight]: gradient_of(weight) for weight in block.parameters() if weight in names}
    result = Result([one.detach() for one in outputs], [_gradient(one) for one in _differentiable(arguments)], weights)
    block.zero_grad(set_to_none=True)
    return result


def _cast(
    block: nn.Module, call: Call, names: Mapping[nn.Parameter, str], device: torch.device, dtype: torch.dtype
) -> Result:
    """Run one call with arguments and weights of this dtype, without autocast."""
    if all(weight.dtype == dtype for weight in block.parameters()):
        return _alone(block, call, names, device, dtype)
    copy = deepcopy(block).to(dtype)
    pairs = zip(copy.parameters(), block.parameters(), strict=True)
    return _alone(copy, call, {own: names[of] for own, of in pairs if of in names}, device, dtype)


def _leaf(value: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
    """Return a copy of a tensor that takes a gradient if the tensor does; anything else as it is. dtype: of floats."""
    if not isinstance(value, Tensor):
        return value
    to = dtype if value.is_floating_point() else None
    return (
        value.detach()
        .to(device=device or value.device, dtype=to or value.dtype, copy=True)
        .requires_grad_(value.requires_grad)
    )


def _home(values: Any) -> torch.device | None:
    return next((one.device for one in tree_leaves(values) if isinstance(one, Tensor)), None)


def _view(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return value.view_as(value)


def _differentiable(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor) and one.requires_grad]


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _errors(plain: Result, other: Result, through: tuple[Tensor, Tensor] | None) -> Errors:
    """Return the errors of a block's run against the plain one (see the module)."""
    found = _errors_of(plain, other)
    if through is None:
        return found
    (x, dy), (y,), (dx,) = through, plain.outputs, plain.inputs
    return Errors(
        _sharpest(norm(other.outputs[0].float() - y.float()), y, x),
        _sharpest(norm(other.inputs[0].float() - dx.float()), dx, dy),
        found.weights,
    )


def _times(gradient: Tensor | None, size: float) -> float:
    """Return a gradient in units of what rounding makes; infinite if there is none."""
    return math.inf if gradient is None else _share(norm(gradient), size)


def _share(part: float, whole: float) -> float:
    return 0.0 if part == 0 else part / whole if whole > 0 else math.inf


def _sharpest(apart: float, of: Tensor, through: Tensor) -> float:
    """Return the difference as a share of the tensor, or of what is left of it without what went through."""
    sizes = [norm(of), norm(of.float() - through.float())]
    return _share(apart, min((size for size in sizes if size > 0), default=0.0))


def _errors_of(plain: Result, other: Result) -> Errors:
    def apart(one: Sequence[Tensor], two: Sequence[Tensor]) -> float:
        if [tensor.shape for tensor in one] != [tensor.shape for tensor in two]:
            return math.inf
        pairs = [(norm(b.float() - a.float()), norm(a)) for a, b in zip(one, two, strict=True)]
        return max((_share(difference, size) for difference, size in pairs), default=0.0)

    return Errors(
        apart(plain.outputs, other.outputs),
        apart(plain.inputs, other.inputs),
        {name: _weight_error(one, other.weights.get(name)) for name, one in plain.weights.items()},
    )


def _weight_error(plain: Tensor | None, other: Tensor | None) -> float:
    """Return the error of a weight's gradient: 1 for a missing one, infinite for one that should not be."""
    if plain is None or not plain.any():
        return 0.0 if other is None or not other.any() else math.inf
    if other is None or other.shape != plain.shape:
        return 1.0
    plain = plain.to(other.device)
    return ratio(norm(other.float() - plain.float()), norm(plain))


def _storage(plain: Result, through: tuple[Tensor, Tensor] | None) -> Errors:
    """Return what it does to store the residual stream and its gradient in bf16, as some libraries do."""
    none = dict.fromkeys(plain.weights, 0.0)
    if through is None:
        return Errors(weights=none)

    def stored(*tensors: Tensor) -> float:
        return math.hypot(*(norm(one.bfloat16().float() - one.float()) for one in tensors))

    (x, dy), (y,), (dx,) = through, plain.outputs, plain.inputs
    return Errors(_sharpest(stored(x, y), y, x), _sharpest(stored(dy, dx), dx, dy), none)


def _hypot(one: Errors, two: Errors) -> Errors:
    return Errors(
        math.hypot(one.output, two.output),
        math.hypot(one.input_gradient, two.input_gradient),
        {name: math.hypot(error, two.weights[name]) for name, error in one.weights.items()},
    )


def _sizes(result: Result) -> dict[str, float]:
    return {name: 0.0 if one is None else norm(one) for name, one in result.weights.items()}

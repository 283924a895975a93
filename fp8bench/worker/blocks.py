"""Proves a converted model block by block, so that a fault cannot hide in the rounding of a deep model.

Each call of a block in one pass of the plain model (`recorded`) goes to the block of the same dotted name in the
converted model, with the gradient at its output, and compared are

  the output           |y' - y| / min(|y|, |y - x|): x, the block's input, is subtracted where a residual stream goes
                       through it, since that would hide what the block adds
  the input gradient   |dx' - dx| / min(|dx|, |dx - dy|), likewise
  each weight's        |dw' - dw| / |dw|, by the plain model's names. For a large weight also how far
                       <dw', dw> / <dw, dw> is from 1, which rounding hardly moves and a factor does; and the same
                       error of a dozen groups of rows, since queries, keys and values in one may differ much in size

The bound on each is what rounding alone does to this block in this number: the plain block runs as it is (bf16
autocast), in float32, and for an fp8 mode with its linear layers rounded. A gradient that is nothing but rounding (of a
key's bias) is judged by its size, and named in the record.

All blocks of the converted model run in one pass and one context of the mode: Transformer Engine takes the end of an
autocast for the end of a pass, and the backward of the first module for the end of a step.

What lies between the blocks (`glue`) runs with each of them replaced by what the plain one gave. So the arguments of
each call, the order of the calls and the loss show what the rest of the model does, and a backward pass shows the
rest's gradients, however deep the model is.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import BF16_TOLERANCE, Rounding
from fp8bench.records.select import grouped
from fp8bench.worker import recorded
from fp8bench.worker.execution.step import bf16_autocast
from fp8bench.worker.judged import Judged, Kind, Part, judged, of_weights
from fp8bench.worker.plain_weights import SHOWN, Tie, by_plain_names, gradient_of, shapes_of, trained_weights
from fp8bench.worker.recorded import Call, Run, differentiable, gradient_at, leaf, leaves, numbers
from fp8bench.worker.rounding import grids, norm, rounded, with_forwards
from fp8bench.worker.view import Context, passed
from fp8bench.workloads.protocol import Batch, Workload


@dataclass(frozen=True)
class Pair:
    """Both models with their ties. context: the mode's. rounding: None if unknown. stated: bounds of such a mode."""

    plain: nn.Module
    converted: nn.Module
    ties: Sequence[Tie]
    context: Callable[[], AbstractContextManager[object]]
    rounding: Rounding | None = None
    stated: tuple[float, float] = (0.0, 0.0)

    def more(self, least: tuple[float, float] = (0.0, 0.0)) -> dict[Kind, float]:
        output, gradient = map(max, self.stated, least)
        return {"output": output, "input gradient": gradient, "weight gradient": gradient}


def examine(pair: Pair, calls: Sequence[Call], scale: float = 1.0, look: bool = True) -> tuple[list[Judged], list[str]]:
    """Run every call on both models. Returns what was compared, and which blocks are missing or of another kind, in
    words. scale: of gradients at outputs, for float16. look: False only runs the converted model, for scales that come
    from earlier passes.
    """
    device = next(pair.converted.parameters()).device
    faults, running = [], []
    pair.converted.zero_grad(set_to_none=True)
    with bf16_autocast(device), pair.context():
        for call in calls:
            try:
                block = pair.converted.get_submodule(call.block)
            except AttributeError:
                faults.append(f"it has no block {call.block!r}")
                continue
            running.append((call, block, *recorded.forward(block, call, device)))
    shapes = shapes_of(pair.plain)
    names = {weight: name for name, weight in trained_weights(pair.converted).items()}
    found: list[Judged] = []
    # As in a step, the block that came first is the last to go back.
    for call, block, inputs, outputs in reversed(running):
        given, expected = ([list(one.shape) for one in of] for of in (outputs, call.at_outputs))
        if given != expected:
            faults.append(f"its block {call.block!r} gives {given}, not {expected}")
            continue
        recorded.backward(call, outputs, scale)
        if look:
            here = {names[weight]: gradient_of(weight) for weight in block.parameters() if weight in names}
            scaled = {name: None if one is None else one.float() / scale for name, one in here.items()}
            at_inputs = [gradient_at(one) / scale for one in inputs]
            own = [tie for tie in pair.ties if not here.keys().isdisjoint(tie.trained)]
            run = [one.detach() for one in outputs], at_inputs, by_plain_names(own, scaled, shapes)
            found = [*_compared(pair, call, run, device), *found]
        block.zero_grad(set_to_none=True)
    pair.converted.zero_grad(set_to_none=True)
    return found, faults


def _compared(pair: Pair, call: Call, found: Run, device: torch.device) -> list[Judged]:
    block = pair.plain.get_submodule(call.block)
    home = next(block.parameters()).device
    names = {weight: name for name, weight in trained_weights(pair.plain).items()}
    block.to(device)
    as_is = recorded.run(block, call, names, device)
    # On a CPU torch's norms add up 16-bit gradients in 16 bits: what rounding does to them depends on their input.
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cpu" else (torch.float32,)
    bf16, fp8 = [], []
    for dtype in dtypes:
        try:
            bf16.append(_parts(call, recorded.run(block, call, names, device, dtype)))
        except RuntimeError:
            # It does not run without autocast.
            block.zero_grad(set_to_none=True)
    if pair.rounding is not None:
        for full in grids(block, 2):
            with rounded(block, pair.rounding.within(call.block), full):
                fp8.append(_parts(call, recorded.run(block, call, names, device)))
    block.to(home)
    # A block whose rounding is unknown has the bounds of two bf16 computations.
    more = pair.more() if bf16 else pair.more((BF16_TOLERANCE.logits, BF16_TOLERANCE.input_gradient))
    inputs, through = differentiable(call.arguments), None
    if len(inputs) == len(as_is[0]) == 1 and inputs[0].shape == as_is[0][0].shape:
        # A residual stream may go through.
        through = inputs[0].detach().to(device), call.at_outputs[0].to(device)
    compared = judged(_parts(call, as_is, through), bf16, fp8, more, _parts(call, found))
    if any(one.rounding and one.part.kind != "weight gradient" for one in compared):
        # Beside the stream that goes through it, this block adds less than rounding does.
        compared = judged(_parts(call, as_is), bf16, fp8, more, _parts(call, found))
    return compared


def _parts(call: Call, run: Run, through: tuple[Tensor, Tensor] | None = None) -> dict[str, Part]:
    (outputs, inputs, weights), (x, dy) = run, through or (None, None)
    parts = [
        Part(f"the output of {call.block}", "output", outputs, x),
        Part(f"the input gradient of {call.block}", "input gradient", inputs, dy),
        *of_weights(weights),
    ]
    return {part.what: part for part in parts}


@dataclass(frozen=True)
class Glue:
    """A pass between blocks. calls: in order, the block and of what kind its arguments were. parts: what it shows."""

    calls: list[tuple[str, list[Any]]]
    parts: dict[str, Part]


def between(
    model: nn.Module,
    workload: Workload,
    batch: Batch,
    calls: Sequence[Call],
    context: Context = None,
    names: Callable[[Mapping[str, Tensor | None]], Mapping[str, Tensor | None]] = dict,
    scale: float = 1.0,
) -> Glue:
    """Run what lies between the blocks, forward and backward: from the loss, and from seeded noise at the arguments of
    each call, as large as the gradients that went through it. names: gives gradients the plain model's names. scale: of
    the backward pass, whose results are divided by it again.
    """
    waiting = {name: deque(of) for name, of in grouped(calls, lambda call: call.block).items()}
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
            roots.append((one, recorded.noise(one, len(roots), size / max(1, one.numel()) ** 0.5)))
        dtype = recorded.without_autocast(call, device)
        output = recorded.mapped(partial(leaf, device=device, dtype=dtype), call.output)
        kept = [leaf(one, one.device) if isinstance(one, Tensor) else one for one in given]
        came.append((name, kept, differentiable(output)))
        # Copies, since the model may change them in place; without a gradient where the model wants none.
        return recorded.copied(output)

    model.zero_grad(set_to_none=True)
    blocks = {model.get_submodule(name): partial(stand_in, name) for name in waiting}
    with with_forwards(blocks):
        inputs, loss = passed(workload.loss, model, batch, context)
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
    kinds: list[tuple[str, list[Any]]] = []
    for number, (name, given, outputs) in enumerate(came, 1):
        where, tensors = f"{name} in call {number}", [one for one in given if isinstance(one, Tensor)]
        simple = [one for one in given if isinstance(one, bool | int | float | str)]
        kinds.append((name, [[(one.shape, one.requires_grad) for one in tensors], simple]))
        gradients = [gradient_at(one) / scale for one in outputs]
        parts.append(Part(f"what is given to {where}", "output", list(map(_finite, tensors))))
        parts.append(Part(f"the gradient given to {where}", "input gradient", gradients))
    parts += of_weights(scaled, " beside the blocks")
    model.zero_grad(set_to_none=True)
    return Glue(kinds, {part.what: part for part in parts})


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
    of_bf16, of_fp8 = ([one.parts for one in glues] for glues in (bf16, fp8))
    return judged(plain.parts, of_bf16, of_fp8, more, converted.parts), faults[:SHOWN]


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

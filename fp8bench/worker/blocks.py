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
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import BF16_TOLERANCE, Rounding
from fp8bench.worker import recorded
from fp8bench.worker.execution.step import bf16_autocast
from fp8bench.worker.judged import Judged, Kind, Part, Rounded, judged, of_weights
from fp8bench.worker.plain_weights import Tie, by_plain_names, gradient_of, trained_weights
from fp8bench.worker.recorded import Call, Run, differentiable, gradient_at
from fp8bench.worker.rounding import grids, rounded


@dataclass(frozen=True)
class Pair:
    """Both models with their ties. context: the mode's. rounding: None if unknown. stated: bounds of such a mode."""

    plain: nn.Module
    converted: nn.Module
    ties: Sequence[Tie]
    context: Callable[[], AbstractContextManager[object]]
    rounding: Rounding | None = None
    stated: tuple[float, float] = (0.0, 0.0)

    @cached_property
    def names(self) -> dict[nn.Parameter, str]:
        return {weight: name for name, weight in trained_weights(self.plain).items()}

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
    shapes = {name: weight.shape for name, weight in trained_weights(pair.plain).items()}
    names = {weight: name for name, weight in trained_weights(pair.converted).items()}
    found: list[list[Judged]] = []
    # As in a step, the block that came first is the last to go back.
    for call, block, inputs, outputs in reversed(running):
        expected = [list(one.shape) for one in call.at_outputs]
        if [list(one.shape) for one in outputs] != expected:
            faults.append(f"its block {call.block!r} gives {[list(one.shape) for one in outputs]}, not {expected}")
            continue
        recorded.backward(call, outputs, scale)
        if look:
            here = {names[weight]: gradient_of(weight) for weight in block.parameters() if weight in names}
            scaled = {name: None if one is None else one.float() / scale for name, one in here.items()}
            at_inputs = [gradient_at(one) / scale for one in inputs]
            own = [tie for tie in pair.ties if not here.keys().isdisjoint(tie.trained)]
            run = Run([one.detach() for one in outputs], at_inputs, by_plain_names(own, scaled, shapes))
            found.append(_compared(pair, call, run, device))
        block.zero_grad(set_to_none=True)
    pair.converted.zero_grad(set_to_none=True)
    return [one for of_call in reversed(found) for one in of_call], faults


def _compared(pair: Pair, call: Call, found: Run, device: torch.device) -> list[Judged]:
    block = pair.plain.get_submodule(call.block)
    home = next(block.parameters()).device
    names = pair.names
    block.to(device)
    as_is = recorded.run(block, call, names, device)
    # On a CPU torch's norms add up 16-bit gradients in 16 bits: what rounding does to them depends on their input.
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cpu" else (torch.float32,)
    bf16, fp8 = [], []
    for dtype in dtypes:
        try:
            bf16.append(recorded.run(block, call, names, device, dtype))
        except RuntimeError:
            # It does not run without autocast.
            block.zero_grad(set_to_none=True)
    if pair.rounding is not None:
        for full in grids(block, 2):
            with rounded(block, pair.rounding.within(call.block), full):
                fp8.append(recorded.run(block, call, names, device))
    block.to(home)
    # A block whose rounding is unknown has the bounds of two bf16 computations.
    more = pair.more() if bf16 else pair.more((BF16_TOLERANCE.logits, BF16_TOLERANCE.input_gradient))
    inputs = differentiable(call.arguments)
    through = None
    if len(inputs) == len(as_is.outputs) == 1 and inputs[0].shape == as_is.outputs[0].shape:
        # A residual stream may go through.
        through = inputs[0].detach().to(device), call.at_outputs[0].to(device)
    plain = _parts(call, as_is, through)
    rounding = Rounded([_parts(call, run) for run in bf16], [_parts(call, run) for run in fp8], more)
    compared = judged(plain, rounding, _parts(call, found))
    if any(one.rounding and one.part.kind != "weight gradient" for one in compared):
        # Beside the stream that goes through it, this block adds less than rounding does.
        compared = judged(_parts(call, as_is), rounding, _parts(call, found))
    return compared


def _parts(call: Call, run: Run, through: tuple[Tensor, Tensor] | None = None) -> dict[str, Part]:
    x, dy = through or (None, None)
    parts = [
        Part(f"the output of {call.block}", "output", run.outputs, x),
        Part(f"the input gradient of {call.block}", "input gradient", run.inputs, dy),
        *of_weights(run.weights),
    ]
    return {part.what: part for part in parts}

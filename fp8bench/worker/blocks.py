"""Proves a converted model block by block, so that a fault cannot hide in the rounding of a deep model.

Each call of a block in one pass of the plain model (`recorded`) goes to the block of the same dotted name in the
converted model, with the gradient at its output, and compared are

  the output           |y' - y| / min(|y|, |y - x|): x, the block's input, is subtracted where a residual stream goes
                       through it, since that would hide what the block adds
  the input gradient   |dx' - dx| / min(|dx|, |dx - dy|), likewise
  each weight's        |dw' - dw| / |dw|, by the plain model's names (`plain_weights`). For a large weight also how far
                       <dw', dw> / <dw, dw> is from 1, which rounding hardly moves and a factor does; and the same
                       error of a dozen groups of rows, since queries, keys and values in one may differ much in size

Each has a bound of its own: what rounding alone does to this block in this number. The plain block therefore runs several
times: as it is (bf16 autocast), in float32, and for an fp8 mode with its linear layers rounded (`rounding`). A gradient
that is nothing but rounding (of a key's bias, by theory 0) has no error worth the name: it is judged by its size, and
named in the record.

What lies between blocks, the glue, is proved in the same way: the model runs with each block replaced by what the plain
one gave, so that the arguments of each call, the order of the calls and the loss show what the rest of the model does,
and a backward pass shows the rest's gradients. A block that a model skips, calls twice or feeds with something else is
found here, however deep the model is.

All blocks of the converted model run in one pass and in one context of the mode: Transformer Engine takes the end of an
autocast for the end of a pass, and the backward of the first module for the end of a step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fp8bench.modes.layers import counted
from fp8bench.modes.protocol import BF16_TOLERANCE, Rounding
from fp8bench.schema.rank import BlockParity
from fp8bench.worker import recorded
from fp8bench.worker.execution.step import bf16_autocast
from fp8bench.worker.plain_weights import Tie, by_plain_names, gradient_of, trained_weights
from fp8bench.worker.recorded import Call, Glue, Run, numbers
from fp8bench.worker.relative import finite, norm
from fp8bench.worker.rounding import GRIDS, rounded

OF_FP8, OF_BF16, FLOOR = 2.0, 3.0, 0.01
"""A bound, by squares: so many times what rounding to fp8 and to bf16 do, and what no computation need stay below."""

MOST = 0.8
"""No bound exceeds this: a fault has an error of about 1."""

NOISE = 0.5
"""From this error on by rounding alone, a gradient is rounding itself."""

OF_NOISE = 10.0
"""How many times larger than all of the plain block's, or smaller, such a gradient may be."""

SCALED, FEW = 0.5, 64
"""By what share of its bound a gradient's scale may be off. A weight of fewer numbers has no scale to speak of, and what
rounding does to it once says little of the next time: it counts by sqrt(FEW / numbers) more.
"""

GROUPS, ROWS, SMALL = 12, 8, 256
"""Groups of rows of a weight: a dozen divides what is packed in two, three, four or six. The fewest rows and numbers of
one.
"""

OF_GROUP = 1.5
"""How many times the bound of a weight applies to what rounding does to a group of its rows."""

SHOWN = 3

OTHER_SCALE = "is another multiple, by {error:.3g} (at most {bound:.3g})"

Kind = Literal["output", "input gradient", "weight gradient"]


@dataclass(frozen=True)
class Part:
    """One thing that a run shows. what: in words, equal in all runs. tensors: None where there is no gradient. through:
    what went through a block beside them, in the plain run. weight: its name, if it is the gradient of one.
    """

    what: str
    kind: Kind
    tensors: Sequence[Tensor] | None
    through: Tensor | None = None
    weight: str | None = None


@dataclass(frozen=True)
class Rounded:
    """What rounding alone makes of parts, by `what`: other runs without fp8, and with fp8. more: errors on top."""

    bf16: Sequence[Mapping[str, Part]]
    fp8: Sequence[Mapping[str, Part]]
    more: Mapping[Kind, float]


@dataclass(frozen=True)
class Judged:
    """A part of the converted model beside the plain one's. rounding: whether the plain one is nothing else; then the
    error is its size, in units of what rounding makes.
    """

    part: Part
    error: float
    bound: float
    rounding: bool = False
    words: str = "differs by {error:.3g} (at most {bound:.3g})"

    @property
    def share(self) -> float:
        """The error as a share of its bound; infinite if it is no number."""
        return self.error / self.bound if not math.isnan(self.error) else math.inf

    @property
    def fault(self) -> str:
        """The error in words."""
        return f"{self.part.what} {self.words.format(error=self.error, bound=self.bound)}"


@dataclass(frozen=True)
class Pair:
    """The plain model and the converted one with its ties. context: makes the mode's. rounding: what it rounds; None
    without fp8, or if the mode does not say it. stated: bounds on outputs and gradients that such a mode states.
    """

    plain: nn.Module
    converted: nn.Module
    ties: Sequence[Tie]
    context: Callable[[], AbstractContextManager[object]]
    rounding: Rounding | None = None
    stated: tuple[float, float] = (0.0, 0.0)

    @property
    def more(self) -> dict[Kind, float]:
        return {"output": self.stated[0], "input gradient": self.stated[1], "weight gradient": self.stated[1]}


def examine(pair: Pair, calls: Sequence[Call], scale: float = 1.0, look: bool = True) -> tuple[list[Judged], list[str]]:
    """Run every call on the converted model, in one context, and on the plain one. Returns what was compared, and in
    words which blocks are missing or give something of another kind. scale: multiplies gradients at outputs, for
    float16. look: False only runs the converted model, for a recipe whose scales come from earlier passes.
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
            at_inputs = [recorded.gradient_at(one) / scale for one in inputs]
            run = Run([one.detach() for one in outputs], at_inputs, by_plain_names(pair.ties, scaled, shapes))
            found.append(_compared(pair, call, run, device))
        pair.converted.zero_grad(set_to_none=True)
    return [one for judged in reversed(found) for one in judged], faults


def _compared(pair: Pair, call: Call, found: Run, device: torch.device) -> list[Judged]:
    """Run the call on the plain block: as it is, in float32, and rounded to fp8 if the mode says what it rounds."""
    block = pair.plain.get_submodule(call.block)
    home = next(block.parameters()).device
    names = {weight: name for name, weight in trained_weights(pair.plain).items()}
    block.to(device)
    as_is = recorded.run(block, call, names, device)
    # On a CPU torch's norms add up 16-bit gradients in 16 bits: what rounding does to them depends on their input.
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cpu" else (torch.float32,)
    bf16 = [run for dtype in dtypes if (run := _in_dtype(block, call, names, device, dtype)) is not None]
    fp8 = []
    if pair.rounding is not None:
        for full in GRIDS[:2]:
            with rounded(pair.plain, pair.rounding, full):
                fp8.append(recorded.run(block, call, names, device))
    block.to(home)
    more = pair.more if bf16 else _at_least(pair.more)
    plain = _parts(call, as_is, _through(call, as_is, device))
    rounding = Rounded([_parts(call, run) for run in bf16], [_parts(call, run) for run in fp8], more)
    judged = _judged(plain, rounding, _parts(call, found))
    if any(one.rounding and one.part.kind != "weight gradient" for one in judged):
        # Beside the stream that goes through it, this block adds less than rounding does.
        judged = _judged(_parts(call, as_is), rounding, _parts(call, found))
    return judged


def _in_dtype(
    block: nn.Module, call: Call, names: Mapping[nn.Parameter, str], device: torch.device, dtype: torch.dtype
) -> Run | None:
    """Return the plain block's run in another dtype; None if it does not run without autocast."""
    try:
        return recorded.run(block, call, names, device, dtype)
    except RuntimeError:
        block.zero_grad(set_to_none=True)
        return None


def _at_least(more: Mapping[Kind, float]) -> dict[Kind, float]:
    """Return the bounds of two bf16 computations, for a block whose rounding is unknown."""
    least: dict[Kind, float] = {
        "output": BF16_TOLERANCE.logits,
        "input gradient": BF16_TOLERANCE.input_gradient,
        "weight gradient": BF16_TOLERANCE.input_gradient,
    }
    return {kind: max(bound, more.get(kind, 0.0)) for kind, bound in least.items()}


def _through(call: Call, run: Run, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return input and gradient at the output if a residual stream may go through: one of each, of one shape."""
    inputs = recorded.differentiable(call.arguments)
    if len(inputs) == len(run.outputs) == 1 and inputs[0].shape == run.outputs[0].shape:
        return inputs[0].detach().to(device), call.at_outputs[0].to(device)
    return None


def _parts(call: Call, run: Run, through: tuple[Tensor, Tensor] | None = None) -> dict[str, Part]:
    """Return what a run of a block shows."""
    x, dy = through or (None, None)
    parts = [
        Part(f"the output of {call.block}", "output", run.outputs, x),
        Part(f"the input gradient of {call.block}", "input gradient", run.inputs, dy),
        *_of_weights(run.weights),
    ]
    return {part.what: part for part in parts}


def _of_weights(gradients: Mapping[str, Tensor | None], where: str = "") -> list[Part]:
    return [
        Part(f"the gradient of {name}{where}", "weight gradient", None if one is None else [one], weight=name)
        for name, one in gradients.items()
    ]


def _judged(plain: Mapping[str, Part], rounding: Rounded, found: Mapping[str, Part]) -> list[Judged]:
    """Return each part of the plain model beside the converted one's."""
    return [
        judged
        for what, part in plain.items()
        for judged in _judge(
            part,
            [run[what] for run in rounding.bf16 if what in run],
            [run[what] for run in rounding.fp8 if what in run],
            found.get(what),
            math.hypot(FLOOR, rounding.more[part.kind]),
        )
    ]


def _judge(plain: Part, bf16: Sequence[Part], fp8: Sequence[Part], found: Part | None, floor: float) -> list[Judged]:
    """Judge one part; of a weight's gradient also its scale and groups of its rows. bf16, fp8: the plain model's, under
    other rounding. floor: a bound on top of what these make, by squares.
    """
    other = found.tensors if found is not None else None
    mine = plain.tensors
    few = max(1.0, (FEW / max(1, mine[0].numel())) ** 0.5) if plain.weight is not None and mine else 1.0
    of_bf16 = few * math.hypot(*(_error(plain, one.tensors) for one in bf16), _storage(plain))
    of_fp8 = few * max((_error(plain, one.tensors) for one in fp8), default=0.0)
    if max(of_bf16, of_fp8) > NOISE:
        return [_of_noise(plain, [_size(one.tensors) for one in (plain, *bf16, *fp8)], other)]
    bound = min(MOST, math.hypot(floor, OF_BF16 * of_bf16, OF_FP8 * of_fp8))
    judged = [Judged(plain, _error(plain, other), bound)]
    if plain.weight is None or not mine or other is None or other[0].shape != mine[0].shape:
        return judged
    if mine[0].numel() >= FEW:
        judged.append(Judged(plain, _off_scale(mine[0], other[0]), SCALED * bound, words=OTHER_SCALE))
    if mine[0].dim() > 1 and len(mine[0]) >= GROUPS * ROWS and mine[0].numel() >= GROUPS * SMALL:
        judged += _groups(plain, bf16, fp8, other[0], floor)
    return judged


def _of_noise(plain: Part, sizes: Sequence[float], other: Sequence[Tensor] | None) -> Judged:
    """Judge what is rounding by its size. sizes: of the plain model's runs."""
    size = _size(other)
    times = math.inf if other is None and plain.tensors is not None else _share(size, max(sizes))
    if 0 < size < min(sizes) or size == 0 < min(sizes):
        times = max(times, _share(min(sizes), size))
    return Judged(
        plain, times, OF_NOISE, True, "is rounding, and {error:.3g} times as large or small (at most {bound:g})"
    )


def _groups(plain: Part, bf16: Sequence[Part], fp8: Sequence[Part], found: Tensor, floor: float) -> list[Judged]:
    """Judge groups of rows whose gradient is not rounding."""

    def grouped(part: Part) -> list[Tensor]:
        return list((part.tensors or [torch.zeros_like(found)])[0].tensor_split(GROUPS))

    judged = []
    runs = [[grouped(one) for one in runs] for runs in (bf16, fp8)]
    for number, (mine, theirs) in enumerate(zip(grouped(plain), found.tensor_split(GROUPS), strict=True)):
        part = Part(f"{plain.what} in rows {number + 1}/{GROUPS}", plain.kind, [mine], weight=plain.weight)
        of_bf16, of_fp8 = (max((_error(part, [one[number]]) for one in run), default=0.0) for run in runs)
        if max(of_bf16, of_fp8) <= NOISE:
            bound = min(MOST, OF_GROUP * math.hypot(floor, OF_BF16 * of_bf16, OF_FP8 * of_fp8))
            judged.append(Judged(part, _error(part, [theirs]), bound))
    return judged


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
    return _judged(_glue_parts(plain), rounding, _glue_parts(converted)), faults[:SHOWN]


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.requires_grad


def _glue_parts(glue: Glue) -> dict[str, Part]:
    parts = [Part("the loss", "output", [glue.loss]), Part("the input gradient", "input gradient", [glue.at_inputs])]
    for number, one in enumerate(glue.calls, 1):
        where = f"{one.block} in call {number}"
        parts.append(Part(f"what is given to {where}", "output", one.given))
        parts.append(Part(f"the gradient given to {where}", "input gradient", one.at_outputs))
    parts += _of_weights(glue.weights, " beside the blocks")
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


def measured(judged: Sequence[Judged], blocks: int) -> BlockParity:
    """Return the numbers for the record. blocks: how many there are."""
    errors = [one for one in judged if not one.rounding]

    def worst(kind: Kind) -> float | None:
        found = [one.error for one in errors if one.part.kind == kind]
        return None if any(map(math.isnan, found)) else finite(max(found, default=0.0))

    closest = max(errors, key=lambda one: one.share, default=None)
    every = {one.part.weight for one in judged if one.part.weight}
    # A gradient that a weight has in its block alone is compared there alone.
    judged_by_error = {one.part.weight for one in errors if one.part.tensors is not None}
    noise = {name for one in judged if one.rounding and (name := one.part.weight)} - judged_by_error
    return BlockParity(
        blocks=blocks,
        output_error=worst("output"),
        input_gradient_error=worst("input gradient"),
        weight_gradient_error=worst("weight gradient"),
        of_bound=finite(closest.share) if closest else 0.0,
        closest=closest.part.what if closest else "",
        compared_weights=len(every - noise),
        rounding_weights=tuple(counted(sorted(noise))),
    )


def faults_of(judged: Sequence[Judged]) -> list[str]:
    """Return what exceeds its bound, in words, the worst first; of one weight only the first."""
    first: dict[str, Judged] = {}
    for one in judged:
        if not one.error <= one.bound:
            first.setdefault(one.part.weight or one.part.what, one)
    return [one.fault for one in sorted(first.values(), key=lambda one: -one.share)[:SHOWN]]


def _error(plain: Part, other: Sequence[Tensor] | None) -> float:
    """Return the largest error of the tensors: 1 for a missing gradient, infinite for one that should not be."""
    mine = plain.tensors
    if mine is None or other is None:
        present = [one for one in (mine or other or ()) if one.any()]
        return 0.0 if not present else 1.0 if other is None else math.inf
    if [one.shape for one in mine] != [one.shape for one in other]:
        return math.inf
    return max((_apart(one, two, plain.through) for one, two in zip(mine, other, strict=True)), default=0.0)


def _apart(plain: Tensor, other: Tensor, through: Tensor | None) -> float:
    """Return the difference as a share of the tensor, or of what is left of it without what went through."""
    mine, theirs = numbers(plain).to(other.device), numbers(other)
    return _share(norm(theirs - mine), _least(mine, through))


def _least(values: Tensor, through: Tensor | None) -> float:
    """Return the size of values, or of what is left of them without what went through; the smaller that is not 0."""
    sizes = [norm(values)]
    if through is not None:
        sizes.append(norm(values - numbers(through).to(values.device)))
    return min((size for size in sizes if size > 0), default=0.0)


def _share(part: float, whole: float) -> float:
    return 0.0 if part == 0 else part / whole if whole > 0 else math.inf


def _size(tensors: Sequence[Tensor] | None) -> float:
    return math.hypot(*(norm(numbers(one)) for one in tensors or ()))


def _off_scale(plain: Tensor, other: Tensor) -> float:
    """Return how far <other, plain> / <plain, plain> is from 1; 0 if the plain one is zero."""
    mine, theirs = plain.flatten().double(), other.to(plain.device).flatten().double()
    whole = float(mine @ mine)
    return abs(float(mine @ theirs) / whole - 1) if whole > 0 else 0.0


def _storage(plain: Part) -> float:
    """Return what it does to store the residual stream and its gradient in bf16, as some libraries do."""
    if plain.through is None or not plain.tensors:
        return 0.0
    made, through = map(numbers, (*plain.tensors, plain.through))
    return _share(math.hypot(*(norm(one.bfloat16() - one) for one in (made, through))), _least(made, through))

"""Compares parts of two runs, of a plain model and of the converted one. Each has a bound of its own, which follows
from what rounding alone does to this part of the plain model (see `worker.blocks`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fp8bench.modes.layers import counted
from fp8bench.modes.protocol import BF16_TOLERANCE
from fp8bench.schema.rank import BlockParity
from fp8bench.worker.plain_weights import SHOWN
from fp8bench.worker.recorded import numbers
from fp8bench.worker.rounding import finite, norm

OF_FP8, OF_BF16, FLOOR = 2.0, 3.0, 0.01
"""A bound, by squares: so many times what rounding to fp8 and to bf16 do, and what no computation need stay below."""

MOST_FLOOR, PER_NUMBER = BF16_TOLERANCE.input_gradient, 3.0
"""Of a small weight's gradient the last is more: PER_NUMBER / sqrt(numbers), up to what gradients in bf16 may differ
by. One ReLU of one sample that decides otherwise is 0.05 of the gradient of 48 x 48 numbers from 16 samples.
"""

MOST = 0.8
"""No bound exceeds this: a fault has an error of about 1."""

NOISE = 0.5
"""From this error on by rounding alone, a gradient is rounding itself."""

OF_NOISE = 10.0
"""How many times larger than all of the plain block's, or smaller, such a gradient may be."""

SCALED, FEW = 0.5, 64
"""By what share of its bound a gradient's scale may be off. A weight of fewer numbers has no scale to speak of, and
what rounding does to it once says little of the next time: it counts by sqrt(FEW / numbers) more.
"""

GROUPS, ROWS, SMALL = 12, 8, 256
"""Groups of rows of a weight: a dozen divides what is packed in two, three, four or six. The fewest rows and numbers of
one.
"""

OF_GROUP = 1.5
"""How many times the bound of a weight applies to what rounding does to a group of its rows."""

Kind = Literal["output", "input gradient", "weight gradient"]


@dataclass(frozen=True)
class Part:
    """One thing that a run shows. tensors: None without a gradient. through: what went through a block beside them."""

    what: str
    kind: Kind
    tensors: Sequence[Tensor] | None
    through: Tensor | None = None
    weight: str | None = None


@dataclass(frozen=True)
class Judged:
    """A part beside the plain one's. rounding: whether that is nothing else; then the error is a size, in its units."""

    part: Part
    error: float
    bound: float
    rounding: bool = False
    words: str = "differs by {error:.3g} (at most {bound:.3g})"

    @property
    def share(self) -> float:
        return self.error / self.bound if not math.isnan(self.error) else math.inf


def of_weights(gradients: Mapping[str, Tensor | None], where: str = "") -> list[Part]:
    """Return gradients by the plain model's names as parts. where: what the words add to the name."""
    return [
        Part(f"the gradient of {name}{where}", "weight gradient", None if one is None else [one], weight=name)
        for name, one in gradients.items()
    ]


Parts = Mapping[str, Part]


def judged(
    plain: Parts, bf16: Sequence[Parts], fp8: Sequence[Parts], more: Mapping[Kind, float], found: Parts
) -> list[Judged]:
    """Judge parts by `what`. bf16, fp8: what rounding alone makes of the plain ones. more: errors on top."""
    compared: list[Judged] = []
    for what, part in plain.items():
        of_bf16, of_fp8 = ([run[what] for run in runs if what in run] for runs in (bf16, fp8))
        other = found[what].tensors if what in found else None
        compared += _judge(part, of_bf16, of_fp8, other, more[part.kind])
    return compared


def _judge(
    plain: Part, bf16: Sequence[Part], fp8: Sequence[Part], other: Sequence[Tensor] | None, more: float
) -> list[Judged]:
    # Of a weight's gradient also its scale and groups of its rows.
    mine = plain.tensors
    few = max(1.0, (FEW / max(1, mine[0].numel())) ** 0.5) if plain.weight is not None and mine else 1.0
    of_bf16 = few * math.hypot(*(_error(plain, one.tensors) for one in bf16), _storage(plain))
    of_fp8 = few * max((_error(plain, one.tensors) for one in fp8), default=0.0)
    if max(of_bf16, of_fp8) > NOISE:
        size, sizes = _size(other), [_size(one.tensors) for one in (plain, *bf16, *fp8)]
        times = math.inf if other is None and mine is not None else _share(size, max(sizes))
        if size < min(sizes):
            times = max(times, _share(min(sizes), size))
        words = "is rounding, and {error:.3g} times as large or small (at most {bound:g})"
        return [Judged(plain, times, OF_NOISE, True, words)]
    bound = _bound(plain, of_bf16, of_fp8, more)
    judged = [Judged(plain, _error(plain, other), bound)]
    if plain.weight is None or not mine or other is None or other[0].shape != mine[0].shape:
        return judged
    if mine[0].numel() >= FEW:
        one, two = mine[0].flatten().double(), other[0].to(mine[0].device).flatten().double()
        whole = float(one @ one)
        off = abs(float(one @ two) / whole - 1) if whole > 0 else 0.0
        words = "is another multiple, by {error:.3g} (at most {bound:.3g})"
        judged.append(Judged(plain, off, SCALED * bound, words=words))
    if mine[0].dim() > 1 and len(mine[0]) >= GROUPS * ROWS and mine[0].numel() >= GROUPS * SMALL:
        judged += _groups(plain, bf16, fp8, other[0], more)
    return judged


def _bound(part: Part, of_bf16: float, of_fp8: float, more: float) -> float:
    floor = FLOOR
    if part.weight is not None and part.tensors:
        floor = max(FLOOR, min(MOST_FLOOR, PER_NUMBER / max(1, part.tensors[0].numel()) ** 0.5))
    return min(MOST, math.hypot(floor, more, OF_BF16 * of_bf16, OF_FP8 * of_fp8))


def _groups(plain: Part, bf16: Sequence[Part], fp8: Sequence[Part], found: Tensor, more: float) -> list[Judged]:
    def gradient(part: Part) -> Tensor:
        return part.tensors[0] if part.tensors else torch.zeros_like(found)

    judged, mine = [], gradient(plain)
    errors = zip(*errors_of_groups(mine, [*map(gradient, bf16), *map(gradient, fp8), found]), strict=True)
    for number, (rows, (*of_rounding, error)) in enumerate(zip(mine.tensor_split(GROUPS), errors, strict=True)):
        part = Part(f"{plain.what} in rows {number + 1}/{GROUPS}", plain.kind, [rows], weight=plain.weight)
        of_bf16, of_fp8 = (max(found, default=0.0) for found in (of_rounding[: len(bf16)], of_rounding[len(bf16) :]))
        if max(of_bf16, of_fp8) <= NOISE:
            judged.append(Judged(part, error, min(MOST, OF_GROUP * _bound(part, of_bf16, of_fp8, more))))
    return judged


def errors_of_groups(plain: Tensor, others: Sequence[Tensor]) -> list[list[float]]:
    mine = numbers(plain)
    whole, *apart = norms_of_groups([mine, *(numbers(other).to(mine.device) - mine for other in others)])
    return [list(map(_share, one, whole)) for one in apart]


def norms_of_groups(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return the norm of each group of rows of tensors of one shape, from the GPU at once: thousands are slow."""
    rows = torch.stack([torch.linalg.vector_norm(one.flatten(1), dim=1, dtype=torch.float64) for one in tensors]).cpu()
    norms = torch.stack([torch.linalg.vector_norm(group, dim=1) for group in rows.tensor_split(GROUPS, 1)], 1)
    return list(norms.tolist())


def measured(judged: Sequence[Judged], blocks: int, tokens: int | None, of_tokens: int | None) -> BlockParity:
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
        tokens=tokens,
        of_tokens=of_tokens,
    )


def faults_of(judged: Sequence[Judged]) -> list[str]:
    first: dict[str, Judged] = {}
    for one in judged:
        if not one.error <= one.bound:
            first.setdefault(one.part.weight or one.part.what, one)
    worst = sorted(first.values(), key=lambda one: -one.share)[:SHOWN]
    return [f"{one.part.what} {one.words.format(error=one.error, bound=one.bound)}" for one in worst]


def _error(plain: Part, other: Sequence[Tensor] | None) -> float:
    """Return the largest error of the tensors: 1 for a missing gradient, infinite for one that should not be."""
    mine = plain.tensors
    if mine is None or other is None:
        present = [one for one in (mine or other or ()) if one.any()]
        return 0.0 if not present else 1.0 if other is None else math.inf
    if [one.shape for one in mine] != [one.shape for one in other]:
        return math.inf
    pairs = [(numbers(one).to(two.device), numbers(two)) for one, two in zip(mine, other, strict=True)]
    return max((_share(norm(two - one), _least(one, plain.through)) for one, two in pairs), default=0.0)


def _least(values: Tensor, through: Tensor | None) -> float:
    sizes = [norm(values)]
    if through is not None:
        sizes.append(norm(values - numbers(through).to(values.device)))
    return min((size for size in sizes if size > 0), default=0.0)


def _share(part: float, whole: float) -> float:
    return 0.0 if part == 0 else part / whole if whole > 0 else math.inf


def _size(tensors: Sequence[Tensor] | None) -> float:
    return math.hypot(*(norm(numbers(one)) for one in tensors or ()))


def _storage(plain: Part) -> float:
    """Return what it does to store the residual stream and its gradient in bf16, as some libraries do."""
    if plain.through is None or not plain.tensors:
        return 0.0
    made, through = map(numbers, (*plain.tensors, plain.through))
    return _share(math.hypot(*(norm(one.bfloat16() - one) for one in (made, through))), _least(made, through))

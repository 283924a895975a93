"""Compares the loss and the gradients of one step with the plain model's, and says what rounding alone does to these.

All weights together have one bound. A single weight whose gradient is further off than all may be, or whose matrix is
another multiple of the plain one's (<g', g> / <g, g>, which fp8's rounding hardly moves), has bounds as in the gate: by
what rounding alone does to it. Every weight, and every group of its rows, that has a gradient must also get one, and
every quarter of the samples must have its share in the gradient (`shares`), since that of half of them may be within
fp8's bounds.

If rounding alone takes more than half of a bound, the batch tells nothing, whatever the mode does. A language model
that learns random tokens meets such batches: after 70 steps of AdamW in 18 layers, bf16 and float32 differed by 0.67 to
1.2 in one sequence, by 0.004 in most. Before this was looked at, three of fifteen processes of llm-1b on an H200 were
refused, each for one sequence.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fp8bench.schema.rank import Tolerance
from fp8bench.worker.execution.proof import OF_ONE_WEIGHT, Gate, small
from fp8bench.worker.execution.reference import NotProved, Plain, nudge, of_plain
from fp8bench.worker.execution.step import Parts, gradient_of
from fp8bench.worker.judged import FEW, GROUPS, OF_BF16, OF_FP8, ROWS, norms_of_groups
from fp8bench.worker.memory import SPARE, free_bytes, size
from fp8bench.worker.parallel import largest
from fp8bench.worker.plain_weights import SHOWN, by_plain_names, ties, trained_weights
from fp8bench.worker.rounding import GRIDS, MOST, norm, ratio, rounded
from fp8bench.workloads.protocol import Batch, Workload

OF_SAMPLES, HELD = 0.2, 0.1
"""How far from 1 a share may be, and below which share of the gradient a part's own is too small to tell."""

TELLS = 0.5
"""Which share of the bounds rounding alone may take of a batch that tells a fault."""


@dataclass(frozen=True)
class Off:
    """How far one weight's gradient is from the plain one: |g' - g| / |g|, and <g', g> / <g, g> - 1."""

    error: float
    multiple: float
    of_matrix: bool

    @classmethod
    def of(cls, found: Tensor, plain: Tensor) -> "Off":
        one, two = plain.flatten().double(), found.flatten().double()
        return cls(ratio(norm(two - one), norm(one)), float(one @ (two - one)) / float(one @ one), plain.dim() > 1)

    def beyond(self, tolerance: Tolerance, bf16: Sequence["Off"] = (), fp8: Sequence["Off"] = ()) -> bool:
        """Whether this is more than a step's bound and what rounding does, by squares as in `worker.judged`."""

        def bound(least: float, of: Callable[[Off], float]) -> float:
            of_bf16, of_fp8 = (max(map(of, ways), default=0.0) for ways in (bf16, fp8))
            return math.hypot(least, OF_BF16 * of_bf16, OF_FP8 * of_fp8)

        within = self.error <= bound(tolerance.input_gradient, lambda one: one.error)
        scaled = self.of_matrix and not abs(self.multiple) <= bound(OF_SAMPLES, lambda one: abs(one.multiple))
        return scaled or not within


def compared(
    parts: Parts, expected: Plain, loss: float, gate: Gate
) -> tuple[float, float | None, set[str] | None, list[str], dict[str, Off]]:
    """Compare a step, whose gradients `parts` still hold, with the plain model's. Return the errors of its loss and of
    its gradients (None for the loss alone), the weights that must move (None if any must), the faults in words, and the
    weights that are further off than all may be, which rounding may explain.
    """
    tolerance, faults, plain = gate.tolerance, [], expected.gradients
    loss_error = ratio(abs(loss - expected.loss), max(abs(expected.loss), gate.loss_size))
    if not loss_error <= tolerance.loss:
        faults.append(f"its loss differs by {loss_error:.3g} (at most {tolerance.loss:.3g})")
    if plain is None:
        return loss_error, None, None, faults, {}
    of_model = ties(parts.mode, parts.plain)
    mine = {name: gradient_of(weight) for name, weight in trained_weights(parts.plain).items()}
    found = by_plain_names(of_model, mine, {name: gradient.shape for name, gradient in plain.items()})
    squares = {name: norm(gradient) ** 2 for name, gradient in plain.items()}
    usual = sum(squares.values()) / max(1, sum(gradient.numel() for gradient in plain.values()))
    taught = {name for name, one in plain.items() if squares[name] > small(one) ** 2 * usual * one.numel()}
    own = {name: torch.zeros_like(one) for name, one in plain.items()}
    own |= {name: one for name, one in found.items() if one is not None and name in plain}
    missing = [name for name in sorted(taught) if norm(own[name]) ** 2 < (1 - MOST) ** 2 * squares[name]]
    missing += [f"rows {rows}" for name in sorted(taught - {*missing}) for rows in _lost_rows(name, plain, own, usual)]
    error, of_samples = _beside(own, expected, plain)
    if not error <= (bound := _bound(tolerance)):
        faults.append(f"its gradients differ by {error:.3g} (at most {bound:.3g})")
    if missing:
        faults.append(f"no gradient reaches {', '.join(missing[:SHOWN])} ({len(missing)} in all)")
    if not all(abs(share - 1) <= OF_SAMPLES for share in of_samples):
        faults.append(
            "its gradients are not those of all samples: parts of the batch count "
            f"{', '.join(f'{share:.2f}' for share in of_samples)} times (a loss must be the mean over samples, which "
            "that of padded ones is not)"
        )
    moving = {name for tie in of_model if set(tie.plain) <= taught - expected.lost for name in tie.trained}
    several = {name for name in taught if plain[name].numel() >= FEW}
    far = {name: off for name in sorted(several) if (off := Off.of(own[name], plain[name])).beyond(tolerance)}
    return loss_error, error, moving, faults, far


@dataclass(frozen=True)
class Alone:
    """What rounding alone does to the plain model's gradients, whether a fault shows beside it on every rank, and in
    words the weights that are further off than it explains.
    """

    error: float
    tells: bool
    beyond: list[str]


def rounding_alone(
    parts: Parts,
    unseen: Callable[[], Workload],
    plain: nn.Module,
    batch: Batch,
    expected: Plain,
    tolerance: Tolerance,
    far: Mapping[str, Off],
) -> Alone | None:
    """Run the plain model again, each time rounded otherwise; None if gradients are not compared, or without room.
    far: weights whose own rounding is of interest. Every rank calls this.
    """
    short = free_bytes(parts.device) < SPARE * size(plain.parameters())
    own = expected.gradients
    if own is None or largest(int(short), parts.device) > 0:
        return None
    errors, tells = [], True
    of_bf16, of_fp8 = (defaultdict[str, list[Off]](list) for _ in range(2))
    for way, bf16, fp8 in _rounded_otherwise(parts, plain):
        plain.zero_grad(set_to_none=True)
        # Some models do not run in float32.
        with suppress(NotProved, *(() if bf16 else (RuntimeError,))), way:
            found = of_plain(parts, unseen(), plain, batch, math.inf, bf16).gradients or {}
            error, of_samples = _beside(found, expected, own)
            errors.append(error)
            alike = all(abs(share - 1) <= TELLS * OF_SAMPLES for share in of_samples)
            tells = tells and alike and error <= TELLS * _bound(tolerance)
            for name in far:
                (of_fp8 if fp8 else of_bf16)[name].append(Off.of(found[name], own[name]))
    if not errors:
        return None
    beyond = [
        f"its gradient of {name} differs by {off.error:.3g}, {1 + off.multiple:.2f} times the plain one (rounding "
        f"alone: {max((one.error for one in (*of_bf16[name], *of_fp8[name])), default=0):.3g})"
        for name, off in sorted(far.items(), key=lambda one: -one[1].error)
        if off.beyond(tolerance, of_bf16[name], of_fp8[name])
    ]
    return Alone(max(errors), largest(int(not tells), parts.device) == 0, beyond[:SHOWN])


def _rounded_otherwise(parts: Parts, plain: nn.Module) -> Iterator[tuple[AbstractContextManager[None], bool, bool]]:
    """Yield contexts for passes, and whether these are in bf16 and in fp8: in float32, under an fp8 mode with the
    operands of its linear layers in fp8, and from weights that differ in bf16's last digit.
    """
    yield nullcontext(), False, False
    if hasattr(parts.mode, "rounds"):
        rounding = parts.mode.rounds(plain)
        for full in GRIDS[:2]:
            yield rounded(plain, rounding, full), True, True
    nudge(trained_weights(plain))
    yield nullcontext(), True, False


def _bound(tolerance: Tolerance) -> float:
    return min(MOST, OF_ONE_WEIGHT * tolerance.input_gradient)


def _beside(own: Mapping[str, Tensor], expected: Plain, plain: Mapping[str, Tensor]) -> tuple[float, Sequence[float]]:
    """Return the relative error of all gradients, and how much of each part of the samples is in them."""
    seen = [{name: one for name, one in part.items() if name in plain} for part in expected.of_samples]
    apart = sum(norm(own[name].float() - one.float()) ** 2 for name, one in plain.items())
    error = ratio(math.sqrt(apart), math.sqrt(sum(norm(one) ** 2 for one in plain.values())))
    return error, shares(own, seen) if seen[0] else []


def shares(own: Mapping[str, Tensor], of_samples: Sequence[Mapping[str, Tensor]]) -> list[float]:
    """Return how much of what each part of the samples adds is in a gradient, by least squares: 1 of each if it is
    theirs, 2 and 0 if one of two was trained instead of both; held to 1 where parts add nearly the same.
    """
    columns = [torch.cat([one.flatten().double() for one in part.values()]) for part in of_samples]
    parts = torch.stack(columns, 1).cpu()
    whole = parts.sum(1)
    rest = torch.cat([own[name].flatten().double() for name in of_samples[0]]).cpu() - whole
    if not bool(rest.isfinite().all()):
        return [math.nan]
    held = (HELD * whole.norm()) ** 2 * torch.eye(parts.shape[1], dtype=torch.float64)
    found: list[float] = (1 + torch.linalg.lstsq(parts.T @ parts + held, parts.T @ rest).solution).tolist()
    return found


def _lost_rows(name: str, plain: Mapping[str, Tensor], own: Mapping[str, Tensor], usual: float) -> list[str]:
    # Queries and keys of an attention that is none have no weight of their own where they are packed with the values.
    if plain[name].dim() < 2 or len(plain[name]) < GROUPS * ROWS:
        return []
    norms = norms_of_groups([plain[name].detach(), own[name].detach().float()])
    least = small(plain[name]) * math.sqrt(usual * plain[name].numel() / GROUPS)
    return [
        f"{number}/{GROUPS} of {name}"
        for number, (wanted, found) in enumerate(zip(*norms, strict=True), 1)
        if wanted > least and found < (1 - MOST) * wanted
    ]

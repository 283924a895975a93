"""Proof of what was executed: compares steps executed as they will be timed with the same steps run plainly.

On every rank, from the same weights, scales and batches, a few steps run plainly (`reference`) and as executed, in
every run, eager or not. If weights are sharded, each rank compares the part that it holds; the errors are over all
parts. All are relative and without unit, |.| the Euclidean norm over all weights together:

  loss_error      the worst |l' - l| of any step / the largest of |l| and of the size of the fresh model's loss, to
                  which the tolerance refers: a batch that is learned by heart has next to no loss
  gradient_error  |g' - g| / |g| after the last step. Their lengths must agree too: rounding hardly changes
                  |g'| / |g|, but a loss that is scaled, or a part of the batch that is left out, does
  first_gradient_error  under Adam the same after the first step, from equal weights. Later ones are of weights that
                  differ by update_error: ten bf16 steps of ViT-Huge turned the gradient of the twelfth by 0.105
  update_error    |u' - u| / |u|, u being the change of the weights by the steps: w_after - w_before
  weight_error    the same of the single weight that is furthest off: of its change under SGD, which is linear in the
                  gradients; of Adam's moments under Adam; of its gradient without an optimizer. A weight that hardly
                  changes is measured against a share of what weights change on average: SMALL, or SMALL_VECTOR
  rounding_weights  those beyond their bound which rounding alone takes as far (`rounding`): judged by size, OF_SIZE
  state_error     of the scales that the mode keeps, each tensor in units of its own norm
  spread          |w_r - mean(w)| / |mean(u)| over all ranks that hold the same weights, of the one furthest off
  unshared        for sharded gradients, <g' - g, d> / <d, d>, d being the difference between a rank's own gradient and
                  the mean g of all: 0 if gradients were shared, 1 if each rank kept its own. Rounding has no such
                  direction, so this is seen even if fp8's rounding is as large as d
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.modes.protocol import Mode
from fp8bench.schema.rank import Tolerance
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.reference import Expected
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, Snapshot, gradient_of, scales
from fp8bench.worker.execution.verdict import OF_ONE_WEIGHT, Apart, Errors, Rounding, bound_on_spread
from fp8bench.worker.relative import norm, ratio
from fp8bench.workloads.protocol import Batch

SMALL, SMALL_VECTOR = 1e-3, 0.02
"""The root mean square, in units of that of all weights, below which a weight's change or gradient is compared with
this share: in a two-layer language model queries have 0.011, and a bias whose gradient is rounding alone 0.002.
"""


@dataclass(frozen=True)
class Gate:
    """What the parity gate passes to this proof. tolerance: for steps. loss_size: see `parity`.
    again: makes the mode anew. trained: names of the weights that the gate saw trained.
    """

    tolerance: Tolerance
    loss_size: float
    again: Callable[[], Mode]
    trained: frozenset[str] = frozenset()


def executed_steps(launch: Launch, batches: Sequence[Batch]) -> list[float]:
    """Run the same steps as they will be timed and return their losses; other results stay in place."""
    return [loss.item() for loss in [launch(batch, NO_MARKS).clone() for batch in batches]]


def gradients_apart(parts: Parts, expected: Mapping[str, Tensor]) -> Apart | None:
    """Compare the gradients that are in `parts` now; None if none are expected. Every rank calls this."""
    if not expected:
        return None
    sums, trained = _Sums(parts, expected), dict(parts.plain.named_parameters())
    for name, gradient in expected.items():
        sums.add(name, gradient_of(trained[name]), gradient)
    return sums.over_ranks().all


def compare(
    parts: Parts,
    before: Snapshot,
    plain: Expected,
    losses: Sequence[float],
    gate: Gate,
    first: Apart | None = None,
) -> Errors:
    """Compare what is in `parts` now, after the steps as executed, with what was expected. Every rank calls this.

    first: of the gradients of the first step. A number that is not finite stays so, and passes no limit.
    """
    trained = dict(parts.plain.named_parameters())
    spread = _Sums(parts, plain.weights)
    for name in plain.weights:
        if (group := parts.strategy.replicas(trained[name])) is not None:
            begun, mean = _double(before.weights[name], parts), _double(local(trained[name]), parts)
            dist.all_reduce(mean, group=group)
            mean /= dist.get_world_size(group)
            spread.add(name, local(trained[name]), mean, mean - begun)

    def found(name: str) -> _Results:
        state = parts.optimizer.state.get(trained[name], {})
        kept = {key: local(state[key]) for key in plain.states if key in state}
        return local(trained[name]), gradient_of(trained[name]), kept

    change, gradient, of_weights = _sums(parts, before, plain, found)
    values = {
        "loss_error": loss_error(plain.losses, losses, gate.loss_size),
        "gradient_error": gradient.all.error,
        "first_gradient_error": None if first is None else first.error,
        "update_error": change.all.error,
        "state_error": _state_error(parts, before.scales, plain.scales),
        "spread": spread.worst if spread.added else None,
        "unshared": _unshared(parts, plain) if parts.strategy.sharded and plain.own else None,
    }
    return Errors(
        values,
        gate.tolerance,
        longer=(first or gradient.all).longer,
        weights=of_weights.each,
        untrained=tuple(name for name in plain.weights if not trained[name].requires_grad),
        by_adam=bool(plain.states),
        # On a CPU a norm of 16 bits, as sharded ones are, adds up the gradient of its bias in 16 bits.
        of_weight=math.inf if parts.strategy.sharded and parts.device.type == "cpu" else OF_ONE_WEIGHT,
        of_spread=bound_on_spread(parts.strategy.word),
    )


def rounding(parts: Parts, before: Snapshot, plain: Expected, nudged: Expected) -> Rounding:
    """Return how far plain steps are from plain steps that were nudged. Every rank calls this."""

    def found(name: str) -> _Results:
        return nudged.weights[name], nudged.gradients[name], {key: one[name] for key, one in nudged.states.items()}

    change, gradient, of_weights = _sums(parts, before, plain, found)
    errors = {name: one.error for name, one in of_weights.each.items()}
    return Rounding(errors, max(change.all.error, gradient.all.error))


_Results = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Of one weight: what this rank holds of it, of its gradient, and of the optimizer's states."""


def _sums(
    parts: Parts, before: Snapshot, plain: Expected, found: Callable[[str], _Results]
) -> tuple["_Sums", "_Sums", "_Sums"]:
    """Compare changes of weights, gradients, and what a single weight is judged by. found: gives a weight's results."""
    change, gradient, moments = (_Sums(parts, plain.weights) for _ in range(3))
    for name, expected in plain.weights.items():
        begun, (weight, its_gradient, states) = _double(before.weights[name], parts), found(name)
        change.add(name, _double(weight, parts) - begun, _double(expected, parts) - begun)
        gradient.add(name, its_gradient, plain.gradients[name])
        for key, expected_states in plain.states.items():
            wanted = _moment(key, _double(expected_states[name], parts))
            kept = states.get(key)
            moments.add(name, torch.zeros_like(wanted) if kept is None else _moment(key, _double(kept, parts)), wanted)
    for sums in (change, gradient, moments):
        sums.over_ranks()
    return change, gradient, moments if plain.states else change if change.whole > 0 else gradient


def small(weight: Tensor) -> float:
    """Return the share of what weights change on average to which one that changes less is held."""
    return SMALL if weight.dim() > 1 else SMALL_VECTOR


def _moment(key: str, values: Tensor) -> Tensor:
    """Return a moment in units of a gradient: Adam's second one is a mean of squares."""
    return values.abs().sqrt() if key == "exp_avg_sq" else values


def _unshared(parts: Parts, plain: Expected) -> float:
    sums = torch.zeros(2, dtype=torch.float64, device=parts.device)
    trained = dict(parts.plain.named_parameters())
    for name, mean in plain.gradients.items():
        expected = _double(mean, parts)
        apart = _double(plain.own[name], parts) - expected
        executed = _double(gradient_of(trained[name]), parts)
        sums += torch.stack([((executed - expected) * apart).sum(), (apart * apart).sum()])
    dist.all_reduce(sums)
    along, of = sums.tolist()
    # Ranks whose own gradients are equal have nothing to forget.
    return 0.0 if of == 0 else abs(along / of)


def loss_error(plain: Sequence[float], executed: Sequence[float], fresh: float) -> float:
    """Return the error of the losses of executed and plain steps (see the module); NaN if one is not finite."""
    apart = [abs(b - a) for a, b in zip(plain, executed, strict=True)]
    return math.nan if not all(map(math.isfinite, apart)) else ratio(max(apart), max(map(abs, (*plain, fresh))))


def _state_error(parts: Parts, before: Sequence[Tensor], plain: Sequence[Tensor]) -> float | None:
    if not before:
        return None
    apart = whole = 0.0
    for start, one, other in zip(before, plain, scales(parts), strict=True):
        expected = _double(one, parts)
        size = expected.norm().clamp(min=torch.finfo(torch.float64).tiny)
        apart = math.hypot(apart, norm((_double(other, parts) - expected) / size))
        whole = math.hypot(whole, norm((expected - _double(start, parts)) / size))
    return 0.0 if apart == 0 else ratio(apart, whole)


class _Sums:
    """|found - wanted| / |wanted|, of each weight and of all, by Euclidean norms. NaN if only wanted is zero."""

    def __init__(self, parts: Parts, weights: Mapping[str, Tensor]) -> None:
        self._parts = parts
        self._places = {name: place for place, name in enumerate(weights)}
        # Of each weight: squares of the difference, of what is wanted and of what was found, and its elements.
        self._sums = torch.zeros(len(weights), 4, dtype=torch.float64, device=parts.device)
        shares = [small(weight) for weight in weights.values()]
        self._small = torch.tensor(shares, dtype=torch.float64, device=parts.device)
        self.added = 0

    def add(self, name: str, found: Tensor, wanted: Tensor, unit: Tensor | None = None) -> None:
        """unit: what the difference is measured in; None for what is wanted."""
        self.added += 1
        found, wanted = _double(found, self._parts), _double(wanted, self._parts)
        sizes = [(found - wanted).square().sum(), (wanted if unit is None else unit).square().sum()]
        self._sums[self._places[name], :3] += torch.stack([*sizes, found.square().sum()])
        self._sums[self._places[name], 3] += wanted.numel()

    def over_ranks(self) -> "_Sums":
        """Combine this with the parts of all ranks, if weights are sharded. Every rank calls this."""
        if self._parts.strategy.sharded:
            dist.all_reduce(self._sums)
        return self

    @property
    def whole(self) -> float:
        """The norm of what is wanted of all weights."""
        return float(self._sums[:, 1].sum().sqrt())

    @property
    def all(self) -> Apart:
        """How far all weights are together."""
        return _apart(*self._sums[:, :3].sum(0).tolist())

    @property
    def each(self) -> dict[str, Apart]:
        """How far each weight is; of no weight if there is nothing to measure."""
        if self.whole == 0:
            return {}
        apart, whole, found, number = self._sums.unbind(1)
        usual = self._small**2 * whole.sum() / number.sum()
        sums = torch.stack([apart, whole, found, usual * number], 1).tolist()
        return {name: _apart(*sums[place]) for name, place in self._places.items()}

    @property
    def worst(self) -> float:
        """The error of the weight that is furthest off; of all together if they are zero."""
        return max((one.sortable for one in self.each.values()), default=self.all.error)


def _apart(apart: float, whole: float, found: float, least: float = 0.0) -> Apart:
    """Return this of sums of squares: of the difference, of what is expected, of what was found, and of the least that
    the difference is measured against.
    """
    return Apart(
        0.0 if apart == 0 else ratio(math.sqrt(apart), math.sqrt(max(whole, least))),
        math.sqrt(found) / math.sqrt(whole) - 1 if whole > 0 else 0.0 if found == 0 else math.inf,
    )


def _double(values: Tensor, parts: Parts) -> Tensor:
    return values.detach().to(parts.device, torch.float64)

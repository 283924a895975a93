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
  state_error     of the scales that the mode keeps, each tensor in units of its own norm
  spread          |w_r - mean(w)| / |mean(u)| over all ranks that hold the same weights, of the one furthest off
  unshared        for sharded gradients, <g' - g, d> / <d, d>, d being the difference between a rank's own gradient and
                  the mean g of all: 0 if gradients were shared, 1 if each rank kept its own. Rounding has no such
                  direction, so this is seen even if fp8's rounding is as large as d

Bounds are those on steps (`rounding.of_steps`): the loss's; the gradient's for the others, twice that for one weight;
under Adam BY_ADAM for the update and the gradient after it. They are wide for fp8, and narrow compared with the faults
that they must find: a step that never came has an error of 1. What the optimizer does by itself is held to narrow
bounds (`applied`).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.modes.protocol import Mode
from fp8bench.schema.rank import ExecutedEvidence, Tolerance
from fp8bench.stats.length import PROOF_STEPS
from fp8bench.worker.execution.parallel.shards import local
from fp8bench.worker.execution.reference import Expected
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, Snapshot, gradient_of, scales
from fp8bench.worker.relative import finite, norm, ratio
from fp8bench.workloads.protocol import Batch

MAX_SPREAD = 1e-4
"""All ranks apply the same gradients to the same weights; only the float32 mean rounds."""

MAX_UNSHARED = 0.1

OF_ONE_WEIGHT, MOST = 2.0, 0.9
"""How many times further off one weight may be than all together, and how far at most: a fault has an error of 1."""

BY_ADAM = 0.5
"""The bound on the change of weights under Adam, and on the gradient after it: near the start the change follows the
signs of gradients, and rounding turns those of small ones. The gradient of the first step and Adam's moments are held
to the bound on gradients.
"""

SMALL, SMALL_VECTOR = 1e-3, 0.02
"""The root mean square, in units of that of all weights, below which a weight's change or gradient is compared with
this share: in a two-layer language model queries have 0.011, and a bias whose gradient is rounding alone 0.002.
"""

LONGER = 0.15
"""How much longer or shorter gradients may be."""


@dataclass(frozen=True)
class Gate:
    """What the parity gate passes to this proof. tolerance: for steps. loss_size: see `parity`.
    again: makes the mode anew. trained: names of the weights that the gate saw trained.
    """

    tolerance: Tolerance
    loss_size: float
    again: Callable[[], Mode]
    trained: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Errors:
    """Errors of the executed steps against the plain ones, by the name in the evidence (see the module); None where
    there is nothing to measure. longer: |g'| / |g|, less 1. furthest: the weight that is furthest off. by_adam: whether
    weights changed by Adam. of_weight: the bound on one weight, in units of that on all.
    """

    values: Mapping[str, float | None]
    longer: float
    furthest: str | None
    untrained: tuple[str, ...] = ()
    by_adam: bool = False
    of_weight: float = OF_ONE_WEIGHT


def executed_steps(launch: Launch, batches: Sequence[Batch]) -> list[float]:
    """Run the same steps as they will be timed and return their losses; other results stay in place."""
    return [loss.item() for loss in [launch(batch, NO_MARKS).clone() for batch in batches]]


def gradient_error(parts: Parts, expected: Mapping[str, Tensor]) -> float | None:
    """Return the error of the gradients that are in `parts` now; None if none are expected. Every rank calls this."""
    if not expected:
        return None
    sums, trained = _Sums(parts, expected), dict(parts.plain.named_parameters())
    for name, gradient in expected.items():
        sums.add(name, gradient_of(trained[name]), gradient)
    return sums.over_ranks().value


def compare(
    parts: Parts,
    before: Snapshot,
    plain: Expected,
    losses: Sequence[float],
    loss_size: float,
    first_gradient_error: float | None = None,
) -> Errors:
    """Compare what is in `parts` now, after the steps as executed, with what was expected. Every rank calls this.

    loss_size: of the plain model before any step, as the gate saw it. A number that is not finite stays so, and passes
    no limit.
    """
    trained = dict(parts.plain.named_parameters())
    change, gradient, moments, spread = (_Sums(parts, plain.weights) for _ in range(4))
    for name, expected in plain.weights.items():
        weight = trained[name]
        begun, found = _double(before.weights[name], parts), _double(local(weight), parts)
        change.add(name, found - begun, _double(expected, parts) - begun)
        if (group := parts.strategy.replicas(weight)) is not None:
            mean = found.clone()
            dist.all_reduce(mean, group=group)
            mean /= dist.get_world_size(group)
            spread.add(name, found, mean, mean - begun)
        gradient.add(name, gradient_of(weight), plain.gradients[name])
        for key, states in plain.states.items():
            kept = parts.optimizer.state.get(weight, {}).get(key)
            wanted = _moment(key, _double(states[name], parts))
            moments.add(name, torch.zeros_like(wanted) if kept is None else _moment(key, local(kept).double()), wanted)
    for sums in (change, gradient, moments):
        sums.over_ranks()
    by_weight = moments if plain.states else change if change.whole > 0 else gradient
    furthest, of_weight = by_weight.furthest()
    values = {
        "loss_error": loss_error(plain.losses, losses, loss_size),
        "gradient_error": gradient.value,
        "first_gradient_error": first_gradient_error,
        "update_error": change.value,
        "weight_error": of_weight,
        "state_error": _state_error(parts, before.scales, plain.scales),
        "spread": spread.worst if spread.added else None,
        "unshared": _unshared(parts, plain) if parts.strategy.sharded and plain.own else None,
    }
    frozen = tuple(name for name in plain.weights if not trained[name].requires_grad)
    # On a CPU a norm of 16 bits, as sharded ones are, adds up the gradient of its bias in 16 bits.
    of_weight = math.inf if parts.strategy.sharded and parts.device.type == "cpu" else OF_ONE_WEIGHT
    return Errors(values, gradient.longer, furthest, frozen, bool(plain.states), of_weight)


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


def complaints(errors: Errors, tolerance: Tolerance, lost: Collection[str] = ()) -> list[str]:
    """Return what exceeds the mode's limits. A number that is not finite exceeds any limit. lost: weights that
    were trained in the gate, and are no longer when the mode converts a model again.
    """
    of_weights, by_adam = tolerance.input_gradient, update_bound(errors, tolerance)
    limits = {
        "loss_error": ("its losses differ", tolerance.loss),
        "gradient_error": ("its gradients differ", by_adam),
        "first_gradient_error": ("its gradients of the first step differ", of_weights),
        "update_error": ("what it makes of the weights differs", by_adam),
        "weight_error": (f"what it makes of {errors.furthest} differs", min(MOST, errors.of_weight * of_weights)),
        "state_error": ("what it makes of fp8's scales differs", of_weights),
        "spread": ("its ranks' weights move apart", MAX_SPREAD),
        "unshared": ("its ranks keep gradients of their own, which differ from the mean", MAX_UNSHARED),
    }
    found = [(*limits[name], error) for name, error in errors.values.items() if error is not None]
    faults = [f"{what} by {error:.3g} (at most {limit:.3g})" for what, limit, error in found if not error <= limit]
    if not abs(errors.longer) <= LONGER:
        faults.append(f"its gradients are {abs(errors.longer):.0%} {'longer' if errors.longer > 0 else 'shorter'}")
    if untrained := [*errors.untrained, *sorted(lost)]:
        faults.insert(0, f"it does not train {', '.join(untrained[:3])}")
    return faults


def update_bound(errors: Errors, tolerance: Tolerance) -> float:
    """Return how far off the change of all weights, and the gradient after it, may be."""
    return max(tolerance.input_gradient, BY_ADAM) if errors.by_adam else tolerance.input_gradient


def to_evidence(errors: Errors, plain: Expected, tolerance: Tolerance) -> ExecutedEvidence:
    """Return the evidence for the record. tolerance: as in `complaints`."""
    found = {name: None if error is None else finite(error) for name, error in errors.values.items()}
    return ExecutedEvidence(
        steps=PROOF_STEPS,
        batch_size=plain.piece,
        furthest_weight=errors.furthest,
        bound=tolerance.input_gradient,
        update_bound=update_bound(errors, tolerance) if errors.by_adam else None,
        **found,  # type: ignore[arg-type]
    )


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
    def longer(self) -> float:
        """By what share more is found than wanted, as norms of all weights together."""
        _, wanted, found, _ = self._sums.sum(0).tolist()
        return math.sqrt(found) / math.sqrt(wanted) - 1 if wanted > 0 else 0.0

    @property
    def value(self) -> float:
        """The error of all weights together."""
        apart, whole, _, _ = self._sums.sum(0).tolist()
        return 0.0 if apart == 0 else ratio(math.sqrt(apart), math.sqrt(whole))

    def furthest(self) -> tuple[str | None, float | None]:
        """Return the weight that is furthest off and its error; None for both if there is nothing to measure."""
        if self.whole == 0:
            return None, None
        apart, whole, _, number = self._sums.unbind(1)
        usual = self._small**2 * whole.sum() / number.sum()
        errors = torch.where(apart == 0, 0.0, apart / torch.maximum(whole, usual * number)).sqrt()
        place = int(torch.where(errors.isnan(), math.inf, errors).argmax())
        return list(self._places)[place], float(errors[place])

    @property
    def worst(self) -> float:
        """The error of the weight that is furthest off; of all together if they are zero."""
        _, error = self.furthest()
        return self.value if error is None else error


def _double(values: Tensor, parts: Parts) -> Tensor:
    return values.detach().to(parts.device, torch.float64)

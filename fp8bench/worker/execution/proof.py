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

Bounds are those on steps (`rounding.of_steps`): the loss's; the gradient's for the others, twice that for one weight;
under Adam BY_ADAM for the update and the gradient after it. A step that never came has an error of 1. The optimizer by
itself is held to narrow bounds (`optimizers`).

Where a weight exceeds its bound, plain steps are run once more, from weights that differ in bf16's last digit: what
this changes is rounding alone. A weight that is hardly further off is judged by its size, named and counted. On an
H200, rounding alone changed what three steps make of eva02's first blocks by 0.4 in bf16 and by 1.1 in torchao's fp8;
the executed steps were at most 1.26 times as far off. Adam's changes may be as far off as that, up to MOST.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.modes.layers import counted
from fp8bench.modes.protocol import Mode
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ExecutedEvidence, Tolerance
from fp8bench.stats.steps import PROOF_STEPS
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.reference import Expected
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, Snapshot, gradient_of, scales
from fp8bench.worker.parallel import averaged
from fp8bench.worker.rounding import MOST, OVER_ROUNDING, finite, norm, ratio
from fp8bench.workloads.protocol import Batch

MAX_SPREAD = 1e-4
"""All ranks apply the same gradients to the same weights; only the float32 mean rounds."""

MAX_SPREAD_IN_LAYERS = 2.0**-8
"""Ranks that share layers each compute the gradients of a norm that all of them have, maybe by unlike kernels: these
are equal but for rounding, to 2^-8 in bf16. Compiled ones with fp8 GEMMs were 0.00003 and 0.00015 apart.
"""

OF_ONE_WEIGHT = 2.0
"""How many times further off one weight may be than all together, up to MOST: a fault has an error of 1."""

BY_ADAM = 0.5
"""The bound on the change of weights under Adam, and on the gradient after it: near the start the change follows the
signs of gradients, and rounding turns those of small ones. The gradient of the first step and Adam's moments are held
to the bound on gradients.
"""

LONGER, OF_SIZE = 0.15, 2.0
"""How much longer or shorter all gradients may be, and how many times a single weight's whose error is rounding."""


@dataclass(frozen=True)
class Apart:
    """How far results are from the expected ones. error: relative. longer: |found| / |expected|, less 1."""

    error: float
    longer: float = 0.0

    @property
    def sortable(self) -> float:
        return math.inf if math.isnan(self.error) else self.error


@dataclass(frozen=True)
class Rounding:
    """How far plain steps are from others whose first weights differ in bf16's last digit: each weight, and all."""

    weights: Mapping[str, float]
    of_steps: float


@dataclass(frozen=True)
class Errors:
    """Errors of the executed steps by their name in the evidence (see `proof`). longer: gradients, as a share; under
    Adam the first step's. of_weight: the bound on one weight, in units of that on all. of_spread: on spread. rounding:
    what it does alone; None if no error made it worth measuring.
    """

    values: Mapping[str, float | None]
    tolerance: Tolerance
    longer: float = 0.0
    weights: Mapping[str, Apart] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()
    by_adam: bool = False
    of_weight: float = OF_ONE_WEIGHT
    of_spread: float = MAX_SPREAD
    rounding: Rounding | None = None

    @property
    def bound_on_weight(self) -> float:
        return min(MOST, self.of_weight * self.tolerance.input_gradient)

    @property
    def bound_on_update(self) -> float:
        """How far off the change of all weights, and the gradient after it, may be."""
        if not self.by_adam:
            return self.tolerance.input_gradient
        of_rounding = 0.0 if self.rounding is None else min(MOST, self.rounding.of_steps)
        return max(self.tolerance.input_gradient, BY_ADAM, of_rounding)

    @property
    def of_rounding(self) -> list[str]:
        """Weights beyond their bound which rounding alone takes as far, and whose size is right."""
        if self.rounding is None:
            return []
        most = {name: OVER_ROUNDING * alone for name, alone in self.rounding.weights.items()}
        return [
            name
            for name, one in self.weights.items()
            if self.bound_on_weight < one.error <= most[name] and 1 / OF_SIZE <= 1 + one.longer <= OF_SIZE
        ]

    @property
    def furthest(self) -> str | None:
        others = self.weights.keys() - set(self.of_rounding)
        return max(sorted(others), key=lambda name: self.weights[name].sortable, default=None)

    @property
    def every(self) -> dict[str, float | None]:
        return {**self.values, "weight_error": self.weights[name].error if (name := self.furthest) else None}

    @property
    def may_be_rounding(self) -> bool:
        """Whether rounding alone, if it were large, would explain all that exceeds its bound."""
        large = Rounding(dict.fromkeys(self.weights, math.inf), math.inf)
        return bool(complaints(self)) and not complaints(replace(self, rounding=large))


def bound_on_spread(join: Join) -> float:
    return MAX_SPREAD_IN_LAYERS if "tp" in join else MAX_SPREAD


def complaints(errors: Errors, lost: Collection[str] = ()) -> list[str]:
    """Return what exceeds the mode's limits, as what is not finite does. lost: weights that are trained no longer."""
    of_weights, by_adam, found = errors.tolerance.input_gradient, errors.bound_on_update, errors.every
    limits = {
        "loss_error": ("its losses differ", errors.tolerance.loss),
        "gradient_error": ("its gradients differ", by_adam),
        "first_gradient_error": ("its gradients of the first step differ", of_weights),
        "update_error": ("what it makes of the weights differs", by_adam),
        "weight_error": (f"what it makes of {errors.furthest} differs", errors.bound_on_weight),
        "state_error": ("what it makes of fp8's scales differs", of_weights),
        "spread": ("its ranks' weights move apart", errors.of_spread),
        "unshared": ("its ranks keep gradients of their own, which differ from the mean", 0.1),
    }
    faults = [
        f"{what} by {error:.3g} (at most {limit:.3g})"
        for name, (what, limit) in limits.items()
        if (error := found.get(name)) is not None and not error <= limit
    ]
    if not abs(errors.longer) <= LONGER:
        faults.append(f"its gradients are {abs(errors.longer):.0%} {'longer' if errors.longer > 0 else 'shorter'}")
    if untrained := [*errors.untrained, *sorted(lost)]:
        faults.insert(0, f"it does not train {', '.join(untrained[:3])}")
    return faults


def to_evidence(errors: Errors, piece: int) -> ExecutedEvidence:
    found = {name: None if error is None else finite(error) for name, error in errors.every.items()}
    return ExecutedEvidence(
        steps=PROOF_STEPS,
        batch_size=piece,
        furthest_weight=errors.furthest,
        rounding_weights=tuple(counted(errors.of_rounding)),
        bound=errors.tolerance.input_gradient,
        update_bound=errors.bound_on_update if errors.by_adam else None,
        **found,  # type: ignore[arg-type]
    )


SMALL, SMALL_VECTOR = 1e-3, 0.02
"""The root mean square, in units of that of all weights, below which a weight's change or gradient is compared with
this share: in a two-layer language model queries have 0.011, and a bias whose gradient is rounding alone 0.002.
"""


@dataclass(frozen=True)
class Gate:
    """What the parity gate passes on: bounds on steps, loss_size, how to make the mode anew, weights it saw trained."""

    tolerance: Tolerance
    loss_size: float
    again: Callable[[], Mode]
    trained: frozenset[str] = frozenset()


def executed_steps(launch: Launch, batches: Sequence[Batch]) -> list[float]:
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
    parts: Parts, before: Snapshot, plain: Expected, losses: Sequence[float], gate: Gate, first: Apart | None = None
) -> Errors:
    """Compare what is in `parts` after the steps as executed with what was expected; every rank calls this. first: of
    the first step's gradients. What is not finite passes no limit.
    """
    trained = dict(parts.plain.named_parameters())
    spread = _Sums(parts, plain.weights)
    for name in plain.weights:
        if (group := parts.strategy.replicas(trained[name])) is not None:
            begun, mean = _double(before.weights[name], parts), averaged(_double(local(trained[name]), parts), group)
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
    return SMALL if weight.dim() > 1 else SMALL_VECTOR


def _moment(key: str, values: Tensor) -> Tensor:
    # In units of a gradient: Adam's second one is a mean of squares.
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
    apart = [abs(b - a) for a, b in zip(plain, executed, strict=True)]
    return math.nan if not all(map(math.isfinite, apart)) else ratio(max(apart), max(map(abs, (*plain, fresh))))


def _state_error(parts: Parts, before: Sequence[Tensor], plain: Sequence[Tensor]) -> float | None:
    if not before:
        return None
    apart = whole = 0.0
    for start, one, other in zip(before, plain, scales(parts.mode, parts.plain), strict=True):
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
        return float(self._sums[:, 1].sum().sqrt())

    @property
    def all(self) -> Apart:
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
        return max((one.sortable for one in self.each.values()), default=self.all.error)


def _apart(apart: float, whole: float, found: float, least: float = 0.0) -> Apart:
    # Of sums of squares: the difference, the expected, the found, and the least to measure against.
    return Apart(
        0.0 if apart == 0 else ratio(math.sqrt(apart), math.sqrt(max(whole, least))),
        math.sqrt(found) / math.sqrt(whole) - 1 if whole > 0 else 0.0 if found == 0 else math.inf,
    )


def _double(values: Tensor, parts: Parts) -> Tensor:
    return values.detach().to(parts.device, torch.float64)

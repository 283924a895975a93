"""What of a proof's errors is allowed: bounds, what rounding alone explains, and what exceeds both, in words.

Bounds are those on steps (`rounding.of_steps`): the loss's; the gradient's for the others, twice that for one weight;
under Adam BY_ADAM for the update and the gradient after it. They are wide for fp8, and narrow compared with the faults
that they must find: a step that never came has an error of 1. What the optimizer does by itself is held to narrow
bounds (`applied`).

Where a weight exceeds its bound, plain steps are run once more, from weights that differ in bf16's last digit: what
this changes is rounding alone. A weight that is hardly further off is judged by its size, named and counted. On an
H200, rounding alone changed what three steps make of eva02's first blocks by 0.4 in bf16 and by 1.1 in torchao's fp8;
the executed steps were at most 1.26 times as far off. Adam's changes may be as far off as rounding takes them, up to
MOST.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fp8bench.modes.layers import counted
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ExecutedEvidence, Tolerance
from fp8bench.stats.length import PROOF_STEPS
from fp8bench.worker.relative import finite
from fp8bench.worker.rounding import MOST, OVER_ROUNDING

MAX_SPREAD = 1e-4
"""All ranks apply the same gradients to the same weights; only the float32 mean rounds."""

MAX_SPREAD_IN_LAYERS = 2.0**-8
"""Ranks that share layers each compute the gradients of a norm that all of them have, maybe by unlike kernels: these
are equal but for rounding, to 2^-8 in bf16. Compiled ones with fp8 GEMMs were 0.00003 and 0.00015 apart.
"""

MAX_UNSHARED = 0.1

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
        """The error; infinite if it is not a number, which is the furthest."""
        return math.inf if math.isnan(self.error) else self.error


@dataclass(frozen=True)
class Rounding:
    """What rounding alone does to plain steps: how far they are from others that begin with weights that differ in
    bf16's last digit. weights: of each. of_steps: of the change of all weights, or of the gradient after it.
    """

    weights: Mapping[str, float]
    of_steps: float


@dataclass(frozen=True)
class Errors:
    """Errors of the executed steps against the plain ones, by the name in the evidence (see `proof`); None where there
    is nothing to measure. longer: gradients, as a share; under Adam those of the first step. weights: of each. by_adam:
    whether weights changed by Adam. of_weight: the bound on one weight, in units of that on all. of_spread: on spread.
    rounding: what it does alone; None if no error made it worth measuring.
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
        """The weight that is furthest off, but for those of rounding; None without any."""
        others = self.weights.keys() - set(self.of_rounding)
        return max(sorted(others), key=lambda name: self.weights[name].sortable, default=None)

    @property
    def every(self) -> dict[str, float | None]:
        """All errors by their name in the evidence."""
        return {**self.values, "weight_error": self.weights[name].error if (name := self.furthest) else None}

    @property
    def may_be_rounding(self) -> bool:
        """Whether rounding alone, if it were large, would explain all that exceeds its bound."""
        large = Rounding(dict.fromkeys(self.weights, math.inf), math.inf)
        return bool(complaints(self)) and not complaints(replace(self, rounding=large))


def bound_on_spread(join: Join) -> float:
    """Return how far weights of ranks that hold the same may be apart."""
    return MAX_SPREAD_IN_LAYERS if "tp" in join else MAX_SPREAD


def complaints(errors: Errors, lost: Collection[str] = ()) -> list[str]:
    """Return what exceeds the mode's limits. A number that is not finite exceeds any limit. lost: weights that
    were trained in the gate, and are no longer when the mode converts a model again.
    """
    of_weights, by_adam, found = errors.tolerance.input_gradient, errors.bound_on_update, errors.every
    limits = {
        "loss_error": ("its losses differ", errors.tolerance.loss),
        "gradient_error": ("its gradients differ", by_adam),
        "first_gradient_error": ("its gradients of the first step differ", of_weights),
        "update_error": ("what it makes of the weights differs", by_adam),
        "weight_error": (f"what it makes of {errors.furthest} differs", errors.bound_on_weight),
        "state_error": ("what it makes of fp8's scales differs", of_weights),
        "spread": ("its ranks' weights move apart", errors.of_spread),
        "unshared": ("its ranks keep gradients of their own, which differ from the mean", MAX_UNSHARED),
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
    """Return the evidence for the record. piece: samples that a plain step took at once."""
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

"""How one mode's loss compares with another's: at equal steps, time or money, and at the same loss. Pure.

Two trainings of one seed begin with the same weights and see the same batches: a pair, whose gap is our validation loss
minus the reference's, in nats. A loss between two validations is read off a monotone cubic (Fritsch & Butland, SIAM J.
Sci. Stat. Comput. 1984): a straight line would favour the mode that finishes first. All are means over the last quarter
of what is spent, because a loss changes from step to step by more than modes differ.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, stdev
from typing import Literal

from fp8bench.schema.converge import Curve
from fp8bench.schema.files import Frozen
from fp8bench.stats.estimate import t_quantile

Points = Sequence[tuple[float, float]]
"""(spent, loss) at each validation; what is spent increases: steps, seconds or USD."""

LAST_QUARTER = tuple(1 - 0.25 * number / 8 for number in range(9))
"""The fractions of what is spent at which the end of a training is evaluated."""


class Gap(Frozen):
    """A mean over seeds. low, high: its 95 % interval; null for a single seed. verdict: by whether the complete
    interval lies above or below 0.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int
    verdict: Literal["costs", "gains", "inconclusive", "diverged"]


class Diverged(Frozen):
    """A training that diverged. step: from 1; the first whose loss was not finite, else the last one."""

    seed: int
    step: int
    why: Literal["not finite", "above the start"]


def estimate(values: Iterable[float | None], ratios: bool = False) -> Gap | None:
    """Estimate the mean of the known values, one for each seed; None if there are none. ratios: estimate the geometric
    mean, minus 1, so that an equal pair has 0.
    """
    known = [math.log(value) if ratios else value for value in values if value is not None]
    if not known:
        return None
    mean, seeds, reach = fmean(known), len(known), math.inf
    if seeds > 1:
        reach = t_quantile(seeds - 1) * stdev(known) / math.sqrt(seeds)
    value, low, high = (math.expm1(one) if ratios else one for one in (mean, mean - reach, mean + reach))
    verdict: Literal["costs", "gains", "inconclusive"] = "costs" if low > 0 else "gains" if high < 0 else "inconclusive"
    ends = {"low": low, "high": high} if seeds > 1 else {"low": None, "high": None}
    return Gap(value=value, seeds=seeds, verdict=verdict, **ends)


def divergence(curve: Curve, seed: int) -> Diverged | None:
    """Return whether a training diverged: a loss is not finite, or the validation loss is higher at the end than before
    the first step.
    """
    lost = [step for step, loss in enumerate(curve.train_loss, start=1) if loss is None]
    lost += [one.step for one in curve.validation if one.loss is None]
    if lost:
        return Diverged(seed=seed, step=lost[0], why="not finite")
    (_, first), *_, (_, last) = points(curve)
    return Diverged(seed=seed, step=curve.validation[-1].step, why="above the start") if last > first else None


def points(curve: Curve, per_second: float | None = None) -> Points:
    """Return the curve over what a second costs (1.0: over seconds; its price: over USD); None: over steps."""
    steps = [float(one.step) for one in curve.validation]
    spent = steps if per_second is None else [elapsed * per_second for elapsed in curve.elapsed_s]
    return [(done, one.loss) for done, one in zip(spent, curve.validation, strict=True) if one.loss is not None]


def loss_at(points: Points, spent: float) -> float:
    """Return the loss, on the cubic between two validations. spent: from the first to the last validation."""
    place = bisect_left(points, spent, key=itemgetter(0))
    return points[place][1] if points[place][0] == spent else _cubic(points, place - 1, spent)


def spent_to(points: Points, loss: float) -> float | None:
    """Return what was spent when the loss was first reached; None if it never was, or before anything was spent."""
    for place, ((spent, higher), (later, lower)) in enumerate(pairwise(points)):
        if higher <= loss:
            return spent or None
        if lower == loss:
            return later
        if lower < loss:
            # The cubic falls between these validations, whose distance is halved down to the last bit.
            for _ in range(50):
                middle = (spent + later) / 2
                spent, later = (middle, later) if _cubic(points, place, middle) > loss else (spent, middle)
            return later
    return None


def _cubic(points: Points, place: int, spent: float) -> float:
    (left, first), (right, last) = points[place], points[place + 1]
    width = right - left
    part = (spent - left) / width
    rest = 1 - part
    level = first * rest**2 * (1 + 2 * part) + last * part**2 * (1 + 2 * rest)
    return level + width * part * rest * (_slope(points, place) * rest - _slope(points, place + 1) * part)


def _slope(points: Points, place: int) -> float:
    """Return the slope at a validation: the weighted harmonic mean of the two lines that meet there, or 0 if they turn.
    At an end, the slope of the parabola through the last three validations, if it has the sign of the line.
    """
    lines = [(later - spent, (low - high) / (later - spent)) for (spent, high), (later, low) in pairwise(points)]
    if len(lines) == 1:
        return lines[0][1]
    if 0 < place < len(lines):
        (width, before), (beside, after) = lines[place - 1 : place + 1]
        wide, other = width + 2 * beside, 2 * width + beside
        return (wide + other) / (wide / before + other / after) if before * after > 0 else 0.0
    (width, near), (beside, beyond) = lines[:2] if place == 0 else lines[:-3:-1]
    slope = ((2 * width + beside) * near - width * beyond) / (width + beside)
    if slope * near <= 0:
        return 0.0
    return 3 * near if near * beyond <= 0 and abs(slope) > 3 * abs(near) else slope


def gap_in_the_end(ours: Points, reference: Points) -> float:
    """Return the mean gap over the last quarter of what was spent by the training that finished first."""
    end = min(ours[-1][0], reference[-1][0])
    return fmean(loss_at(ours, end * part) - loss_at(reference, end * part) for part in LAST_QUARTER)


def ratio_to_same_loss(ours: Points, reference: Points) -> float | None:
    """Return what we spend over what the reference spends, for the losses of the last quarter; None if there is no loss
    that both reached.
    """
    found: list[float] = []
    for part in LAST_QUARTER:
        loss = max(loss_at(one, one[-1][0] * part) for one in (ours, reference))
        mine, theirs = spent_to(ours, loss), spent_to(reference, loss)
        found += [math.log(mine / theirs)] if mine and theirs else []
    return math.exp(fmean(found)) if found else None

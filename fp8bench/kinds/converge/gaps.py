"""How one mode's loss compares with another's, in numbers: at equal steps, at equal time or money, and what it takes to
reach the same loss. Pure.

Two trainings of one seed begin with the same weights and see the same batches, so they are a pair, and the seed's
effect on both cancels. A gap is our validation loss minus the reference's, in nats: below 0, ours is better. Its
interval is Student's over the seeds: mean -+ t(n - 1) s / sqrt(n), where s is the standard deviation of the seeds'
gaps. Each (mode, seed) is a process of its own, so the interval includes how processes differ in speed.

A loss between two validations is read off a monotone cubic through all of them (Fritsch & Butland, A method for
constructing local monotone piecewise cubic interpolants, SIAM J. Sci. Stat. Comput. 1984). A straight line would lie
above a curve that falls more and more slowly, and so favour the mode that finishes first, by more than fp8 costs.

"At equal time" means at the total time of the training of a pair that finished first; "money" is time times the price
of an hour. "To the same loss" means to the higher of a pair's two losses, which both reached: the ratio of what they
had spent when they first did, with its interval from the logarithm. From one step to the next a loss changes by more
than modes differ, so each of these is a mean over the last quarter of what is spent, not a single moment of it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

from fp8bench.schema.converge import Curve
from fp8bench.stats.student import t_quantile

GapVerdict = Literal["costs", "gains", "inconclusive", "diverged"]
"""The verdict on a gap, by whether its complete interval lies above or below 0."""

Points = Sequence[tuple[float, float]]
"""(spent, loss) at each validation; what is spent increases: steps, seconds or USD."""


LAST_QUARTER = tuple(1 - 0.25 * number / 8 for number in range(9))
"""The fractions of what is spent at which the end of a training is evaluated."""

HALVINGS = 50
"""Halvings of the distance between two validations: down to the last bit."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. low, high: its 95 % interval; None for a single seed."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def verdict(self) -> GapVerdict:
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "inconclusive"
        return "costs" if self.low > 0 else "gains"


@dataclass(frozen=True)
class Divergence:
    """A training that diverged. step: from 1; the first whose loss was not finite, else the last one."""

    step: int
    why: Literal["not finite", "above the start"]


def estimate(values: Iterable[float]) -> Estimate | None:
    """Estimate the mean of one value for each seed; None if there are no values."""
    known = list(values)
    if not known:
        return None
    mean = fmean(known)
    if len(known) < 2:
        return Estimate(mean, None, None, len(known))
    reach = t_quantile(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return Estimate(mean, mean - reach, mean + reach, len(known))


def estimate_of_ratios(values: Iterable[float]) -> Estimate | None:
    """Estimate the geometric mean, minus 1, so that an equal pair has 0."""
    found = estimate(map(math.log, values))
    if found is None:
        return None
    value, low, high = (None if end is None else math.expm1(end) for end in (found.value, found.low, found.high))
    return Estimate(value or 0.0, low, high, found.seeds)


def divergence(curve: Curve) -> Divergence | None:
    """Return whether a training diverged: a loss is not finite, or the validation loss is higher at the end than before
    the first step.
    """
    for step, loss in enumerate(curve.train_loss, start=1):
        if loss is None:
            return Divergence(step, "not finite")
    first, last = curve.validation[0], curve.validation[-1]
    if first.loss is None or last.loss is None:
        return Divergence(next(one.step for one in curve.validation if one.loss is None), "not finite")
    return Divergence(last.step, "above the start") if last.loss > first.loss else None


def by_steps(curve: Curve) -> Points:
    """Return the curve over steps."""
    return [(float(one.step), one.loss) for one in curve.validation if one.loss is not None]


def by_cost(curve: Curve, per_second: float = 1.0) -> Points:
    """Return the curve over seconds, or over USD if a second costs `per_second`."""
    every = zip(curve.elapsed_s, curve.validation, strict=True)
    return [(elapsed * per_second, one.loss) for elapsed, one in every if one.loss is not None]


def loss_at(points: Points, spent: float) -> float | None:
    """Return the loss, on the cubic between two validations; None before the first and after the last validation."""
    if not points or not points[0][0] <= spent <= points[-1][0]:
        return None
    place = next((place for place, (later, _) in enumerate(points) if later >= spent), 0)
    if points[place][0] == spent:
        return points[place][1]
    return _cubic(points, place - 1, spent)


def spent_to(points: Points, loss: float) -> float | None:
    """Return what was spent when the loss was first reached; None if it never was, or before anything was spent."""
    for place, ((spent, higher), (later, lower)) in enumerate(pairwise(points)):
        if higher <= loss:
            return spent or None
        if lower <= loss:
            return later if lower == loss else _crossing(points, place, spent, later, loss)
    return None


def _crossing(points: Points, place: int, spent: float, later: float, loss: float) -> float:
    """Return where the cubic, which falls between these validations, reaches the loss."""
    for _ in range(HALVINGS):
        middle = (spent + later) / 2
        spent, later = (middle, later) if _cubic(points, place, middle) > loss else (spent, middle)
    return later


def _cubic(points: Points, place: int, spent: float) -> float:
    """Return Hermite's cubic between the validation `place` and the next one."""
    (left, first), (right, last) = points[place], points[place + 1]
    width = right - left
    part = (spent - left) / width
    rest = 1 - part
    return (
        first * rest**2 * (1 + 2 * part)
        + last * part**2 * (1 + 2 * rest)
        + width * part * rest * (_slope(points, place) * rest - _slope(points, place + 1) * part)
    )


def _slope(points: Points, place: int) -> float:
    """Return the slope at a validation: the weighted harmonic mean of the two lines that meet there, or 0 if they turn.
    At an end, the slope of the parabola through the last three validations, if it has the sign of the line.
    """
    widths = [later - spent for (spent, _), (later, _) in pairwise(points)]
    lines = [
        (lower - higher) / width for ((_, higher), (_, lower)), width in zip(pairwise(points), widths, strict=True)
    ]
    if len(lines) == 1:
        return lines[0]
    if 0 < place < len(lines):
        before, after = lines[place - 1], lines[place]
        wide, other = widths[place - 1] + 2 * widths[place], 2 * widths[place - 1] + widths[place]
        return (wide + other) / (wide / before + other / after) if before * after > 0 else 0.0
    near, next_to, width, beside = (lines[0], lines[1], widths[0], widths[1])
    if place:
        near, next_to, width, beside = (lines[-1], lines[-2], widths[-1], widths[-2])
    slope = ((2 * width + beside) * near - width * next_to) / (width + beside)
    if slope * near <= 0:
        return 0.0
    return 3 * near if near * next_to <= 0 and abs(slope) > 3 * abs(near) else slope


def gap_at(ours: Points, reference: Points, spent: float) -> float | None:
    """Return the gap after this much was spent; None if either has no loss there."""
    mine, theirs = loss_at(ours, spent), loss_at(reference, spent)
    return None if mine is None or theirs is None else mine - theirs


def gap_in_the_end(ours: Points, reference: Points) -> float | None:
    """Return the mean gap over the last quarter of what was spent by the training that finished first."""
    if not ours or not reference:
        return None
    end = min(ours[-1][0], reference[-1][0])
    found = [gap_at(ours, reference, end * part) for part in LAST_QUARTER]
    return fmean(gap for gap in found if gap is not None)


def ratio_to_same_loss(ours: Points, reference: Points) -> float | None:
    """Return what we spend over what the reference spends, for the losses of the last quarter; None if there is no loss
    that both reached.
    """
    if not ours or not reference:
        return None
    found: list[float] = []
    for part in LAST_QUARTER:
        losses = [loss_at(points, points[-1][0] * part) for points in (ours, reference)]
        loss = max(loss for loss in losses if loss is not None)
        mine, theirs = spent_to(ours, loss), spent_to(reference, loss)
        found += [math.log(mine / theirs)] if mine and theirs else []
    return math.exp(fmean(found)) if found else None

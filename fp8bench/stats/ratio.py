"""Decides which of two modes is faster, whether one has become slower than is allowed, and what a check could find. The
interval of the ratio of two step times is Student's t on the difference of the means of two modes' logarithms, with
Welch's degrees of freedom (Biometrika 1947), over the rounds that both have. Their processes are not paired: those of a
round run one after the other and share no steps. "Inconclusive" does not mean "equal". Over nights a slow-down is
judged by the nights, since processes of one night share its host's state: nights of the same work differ by more than
their processes let expect.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Literal, NamedTuple, TypeVar

from fp8bench.stats.certainty import NOISE, ONE_PROCESS, ONE_ROUND, Verdict, holds_noise, verdict_on_speed
from fp8bench.stats.estimate import Estimate, around, estimate, in_common, t_quantile

LIMIT = 0.2  # the largest share of splits that may exclude equality
FEWEST_PROCESSES = 4
MOST_SPLITS = 200
MOST_ROUNDS = 1000

Process = TypeVar("Process")


class Ratio(NamedTuple):
    """A mode's step time over the reference's. interval: 95 %; None of one process each. why: it is inconclusive."""

    value: float
    interval: tuple[float, float] | None
    verdict: Verdict
    why: str | None


def ratio(ours: Estimate, reference: Estimate, noise: float = NOISE) -> Ratio:
    """Compare two estimates over the rounds that both have. noise: a share in [0, 1), else ValueError; all of the
    interval must be further from 1.
    """
    if not 0 <= noise < 1:
        raise ValueError(f"noise is a share of at least 0 and below 1, not {noise}")
    without = ONE_PROCESS if 1 in (ours.processes, reference.processes) else ONE_ROUND
    ours, reference = in_common(ours, reference)
    value = ours.value / reference.value
    if ours.spread is None or reference.spread is None:
        return Ratio(value, None, "inconclusive", without)
    a, b = ours.spread**2 / ours.processes, reference.spread**2 / reference.processes
    rest = a**2 / (ours.processes - 1) + b**2 / (reference.processes - 1)
    outside = min(ours.outside, reference.outside)
    reach = t_quantile(max(1.0, (a + b) ** 2 / rest), outside) * math.sqrt(a + b) if rest > 0 else 0.0
    reach += math.log1p(ours.elsewhere) + math.log1p(reference.elsewhere)
    low, high = around(value, ours.mean_log - reference.mean_log, reach)
    verdict = verdict_on_speed(low, high, noise)
    return Ratio(value, (low, high), verdict, holds_noise(noise) if verdict == "inconclusive" else None)


def settled(ours: Estimate, baseline: Estimate | None) -> bool:
    """Return whether a mode needs no more rounds: it is told from its baseline, or both are known to NOISE."""
    widths = [one.half_width_share for one in (ours, baseline) if one is not None]
    known = all(width is not None and width <= NOISE for width in widths)
    return known or (baseline is not None and ratio(ours, baseline).verdict != "inconclusive")


class Regression(NamedTuple):
    """A judgement of a slow-down. value, interval, why: as in Ratio."""

    value: float
    interval: tuple[float, float] | None
    judgement: Literal["ok", "regression", "inconclusive"]
    why: str | None = None


def regression(ours: Estimate, reference: Estimate, allowed: float) -> Regression:
    """Judge a slow-down by the complete interval. allowed: a share in [0, 1), else ValueError. Two sessions have no
    round in common, even if both were given one name.
    """
    value, interval, _, why = ratio(replace(ours, rounds=()), reference, noise=allowed)
    return Regression(value, None, "inconclusive", why) if interval is None else regression_in(value, interval, allowed)


def regression_in(
    value: float, interval: tuple[float, float], allowed: float, more: Literal["rounds", "nights"] = "rounds"
) -> Regression:
    """Judge a slow-down by its interval. more: what decides if it cannot be told."""
    if interval[0] > 1 + allowed:
        return Regression(value, interval, "regression")
    if interval[1] <= 1 + allowed:
        return Regression(value, interval, "ok")
    why = f"its interval holds a slow-down of {100 * allowed:.3g} %: more {more} decide"
    return Regression(value, interval, "inconclusive", why)


def smallest_found(judged: Regression, allowed: float) -> float | None:
    """Return the smallest slow-down that would have been called a regression, as a share; None for one process."""
    return None if judged.interval is None else (1 + allowed) * judged.value / judged.interval[0] - 1


def rounds_to_find(ours: Estimate, reference: Estimate, allowed: float) -> int | None:
    """Return how many rounds a side make the interval no wider than `allowed`; None if unknown or over MOST_ROUNDS."""
    if ours.spread is None or reference.spread is None:
        return None
    a, b = ours.spread**2, reference.spread**2
    outside = min(ours.outside, reference.outside)
    per_round = (a + b) ** 2 / (a**2 + b**2) if a + b > 0 else 1.0
    for rounds in range(2, MOST_ROUNDS + 1):
        if t_quantile(per_round * (rounds - 1), outside) * math.sqrt((a + b) / rounds) <= math.log1p(allowed):
            return rounds
    return None


class SelfCheck(NamedTuple):
    """Whether intervals claim differences that do not exist: modes are compared with themselves (an A/A test). An
    honest 95 % interval excludes equality in about one of twenty splits into halves, which are not independent: LIMIT
    was chosen by simulation (benchmarks/simulate.py). excluding: splits, without the noise margin.
    """

    splits: int
    excluding: int

    @property
    def share(self) -> float:
        return self.excluding / self.splits

    @property
    def passed(self) -> bool:
        return self.share <= LIMIT


def differ(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the interval of the ratio of two modes excludes 1. one, other: each process's time in seconds."""
    interval = ratio(estimate(one), estimate(other), noise=0).interval
    return interval is not None and not interval[0] <= 1 <= interval[1]


def self_check(
    modes: Sequence[Sequence[Process]], differ: Callable[[Sequence[Process], Sequence[Process]], bool]
) -> SelfCheck:
    """Compare each mode's processes with themselves. modes: of each an even number, four or more, else ValueError."""
    if not modes or any(len(processes) < FEWEST_PROCESSES or len(processes) % 2 for processes in modes):
        raise ValueError("an A/A test needs an even number of processes a mode, four or more")
    verdicts = [differ(one, other) for processes in modes for one, other in halves(processes)]
    return SelfCheck(len(verdicts), sum(verdicts))


def halves(processes: Sequence[Process]) -> Iterator[tuple[list[Process], list[Process]]]:
    """Yield every split into two halves once, or MOST_SPLITS of them, always the same ones."""
    count = len(processes)
    if math.comb(count, count // 2) // 2 <= MOST_SPLITS:
        # The first process stays on one side, otherwise each split would occur twice.
        chosen: Iterator[tuple[int, ...]] = ((0, *rest) for rest in combinations(range(1, count), count // 2 - 1))
    else:
        random = Random(20240229)
        chosen = (tuple(random.sample(range(count), count // 2)) for _ in range(MOST_SPLITS))
    for places in chosen:
        rest = [each for place, each in enumerate(processes) if place not in places]
        yield [processes[place] for place in places], rest


POOLED, OF_REFERENCE, EARLIER = 3, 5, 10
"""The latest nights that are judged together, those of a reference, and those between from which is known how nights
differ.
"""

FEWEST_OF_REFERENCE = 3  # of two, the interval holds twice the step time
BY_CHANCE, FEWEST_NIGHTS = 0.01, 5
"""The share of unchanged histories with a change, at most, and the nights from which on one can be told."""


def over_nights(ours: Sequence[Estimate], reference: Sequence[Estimate], allowed: float) -> Regression:
    """Judge a slow-down. ours: by night, the latest last, which is judged alone and with the POOLED latest. reference:
    so too, of which OF_REFERENCE count. Raises ValueError for fewer than FEWEST_OF_REFERENCE.

    A night is one value (the mean of its processes), and the interval is Student's t on logarithms of nights, with one
    variance for both sides, no smaller than what processes alone make nights differ by: s sqrt(1 / ours + 1 / the
    reference's), with as many degrees of freedom as nights beyond one on each side.
    """
    if not ours or len(reference) < FEWEST_OF_REFERENCE:
        raise ValueError(f"nights are judged beside {FEWEST_OF_REFERENCE} nights of a reference or more")
    earlier, beside = ours[:-POOLED][-EARLIER:], reference[-OF_REFERENCE:]
    alone, together = (_judged(ours[-count:], beside, earlier, allowed) for count in (1, POOLED))
    return alone if alone.judgement == "regression" else together


def _judged(
    ours: Sequence[Estimate], reference: Sequence[Estimate], earlier: Sequence[Estimate], allowed: float
) -> Regression:
    groups = [[one.mean_log for one in group] for group in (ours, reference, earlier) if group]
    squares = math.fsum((log - fmean(group)) ** 2 for group in groups for log in group)
    freedom = sum(len(group) - 1 for group in groups)
    alike = [one.spread**2 / one.processes for one in (*ours, *reference) if one.spread is not None]
    variance = max(squares / freedom, fmean(alike) if alike else 0.0)
    reach = t_quantile(freedom) * math.sqrt(variance * (1 / len(ours) + 1 / len(reference)))
    value = fmean(one.value for one in ours) / fmean(one.value for one in reference)
    return regression_in(value, around(value, fmean(groups[0]) - fmean(groups[1]), reach), allowed, "nights")


def changed_at(nights: Sequence[Estimate]) -> int | None:
    """Return the place of the first night after a change, if any: of the split whose sides differ by most standard
    errors, beyond Student's t at BY_CHANCE over the number of splits (Bonferroni). nights: in order of time.
    """
    logs = [one.mean_log for one in nights]
    if len(logs) < FEWEST_NIGHTS:
        return None
    count, errors_apart = len(logs), list[float]()
    for place in range(1, count):
        sides = logs[:place], logs[place:]
        before, after = map(fmean, sides)
        squares = math.fsum((log - fmean(side)) ** 2 for side in sides for log in side)
        error = math.sqrt(squares / (count - 2) * count / (place * (count - place)))
        # Nights that are equal to the last digit have no error.
        errors_apart.append(abs(after - before) / max(error, sys.float_info.min))
    furthest = max(errors_apart)
    beyond_chance = furthest > t_quantile(count - 2, BY_CHANCE / len(errors_apart))
    return 1 + errors_apart.index(furthest) if beyond_chance else None

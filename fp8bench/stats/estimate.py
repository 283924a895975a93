"""A mode's step time over several fresh processes, and the range in which it may really be.

A process draws its luck once: where its memory is placed, whether a kernel is tuned, whether a GPU starts warm or cold.
Forty more of its steps make no result more certain, but another process does (Kalibera & Jones, Rigorous benchmarking
in reasonable time, 2013). So each process is one value: its elapsed time over its steps, because that is paid for.
docs/simulations.md has coverage, false verdicts and power.
"""

import math
from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import NormalDist, fmean

NORMAL_QUANTILE = 1.959963984540054  # t for infinitely many degrees of freedom
OF_ONE_LOOK = 0.05  # the share of cases outside of an interval, if nobody looks twice

_NEARLY_NORMAL = 1e4
"""From so many on, two terms beyond the normal distribution (Cornish & Fisher 1938) are right to 1e-11."""


@lru_cache(maxsize=1024)
def t_quantile(degrees_of_freedom: float, outside: float = OF_ONE_LOOK) -> float:
    """Return the quantile of Student's t for an interval that the share `outside` of cases is outside of; scipy takes
    seconds to import. degrees_of_freedom: maybe fractional (Welch, Biometrika 1947) or infinite. Raises ValueError
    below 1.
    """
    freedom = degrees_of_freedom
    t = NORMAL_QUANTILE if outside == OF_ONE_LOOK else NormalDist().inv_cdf(1 - outside / 2)
    if not freedom >= 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, not {freedom}")
    if freedom > _NEARLY_NORMAL:
        return t + (t**3 + t) / (4 * freedom) + (5 * t**5 + 16 * t**3 + 3 * t) / (96 * freedom**2)
    at_zero = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi * freedom)
    step = t
    # Newton's method. The distribution is concave above 0, so every step from below ends below the quantile.
    while step > 1e-14 * t:
        density = at_zero * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        # Between 0 and t lies t * density * total (the series of the incomplete beta function).
        part, term, total, count = t * t / (freedom + t * t), 1.0, 1.0, 0
        while term > 1e-17 * total:
            term *= part * ((freedom + 1) / 2 + count) / (1.5 + count)
            total += term
            count += 1
        step = (1 - outside) / 2 / density - t * total
        t += step
    return t


@dataclass(frozen=True)
class Estimate:
    """A time in seconds, over processes. times: that of each process, at least one. elsewhere: by what share another
    machine of the type may differ, if these are not of the machine that is asked about. outside: the share of cases
    outside of the interval, at one look of a session that could end at several (`certainty.LOOKS`). rounds: that of
    each process in its session; empty if unknown.
    """

    times: tuple[float, ...]
    elsewhere: float = 0.0
    outside: float = OF_ONE_LOOK
    rounds: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        if not self.times:
            raise ValueError("an estimate needs at least one process")
        if self.rounds and len(self.rounds) != len(self.times):
            raise ValueError("an estimate has the round of every process or of none")
        if not all(math.isfinite(time) and time > 0 for time in self.times):
            raise ValueError("times are finite and above 0")

    @property
    def processes(self) -> int:
        return len(self.times)

    @cached_property
    def value(self) -> float:
        return fmean(self.times)

    @cached_property
    def mean_log(self) -> float:
        return fmean(map(math.log, self.times))

    @cached_property
    def spread(self) -> float | None:
        """The standard deviation of the logarithms, i.e. by what share processes differ; None for one process."""
        squares = math.fsum((math.log(time) - self.mean_log) ** 2 for time in self.times)
        return math.sqrt(squares / (self.processes - 1)) if self.processes > 1 else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval in seconds, Student's t on the logarithms of R times: exp(m -+ t(R - 1) s / sqrt(R)), with
        their mean m and standard deviation s, so that no bound is below 0. None for one process.
        """
        if self.spread is None:
            return None
        reach = t_quantile(self.processes - 1, self.outside) * self.spread / math.sqrt(self.processes)
        reach += math.log1p(self.elsewhere)
        return around(self.value, self.mean_log, reach)

    @property
    def half_width_share(self) -> float | None:
        """Half the interval's width over the value: 0.01 means "give or take 1 %". None for one process."""
        return (self.interval[1] - self.interval[0]) / 2 / self.value if self.interval else None

    def of(self, rounds: Set[Hashable]) -> "Estimate":
        """Return the estimate over the processes of these rounds. Raises ValueError if there is none."""
        kept = [place for place, number in enumerate(self.rounds) if number in rounds]
        if len(kept) == self.processes:
            return self
        return replace(
            self,
            times=tuple(self.times[place] for place in kept),
            rounds=tuple(self.rounds[place] for place in kept),
        )


def estimate(times: Iterable[float], outside: float = OF_ONE_LOOK) -> Estimate:
    """times: each process's, in seconds. Raises ValueError for none, or for one that is not finite and above 0."""
    return Estimate(tuple(times), outside=outside)


def in_common(one: Estimate, other: Estimate) -> tuple[Estimate, Estimate]:
    """Return both over the rounds that both have. A machine that became slower between two rounds made both slower, but
    not in rounds that only one of them has. As they are if they share no round, e.g. of two sessions.
    """
    both = set(one.rounds) & set(other.rounds)
    return (one.of(both), other.of(both)) if both else (one, other)


def over_common_rounds(one: Estimate | None, other: Estimate | None) -> tuple[float, float]:
    """Return how many times their values both take over the rounds that both have; 1 if either is unknown."""
    if one is None or other is None:
        return 1.0, 1.0
    mine, theirs = in_common(one, other)
    return mine.value / one.value, theirs.value / other.value


def around(value: float, log: float, reach: float) -> tuple[float, float]:
    """Return exp(log -+ reach), moved to hold the value, which one time a thousand times the others takes beyond it."""
    return min(value, math.exp(log - reach)), max(value, math.exp(log + reach))

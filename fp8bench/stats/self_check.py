"""A mode held against itself (an A/A test): do its intervals claim differences where there are none?

Of 2 R processes of one mode, every split into two halves of R is a comparison of the mode with itself. An honest 95 %
interval excludes equality in about one split of twenty. One that ignores how processes differ excludes it in most of
them, as soon as they differ; one comparison alone would notice that about every other time, and behind the noise margin
of a verdict hardly ever. So all splits are looked at, without that margin, and of all modes together.

The splits of one sample are no independent tests: the share that excludes equality is a statistic of its own, and
LIMIT was chosen by simulation (benchmarks/simulate.py). Where processes do not differ, an interval that ignores them is
right, and nothing here or elsewhere could tell it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from fp8bench.stats.bootstrap import SEED, Centre
from fp8bench.stats.estimate import Estimate, combined
from fp8bench.stats.ratio import ratio

LIMIT = 0.2
"""The largest share of splits that may exclude equality."""

FEWEST_PROCESSES = 4
"""Of a mode: two halves of two, the fewest that have a spread."""

MOST_SPLITS = 200
"""For each mode; of more, so many are drawn."""

Combine = Callable[[Sequence[Centre]], Estimate]


@dataclass(frozen=True)
class SelfCheck:
    """splits: comparisons of a mode with itself, over all modes. excluding: those whose interval excludes equality."""

    splits: int
    excluding: int

    @property
    def share(self) -> float:
        """Of the splits that exclude equality; 0 to 1."""
        return self.excluding / self.splits

    @property
    def passed(self) -> bool:
        """Whether the intervals may be believed."""
        return self.share <= LIMIT


def self_check(modes: Sequence[Sequence[Centre]], combine: Combine = combined) -> SelfCheck:
    """modes: for each mode what `bootstrap.centre` found of its processes, an even number of them, four or more.
    combine: what makes an estimate of half of them; a faulty one can be planted to see it fail.

    Raises ValueError for no mode, or one with other numbers of processes.
    """
    if not modes or any(len(processes) < FEWEST_PROCESSES or len(processes) % 2 for processes in modes):
        raise ValueError("an A/A test needs an even number of processes a mode, four or more")
    verdicts = [
        _excludes_equality(combine(one), combine(other)) for processes in modes for one, other in halves(processes)
    ]
    return SelfCheck(len(verdicts), sum(verdicts))


def halves(processes: Sequence[Centre]) -> Iterator[tuple[list[Centre], list[Centre]]]:
    """Every split into two halves once, or MOST_SPLITS of them, always the same ones."""
    count = len(processes)
    if math.comb(count, count // 2) // 2 <= MOST_SPLITS:
        # The first process stays on one side, or each split would come twice.
        chosen: Iterator[tuple[int, ...]] = ((0, *rest) for rest in combinations(range(1, count), count // 2 - 1))
    else:
        random = Random(SEED)
        chosen = (tuple(random.sample(range(count), count // 2)) for _ in range(MOST_SPLITS))
    for places in chosen:
        yield (
            [processes[place] for place in places],
            [each for place, each in enumerate(processes) if place not in places],
        )


def _excludes_equality(one: Estimate, other: Estimate) -> bool:
    held = ratio(one, other, noise=0)
    return held.low is not None and held.high is not None and not held.low <= 1 <= held.high

"""What so many rounds can find: against the intervals themselves, and against repeated draws."""

import math
import random

import pytest

from fp8bench.stats.estimate import estimate
from fp8bench.stats.ratio import regression, rounds_to_find, smallest_found


def drawn(seed, count, spread):
    draw = random.Random(seed)
    return estimate(0.1 * math.exp(draw.gauss(0, spread)) for _ in range(count))


@pytest.mark.parametrize(("spread", "rounds"), [(0.01, 3), (0.02, 5), (0.04, 16)])
def test_so_many_rounds_make_the_interval_as_narrow_as_the_limit(spread, rounds):
    # Two values with a standard deviation of `spread`. By hand, for 0.02: t(8) * 0.02 * sqrt(2 / 5) is 0.0292.
    side = estimate([0.1 * math.exp(spread / math.sqrt(2)), 0.1 * math.exp(-spread / math.sqrt(2))])
    found = rounds_to_find(side, side, 0.03)
    assert found == rounds
    halves = []
    for seed in range(200):
        judged = regression(drawn(seed, found, spread), drawn(1000 + seed, found, spread), 0.03)
        halves.append(math.log(judged.interval[1] / judged.interval[0]) / 2)
    assert sum(halves) / len(halves) == pytest.approx(0.03, rel=0.25)


def test_the_smallest_that_is_found_is_where_the_interval_leaves_the_limit():
    ours, reference = drawn(1, 4, 0.01), drawn(2, 4, 0.01)
    found = smallest_found(regression(ours, reference, 0.03), 0.03)
    by = (1 + found) * reference.value / ours.value
    for factor, judgement in ((1.001, "regression"), (0.999, "inconclusive")):
        moved = estimate(time * by * factor for time in ours.times)
        assert regression(moved, reference, 0.03).judgement == judgement


def test_one_process_on_a_side_finds_nothing():
    several, one = drawn(1, 4, 0.01), estimate([0.1])
    for ours, reference in ((several, one), (one, several)):
        assert smallest_found(regression(ours, reference, 0.03), 0.03) is None
        assert rounds_to_find(ours, reference, 0.03) is None


def test_no_number_of_rounds_finds_a_limit_of_nothing():
    side = drawn(1, 4, 0.01)
    assert rounds_to_find(side, side, 0.0) is None

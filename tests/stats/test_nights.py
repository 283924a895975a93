"""A slow-down judged over nights, and the night of a change."""

import math

import numpy as np
import pytest

from fp8bench.stats.estimate import estimate, t_quantile
from fp8bench.stats.ratio import FEWEST_NIGHTS, POOLED, changed_at, over_nights

REFERENCE = (1.0, 1.01, 0.99, 1.005, 0.995)


def nights(*values):
    """Of one process each, so that nights alone differ."""
    return [estimate([value]) for value in values]


def test_the_interval_is_students_t_over_nights_with_one_variance_for_both_sides():
    ours = (1.02, 1.0, 1.01)
    judged = over_nights(nights(*ours), nights(*REFERENCE), 0.5)
    sides = [[math.log(value) for value in side] for side in (ours, REFERENCE)]
    variance = sum(np.var(side) * len(side) for side in sides) / (2 + 4)
    reach = t_quantile(6) * math.sqrt(variance * (1 / 3 + 1 / 5))
    apart = np.mean(sides[0]) - np.mean(sides[1])
    assert judged.value == pytest.approx(np.mean(ours) / np.mean(REFERENCE))
    assert judged.interval == pytest.approx((math.exp(apart - reach), math.exp(apart + reach)))
    assert judged.judgement == "ok"


def test_processes_that_differ_more_widen_it_and_earlier_nights_say_how_nights_differ_and_nothing_else():
    apart = [estimate([0.8, 1.25])] * 5
    low, high = over_nights(apart, apart, 0.03).interval
    assert high - low > 0.3
    ours = [1.0] * POOLED
    few = over_nights(nights(*ours), nights(*REFERENCE), 0.03)
    many = over_nights(nights(*[2.0, 2.02, 1.98] * 4, *ours), nights(*REFERENCE), 0.03)
    assert many.value == few.value
    assert many.interval != few.interval


@pytest.mark.parametrize(
    ("ours", "judgement"),
    [
        ((1.0, 1.0, 1.0), "ok"),
        ((1.1, 1.1, 1.1), "regression"),
        ((1.0, 1.01, 1.2), "regression"),
        ((1.0, 1.005, 1.02), "ok"),
        ((1.03, 1.03, 1.03), "inconclusive"),
        ((1.2, 1.2, 1.0, 1.0, 1.0), "ok"),
    ],
)
def test_the_latest_night_alone_or_three_together_may_be_the_regression(ours, judgement):
    judged = over_nights(nights(*ours), nights(*REFERENCE), 0.03)
    assert judged.judgement == judgement
    assert ("more nights decide" in (judged.why or "")) == (judgement == "inconclusive")


@pytest.mark.parametrize("counts", [(0, 5), (3, 2), (3, 0)])
def test_fewer_than_three_nights_of_a_reference_are_refused(counts):
    with pytest.raises(ValueError, match="3 nights"):
        over_nights(*(nights(*[1.0] * count) for count in counts), 0.03)


def drawn(random, count, spread=0.01, slower=0.0):
    return nights(*np.exp(spread * random.standard_normal(count) + math.log1p(slower)))


def test_a_change_is_found_at_its_night_and_none_where_there_is_none_or_too_few_nights():
    for place in (1, 4, 8, 11):
        random = np.random.default_rng(4)
        assert changed_at([*drawn(random, place), *drawn(random, 12 - place, slower=0.1)]) == place
    random = np.random.default_rng(7)
    assert sum(changed_at(drawn(random, 20)) is not None for _ in range(100)) <= 2
    assert changed_at(nights(*[1.0] * 10)) is None
    assert changed_at(nights(*[1.0] * 5, *[2.0] * 5)) == 5
    assert changed_at(nights(*[1.0] * (FEWEST_NIGHTS - 2), 2.0)) is None

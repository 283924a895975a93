"""Two modes are told apart where they differ; a slow-down where it counts; what rounds and nights find; an A/A test."""

import math
import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind
from simulate import ROUNDS, ignoring_processes, situation_called

from fp8bench.stats.certainty import verdict_on_value
from fp8bench.stats.estimate import Estimate, estimate, t_quantile
from fp8bench.stats.ratio import (
    FEWEST_NIGHTS,
    LIMIT,
    MOST_SPLITS,
    POOLED,
    SelfCheck,
    changed_at,
    differ,
    halves,
    over_nights,
    ratio,
    regression,
    rounds_to_find,
    self_check,
    settled,
    smallest_found,
)

several = st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=2, max_size=9)


def steady(centre, processes=3):
    """Of processes that differ by a tenth of a per cent."""
    return estimate(centre * (1 + process / 1000) for process in range(processes))


class TestVerdict:
    def test_it_is_of_step_times_whose_whole_interval_lies_beyond_the_noise(self):
        found = [ratio(steady(ours), steady(1.0)) for ours in (0.9, 1.1, 1.0, 1.008)]
        assert [one.verdict for one in found] == ["faster", "slower", "inconclusive", "inconclusive"]
        assert [one.why is None for one in found] == [True, True, False, False]
        near = ratio(steady(0.989), steady(1.0))
        assert near.value < 0.99 <= near.interval[1] < 1
        assert near.verdict == "inconclusive"
        assert ratio(steady(0.989), steady(1.0), noise=0).verdict == "faster"

    def test_it_is_over_the_rounds_that_both_have_and_not_over_those_after_a_jump_of_the_machine(self):
        times = [0.1 * (1 + place % 3 / 1000) * (1.02 if place >= 6 else 1) for place in range(30)]
        reference = Estimate(tuple(times), rounds=tuple(range(30)))
        ours = Estimate(tuple(times[:6]), rounds=tuple(range(6)))
        assert ratio(ours, reference) == ratio(estimate(times[:6]), estimate(times[:6]))
        assert ratio(estimate(times[:6]), reference).verdict == "faster"
        assert settled(ours, Estimate(tuple(times[:6]), rounds=tuple(range(6)))) == settled(ours, reference)
        # A session and its reference may be given one name.
        assert regression(ours, reference, 0.03) == regression(estimate(times[:6]), estimate(times), 0.03)
        with pytest.raises(ValueError, match="round of every process"):
            Estimate((0.1, 0.1), rounds=(1,))

    @pytest.mark.parametrize(
        ("ours", "reference", "why"),
        [((1, 2, 3), (3, 4), "share only one round"), ((3,), (1, 2, 3), "one process"), ((1, 2), (1, 2, 3), None)],
    )
    def test_rows_of_several_rounds_that_share_only_one_say_so(self, ours, reference, why):
        both = [Estimate((0.1, 0.11, 0.12)[: len(rounds)], rounds=rounds) for rounds in (ours, reference)]
        found = ratio(*both)
        assert (found.interval is None) == (why is not None)
        assert why is None or why in found.why

    @pytest.mark.parametrize(("ours", "reference"), [(1, 3), (3, 1), (1, 1)])
    def test_one_process_is_not_a_measurement(self, ours, reference):
        found = ratio(steady(0.5, ours), steady(1.0, reference))
        assert found.value == pytest.approx(0.5, rel=1e-2)
        assert (found.verdict, found.interval, found.why) == ("inconclusive", None, "one process is not a measurement")
        judged = regression(steady(2.0, ours), steady(1.0, reference), 0.03)
        assert (judged.judgement, judged.interval, judged.why) == ("inconclusive", None, found.why)
        assert smallest_found(judged, 0.03) is None
        assert rounds_to_find(steady(2.0, ours), steady(1.0, reference), 0.03) is None

    def test_what_is_no_share_is_an_error(self):
        for judge, wrong in product((ratio, regression), (-0.01, 1.0, math.nan)):
            with pytest.raises(ValueError, match="share"):
                judge(steady(1.0), steady(1.0), wrong)

    def test_a_unit_that_costs_less_is_better_value(self):
        assert (verdict_on_value(0.9, 0.989), verdict_on_value(1.011, 1.2)) == ("better value", "worse value")
        assert {verdict_on_value(*ends) for ends in ((0.9, 0.99), (0.5, 2.0), (1.01, 1.2))} == {"inconclusive"}


class TestInterval:
    @given(several, several)
    def test_it_holds_the_ratio_and_is_the_inverse_the_other_way_round(self, ours, reference):
        one, other = ratio(estimate(ours), estimate(reference)), ratio(estimate(reference), estimate(ours))
        assert 0 <= one.interval[0] <= one.value <= one.interval[1]
        assert one.interval == pytest.approx((1 / other.interval[1], 1 / other.interval[0]))
        equal = ratio(estimate([0.5] * 3), estimate([1.0] * 3))
        assert (equal.value, equal.interval, equal.verdict) == (0.5, (0.5, 0.5), "faster")

    @pytest.mark.parametrize(("mine", "theirs"), [(2, 2), (2, 9), (3, 5), (14, 4)])
    def test_of_unequal_rounds_it_is_welchs(self, mine, theirs):
        random = np.random.default_rng(mine)
        ours, reference = np.exp(0.01 * random.standard_normal(mine)), np.exp(0.03 * random.standard_normal(theirs))
        ends = ttest_ind(np.log(ours), np.log(reference), equal_var=False).confidence_interval(0.95)
        found = ratio(estimate(ours.tolist()), estimate(reference.tolist()))
        assert found.interval == pytest.approx((math.exp(ends.low), math.exp(ends.high)))


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


def test_the_smallest_that_is_found_is_where_the_interval_leaves_the_limit_and_no_rounds_find_one_of_nothing():
    ours, reference = drawn(1, 4, 0.01), drawn(2, 4, 0.01)
    found = smallest_found(regression(ours, reference, 0.03), 0.03)
    by = (1 + found) * reference.value / ours.value
    for factor, judgement in ((1.001, "regression"), (0.999, "inconclusive")):
        moved = estimate(time * by * factor for time in ours.times)
        assert regression(moved, reference, 0.03).judgement == judgement
    side = drawn(1, 4, 0.01)
    assert rounds_to_find(side, side, 0.0) is None


TRIALS = 40


def processes(count):
    return [1 + place / 100 for place in range(count)]


def test_every_split_into_halves_is_looked_at_once_and_of_too_many_always_the_same_and_modes_are_judged_together():
    for count, splits in ((4, 3), (6, 10), (8, 35), (14, MOST_SPLITS)):
        found = [frozenset(map(frozenset, pair)) for pair in halves(processes(count))]
        assert len(found) == splits
        assert len(set(found)) == splits or count == 14
        assert all(len(half) == count // 2 for pair in found for half in pair)
        assert list(halves(processes(count))) == list(halves(processes(count)))
    assert self_check([processes(8), processes(6)], differ).splits == 45
    assert SelfCheck(35, int(35 * LIMIT)).passed
    assert not SelfCheck(35, int(35 * LIMIT) + 1).passed
    for wrong in ([], [processes(2)], [processes(8), processes(5)]):
        with pytest.raises(ValueError, match="even number"):
            self_check(wrong, differ)


@pytest.mark.parametrize("host", ["processes differ by 1 %", "processes differ by 3 %"])
def test_it_fails_an_interval_that_ignores_processes_and_passes_the_tools_own(host):
    random, situation = np.random.default_rng(1), situation_called(host)
    made = [situation.make(random, 2 * ROUNDS, 100) for _ in range(TRIALS)]
    assert sum(not self_check([each.tolist()], ignoring_processes).passed for each in made) >= 0.95 * TRIALS
    assert sum(not self_check([each.mean(axis=1).tolist()], differ).passed for each in made) <= 0.05 * TRIALS


NIGHTS = (1.0, 1.01, 0.99, 1.005, 0.995)


def nights(*values):
    """Of one process each, so that nights alone differ."""
    return [estimate([value]) for value in values]


def test_the_interval_is_students_t_over_nights_with_one_variance_for_both_sides():
    ours = (1.02, 1.0, 1.01)
    judged = over_nights(nights(*ours), nights(*NIGHTS), 0.5)
    sides = [[math.log(value) for value in side] for side in (ours, NIGHTS)]
    variance = sum(np.var(side) * len(side) for side in sides) / (2 + 4)
    reach = t_quantile(6) * math.sqrt(variance * (1 / 3 + 1 / 5))
    apart = np.mean(sides[0]) - np.mean(sides[1])
    assert judged.value == pytest.approx(np.mean(ours) / np.mean(NIGHTS))
    assert judged.interval == pytest.approx((math.exp(apart - reach), math.exp(apart + reach)))
    assert judged.judgement == "ok"


def test_processes_that_differ_more_widen_it_and_earlier_nights_say_how_nights_differ_and_nothing_else():
    apart = [estimate([0.8, 1.25])] * 5
    low, high = over_nights(apart, apart, 0.03).interval
    assert high - low > 0.3
    ours = [1.0] * POOLED
    few = over_nights(nights(*ours), nights(*NIGHTS), 0.03)
    many = over_nights(nights(*[2.0, 2.02, 1.98] * 4, *ours), nights(*NIGHTS), 0.03)
    assert many.value == few.value
    assert many.interval != few.interval


def test_the_latest_night_alone_or_three_together_may_be_the_regression():
    for ours, judgement in (
        ((1.1, 1.1, 1.1), "regression"),
        ((1.0, 1.01, 1.2), "regression"),
        ((1.0, 1.005, 1.02), "ok"),
        ((1.03, 1.03, 1.03), "inconclusive"),
        ((1.2, 1.2, 1.0, 1.0, 1.0), "ok"),
    ):
        judged = over_nights(nights(*ours), nights(*NIGHTS), 0.03)
        assert judged.judgement == judgement
        assert ("more nights decide" in (judged.why or "")) == (judgement == "inconclusive")


def test_fewer_than_three_nights_of_a_reference_are_refused():
    for ours, reference in ((0, 5), (3, 2)):
        with pytest.raises(ValueError, match="3 nights"):
            over_nights(nights(*[1.0] * ours), nights(*[1.0] * reference), 0.03)


def drawn_nights(random, count, spread=0.01, slower=0.0):
    return nights(*np.exp(spread * random.standard_normal(count) + math.log1p(slower)))


def test_a_change_is_found_at_its_night_and_none_where_there_is_none_or_too_few_nights():
    for place in (1, 4, 8, 11):
        random = np.random.default_rng(4)
        assert changed_at([*drawn_nights(random, place), *drawn_nights(random, 12 - place, slower=0.1)]) == place
    random = np.random.default_rng(7)
    assert sum(changed_at(drawn_nights(random, 20)) is not None for _ in range(100)) <= 2
    assert changed_at(nights(*[1.0] * 10)) is None
    assert changed_at(nights(*[1.0] * 5, *[2.0] * 5)) == 5
    assert changed_at(nights(*[1.0] * (FEWEST_NIGHTS - 2), 2.0)) is None

"""Gaps between two curves, with their intervals over seeds."""

import math
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.kinds.converge import gaps
from fp8bench.schema.converge import Curve, Validation
from fp8bench.schema.files import ROOT


def curve(*losses, step_s=0.5, every=2, train=None):
    """Validations at every second step, each step as long."""
    steps = every * (len(losses) - 1)
    return Curve(
        train_loss=(1.0,) * steps if train is None else train,
        step_s=(step_s,) * steps,
        validation=tuple(Validation(step=every * number, loss=loss) for number, loss in enumerate(losses)),
    )


class TestEstimate:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            # s = 1, so 4.303 / sqrt(3) to either side.
            ([1.0, 2.0, 3.0], (2.0, 2 - 2.484, 2 + 2.484, 3, "inconclusive")),
            ([5.0], (5.0, None, None, 1, "inconclusive")),
            ([0.1, 0.11, 0.12], (0.11, 0.085, 0.135, 3, "costs")),
            ([-0.1, -0.11, -0.12], (-0.11, -0.135, -0.085, 3, "gains")),
            ([0.0, 0.0], (0.0, 0.0, 0.0, 2, "inconclusive")),
            # What the seed does to both of a pair cancels, however large.
            ([3.1 - 3.0, 5.1 - 5.0, 9.1 - 9.0], (0.1, 0.1, 0.1, 3, "costs")),
        ],
    )
    def test_is_students_over_the_seeds_and_the_whole_interval_has_to_lie_on_one_side(self, values, expected):
        found = gaps.estimate(values)
        ends = [None if end is None else pytest.approx(end, abs=1e-3) for end in expected[:3]]
        assert [found.value, found.low, found.high, found.seeds, found.verdict] == [*ends, *expected[3:]]

    def test_ratios_are_put_together_by_their_logarithms_and_of_no_seed_there_is_nothing(self):
        found = gaps.estimate([0.5, 2.0], ratios=True)
        assert found.value == pytest.approx(0)
        assert (1 + found.low) * (1 + found.high) == pytest.approx(1)
        assert gaps.estimate([]) is None
        assert gaps.estimate([], ratios=True) is None


@pytest.mark.thorough
def test_the_interval_holds_the_truth_where_validations_of_a_training_depend_on_each_other():
    """Over 3 seeds, where a mode changes nothing: 95 of 100 intervals contain 0. Were the validations of the last
    quarter counted as so many seeds, their intervals would be too narrow.
    """
    random = Random(0)
    draws, contain, pooled_contain = 1000, 0, 0
    for _ in range(draws):
        pairs = [(wandering(random), [(float(step), 2.0) for step in range(0, 9)]) for _ in range(3)]
        found = gaps.estimate(gaps.gap_in_the_end(*pair) for pair in pairs)
        pooled = gaps.estimate(loss - 2.0 for mine, _ in pairs for _, loss in mine[-3:])
        contain += found.low <= 0 <= found.high
        pooled_contain += pooled.low <= 0 <= pooled.high

    assert 0.93 < contain / draws < 0.97
    assert pooled_contain / draws < 0.85


def wandering(random):
    """A curve of 8 validations about 2 nats, each of which has most of what the one before it had."""
    points, noise = [], random.gauss(0, 0.05)
    for step in range(9):
        points.append((float(step), 2.0 + noise))
        noise = 0.8 * noise + 0.6 * random.gauss(0, 0.05)
    return points


@pytest.mark.thorough
@pytest.mark.parametrize(("seeds", "least", "most"), [(3, 0.35, 4.2), (5, 0.49, 2.4), (10, 0.63, 1.7)])
def test_how_wide_an_interval_is_beside_that_of_many_seeds_is_as_documented(seeds, least, most):
    from scipy.stats import chi2, norm, t

    freedom = seeds - 1
    of_many = norm.ppf(0.975)
    ends = [t.ppf(0.975, freedom) / of_many * math.sqrt(chi2.ppf(p, freedom) / freedom) for p in (0.025, 0.975)]
    page = (ROOT / "docs" / "converge.md").read_text()

    assert ends == [pytest.approx(least, abs=0.005), pytest.approx(most, abs=0.05)]
    assert f"| {seeds} | {least:g} to {most:g} times" in page


@pytest.mark.parametrize(
    ("losses", "train", "expected"),
    [
        ((5.0, 6.0, 4.0), None, None),
        ((5.0, 4.0, None), (3.0, 3.0, None, None), (3, "not finite")),
        ((5.0, 4.0, None), None, (4, "not finite")),
        ((5.0, 4.0, 5.01), None, (4, "above the start")),
    ],
)
def test_a_loss_that_is_not_finite_or_above_the_start_is_divergence(losses, train, expected):
    found = gaps.divergence(curve(*losses, train=train), 7)
    assert (found and (found.seed, found.step, found.why)) == (expected and (7, *expected))


class TestCurves:
    @given(
        steps=st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
        losses=st.lists(st.floats(0.1, 10), min_size=9, max_size=9),
        part=st.floats(0, 1),
    )
    def test_between_two_validations_it_is_scipys_monotone_cubic(self, steps, losses, part):
        from scipy.interpolate import PchipInterpolator

        points = list(zip([0.0, *accumulate(steps)], losses, strict=False))
        spent = part * points[-1][0]
        expected = float(PchipInterpolator(*zip(*points, strict=True))(spent))
        assert gaps.loss_at(points, spent) == pytest.approx(expected, rel=1e-9, abs=1e-9)

    @pytest.mark.parametrize(
        ("losses", "loss", "spent"),
        [
            *[((5.0, 4.0, 3.0), *found) for found in ((4.5, 0.5), (4.0, 1.0), (3.0, 2.0), (2.9, None), (5.0, None))],
            # A curve that rises again counts from where it first was there.
            ((5.0, 4.0, 4.5, 3.0), 4.0, 1.0),
        ],
    )
    def test_what_was_spent_when_a_loss_was_first_reached(self, losses, loss, spent):
        assert gaps.spent_to(gaps.points(curve(*losses), 1.0), loss) == (spent and pytest.approx(spent))


SLOW = curve(5.0, 4.0, 3.0)
"""It falls by 1 a second."""
FAST = curve(5.0, 4.0, 3.0, step_s=0.25)


class TestGaps:
    @pytest.mark.parametrize(
        ("ours", "reference", "gap"),
        [
            # At equal steps, losses of the same step are compared.
            (gaps.points(curve(5.3, 4.3, 3.3, step_s=0.25)), gaps.points(SLOW), 0.3),
            # At equal time, the faster one has come further: by 0.75 to 1 in the last quarter of the first second.
            (gaps.points(FAST, 1.0), gaps.points(SLOW, 1.0), -0.875),
            # Three times as dear, for the reference's 2 USD it falls by 4 / 3, and not by 2.
            (gaps.points(FAST, 3.0), gaps.points(SLOW, 1.0), 2 / 3 * 0.875),
        ],
    )
    def test_what_is_equal_is_steps_time_or_money(self, ours, reference, gap):
        assert gaps.gap_in_the_end(ours, reference) == pytest.approx(gap)

    def test_to_the_same_loss_is_to_one_that_both_came_to_and_without_one_that_fell_there_is_none(self):
        """By 1.6 a second and by 1; ours ends at 3.4, the reference at 3.0."""
        ours, reference = gaps.points(curve(5.0, 4.2, 3.4, step_s=0.25), 1.0), gaps.points(SLOW, 1.0)
        assert gaps.ratio_to_same_loss(ours, reference) == pytest.approx(1 / 1.6)
        assert gaps.ratio_to_same_loss(reference, ours) == pytest.approx(1.6)
        assert gaps.ratio_to_same_loss(gaps.points(FAST, 3.0), reference) == pytest.approx(1.5)
        flat = gaps.points(curve(5.0, 5.0))
        assert gaps.ratio_to_same_loss(flat, flat) is None

"""Whether a mode has become slower than is allowed."""

import numpy as np
import pytest
from built_samples import steps_about

from fp8bench.stats.estimate import estimate
from fp8bench.stats.ratio import ratio, regression


def of(*step_times_s):
    return estimate([steps_about(step_time_s) for step_time_s in step_times_s])


REFERENCE = of(0.1, 0.1002, 0.0999, 0.1)


@pytest.mark.parametrize(
    ("times", "judgement"),
    [
        ((0.1, 0.1001, 0.0998, 0.1), "ok"),
        ((0.08, 0.0801, 0.0799, 0.08), "ok"),
        ((0.102, 0.1021, 0.1019, 0.102), "ok"),
        ((0.103, 0.1031, 0.1029, 0.103), "inconclusive"),
        ((0.105, 0.1051, 0.1049, 0.105), "regression"),
        ((0.1, 0.12, 0.1, 0.12), "inconclusive"),
    ],
)
def test_the_whole_interval_decides_on_one_side_of_what_is_allowed(times, judgement):
    found = regression(of(*times), REFERENCE, 0.03)
    assert found.judgement == judgement
    assert (found.why is None) == (judgement != "inconclusive")


def test_its_ratio_and_interval_are_those_of_every_comparison():
    ours = of(0.105, 0.1051, 0.1049, 0.105)
    found, held = regression(ours, REFERENCE, 0.03), ratio(ours, REFERENCE)
    assert (found.value, found.low, found.high) == (held.value, held.low, held.high)
    assert found.value == pytest.approx(1.05, rel=0.001)


def test_one_process_or_too_few_steps_decide_nothing_however_slow():
    assert regression(of(0.2), REFERENCE, 0.03).why == "one process is not a measurement"
    short = estimate([[0.2, 0.2, 0.2]] * 4)
    found = regression(short, REFERENCE, 0.03)
    assert (found.judgement, found.low, found.why) == ("inconclusive", None, "too few steps for an interval")


@pytest.mark.parametrize("allowed", [-0.01, 1.0, float("nan")])
def test_what_is_allowed_is_a_share(allowed):
    with pytest.raises(ValueError, match="share"):
        regression(REFERENCE, REFERENCE, allowed)


@pytest.mark.thorough
@pytest.mark.slow
def test_equal_modes_fail_hardly_ever_and_a_slow_down_well_beyond_the_limit_nearly_always():
    rng = np.random.default_rng(3)

    def drawn(true_s):
        centres = true_s * (1 + 0.01 * rng.standard_normal(4))
        return estimate([centre * (1 + 0.01 * rng.standard_normal(40)) for centre in centres], replicates=50)

    equal = [regression(drawn(0.1), drawn(0.1), 0.03).judgement for _ in range(200)]
    slower = [regression(drawn(0.11), drawn(0.1), 0.03).judgement for _ in range(100)]
    assert equal.count("regression") <= 1
    assert slower.count("regression") >= 90
    assert slower.count("ok") == 0

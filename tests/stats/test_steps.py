"""The slowest rank makes a step, and the median stands for a process."""

import pytest
from builders import measured, profile, rank_samples, summary

from fp8bench.stats.steps import (
    bottleneck,
    bottleneck_of,
    idle_share_of,
    longest_rank,
    slow_steps,
    slowest_rank,
    straggler,
)


def test_a_step_is_the_slowest_ranks_and_a_process_the_rank_whose_steps_add_up_to_most():
    several = [[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]
    assert (slowest_rank(several), longest_rank(several)) == ([2.0, 5.0, 3.5], [2.0, 4.0, 3.5])
    rows = [[1.0, 1.0, 4.0], [1.0, 3.0, 1.0], [3.0, 1.0, 1.0]]
    assert (slowest_rank(rows), longest_rank(rows)) == ([3.0, 3.0, 4.0], rows[0])
    for of, shorter in ((slowest_rank, "shorter"), (longest_rank, "different steps")):
        with pytest.raises(ValueError, match="no rank"):
            of([])
        with pytest.raises(ValueError, match=shorter):
            of([[1.0, 2.0], [1.0]])


def test_slow_steps_are_slow_beside_the_median_which_one_late_step_does_not_move():
    assert slow_steps([1.0, 1.0, 1.0, 1.0, 90.0]) == 1
    assert slow_steps([1.0, 1.45]) == 0
    assert slow_steps([1.0, 1.55]) == 1


@pytest.mark.parametrize(
    ("idle", "wait", "words"),
    [
        # A GPU that is busy is bound by nothing, however long its host then waits.
        *((idle, wait, "None") for idle in (0.0, 0.03, 0.099) for wait in (None, 0.0, 0.09, 0.9)),
        # One that is idle waits for data where that is most of it, and else for launches.
        (0.10, None, "host-bound (idle 10 %)"),
        (0.38, 0.0, "host-bound (idle 38 %)"),
        (0.45, 0.12, "host-bound (idle 45 %)"),
        (0.12, 0.10, "loader-bound (wait 10 %)"),
        (0.45, 0.23, "loader-bound (wait 23 %)"),
        # Where no idle time is known, as on a CPU, the wait tells.
        *((None, wait, "None") for wait in (None, 0.0, 0.09)),
        (None, 0.10, "loader-bound (wait 10 %)"),
    ],
)
def test_what_a_step_is_bound_by(idle, wait, words):
    assert str(bottleneck(idle, wait)) == words


TWO_RANKS = (rank_samples(0, (0.1, 0.1, 0.25)), rank_samples(1, (0.1, 0.1, 0.1)))
DEEP = profile(busy_s=0.985, by_category={"gemm_bf16": 0.985})


@pytest.mark.parametrize(
    ("of_record", "idle", "words"),
    [
        # Thirty thousand launches a step: the host is a full queue ahead, which is 3 % of the step.
        ((summary(1.0, host_lead_s=0.03, idle_share=None), DEEP, (rank_samples(0, (1.0,) * 3),)), 0.015, "None"),
        # An older one is told by its profile and its elapsed time: its summary's step time is a median.
        ((summary(0.1), profile(busy_s=0.09), TWO_RANKS), 1 - 0.09 / 0.15, "host-bound (idle 40 %)"),
        ((summary(0.2), profile(busy_s=0.09), ()), 0.55, "host-bound (idle 55 %)"),
        ((summary(0.1, host_lead_s=0.0), None, ()), None, "None"),
        ((summary(0.2), profile(device="cpu"), ()), None, "None"),
    ],
    ids=["a deep model", "an older record", "no samples", "no profile", "a CPU"],
)
def test_what_a_record_is_bound_by(of_record, idle, words):
    record = measured(**dict(zip(("summary", "profile", "samples"), of_record, strict=True)))
    assert idle_share_of(record) == (None if idle is None else pytest.approx(idle))
    assert str(bottleneck_of(record)) == words


def samples(rank=0, step_s=0.1, steps=12, **parts):
    """parts: what each step spends in one."""
    parts = {"data_wait_s": 0.0, "forward_s": None, **parts}
    series = {name: None if each_s is None else (each_s,) * steps for name, each_s in parts.items()}
    return rank_samples(rank, (step_s,) * steps, **series)


@pytest.mark.parametrize(
    ("late", "where"),
    [
        ({"forward_s": 0.045}, "in its forward pass"),
        ({"data_wait_s": 0.015, "forward_s": 0.03}, "waiting for data"),
        ({"data_wait_s": 0.015, "forward_s": 0.045}, "waiting for data"),
    ],
)
def test_the_rank_that_is_late_before_it_meets_the_others_is_named_though_all_steps_last_as_long(late, where):
    found = straggler([samples(rank, forward_s=0.03) for rank in range(3)] + [samples(3, **late)])
    assert (found.rank, found.where, found.share) == (3, where, pytest.approx(0.15))
    assert str(found) == f"spends 15 % of a step more than the other ranks {where}"


def test_where_ranks_do_not_meet_the_one_with_longer_steps_is_named_and_nobody_for_one_late_or_few_steps():
    found = straggler([samples(0), samples(1, step_s=0.125)])
    assert (found.rank, found.where, found.share) == (1, "in its steps", pytest.approx(0.2))
    one = samples(1)
    once = one.model_copy(update={"data_wait_s": (5.0, *one.data_wait_s[1:])})
    assert straggler([samples(0), once]) is None
    assert straggler([samples(0), samples(1, step_s=0.2, steps=9)][1:]) is None
    assert straggler([samples(0, steps=9), samples(1, step_s=0.2, steps=9)]) is None
    assert straggler([samples(rank, forward_s=0.03) for rank in range(4)]) is None

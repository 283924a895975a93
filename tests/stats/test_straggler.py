"""Which rank holds up the others, where ranks meet in every step and where they do not."""

import pytest
from builders import rank_report

from fp8bench.stats.straggler import straggler


def samples(rank=0, step_s=0.1, forward_s=None, data_wait_s=0.0, steps=12):
    report = rank_report(rank, (step_s,) * steps)
    return report.samples.model_copy(
        update={
            "rank": rank,
            "data_wait_s": (data_wait_s,) * steps,
            "forward_s": None if forward_s is None else (forward_s,) * steps,
        }
    )


def test_ranks_that_are_alike_name_nobody():
    assert straggler([samples(rank, forward_s=0.03) for rank in range(4)]) is None


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


def test_where_ranks_do_not_meet_the_one_with_longer_steps_is_named():
    found = straggler([samples(0), samples(1, step_s=0.125)])
    assert (found.rank, found.where, found.share) == (1, "in its steps", pytest.approx(0.2))


def test_a_step_that_was_late_once_names_nobody():
    one = samples(1)
    once = one.model_copy(update={"data_wait_s": (5.0, *one.data_wait_s[1:])})
    assert straggler([samples(0), once]) is None


def test_few_steps_and_a_single_rank_name_nobody():
    assert straggler([samples(0), samples(1, step_s=0.2, steps=9)][1:]) is None
    assert straggler([samples(0, steps=9), samples(1, step_s=0.2, steps=9)]) is None

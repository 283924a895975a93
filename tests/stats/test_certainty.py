"""What so few processes cannot have shown, and when a precision is reached."""

import pytest

from fp8bench.stats.certainty import FEWEST_ROUNDS, reached, unseen_share
from fp8bench.stats.estimate import estimate


def test_a_state_of_that_share_is_missed_by_all_in_one_case_of_twenty_and_no_process_shows_any():
    for processes, share in ((1, 0.95), (4, 0.5271), (14, 0.1926), (59, 0.0495)):
        assert unseen_share(processes) == pytest.approx(share, abs=1e-4)
        assert (1 - unseen_share(processes)) ** processes == pytest.approx(0.05)
    assert unseen_share(FEWEST_ROUNDS) <= 0.2 < unseen_share(FEWEST_ROUNDS - 1), "of one process in five"
    with pytest.raises(ValueError, match="at least one process"):
        unseen_share(0)


def agreeing(processes, by=0.001):
    """Processes that differ by so much, there and back."""
    return estimate(1 + by * (place % 2) for place in range(processes))


def test_it_is_reached_once_enough_processes_agree_and_by_every_mode_after_pairs_of_rounds_alone():
    assert reached([agreeing(FEWEST_ROUNDS)], 0.01)
    assert not reached([agreeing(FEWEST_ROUNDS - 2)], 0.01)
    assert not reached([agreeing(FEWEST_ROUNDS), agreeing(FEWEST_ROUNDS, by=0.2)], 0.01)
    assert not reached([agreeing(FEWEST_ROUNDS + 1)], 0.01)
    for unknown in (None, estimate([1.0])):
        assert not reached([agreeing(FEWEST_ROUNDS), unknown], 0.5)

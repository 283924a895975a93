"""A precision is reached by all modes together, after enough processes, and never by half a pair of rounds."""

import pytest

from fp8bench.stats.certainty import FEWEST_ROUNDS, reached
from fp8bench.stats.estimate import Estimate, estimate


def agreeing(processes: int, by: float = 0.001) -> Estimate:
    """Processes that differ by so much, there and back."""
    return estimate(1 + by * (place % 2) for place in range(processes))


def test_processes_that_agree_reach_it_once_there_are_enough() -> None:
    assert reached([agreeing(FEWEST_ROUNDS)], 0.01)
    assert not reached([agreeing(FEWEST_ROUNDS - 2)], 0.01)


def test_one_mode_that_has_it_not_keeps_all_of_them_going() -> None:
    assert not reached([agreeing(FEWEST_ROUNDS), agreeing(FEWEST_ROUNDS, by=0.2)], 0.01)


def test_half_a_pair_of_rounds_is_not_looked_at() -> None:
    assert not reached([agreeing(FEWEST_ROUNDS + 1)], 0.01)


@pytest.mark.parametrize("unknown", [None, estimate([1.0])])
def test_what_has_no_interval_has_not_reached_it(unknown: Estimate | None) -> None:
    assert not reached([agreeing(FEWEST_ROUNDS), unknown], 0.5)

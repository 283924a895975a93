"""An A/A test passes an honest interval, and fails one that ignores how processes differ."""

import numpy as np
import pytest
from simulate import ROUNDS, ignoring_processes, situation_called

from fp8bench.stats.ratio import LIMIT, MOST_SPLITS, SelfCheck, differ, halves, self_check

TRIALS = 40


def processes(count: int) -> list[float]:
    return [1 + place / 100 for place in range(count)]


@pytest.mark.parametrize(("count", "splits"), [(4, 3), (6, 10), (8, 35)])
def test_every_split_into_halves_is_looked_at_once(count: int, splits: int):
    found = [frozenset(map(frozenset, pair)) for pair in halves(processes(count))]
    assert len(found) == len(set(found)) == splits
    assert all(len(half) == count // 2 for pair in found for half in pair)


def test_of_too_many_splits_always_the_same_ones_are_drawn():
    one, other = list(halves(processes(14))), list(halves(processes(14)))
    assert one == other
    assert len(one) == MOST_SPLITS
    assert all(len(half) == 7 for pair in one for half in pair)


def test_modes_are_judged_together():
    assert self_check([processes(8), processes(6)], differ).splits == 45


@pytest.mark.parametrize("wrong", [[], [processes(2)], [processes(8), processes(5)]])
def test_too_few_or_an_odd_number_of_processes_is_an_error(wrong: list[list[float]]):
    with pytest.raises(ValueError, match="even number"):
        self_check(wrong, differ)


def test_the_limit_is_a_share_of_the_splits():
    assert SelfCheck(35, int(35 * LIMIT)).passed
    assert not SelfCheck(35, int(35 * LIMIT) + 1).passed


@pytest.mark.parametrize("host", ["processes differ by 1 %", "processes differ by 3 %"])
def test_it_fails_an_interval_that_ignores_processes_and_passes_the_tools_own(host: str):
    random, situation = np.random.default_rng(1), situation_called(host)
    made = [situation.make(random, 2 * ROUNDS, 100) for _ in range(TRIALS)]
    assert sum(not self_check([each.tolist()], ignoring_processes).passed for each in made) >= 0.95 * TRIALS
    assert sum(not self_check([each.mean(axis=1).tolist()], differ).passed for each in made) <= 0.05 * TRIALS

"""What so few processes cannot have shown."""

import pytest

from fp8bench.stats.certainty import processes_to_see, unseen_share


@pytest.mark.parametrize(("processes", "share"), [(1, 0.95), (4, 0.5271), (14, 0.1926), (59, 0.0495)])
def test_a_state_of_that_share_is_missed_by_all_in_one_case_of_twenty(processes: int, share: float) -> None:
    assert unseen_share(processes) == pytest.approx(share, abs=1e-4)
    assert (1 - unseen_share(processes)) ** processes == pytest.approx(0.05)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5, 0.9])
def test_so_many_processes_show_it_and_one_less_may_not(share: float) -> None:
    needed = processes_to_see(share)

    assert (1 - share) ** needed <= 0.05 < (1 - share) ** (needed - 1)


def test_one_in_five_needs_fourteen() -> None:
    assert processes_to_see(0.2) == 14


def test_nothing_can_be_said_of_no_process_nor_of_a_share_that_is_none() -> None:
    with pytest.raises(ValueError, match="at least one process"):
        unseen_share(0)
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            processes_to_see(share)

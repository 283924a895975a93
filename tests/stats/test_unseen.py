"""What so few processes cannot show."""

import pytest

from fp8bench.stats.unseen import unseen_share


@pytest.mark.parametrize(("processes", "share"), [(1, 0.95), (2, 0.776), (3, 0.632), (6, 0.393), (58, 0.0503)])
def test_a_state_of_that_share_is_missed_once_in_twenty(processes, share):
    found = unseen_share(processes)

    assert found == pytest.approx(share, abs=5e-4)
    assert (1 - found) ** processes == pytest.approx(0.05)


def test_no_process_sees_nothing():
    with pytest.raises(ValueError, match="at least one process"):
        unseen_share(0)

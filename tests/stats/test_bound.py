"""Whether the host or the loader holds a run back: by the host's lead on a GPU, by the wait alone on a CPU."""

import pytest
from builders import summary

from fp8bench.stats.bound import bound_by


def found(lead: float | None, wait: float | None) -> str | None:
    """The words for a step of 0.1 s. lead, wait: shares of it."""
    bound = bound_by(summary(0.1, host_lead_s=None if lead is None else 0.1 * lead, data_wait_share=wait))
    return str(bound) if bound else None


@pytest.mark.parametrize("wait", [None, 0.0, 0.09, 0.9])
@pytest.mark.parametrize("lead", [0.16, 0.26, 2.0])
def test_a_host_that_runs_ahead_binds_nothing_however_long_it_then_waits(lead, wait):
    assert found(lead, wait) is None


@pytest.mark.parametrize(
    ("lead", "wait", "words"),
    [
        (0.02, None, "host-bound (lead 2 %)"),
        (0.02, 0.0, "host-bound (lead 2 %)"),
        (0.14, 0.09, "host-bound (lead 14 %)"),
        (0.02, 0.10, "loader-bound (wait 10 %)"),
        (0.14, 0.62, "loader-bound (wait 62 %)"),
    ],
)
def test_a_gpu_that_catches_up_waits_for_data_where_the_host_does_and_else_for_launches(lead, wait, words):
    assert found(lead, wait) == words


def test_a_gpu_that_is_ahead_of_its_host_is_host_bound_too():
    assert found(-0.01, 0.0) == "host-bound (lead -1 %)"


@pytest.mark.parametrize(
    ("wait", "words"),
    [(None, None), (0.0, None), (0.24, None), (0.25, "loader-bound (wait 25 %)"), (0.8, "loader-bound (wait 80 %)")],
)
def test_without_a_lead_as_on_a_cpu_only_a_long_wait_tells(wait, words):
    assert found(None, wait) == words


def test_the_share_is_that_of_the_thing_that_binds():
    host = bound_by(summary(0.1, host_lead_s=0.003, data_wait_share=0.01))
    loader = bound_by(summary(0.1, host_lead_s=0.003, data_wait_share=0.4))

    assert host is not None
    assert loader is not None
    assert (host.label, host.share) == ("host-bound", pytest.approx(0.03))
    assert (loader.label, loader.share) == ("loader-bound", 0.4)

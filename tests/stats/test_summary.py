"""A summary is drawn from the slowest rank of each step, over the work of all ranks together."""

import statistics

import pytest
from builders import rank_samples, workload_facts
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.schema.record import RankSamples
from fp8bench.stats.steps import median_interval
from fp8bench.stats.summary import summarize

seconds = st.floats(min_value=1e-6, max_value=1e3)


def ranks_with(*step_s: tuple[float, ...]) -> list[RankSamples]:
    """One rank for each row of step times; host time and data wait are zero."""
    return [
        rank_samples(rank, step_s=times, host_s=(0.0,) * len(times), data_wait_s=(0.0,) * len(times))
        for rank, times in enumerate(step_s)
    ]


def test_the_step_time_is_the_median_of_slowest_ranks_and_not_of_pooled_times() -> None:
    rows = ((1.0, 1.0, 3.0), (1.0, 3.0, 1.0), (3.0, 1.0, 1.0))
    pooled = statistics.median(time for row in rows for time in row)
    slowest_of_medians = max(map(statistics.median, rows))

    summary = summarize(ranks_with(*rows), workload_facts())

    assert summary.step_time_s == 3.0
    assert pooled == slowest_of_medians == 1.0


def test_the_interval_is_of_the_slowest_ranks_steps() -> None:
    early = tuple(float(i) for i in range(1, 13))
    late = tuple(float(i) for i in range(12, 0, -1))

    summary = summarize(ranks_with(early, late), workload_facts())

    assert summary.step_time_ci_s == median_interval([12, 11, 10, 9, 8, 7, 7, 8, 9, 10, 11, 12])
    assert summary.step_time_ci_s == (8.0, 11.0)


def test_too_few_steps_have_a_step_time_and_no_interval() -> None:
    summary = summarize(ranks_with((1.0, 2.0, 3.0)), workload_facts())

    assert summary.step_time_s == 2.0
    assert summary.step_time_ci_s is None


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_units_and_flops_are_those_of_all_ranks(world_size: int) -> None:
    facts = workload_facts(batch_size=64, flops_per_step=1000)

    summary = summarize(ranks_with(*[(0.5,)] * world_size), facts)

    assert summary.unit == "images"
    assert summary.units_per_step == 64 * world_size
    assert summary.flops_per_step == 1000 * world_size
    assert summary.throughput_per_s == 128 * world_size


def test_the_articles_step_gives_the_articles_throughput() -> None:
    summary = summarize(ranks_with(*[(0.41,)] * 8), workload_facts(batch_size=64))

    assert summary.throughput_per_s == pytest.approx(1248.78, abs=0.01)


def test_data_wait_and_host_time_are_medians_of_the_slowest_rank() -> None:
    samples = [
        rank_samples(0, step_s=(2.0,) * 3, data_wait_s=(0.5, 0.1, 0.1), host_s=(1.0, 1.0, 0.2)),
        rank_samples(1, step_s=(2.0,) * 3, data_wait_s=(0.1, 0.5, 0.1), host_s=(0.2, 1.5, 0.2)),
    ]

    summary = summarize(samples, workload_facts())

    assert summary.data_wait_s == 0.5
    assert summary.data_wait_share == 0.25
    assert summary.host_s == 1.0


def test_the_losses_are_rank_0s_first_and_last_with_the_warm_up_counted() -> None:
    samples = [rank_samples(0, loss=(6.0, 5.0, None, 4.0)), rank_samples(1, loss=(60.0, 50.0, 40.0, 30.0))]

    summary = summarize(samples, workload_facts())

    assert (summary.loss_first, summary.loss_last) == (6.0, 4.0)


def test_a_loss_that_was_not_finite_is_null() -> None:
    summary = summarize([rank_samples(loss=(6.0, None))], workload_facts())

    assert summary.loss_last is None


def test_ranks_that_counted_different_steps_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        summarize(ranks_with((1.0, 2.0), (1.0,)), workload_facts())


def test_no_rank_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rank"):
        summarize([], workload_facts())


@settings(deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda steps: st.lists(st.tuples(*[seconds] * steps), min_size=1, max_size=4),
    ),
    st.integers(1, 512),
)
def test_throughput_is_the_global_batch_over_the_step_time(rows: list[tuple[float, ...]], batch_size: int) -> None:
    summary = summarize(ranks_with(*rows), workload_facts(batch_size))

    assert summary.units_per_step == batch_size * len(rows)
    assert summary.throughput_per_s * summary.step_time_s == pytest.approx(batch_size * len(rows))


@settings(deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda steps: st.lists(st.tuples(*[seconds] * steps), min_size=1, max_size=4),
    )
)
def test_the_run_is_never_faster_than_any_of_its_ranks(rows: list[tuple[float, ...]]) -> None:
    summary = summarize(ranks_with(*rows), workload_facts())

    assert all(summary.step_time_s >= statistics.median(row) for row in rows)

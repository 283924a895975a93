"""A summary is drawn from the slowest rank of each step, over the work of all ranks together, and from what the GPUs
did meanwhile.
"""

import statistics

import pytest
from builders import rank_samples, steps_about, telemetry, workload_facts
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.schema.record import RankSamples
from fp8bench.schema.telemetry import RankTelemetry
from fp8bench.stats.estimate import estimate
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

    found = estimate([[12, 11, 10, 9, 8, 7, 7, 8, 9, 10, 11, 12]])
    assert (summary.step_time_s, summary.step_time_ci_s) == (found.value, (found.low, found.high))
    assert found.low is not None
    assert found.low < 9.5


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


def test_the_parts_of_a_step_are_medians_of_the_slowest_rank_too() -> None:
    parts = {"forward_s": (0.3, 0.5, 0.3), "backward_s": (1.0, 1.0, 1.2), "optimizer_s": (0.1, 0.1, 0.1)}
    later = {"forward_s": (0.5, 0.3, 0.3), "backward_s": (1.1, 0.9, 0.9), "optimizer_s": (0.1, 0.2, 0.2)}
    samples = [rank_samples(rank, step_s=(2.0,) * 3, **part) for rank, part in enumerate((parts, later))]

    summary = summarize(samples, workload_facts())

    assert (summary.forward_s, summary.backward_s, summary.optimizer_s) == (0.5, 1.1, 0.2)


def test_a_part_that_one_rank_does_not_know_is_unknown() -> None:
    summary = summarize([rank_samples(0), rank_samples(1, forward_s=None)], workload_facts())

    assert summary.forward_s is None
    assert summary.backward_s == pytest.approx(0.06)


def test_the_hosts_lead_is_that_of_the_rank_nearest_to_starving() -> None:
    leads = [rank_samples(0, host_lead_s=(0.03, 0.04, 0.05)), rank_samples(1, host_lead_s=(0.0, 0.001, 0.9))]

    assert summarize(leads, workload_facts()).host_lead_s == 0.001
    assert summarize([*leads, rank_samples(2)], workload_facts()).host_lead_s is None


def test_energy_is_that_of_all_gpus_over_the_units_of_all_timed_steps() -> None:
    ranks = ranks_with((0.1,) * 10, (0.1,) * 10)
    gpus = [telemetry(0, energy_j=6000.0), telemetry(1, energy_j=6800.0)]

    summary = summarize(ranks, workload_facts(batch_size=64), gpus, on_gpu=True)

    assert summary.joules_per_unit == pytest.approx(12_800 / (2 * 64 * 10))
    assert summary.units_per_kwh == pytest.approx(360_000)
    assert summary.sm_clock_mhz == 1755
    assert summary.flags == ()


def test_a_gpu_that_was_throttled_or_said_nothing_is_a_flag() -> None:
    hot = telemetry(0, throttle_reasons=(0x4, 0x20 | 0x4, 0x4, 0x4))
    silent = RankTelemetry(rank=1, warning="NVML: library not found")

    flags = summarize(ranks_with((0.1,), (0.1,)), workload_facts(), [hot, silent], on_gpu=True).flags

    assert flags == ("power-capped 100 % of the time", "throttled: hot 25 %", "telemetry missing on 1 of 2")


def test_where_nvml_is_missing_its_numbers_are_null_and_one_flag_says_so() -> None:
    silent = [RankTelemetry(rank=rank, warning="NVML: library not found") for rank in range(2)]

    summary = summarize(ranks_with((0.1,), (0.1,)), workload_facts(), silent, on_gpu=True)

    assert summary.joules_per_unit is summary.units_per_kwh is summary.sm_clock_mhz is None
    assert summary.flags == ("telemetry missing",)


def test_a_cpu_has_no_energy_and_misses_no_telemetry() -> None:
    summary = summarize(ranks_with((0.1,)), workload_facts())

    assert summary.joules_per_unit is summary.units_per_kwh is summary.sm_clock_mhz is None
    assert summary.flags == ()


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"recompilations": (0, 0)}, None),
        ({"recompilations": (None, None)}, None),
        ({"recompilations": (None, 2)}, "torch.compile recompiled 2 times while steps were timed"),
        ({"recompilations": (1, 0)}, "torch.compile recompiled once while steps were timed"),
        (
            {"allocator_retries": (0, 1)},
            "the GPU ran out of memory and the allocator retried once while steps were timed",
        ),
    ],
)
def test_what_one_rank_had_still_to_warm_up_makes_the_run_unsteady(counts: dict, said: str | None) -> None:
    ((name, values),) = counts.items()
    samples = [rank_samples(rank, steps_about(0.1), **{name: value}) for rank, value in enumerate(values)]

    steadiness = summarize(samples, workload_facts()).steadiness

    assert steadiness is not None
    assert steadiness.unsteady == said


def test_the_steadiness_is_of_the_slowest_ranks_steps() -> None:
    late = list(steps_about(0.1))
    late[4] = 0.5
    steadiness = summarize(ranks_with(steps_about(0.1), tuple(late)), workload_facts()).steadiness

    assert steadiness is not None
    assert 4 in steadiness.outliers


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

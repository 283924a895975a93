"""A summary is drawn from the rank that took longest, over the work of all ranks together, and from what the GPUs did
meanwhile.
"""

import pytest
from builders import profile, rank_samples, steps_about, telemetry, workload_facts
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.schema.rank import RankTelemetry
from fp8bench.stats.steps import summarize

seconds = st.floats(min_value=1e-6, max_value=1e3)


def ranks_with(*step_s):
    """One rank for each row of step times; host time and data wait are zero."""
    return [
        rank_samples(rank, step_s=times, host_s=(0.0,) * len(times), data_wait_s=(0.0,) * len(times))
        for rank, times in enumerate(step_s)
    ]


def test_the_step_time_is_the_elapsed_time_of_the_rank_that_took_longest_over_its_steps_without_an_interval():
    rows = ((1.0, 1.0, 4.0), (1.0, 3.0, 1.0), (3.0, 1.0, 1.0))
    summary = summarize(ranks_with(*rows), workload_facts(batch_size=4))
    assert (summary.step_time_s, summary.median_step_s, summary.step_time_ci_s) == (2.0, 1.0, None)
    assert summary.throughput_per_s == 3 * 4 * 3 / sum(rows[0])


@given(
    st.integers(1, 12).flatmap(lambda steps: st.lists(st.tuples(*[seconds] * steps), min_size=1, max_size=8)),
    st.integers(1, 512),
)
def test_units_flops_and_throughput_are_those_of_all_ranks(rows, batch_size):
    summary = summarize(ranks_with(*rows), workload_facts(batch_size, flops_per_step=1000))
    assert (summary.unit, summary.units_per_step) == ("images", batch_size * len(rows))
    assert summary.flops_per_step == 1000 * len(rows)
    assert summary.throughput_per_s * summary.step_time_s == pytest.approx(batch_size * len(rows))


def test_host_time_and_the_parts_of_a_step_are_medians_of_the_slowest_rank():
    parts = {"forward_s": (0.3, 0.5, 0.3), "backward_s": (1.0, 1.0, 1.2), "optimizer_s": (0.1, 0.1, 0.1)}
    later = {"forward_s": (0.5, 0.3, 0.3), "backward_s": (1.1, 0.9, 0.9), "optimizer_s": (0.1, 0.2, 0.2)}
    host = ((1.0, 1.0, 0.2), (0.2, 1.5, 0.2))
    samples = [
        rank_samples(rank, step_s=(2.0,) * 3, host_s=host[rank], **part) for rank, part in enumerate((parts, later))
    ]
    summary = summarize(samples, workload_facts())
    assert (summary.host_s, summary.forward_s, summary.backward_s, summary.optimizer_s) == (1.0, 0.5, 1.1, 0.2)
    # Those of a replayed step are read from a few replays of their own.
    parts = {"forward_s": (0.3, 0.5), "backward_s": (1.0, 1.2), "optimizer_s": None}
    summary = summarize([rank_samples(rank, step_s=(2.0,) * 30, **parts) for rank in range(2)], workload_facts())
    assert (summary.forward_s, summary.backward_s, summary.optimizer_s) == (0.4, 1.1, None)


def test_data_wait_is_all_that_the_rank_that_waited_longest_did_over_the_elapsed_time():
    """One wait in eight steps, as from a loader whose eight processes deliver at once: its median is 0."""
    samples = [
        rank_samples(0, step_s=(2.0,) * 16, data_wait_s=(4.8, *(0.0,) * 7) * 2),
        rank_samples(1, step_s=(2.5,) * 16, data_wait_s=(0.1,) * 16),
    ]
    summary = summarize(samples, workload_facts())
    assert summary.data_wait_share == pytest.approx(9.6 / 40)
    assert summary.data_wait_s == pytest.approx(0.6)


def test_the_idle_share_is_of_rank_0s_gpu_and_of_no_cpu():
    samples = ranks_with((0.1, 0.1, 0.2, 0.2))
    busy = profile(busy_s=0.09)
    assert summarize(samples, workload_facts(), profile=busy).idle_share == pytest.approx(0.4)
    assert summarize(samples, workload_facts(), profile=profile(busy_s=0.16)).idle_share == 0.0
    assert summarize(samples, workload_facts(), profile=profile(device="cpu")).idle_share is None
    assert summarize(samples, workload_facts()).idle_share is None


def test_what_one_rank_does_not_know_or_has_no_sample_of_is_unknown_and_the_hosts_lead_is_the_least():
    summary = summarize([rank_samples(0), rank_samples(1, forward_s=None)], workload_facts())
    assert (summary.forward_s, summary.backward_s) == (None, pytest.approx(0.06))
    for empty in ("forward_s", "host_lead_s"):
        samples = [rank_samples(rank, **{"host_lead_s": (0.1, 0.1, 0.1), empty: ()}) for rank in range(2)]
        assert getattr(summarize(samples, workload_facts()), empty) is None
    leads = [rank_samples(0, host_lead_s=(0.03, 0.04, 0.05)), rank_samples(1, host_lead_s=(0.0, 0.001, 0.9))]
    assert summarize(leads, workload_facts()).host_lead_s == 0.001
    assert summarize([*leads, rank_samples(2)], workload_facts()).host_lead_s is None


def test_energy_is_that_of_all_gpus_over_the_units_of_all_timed_steps_and_flags_are_of_gpus_alone():
    ranks = ranks_with((0.1,) * 10, (0.1,) * 10)
    gpus = [telemetry(0, energy_j=6000.0), telemetry(1, energy_j=6800.0)]
    summary = summarize(ranks, workload_facts(batch_size=64), gpus, on_gpu=True)
    assert (summary.joules_per_unit, summary.units_per_kwh) == pytest.approx((12_800 / (2 * 64 * 10), 360_000))
    assert (summary.sm_clock_mhz, summary.flags) == (1755, ())
    hot = telemetry(0, throttle_reasons=(0x4, 0x20 | 0x4, 0x4, 0x4))
    silent = RankTelemetry(rank=1, warning="NVML: library not found")
    flags = summarize(ranks, workload_facts(), [hot, silent], on_gpu=True).flags
    assert flags == ("power-capped 100 % of the time", "throttled: hot 25 %", "telemetry missing on 1 of 2")
    of_cpu = summarize(ranks, workload_facts())
    assert of_cpu.joules_per_unit is of_cpu.units_per_kwh is of_cpu.sm_clock_mhz is None
    assert of_cpu.flags == ()


def test_the_steadiness_is_of_the_rank_that_took_longest_and_what_any_had_to_warm_up_and_losses_are_rank_0s():
    late = list(steps_about(0.1))
    late[4] = 0.5
    ranks = ranks_with(steps_about(0.1), tuple(late))
    assert 4 in summarize(ranks, workload_facts()).steadiness.outliers
    for name, counts, said in (
        ("recompilations", (None, None), None),
        ("recompilations", (None, 2), "torch.compile recompiled 2 times"),
        ("allocator_retries", (0, 1), "the GPU ran out of memory and the allocator retried once"),
    ):
        samples = [rank_samples(rank, steps_about(0.1), **{name: count}) for rank, count in enumerate(counts)]
        assert summarize(samples, workload_facts()).steadiness.unsteady == (said and f"{said} while steps were timed")
    samples = [rank_samples(0, loss=(6.0, 5.0, None, 4.0)), rank_samples(1, loss=(60.0, 50.0, 40.0, 30.0))]
    summary = summarize(samples, workload_facts())
    assert (summary.loss_first, summary.loss_last) == (6.0, 4.0)

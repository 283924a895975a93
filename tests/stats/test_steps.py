"""How many steps are timed, what is drawn from them, and what holds a run back."""

import pytest
from builders import measured, profile, rank_samples, steps_about, summary, telemetry, workload_facts

from fp8bench.schema.rank import RankTelemetry
from fp8bench.stats.steps import (
    MOST_STEPS,
    Length,
    bottleneck,
    bottleneck_of,
    longest_rank,
    slow_steps,
    slowest_rank,
    steps_in_all,
    straggler,
    summarize,
    timed_steps,
)


def test_a_step_is_the_slowest_ranks_and_a_process_the_rank_whose_steps_add_up_to_most():
    several = [[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]
    assert (slowest_rank(several), longest_rank(several)) == ([2.0, 5.0, 3.5], [2.0, 4.0, 3.5])
    rows = [[1.0, 1.0, 4.0], [1.0, 3.0, 1.0], [3.0, 1.0, 1.0]]
    assert (slowest_rank(rows), longest_rank(rows)) == ([3.0, 3.0, 4.0], rows[0])
    for of, shorter in ((slowest_rank, "shorter"), (longest_rank, "different steps")):
        with pytest.raises(ValueError, match="no rank"):
            of([])
        with pytest.raises(ValueError, match=shorter):
            of([[1.0, 2.0], [1.0]])
    assert [slow_steps(each) for each in ([1.0, 1.0, 1.0, 1.0, 90.0], [1.0, 1.45], [1.0, 1.55])] == [1, 0, 1]


@pytest.mark.parametrize(
    ("idle", "wait", "words"),
    [
        # A GPU that is busy is bound by nothing, however long its host then waits.
        *((idle, wait, "None") for idle in (0.0, 0.03, 0.099) for wait in (None, 0.0, 0.09, 0.9)),
        # One that is idle waits for data where that is most of it, and else for launches.
        (0.10, None, "host-bound (idle 10 %)"),
        (0.38, 0.0, "host-bound (idle 38 %)"),
        (0.45, 0.12, "host-bound (idle 45 %)"),
        (0.12, 0.10, "loader-bound (wait 10 %)"),
        (0.45, 0.23, "loader-bound (wait 23 %)"),
        # Where no idle time is known, as on a CPU, the wait tells.
        *((None, wait, "None") for wait in (None, 0.0, 0.09)),
        (None, 0.10, "loader-bound (wait 10 %)"),
    ],
)
def test_what_a_step_is_bound_by(idle, wait, words):
    assert str(bottleneck(idle, wait)) == words


TWO_RANKS = (rank_samples(0, (0.1, 0.1, 0.25)), rank_samples(1, (0.1, 0.1, 0.1)))
DEEP = profile(busy_s=0.985, by_category={"gemm_bf16": 0.985})


@pytest.mark.parametrize(
    ("summary", "profile", "samples", "words"),
    [
        # Thirty thousand launches a step: the host is a full queue ahead, which is 3 % of the step.
        (summary(1.0, host_lead_s=0.03, idle_share=None), DEEP, (rank_samples(0, (1.0,) * 3),), "None"),
        # An older one is told by its profile and its elapsed time: its summary's step time is a median.
        (summary(0.1), profile(busy_s=0.09), TWO_RANKS, "host-bound (idle 40 %)"),
        (summary(0.2), profile(busy_s=0.09), (), "host-bound (idle 55 %)"),
        (summary(0.1, host_lead_s=0.0), None, (), "None"),
        (summary(0.2), profile(device="cpu"), (), "None"),
    ],
    ids=["a deep model", "an older record", "no samples", "no profile", "a CPU"],
)
def test_what_a_record_is_bound_by(summary, profile, samples, words):
    assert str(bottleneck_of(measured(summary=summary, profile=profile, samples=samples))) == words


def samples(rank=0, step_s=0.1, steps=12, **parts):
    """parts: what each step spends in one."""
    parts = {"data_wait_s": 0.0, "forward_s": None, **parts}
    series = {name: None if each_s is None else (each_s,) * steps for name, each_s in parts.items()}
    return rank_samples(rank, (step_s,) * steps, **series)


def test_the_rank_that_is_late_before_it_meets_the_others_is_named_though_all_steps_last_as_long():
    for late, where in (
        ({"forward_s": 0.045}, "in its forward pass"),
        ({"data_wait_s": 0.015, "forward_s": 0.045}, "waiting for data"),
    ):
        found = straggler([samples(rank, forward_s=0.03) for rank in range(3)] + [samples(3, **late)])
        assert (found.rank, found.where, found.share) == (3, where, pytest.approx(0.15))
        assert str(found) == f"spends 15 % of a step more than the other ranks {where}"


def test_where_ranks_do_not_meet_the_one_with_longer_steps_is_named_and_nobody_for_one_late_or_few_steps():
    found = straggler([samples(0), samples(1, step_s=0.125)])
    assert (found.rank, found.where, found.share) == (1, "in its steps", pytest.approx(0.2))
    one = samples(1)
    once = one.model_copy(update={"data_wait_s": (5.0, *one.data_wait_s[1:])})
    assert straggler([samples(0), once]) is None
    assert straggler([samples(0), samples(1, step_s=0.2, steps=9)][1:]) is None
    assert straggler([samples(0, steps=9), samples(1, step_s=0.2, steps=9)]) is None
    assert straggler([samples(rank, forward_s=0.03) for rank in range(4)]) is None


@pytest.mark.parametrize(
    ("warmup_step_s", "steps", "min_time_s", "expected"),
    [
        pytest.param([0.1] * 11, 100, 0.0, 100, id="no time is asked for"),
        pytest.param([0.1] * 11, 100, 9.0, 100, id="the count is more"),
        pytest.param([60.0, 0.1, 0.1], 100, 30.0, 330, id="the time is more, after a first step that compiles"),
        pytest.param([60.0, 5.0, 5.0, *[0.1] * 5], 100, 30.0, 330, id="slow first steps"),
        pytest.param([0.1, 0.1, 0.1, 7.0, 0.1, 0.1], 100, 30.0, 330, id="one slow step"),
        pytest.param([60.0], 100, 30.0, 100, id="only the step that compiles"),
        pytest.param([], 7, 30.0, 7, id="no warm-up"),
        pytest.param([0.0] * 3, 7, 30.0, 7, id="a clock that stood still"),
    ],
)
def test_a_count_and_a_time_are_both_reached(warmup_step_s, steps, min_time_s, expected):
    assert timed_steps(Length(len(warmup_step_s), steps, min_time_s), warmup_step_s) == expected


def test_they_are_whole_queues_full_and_never_endless():
    assert timed_steps(Length(3, 100, 86400.0), [1e-9] * 3) == MOST_STEPS
    for queue, expected in ((0, 100), (1, 100), (4, 100), (32, 128), (160, 160)):
        assert timed_steps(Length(0, 100), [], queue) == expected


def test_a_process_runs_more_than_it_times_and_a_replayed_step_is_split_in_steps_of_its_own():
    pace, proof, after, lead_in, profile = 5, 2 * 3, 1, 5, 3
    assert steps_in_all(Length(11, 100), 0.1, 0, replayed=False) == 11 + pace + proof + after + lead_in + 100 + profile
    launched, replayed = (steps_in_all(Length(11, 24, 10.0), 0.7615, 32, replayed) for replayed in (False, True))
    # 15 steps last 10 s with a tenth to spare; 24 are asked for; the loader makes 32 ahead.
    assert launched == 11 + 12 + 5 + 32 + 3
    assert replayed - launched == 10


def ranks_with(*step_s):
    """One rank for each row of step times; host time and data wait are zero."""
    return [
        rank_samples(rank, step_s=times, host_s=(0.0,) * len(times), data_wait_s=(0.0,) * len(times))
        for rank, times in enumerate(step_s)
    ]


def test_the_step_time_is_the_elapsed_time_of_the_rank_that_took_longest_over_its_steps_without_an_interval():
    rows = ((1.0, 1.0, 4.0), (1.0, 3.0, 1.0), (3.0, 1.0, 1.0))
    summary = summarize(ranks_with(*rows), workload_facts(4, flops_per_step=1000))
    assert (summary.step_time_s, summary.median_step_s, summary.step_time_ci_s) == (2.0, 1.0, None)
    assert summary.throughput_per_s == 3 * 4 * 3 / sum(rows[0])
    assert (summary.unit, summary.units_per_step, summary.flops_per_step) == ("images", 4 * 3, 1000 * 3)


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

"""Why a mode is not faster: each cause from a real step that shows it, or from one made to."""

from dataclasses import replace

import pytest
from steps_of_vit_huge import facts

from fp8bench.profiling.causes import explain, host_waits, replay_saves_at_most_s
from fp8bench.profiling.facts import StepFacts
from fp8bench.schema.rank import Profile
from fp8bench.stats.steps import bottleneck

BASELINE = facts("baseline-bf16-eager", 0.1386)
COMPILED = facts("baseline-bf16-compiled", 0.1261)
TE_FP8 = facts("te-fp8-eager", 0.1137)
HOST_BOUND = facts("te-fp8-eager", 0.1411, host_lead_s=0.0064)
TORCHAO = facts("torchao-float8-compiled", 0.1254)


def made(label, step_time_s=0.1, fp8=True, device="cuda", **milliseconds):
    """A step whose parts are told in milliseconds."""
    seconds = {category: time / 1e3 for category, time in milliseconds.items()}
    profile = Profile(
        device=device,
        steps=3,
        busy_s=sum(seconds.values()),
        by_category=seconds,
        nccl_s=seconds.get("nccl", 0.0),
        kernels=(),
    )
    return StepFacts(label=label, profile=profile, step_time_s=step_time_s, source=label, fp8=fp8, world_size=1)


def test_host_bound():
    explanation = explain(HOST_BOUND, BASELINE)
    assert explanation.cause == "host-bound"
    assert explanation.sentence == (
        "te-fp8:delayed is not faster than baseline-bf16 because it is host-bound: the GPU is idle for 37.7 of 141.1 "
        "ms a step (its kernels need 103.4 ms, the reference's 133.2), waiting for Python to launch. Replaying the "
        "step as one CUDA graph (`--cuda-graphs on`) could save 37.7 ms a step at most."
    )
    assert explanation.explained_s == {"host-bound": pytest.approx(0.0377, abs=1e-4)}


def test_what_a_replay_would_save_is_what_the_gpu_waits_for_its_host():
    waits = made("fp8", gemm_fp8=40, elementwise=20)
    assert replay_saves_at_most_s(waits) == pytest.approx(0.04)
    assert replay_saves_at_most_s(replace(waits, data_wait_s=0.03)) == pytest.approx(0.01)
    # NCCL's kernels spin while no work comes.
    assert replay_saves_at_most_s(made("fp8", gemm_fp8=40, nccl=20)) == pytest.approx(0.06)


@pytest.mark.parametrize(
    "changes", [{"replayed": True}, {"step_time_s": None}, {"step_time_s": 0.062}], ids=["replayed", "untimed", "busy"]
)
def test_nothing_is_said_of_replaying_where_it_could_save_nothing(changes):
    facts = replace(made("fp8", gemm_fp8=40, elementwise=20), **changes)
    assert replay_saves_at_most_s(facts) is None
    assert "eplay" not in explain(facts, None).sentence.replace("between one replay of its graph and the next", "")


def test_a_cpu_replays_nothing():
    assert replay_saves_at_most_s(made("bf16", device="cpu", gemm_bf16=40)) is None


def test_a_replayed_step_does_not_wait_for_python_to_launch():
    facts = replace(made("fp8", gemm_fp8=40, elementwise=20), replayed=True)
    assert explain(facts, None).sentence == (
        "fp8 takes 100.0 ms a step, and it is host-bound: the GPU is idle for 40.0 of 100.0 ms a step (its kernels "
        "need 60.0 ms), between one replay of its graph and the next."
    )


def test_where_capture_failed_the_reason_and_another_remedy_are_given():
    facts = replace(made("fp8", gemm_fp8=40, elementwise=20), replayed=False, not_replayed="an event was queried")
    assert explain(facts, None).sentence.endswith(
        "Replaying the step as one CUDA graph could save 40.0 ms a step at most, but was not possible: an event was "
        "queried. A larger --batch-size gives the GPU more work for each launch."
    )


def test_a_faster_mode_that_waits_for_its_host_is_told_what_a_replay_would_save():
    said = explain(HOST_BOUND, replace(BASELINE, step_time_s=0.2))
    assert said.cause == "faster"
    assert said.sentence.endswith("(`--cuda-graphs on`) could save 37.7 ms a step at most.")


@pytest.mark.parametrize("host_lead_s", [None, 0.0, 0.05])
def test_idle_time_convicts_the_host_whatever_its_lead(host_lead_s):
    assert explain(replace(HOST_BOUND, host_lead_s=host_lead_s), BASELINE).cause == "host-bound"


def test_a_host_whose_gpu_is_hardly_idle_is_not_to_blame_however_small_its_lead():
    """A deep model: the launch queue, full as it is, is a hundredth of its step."""
    deep = made("fp8", step_time_s=2.0, gemm_fp8=1000, cast=500, elementwise=420)
    reference = made("bf16", step_time_s=1.9, fp8=False, gemm_bf16=1700, elementwise=160)
    assert "host-bound" not in explain(replace(deep, host_lead_s=0.02), reference).explained_s


@pytest.mark.parametrize("step_time_s", [0.09, 0.1, 0.105, 0.115, 0.3])
def test_the_host_is_to_blame_where_the_tables_mark_says_so(step_time_s):
    facts = made("fp8", step_time_s=step_time_s, gemm_fp8=60, elementwise=35)
    assert bool(host_waits(facts)) == (bottleneck(facts.idle_share, None) is not None)
    assert ("host-bound" in explain(facts, None).explained_s) == bool(host_waits(facts))


def test_casts_eat_the_gain():
    explanation = explain(TORCHAO, COMPILED)
    assert explanation.cause == "casts eat the gain"
    assert explanation.sentence == (
        "torchao-float8:tensorwise is not faster than baseline-bf16 because casts eat the gain: its GEMMs take 29.1 ms "
        "a step less (36.0, the reference's 65.1), but casts and the work around them 35.7 ms more (casts 41.0, the "
        "reference's 7.0)."
    )


def test_casts_that_merely_replace_other_work_eat_nothing():
    reference = made("bf16", fp8=False, gemm_bf16=50, cast=5, elementwise=40)
    fused = made("fp8", gemm_fp8=45, cast=30, elementwise=15)
    assert "casts eat the gain" not in explain(fused, reference).explained_s


def test_casts_where_products_save_nothing():
    reference = made("bf16", fp8=False, gemm_bf16=60, elementwise=30)
    explanation = explain(made("fp8", step_time_s=0.13, gemm_fp8=62, cast=30, elementwise=30), reference)
    assert explanation.cause == "casts eat the gain"
    assert "its GEMMs save nothing (62.0 ms a step, the reference's 60.0)" in explanation.sentence


def test_shapes_too_small():
    reference = made("bf16", fp8=False, gemm_bf16=60, elementwise=38)
    explanation = explain(made("fp8", gemm_fp8=56, cast=4, elementwise=38), reference)
    assert explanation.cause == "shapes too small"
    assert "take 56.0 ms a step and the reference's 60.0, where fp8 should be 1.3 times as fast" in explanation.sentence
    assert explanation.explained_s["shapes too small"] == pytest.approx(0.056 - 0.060 / 1.3)


def test_attention_dominates():
    reference = made("bf16", fp8=False, gemm_bf16=16, attention=80)
    explanation = explain(made("fp8", gemm_fp8=10, cast=6, attention=82), reference)
    assert explanation.cause == "attention dominates"
    assert "it takes 82.0 of the 98.0 ms" in explanation.sentence


def test_attention_is_not_to_blame_below_its_share():
    assert "attention dominates" not in explain(TORCHAO, COMPILED).explained_s


def test_communication_bound():
    two_gpus = facts("te-fp8-eager-two-gpus", 0.1354, exposed_nccl_s=0.012)
    explanation = explain(two_gpus, facts("te-bf16-eager", 0.1292))
    assert explanation.cause == "communication-bound"
    assert "12.0 of 135.4 ms a step are communication that nothing hides (100.5 ms in all)" in explanation.sentence
    assert list(explanation.explained_s) == ["communication-bound", "casts eat the gain", "gaps between kernels"]


def test_where_the_host_is_late_exposed_communication_is_its_fault_too():
    two_gpus = facts("te-fp8-eager-two-gpus", 0.1454, exposed_nccl_s=0.012)
    explanation = explain(two_gpus, facts("te-bf16-eager", 0.1292))
    assert explanation.cause == "host-bound"
    assert "communication-bound" not in explanation.explained_s
    assert "idle for 23.1 of 145.4 ms a step" in explanation.sentence
    assert "and only communicates for 12.0 more, waiting for Python" in explanation.sentence


def test_loader_bound():
    waiting = replace(HOST_BOUND, data_wait_s=0.03)
    explanation = explain(waiting, BASELINE)
    assert explanation.cause == "loader-bound"
    assert "idle for 30.0 of 141.1 ms a step, while the host waits for the next batch" in explanation.sentence
    assert explanation.explained_s["host-bound"] == pytest.approx(0.0077, abs=1e-4)


def test_a_wait_for_data_while_the_gpu_is_busy_costs_nothing():
    assert explain(replace(TORCHAO, data_wait_s=0.03), COMPILED).cause == "casts eat the gain"


def test_throttled():
    slow = replace(
        made("fp8", step_time_s=0.12, gemm_fp8=90, elementwise=26),
        sm_clock_mhz=1200.0,
        flags=("throttled: hot 40 % of the time",),
    )
    reference = replace(made("bf16", fp8=False, gemm_bf16=76, elementwise=22), sm_clock_mhz=1800.0)
    explanation = explain(slow, reference)
    assert explanation.explained_s["throttled"] == pytest.approx(0.116 / 3)
    assert explanation.cause == "throttled"
    assert "it ran at 1200 MHz and the reference's at 1800 (throttled: hot 40 % of the time)" in explanation.sentence
    assert "costs about 38.7 ms a step" in explanation.sentence


def test_no_fp8_kernels():
    explanation = explain(replace(BASELINE, label="te-fp8:delayed", fp8=True), BASELINE)
    assert explanation.cause == "no fp8 kernels"
    assert explanation.sentence.endswith("because none of its GEMMs ran in fp8.")


def test_an_emulation_says_nothing():
    explanation = explain(replace(TORCHAO, emulated=True), COMPILED)
    assert explanation.cause == "emulated"
    assert explanation.explained_s == {}


def test_faster_says_by_how_much_and_what_limits_it():
    explanation = explain(TE_FP8, BASELINE)
    assert explanation.cause == "faster"
    assert explanation.sentence == (
        "te-fp8:delayed is 1.22 times as fast as baseline-bf16 (113.7 ms a step, the reference's 138.6; its kernels "
        "need 103.4 ms, the reference's 133.2). Beside its GEMMs (36.1 ms), what limits it most is norms, "
        "activations, sums and copies: 34.6 of 113.7 ms."
    )


def test_faster_and_yet_waiting_for_the_host():
    fast = facts("te-fp8-eager", 0.1411, host_lead_s=0.0064)
    explanation = explain(fast, replace(BASELINE, step_time_s=0.16))
    assert explanation.cause == "faster"
    assert "what limits it most is the host, while the GPU is idle: 37.7 of 141.1 ms" in explanation.sentence


@pytest.mark.parametrize(("step_time_s", "faster"), [(0.0989, True), (0.0991, False), (0.102, False)])
def test_a_difference_within_the_noise_of_verdicts_is_not_faster(step_time_s, faster):
    reference = made("bf16", step_time_s=0.1, fp8=False, gemm_bf16=50, elementwise=45)
    explanation = explain(made("fp8", step_time_s=step_time_s, gemm_fp8=30, elementwise=65), reference)
    assert (explanation.cause == "faster") is faster


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("copy", "copies"),
        ("elementwise", "norms and sums"),
        ("attention", "attention"),
        ("optimizer", "optimizer"),
        ("nccl", "communication-bound"),
        ("gemm_bf16", "GEMMs"),
        ("other", "other kernels"),
    ],
)
def test_the_part_that_grew_most_is_the_cause_and_casts_are_none_without_fp8(part, cause):
    usual = {"gemm_bf16": 50, "copy": 5, "elementwise": 20, "attention": 10, "optimizer": 2, "nccl": 1, "cast": 2}
    reference = made("bf16", step_time_s=0.095, fp8=False, **usual)
    grown = {**usual, part: usual.get(part, 0) + 6, "cast": 10}
    slower = made("te-bf16", step_time_s=0.11, fp8=False, **grown)
    explanation = explain(slower, reference)
    assert explanation.cause == cause
    assert explanation.explained_s[cause] == pytest.approx(0.006)
    assert "casts" not in explanation.sentence


def test_casts_of_an_fp8_mode_are_the_cause_only_where_they_grew_most():
    reference = made("bf16", step_time_s=0.095, fp8=False, gemm_bf16=60, cast=2, copy=5, elementwise=25)
    fp8 = {"step_time_s": 0.1, "gemm_fp8": 30, "elementwise": 25}
    assert explain(made("fp8", cast=22, copy=17, **fp8), reference).cause == "casts eat the gain"
    assert explain(made("fp8", cast=14, copy=25, **fp8), reference).cause == "copies"


def test_gaps_between_kernels_that_grew_are_a_cause_below_a_tenth_of_a_step():
    reference = made("bf16", fp8=False, gemm_bf16=60, elementwise=39)
    assert explain(made("te-bf16", step_time_s=0.105, fp8=False, gemm_bf16=60, elementwise=39), reference).cause == (
        "gaps between kernels"
    )


def test_where_nothing_grew_noticeably_the_largest_difference_is_told():
    reference = made("bf16", fp8=False, gemm_bf16=60, elementwise=38)
    explanation = explain(made("te-bf16", step_time_s=0.102, fp8=False, gemm_bf16=62, elementwise=38.5), reference)
    assert explanation.cause == "none"
    assert explanation.sentence.endswith("The largest difference is in GEMMs: 62.0 ms, the reference's 60.0.")


def test_without_step_times_kernels_alone_are_held_together():
    explanation = explain(replace(TE_FP8, step_time_s=None), BASELINE)
    assert explanation.cause == "faster"
    assert "is 1.29 times as fast as baseline-bf16 (103.4 ms of kernels a step, the reference's 133.2)" in (
        explanation.sentence
    )


def test_without_step_times_nobody_is_idle():
    explanation = explain(replace(HOST_BOUND, label="other"), replace(TE_FP8, step_time_s=None))
    assert explanation.cause == "none"
    assert "other is not faster than te-fp8:delayed (103.4 ms of kernels a step" in explanation.sentence


@pytest.mark.parametrize(
    ("one", "cause", "said"),
    [
        (HOST_BOUND, "host-bound", "te-fp8:delayed takes 141.1 ms a step, and it is host-bound: the GPU is idle for"),
        (TORCHAO, "casts eat the gain", "they take 41.0 ms a step, and fp8 can have saved at most 35.2 ms in its"),
        (BASELINE, "none", "baseline-bf16 takes 138.6 ms a step. Beside its GEMMs"),
        (replace(BASELINE, step_time_s=None), "none", "baseline-bf16 takes 133.2 ms of kernels a step"),
        (replace(BASELINE, fp8=True), "no fp8 kernels", "and none of its GEMMs ran in fp8"),
    ],
)
def test_one_mode_alone(one, cause, said):
    explanation = explain(one, None)
    assert explanation.cause == cause
    assert said in explanation.sentence


def test_a_cpu_waits_for_data_and_for_no_host():
    cpu = made("baseline-bf16", device="cpu", fp8=False, gemm_bf16=20, elementwise=10)
    explanation = explain(replace(cpu, host_lead_s=None, data_wait_s=0.05), None)
    assert explanation.explained_s == {"loader-bound": 0.05}
    assert "the CPU is idle for 50.0 of 100.0 ms a step" in explanation.sentence
    assert "what limits it most is Python, between operators" in explain(replace(cpu, host_lead_s=None), None).sentence


def test_every_explanation_is_one_line_that_ends():
    both = [BASELINE, COMPILED, TE_FP8, HOST_BOUND, TORCHAO]
    for one in both:
        for reference in [*both, None]:
            sentence = explain(one, reference).sentence
            assert sentence.endswith(".")
            assert "\n" not in sentence


def test_where_the_gpu_waits_for_the_host_larger_costs_of_kernels_come_second():
    reference = made("bf16", fp8=False, gemm_bf16=65, elementwise=30)
    starving = made("fp8", step_time_s=0.117, gemm_fp8=40, cast=30, elementwise=32)
    waiting = explain(starving, reference)
    assert waiting.cause == "host-bound"
    assert waiting.explained_s["casts eat the gain"] > waiting.explained_s["host-bound"]
    assert explain(replace(starving, step_time_s=0.105), reference).cause == "casts eat the gain"

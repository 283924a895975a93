"""`explain` of two steps on two machines: the parts that differ, and no cause in the mode."""

from dataclasses import replace

import pytest
from builders import environment, measured, profile, summary

from fp8bench.kinds.run.explain import explain_steps
from fp8bench.profiling.facts import StepFacts, facts_of

NARROW = {"gemm_fp8": 0.036, "elementwise": 0.029, "cast": 0.018, "attention": 0.0125, "optimizer": 0.0046}
WIDE = {"gemm_fp8": 0.0357, "elementwise": 0.025, "cast": 0.0157, "attention": 0.0115, "optimizer": 0.0034}


def on(instance, by_category, step_time_s, gpu="NVIDIA H100 80GB HBM3", mode="te-fp8", **changes) -> StepFacts:
    busy_s = sum(by_category.values())
    changes = {"settings": {"world_size": 1}, **changes}
    found = facts_of(
        measured(
            instance,
            mode,
            "delayed" if mode == "te-fp8" else None,
            summary=summary(step_time_s),
            profile=profile(by_category=by_category, busy_s=busy_s),
            environment=environment(gpu),
            **changes,
        )
    )
    return replace(found, sm_clock_mhz=None)


H100 = on("h100-1x", NARROW, 0.101)
H200 = on("h200-1x", WIDE, 0.0922, "NVIDIA H200")


def test_one_mode_on_two_gpus_is_told_by_what_takes_longer():
    explained = explain_steps(H100, H200)
    assert explained.cause == "another machine"
    assert explained.sentence == (
        "h100-1x:te-fp8:delayed takes 8.8 ms a step more than h200-1x:te-fp8:delayed (101.0, the reference's 92.2): "
        "norms, activations, sums +4.0, casts and scales +2.3, optimizer +1.2, attention +1.0; GEMMs differ by 0.3 ms."
    )
    assert explained.explained_s == {}


def test_the_other_way_round_it_takes_less():
    said = explain_steps(H200, H100).sentence
    assert said.startswith("h200-1x:te-fp8:delayed takes 8.8 ms a step less than h100-1x:te-fp8:delayed (92.2, ")
    assert "casts and scales -2.3" in said


def test_gemms_that_differ_most_are_named_with_the_rest():
    slower = on("h100-1x", {**WIDE, "gemm_fp8": 0.05}, 0.1065)
    assert explain_steps(slower, H200).sentence.endswith("(106.5, the reference's 92.2): GEMMs +14.3.")


def test_steps_as_long_as_each_other_say_so():
    said = explain_steps(on("h100-1x", WIDE, 0.0922), H200).sentence
    assert said == (
        "h100-1x:te-fp8:delayed takes as long as h200-1x:te-fp8:delayed, 92.2 ms a step; GEMMs take as long."
    )


def test_two_hosts_of_one_gpu_differ_by_parts_and_by_their_clocks():
    there = replace(on("other-1x", NARROW, 0.101), sm_clock_mhz=1900.0)
    here = replace(on("h100-1x", {**NARROW, "gemm_fp8": 0.04}, 0.105), sm_clock_mhz=1700.0)
    assert explain_steps(here, there).sentence.endswith(
        ": GEMMs +4.0. Its GPU ran at 1700 MHz and the reference's at 1900."
    )
    assert "MHz" not in explain_steps(replace(here, sm_clock_mhz=1890.0), there).sentence


def test_where_one_step_was_not_timed_kernels_are_compared():
    said = explain_steps(replace(H100, step_time_s=None), H200).sentence
    assert "takes 8.8 ms of kernels a step more than" in said
    assert "idle" not in said


def test_a_host_that_launches_too_late_is_told_what_a_replay_would_save():
    waiting = on("h100-1x", NARROW, 0.15)
    said = explain_steps(waiting, H200).sentence
    assert ": idle +49.0, norms" in said
    assert said.endswith("Replaying the step as one CUDA graph (`--cuda-graphs on`) could save 49.9 ms a step at most.")


def test_one_mode_on_more_gpus_of_the_same_machine():
    two = on("h100-1x", NARROW, 0.111, settings={"world_size": 2})
    assert explain_steps(two, H100).cause == "another machine"


BF16 = on("h200-1x", {"gemm_bf16": 0.066, "elementwise": 0.029, "cast": 0.0046}, 0.101, "NVIDIA H200", "te-bf16")


def test_two_modes_on_two_gpus_are_not_explained_by_either():
    explained = explain_steps(on("h100-1x", NARROW, 0.12), BF16)
    assert explained.cause == "mode and machine"
    assert explained.sentence == (
        "h100-1x:te-fp8:delayed/eager takes 120.0 ms a step and h200-1x:te-bf16/eager 101.0 ms a step, but both the "
        "mode and the machine differ (1 x NVIDIA H100 80GB HBM3; 1 x NVIDIA H200), and these times do not tell which "
        "of the two makes the difference. Compare them on one machine: `fp8bench explain h200-1x:te-fp8:delayed/eager "
        "h200-1x:te-bf16/eager`."
    )
    assert [mode.label for mode in explained.modes] == ["h100-1x:te-fp8:delayed/eager", "h200-1x:te-bf16/eager"]


def test_one_mode_in_two_executions_on_two_gpus_is_not_explained_either():
    said = explain_steps(on("h100-1x", NARROW, 0.101, compiled=True), H200).sentence
    assert "both the execution and the machine differ" in said


def test_two_modes_on_two_numbers_of_gpus_are_to_be_compared_on_as_many():
    two = on("h200-1x", WIDE, 0.1, "NVIDIA H200", settings={"world_size": 2})
    assert explain_steps(two, BF16).sentence.endswith("Compare them on as many GPUs.")


@pytest.mark.parametrize("instance", ["h200-1x", "another-h200"])
def test_two_modes_on_one_kind_of_machine_have_causes_as_ever(instance):
    slow = on(instance, {**WIDE, "cast": 0.05}, 0.13, "NVIDIA H200")
    assert explain_steps(slow, BF16).cause == "casts eat the gain"


def test_a_trace_whose_machine_is_unknown_is_explained_as_ever():
    trace = replace(H100, instance=None, device_name=None, label="te-fp8 of a trace")
    assert explain_steps(trace, H200).cause not in ("another machine", "mode and machine")

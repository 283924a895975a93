"""`explain` of two steps on two machines: the parts that differ, and no cause in the mode."""

from dataclasses import replace

import pytest
from builders import environment, measured, profile, summary

from fp8bench.kinds.run.explain import explain_steps
from fp8bench.profiling.facts import StepFacts, facts_of

NARROW = {"gemm_fp8": 0.036, "elementwise": 0.029, "cast": 0.018, "attention": 0.0125, "optimizer": 0.0046}
WIDE = {"gemm_fp8": 0.0357, "elementwise": 0.025, "cast": 0.0157, "attention": 0.0115, "optimizer": 0.0034}


def on(instance, by_category, step_time_s, gpu="NVIDIA H100 80GB HBM3", mode="te-fp8", **changes) -> StepFacts:
    found = measured(
        instance,
        mode,
        "delayed" if mode == "te-fp8" else None,
        summary=summary(step_time_s),
        profile=profile(by_category=by_category, busy_s=sum(by_category.values())),
        environment=environment(gpu),
        **{"settings": {"world_size": 1}, **changes},
    )
    return replace(facts_of(found), sm_clock_mhz=None)


def on_h200(by_category, step_time_s, mode="te-fp8", instance="h200-1x", **changes) -> StepFacts:
    return on(instance, by_category, step_time_s, "NVIDIA H200", mode, **changes)


H100, H200 = on("h100-1x", NARROW, 0.101), on_h200(WIDE, 0.0922)
BF16 = on_h200({"gemm_bf16": 0.066, "elementwise": 0.029, "cast": 0.0046}, 0.101, "te-bf16")
OTHER_HOST = replace(on("other-1x", NARROW, 0.101), sm_clock_mhz=1900.0)
SLOW_CLOCK = replace(on("h100-1x", {**NARROW, "gemm_fp8": 0.04}, 0.105), sm_clock_mhz=1700.0)
SAME, BOTH = "another machine", "mode and machine"

ACROSS = {
    "more": (
        *(H100, H200, SAME, "h100-1x:te-fp8:delayed takes 8.8 ms a step more than h200-1x:te-fp8:delayed (101.0, the"),
        "norms, activations, sums +4.0, casts and scales +2.3, optimizer +1.2, attention +1.0; GEMMs differ by 0.3 ms.",
    ),
    "less": (H200, H100, SAME, "takes 8.8 ms a step less than h100-1x:te-fp8:delayed (92.2, ", "casts and scales -2.3"),
    "GEMMs": (
        on("h100-1x", {**WIDE, "gemm_fp8": 0.05}, 0.1065),
        H200,
        SAME,
        "(106.5, the reference's 92.2): GEMMs +14.3.",
    ),
    "as long": (on("h100-1x", WIDE, 0.0922), H200, SAME, "takes as long as", "92.2 ms a step; GEMMs take as long."),
    "two hosts": (SLOW_CLOCK, OTHER_HOST, SAME, ": GEMMs +4.0. Its GPU ran at 1700 MHz and the reference's at 1900."),
    "not timed": (replace(H100, step_time_s=None), H200, SAME, "takes 8.8 ms of kernels a step more than"),
    "waiting": (on("h100-1x", NARROW, 0.15), H200, SAME, ": idle +49.0, norms", "could save 49.9 ms a step at most."),
    "more GPUs": (on("h100-1x", NARROW, 0.111, settings={"world_size": 2}), H100, SAME),
    "two modes": (
        *(
            on("h100-1x", NARROW, 0.12),
            BF16,
            BOTH,
            "h100-1x:te-fp8:delayed/eager takes 120.0 ms a step and h200-1x:te-bf16",
        ),
        "both the mode and the machine differ (1 x NVIDIA H100 80GB HBM3; 1 x NVIDIA H200)",
        "`fp8bench explain h200-1x:te-fp8:delayed/eager h200-1x:te-bf16/eager`",
    ),
    "two executions": (on("h100-1x", NARROW, 0.101, compiled=True), H200, BOTH, "both the execution and the machine"),
    "two modes on other numbers of GPUs": (
        *(on_h200(WIDE, 0.1, settings={"world_size": 2}), BF16, BOTH),
        "Compare them on as many GPUs.",
    ),
    "two modes on one machine": (on_h200({**WIDE, "cast": 0.05}, 0.13), BF16, "casts eat the gain"),
    "two modes on two like machines": (
        on_h200({**WIDE, "cast": 0.05}, 0.13, instance="another-h200"),
        *(BF16, "casts eat the gain"),
    ),
}


@pytest.mark.parametrize("case", ACROSS.values(), ids=ACROSS)
def test_what_differs_is_told_and_no_cause_in_the_mode(case):
    one, reference, cause, *said = case
    explained = explain_steps(one, reference)
    assert explained.cause == cause
    assert all(words in explained.sentence for words in said)
    assert cause not in (SAME, BOTH) or explained.explained_s == {}


def test_what_is_not_known_is_not_said():
    assert "MHz" not in explain_steps(replace(SLOW_CLOCK, sm_clock_mhz=1890.0), OTHER_HOST).sentence
    assert "idle" not in explain_steps(replace(H100, step_time_s=None), H200).sentence
    trace = replace(H100, instance=None, device_name=None, label="te-fp8 of a trace")
    assert explain_steps(trace, H200).cause not in (SAME, BOTH)

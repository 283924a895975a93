"""Where a step goes, for one mode and for two; tests/goldens has it in JSON, with how it was executed and proved, and
docs/explain.md a whole table.
"""

from dataclasses import replace

import pytest
from builders import environment, measured, measured_on_cpu, profile, summary

from fp8bench.kinds.run.explain import document, explain_steps
from fp8bench.profiling.causes import StepFacts, facts_of
from fp8bench.schema.errors import UsageError
from fp8bench.stats.estimate import Estimate
from fp8bench.tables.render import render

FP8 = {"gemm_fp8": 0.03, "gemm_bf16": 0.001, "attention": 0.02, "cast": 0.012, "elementwise": 0.01, "nccl": 0.004}
H100_80 = "NVIDIA H100 80GB HBM3"


def step(
    mode="baseline-bf16", step_time_s=0.1, by_category=None, instance="p5", gpu=H100_80, lead=0.4, nccl_s=0.0, **changes
) -> StepFacts:
    """StepFacts of a record, by default of the builders' bf16 step of 90 ms, whose host is well ahead."""
    shape = {} if by_category is None else {"by_category": by_category, "busy_s": sum(by_category.values())}
    known = {
        "summary": summary(step_time_s, host_lead_s=lead * step_time_s),
        "profile": profile(nccl_s=nccl_s, **shape),
        "environment": environment(gpu),
    }
    return facts_of(measured(instance, mode, "delayed" if mode == "te-fp8" else None, **{**known, **changes}))


def test_two_modes_have_every_line_that_either_has_and_the_parts_add_up_to_the_step():
    made = explain_steps(step("te-fp8", by_category=FP8, nccl_s=0.02), step())
    (table, *_), *_ = document(made).blocks
    shown = {name: (mine, theirs) for name, mine, _, theirs, *_ in table.rows()}
    assert list(shown) == [
        *("GEMMs, fp8", "GEMMs, 16 bit", "attention", "casts and scales", "norms, activations, sums"),
        *("communication, exposed", "idle", "step", "communication, hidden"),
    ]
    assert (shown["GEMMs, fp8"], shown["communication, hidden"]) == (("30.0", "-"), ("16.0", "-"))
    for mode in made.modes:
        assert sum(seconds for _, seconds in mode.parts()) == pytest.approx(mode.step_time_s)


@pytest.mark.parametrize(
    ("one", "other", "labels"),
    [
        (step("te-bf16"), step(), ["te-bf16", "baseline-bf16"]),
        (step(compiled=True), step(), ["baseline-bf16/compiled", "baseline-bf16/eager"]),
        (step(), step(instance="h200x8"), ["p5:baseline-bf16", "h200x8:baseline-bf16"]),
    ],
)
def test_labels_differ_by_as_little_as_they_can(one, other, labels):
    assert [mode.label for mode in explain_steps(one, other).modes] == labels
    again = explain_steps(one, replace(one, source="another run")).modes
    assert again[0].label != again[1].label
    assert all(mode.source in mode.label for mode in again)


def test_two_modes_of_a_session_are_explained_over_the_rounds_that_both_have():
    """As they are compared: an explanation must not deny what a verdict says."""
    base = Estimate((0.1, 0.1, 0.1, 0.104, 0.104, 0.104), rounds=tuple(range(6)))
    mode = Estimate((0.1, 0.1, 0.1), rounds=(0, 1, 2))
    facts = replace(step("te-bf16", 0.1), unit_time=mode), replace(step(step_time_s=0.102), unit_time=base)
    made = explain_steps(*facts)
    assert [mode.step_time_s for mode in made.modes] == pytest.approx([0.1, 0.1])
    assert "not faster than" in made.sentence
    assert explain_steps(facts[0], replace(facts[1], unit_time=None)).cause == "faster"


ON_CPU = measured_on_cpu(profile=profile(device="cpu"), settings={"workload": "vit-huge", "batch_size": 64})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (step(settings={"batch_size": 256}), "batch size 64 and 256"),
        (step(settings={"workload": "vit-huge-256"}), "workload vit-huge and vit-huge-256"),
        (facts_of(ON_CPU), "device cuda and cpu"),
    ],
)
def test_unlike_work_is_refused(other, said):
    with pytest.raises(UsageError, match=rf"te-fp8:delayed\S* and \S*baseline-bf16\S* are not comparable: {said}"):
        explain_steps(step("te-fp8"), other)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (step(instance="h200x8"), "different instances"),
        (step(settings={"world_size": 2}), "different numbers of workers"),
        (step(compiled=True), "different executions: eager and compiled"),
        (step(step_time_s=0.08), "busy for 90.0 ms a step when profiled, and a timed step lasts 80.0"),
    ],
)
def test_what_a_reader_is_warned_of(other, said):
    (warning,) = explain_steps(step("te-bf16"), other).warnings
    assert said in warning
    assert explain_steps(step("te-bf16"), step()).warnings == ()


NARROW = {"gemm_fp8": 0.036, "elementwise": 0.029, "cast": 0.018, "attention": 0.0125, "optimizer": 0.0046}
WIDE = {"gemm_fp8": 0.0357, "elementwise": 0.025, "cast": 0.0157, "attention": 0.0115, "optimizer": 0.0034}


def on(instance, by_category, step_time_s, mode="te-fp8", **changes) -> StepFacts:
    changes, gpu = {"settings": {"world_size": 1}, **changes}, "NVIDIA H200" if "h200" in instance else H100_80
    return replace(step(mode, step_time_s, by_category, instance, gpu, **changes), sm_clock_mhz=None)


H100, H200 = on("h100-1x", NARROW, 0.101), on("h200-1x", WIDE, 0.0922)
BF16 = on("h200-1x", {"gemm_bf16": 0.066, "elementwise": 0.029, "cast": 0.0046}, 0.101, "te-bf16")
OTHER_HOST = replace(on("other-1x", NARROW, 0.101), sm_clock_mhz=1900.0)
SLOW_CLOCK = replace(on("h100-1x", {**NARROW, "gemm_fp8": 0.04}, 0.105), sm_clock_mhz=1700.0)
TWO_GPUS = {"settings": {"world_size": 2}}
CASTS = {**WIDE, "cast": 0.05}
SAME, BOTH = "another machine", "mode and machine"

ACROSS = {
    "more": (
        *(H100, H200, SAME, "h100-1x:te-fp8:delayed takes 101.0 ms a step and h200-1x:te-fp8:delayed 92.2: norms, "),
        "activations, sums +4.0, casts and scales +2.3, optimizer +1.2, attention +1.0, GEMMs +0.3.",
    ),
    "less": (H200, H100, SAME, "takes 92.2 ms a step and h100-1x:te-fp8:delayed 101.0: ", "casts and scales -2.3"),
    "GEMMs": (on("h100-1x", {**WIDE, "gemm_fp8": 0.05}, 0.1065), H200, SAME, "92.2: GEMMs +14.3."),
    "as long": (on("h100-1x", WIDE, 0.0922), H200, SAME, "takes 92.2 ms a step", "92.2: GEMMs +0.0."),
    "two hosts": (SLOW_CLOCK, OTHER_HOST, SAME, ": GEMMs +4.0. Its GPU ran at 1700 MHz and the reference's at 1900."),
    "waiting": (on("h100-1x", NARROW, 0.15), H200, SAME, ": idle +49.0, norms", "could save 49.9 ms a step at most."),
    "more GPUs": (on("h100-1x", NARROW, 0.111, **TWO_GPUS), H100, SAME),
    "two modes": (
        *(on("h100-1x", NARROW, 0.12), BF16, BOTH),
        "h100-1x:te-fp8:delayed/eager takes 120.0 ms a step and h200-1x:te-bf16/eager 101.0, ",
        "both the mode and the machine differ (1 x NVIDIA H100 80GB HBM3; 1 x NVIDIA H200)",
    ),
    "two executions": (on("h100-1x", NARROW, 0.101, compiled=True), H200, BOTH, "both the execution and the machine"),
    "two modes on other numbers of GPUs": (on("h200-1x", WIDE, 0.1, **TWO_GPUS), BF16, BOTH, "on as many GPUs."),
    "two modes on two like machines": (on("another-h200", CASTS, 0.13), BF16, "casts eat the gain"),
}


@pytest.mark.parametrize("case", ACROSS.values(), ids=ACROSS)
def test_what_differs_is_told_and_no_cause_in_the_mode(case):
    one, reference, cause, *said = case
    explained = explain_steps(one, reference)
    assert explained.cause == cause
    assert [words for words in said if words not in explained.sentence] == []
    assert cause not in (SAME, BOTH) or explained.explained_s == {}
    assert ("MHz" in explained.sentence) == ("MHz" in "".join(said))


def test_a_line_for_each_part_one_sentence_and_its_warnings():
    made = explain_steps(step("te-fp8", 0.14, {"optimizer": 0.02001}), step("te-bf16", 0.14, {"optimizer": 0.02}))
    noted = made._replace(notes=("replayed",), warnings=("another batch",))
    (table, *_), *_ = document(noted).blocks
    assert table.rows()[0] == ["optimizer", "20.0", "14.3 %", "20.0", "14.3 %", "+0.0"], "which reads as no difference"
    said = [made.sentence, "replayed", "warning: another batch"]
    assert [line for line in render(document(noted), "plain").splitlines() if line][-3:] == said

"""The numbers of `explain`: lines and sums, labels that differ, and what is refused or warned of."""

import pytest
from builders import measured, measured_on_cpu, profile, summary

from fp8bench.kinds.run.explain import explain_steps, lines
from fp8bench.profiling.facts import StepFacts, facts_of
from fp8bench.schema.errors import UsageError

FP8 = {"gemm_fp8": 0.03, "gemm_bf16": 0.001, "attention": 0.02, "cast": 0.012, "elementwise": 0.01, "nccl": 0.004}


def step(mode="baseline-bf16", recipe=None, step_time_s=0.1, by_category=None, nccl_s=0.0, **changes) -> StepFacts:
    """StepFacts of a record, by default of the builders' bf16 step of 90 ms, whose host is well ahead."""
    shape = {} if by_category is None else {"by_category": by_category, "busy_s": sum(by_category.values())}
    known = summary(step_time_s, host_lead_s=0.4 * step_time_s)
    return facts_of(measured("p5", mode, recipe, summary=known, profile=profile(nccl_s=nccl_s, **shape), **changes))


def table(*facts):
    return lines(explain_steps(*facts).modes)


def test_one_mode():
    assert table(step(), None) == {
        "GEMMs, 16 bit": (0.06,),
        "attention": (0.02,),
        "norms, activations, sums": (0.01,),
        "idle": (pytest.approx(0.01),),
        "step": (0.1,),
    }


def test_two_modes_have_every_line_that_either_has():
    shown = table(step("te-fp8", "delayed", by_category=FP8, nccl_s=0.02), step())
    assert list(shown) == [
        "GEMMs, fp8",
        "GEMMs, 16 bit",
        "attention",
        "casts and scales",
        "norms, activations, sums",
        "communication, exposed",
        "idle",
        "step",
        "communication, hidden",
    ]
    assert shown["GEMMs, fp8"] == (0.03, 0.0)
    assert shown["communication, hidden"] == (pytest.approx(0.016), 0.0)


def test_the_parts_add_up_to_the_step():
    for mode in explain_steps(step("te-fp8", "delayed", by_category=FP8, nccl_s=0.02), step()).modes:
        assert sum(seconds for _, seconds in mode.parts()) == pytest.approx(mode.step_time_s)


def test_a_step_that_was_not_timed_has_only_kernels():
    untimed = StepFacts(label="te-fp8", profile=profile(), step_time_s=None, source="a trace", fp8=False)
    assert list(table(untimed, None).items())[-1] == ("busy", (0.09,))
    beside = table(untimed, step())
    assert beside["idle"] == (None, pytest.approx(0.01))
    assert beside["busy"] == (0.09, 0.09)
    assert beside["step"] == (None, 0.1)


def test_the_first_is_explained_and_the_second_is_the_reference():
    explained = explain_steps(step("te-bf16", step_time_s=0.2), step())
    assert explained.sentence.startswith("te-bf16 is not faster than baseline-bf16")
    assert explain_steps(step(), step("te-bf16", step_time_s=0.2)).cause == "faster"


@pytest.mark.parametrize(
    ("one", "other", "labels"),
    [
        (step("te-bf16"), step(), ["te-bf16", "baseline-bf16"]),
        (step(compiled=True), step(), ["baseline-bf16/compiled", "baseline-bf16/eager"]),
    ],
)
def test_labels_differ_by_as_little_as_they_can(one, other, labels):
    assert [mode.label for mode in explain_steps(one, other).modes] == labels


def test_labels_of_one_mode_on_two_instances_and_of_two_runs():
    there = facts_of(measured("h200x8", profile=profile()))
    assert [mode.label for mode in explain_steps(step(), there).modes] == ["p5:baseline-bf16", "h200x8:baseline-bf16"]
    again = explain_steps(step(), step(minutes=5)).modes
    assert again[0].label != again[1].label
    assert all(mode.source in mode.label for mode in again)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (step(settings={"batch_size": 256}), "batch size 64 and 256"),
        (step(settings={"workload": "vit-huge-256"}), "workload vit-huge and vit-huge-256"),
        (
            facts_of(
                measured_on_cpu(profile=profile(device="cpu"), settings={"workload": "vit-huge", "batch_size": 64})
            ),
            "device cuda and cpu",
        ),
    ],
)
def test_unlike_work_is_refused(other, said):
    with pytest.raises(UsageError) as refused:
        explain_steps(step("te-fp8", "delayed"), other)
    assert "te-fp8:delayed and baseline-bf16 are not comparable" in refused.value.what
    assert said in refused.value.what


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (step(), []),
        (facts_of(measured("h200x8", profile=profile())), ["different instances"]),
        (step(settings={"world_size": 2}), ["different numbers of workers"]),
        (step(compiled=True), ["different executions: eager and compiled"]),
        (step(step_time_s=0.08), ["busy for 90.0 ms a step when profiled, and a timed step lasts 80.0"]),
    ],
)
def test_what_a_reader_is_warned_of(other, said):
    warnings = explain_steps(step("te-bf16"), other).warnings
    assert len(warnings) == len(said)
    assert all(words in warning for words, warning in zip(said, warnings, strict=True))

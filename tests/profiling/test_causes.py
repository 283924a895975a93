"""What is known of a step by its record, and why a mode is not faster: each cause from a real step that shows it, or
from one made to. tests/goldens has what one step alone says, what a faster one does, and casts that eat the gain.
"""

from dataclasses import replace

import pytest
from builders import emulated, environment, evidence, measured, profile, proof, published, replayed, summary
from steps_of_vit_huge import ON_H200, facts

from fp8bench.kinds.run.explain import explain_steps
from fp8bench.profiling.causes import ADVICE, StepFacts, explain, facts_of
from fp8bench.schema.switches import ONLY_GAIN
from fp8bench.stats.steps import bottleneck

BASELINE = facts("baseline-bf16-eager", 0.1386)
COMPILED = facts("baseline-bf16-compiled", 0.1261)
TE_FP8 = facts("te-fp8-eager", 0.1137)
TE_BF16 = facts("te-bf16-eager", 0.1292)
HOST_BOUND = facts("te-fp8-eager", 0.1411, host_lead_s=0.0064)
TORCHAO = facts("torchao-float8-compiled", 0.1254)


def made(label, step_time_s=0.1, fp8=True, device="cuda", **milliseconds):
    """A step whose parts are told in milliseconds."""
    seconds = {category: time / 1e3 for category, time in milliseconds.items()}
    found = profile(device=device, busy_s=sum(seconds.values()), by_category=seconds, nccl_s=seconds.get("nccl", 0.0))
    return StepFacts(label=label, profile=found, step_time_s=step_time_s, source=label, fp8=fp8, **ON_H200)


def bf16(step_time_s=0.1, **milliseconds):
    return made("bf16", step_time_s, fp8=False, **milliseconds)


WAITS = made("fp8", gemm_fp8=40, elementwise=20)
FAILED_CAPTURE = replace(WAITS, not_replayed="an event was queried")
HOT = {"sm_clock_mhz": 1200.0, "flags": ("throttled: hot 40 % of the time",)}
SLOWED = replace(made("fp8", step_time_s=0.12, gemm_fp8=90, elementwise=26), **HOT)
CPU = replace(made("baseline-bf16", device="cpu", fp8=False, gemm_bf16=20, elementwise=10), host_lead_s=None)
USUAL = bf16(0.095, gemm_bf16=60, cast=2, copy=5, elementwise=25)
COULD_SAVE = "Replaying the step as one CUDA graph (`--cuda-graphs on`) could save 37.7 ms a step at most."

EXPLAINED = {
    "host-bound": (
        *(HOST_BOUND, BASELINE, "host-bound"),
        "the GPU is idle for 37.7 of 141.1 ms a step (its kernels need 103.4 ms), waiting for Python to launch.",
        COULD_SAVE,
    ),
    "alone and replayed": (
        *(replace(WAITS, execution="graphed"), None, "host-bound"),
        "fp8 takes 100.0 ms a step, and it is host-bound: the GPU is idle for 40.0 of 100.0 ms",
        "between one replay of its graph and the next.",
    ),
    "capture failed": (
        *(FAILED_CAPTURE, None, "host-bound"),
        "could save 40.0 ms a step at most, but was not possible: an event was queried",
        "--batch-size",
    ),
    "faster and waiting": (
        *(HOST_BOUND, replace(BASELINE, step_time_s=0.16), "faster"),
        "what limits it most is the host, while the GPU is idle: 37.7 of 141.1 ms",
        COULD_SAVE,
    ),
    "casts, where GEMMs save nothing": (
        made("fp8", step_time_s=0.13, gemm_fp8=62, cast=30, elementwise=30),
        *(bf16(gemm_bf16=60, elementwise=30), "casts eat the gain"),
        "its GEMMs save nothing (62.0 ms a step, the reference's 60.0)",
    ),
    "casts that grew most": (made("fp8", gemm_fp8=30, elementwise=25, cast=22, copy=17), USUAL, "casts eat the gain"),
    "copies that grew more": (made("fp8", gemm_fp8=30, elementwise=25, cast=14, copy=25), USUAL, "copies"),
    "shapes": (
        *(made("fp8", gemm_fp8=56, cast=4, elementwise=38), bf16(gemm_bf16=60, elementwise=38), "shapes too small"),
        "take 56.0 ms a step and the reference's 60.0, where fp8 should be 1.3 times as fast",
    ),
    "attention": (
        *(made("fp8", gemm_fp8=10, cast=6, attention=82), bf16(gemm_bf16=16, attention=80), "attention dominates"),
        "it takes 82.0 of the 98.0 ms",
    ),
    "communication": (
        *(facts("te-fp8-eager-two-gpus", 0.1354, exposed_nccl_s=0.012), TE_BF16, "communication-bound"),
        "12.0 of 135.4 ms a step are communication that nothing hides (100.5 ms in all)",
    ),
    "communication while the host is late": (
        *(facts("te-fp8-eager-two-gpus", 0.1454, exposed_nccl_s=0.012), TE_BF16, "host-bound"),
        "idle for 23.1 of 145.4 ms a step and only communicates for 12.0 more",
    ),
    "loader": (
        *(replace(HOST_BOUND, data_wait_s=0.03), BASELINE, "loader-bound"),
        "idle for 30.0 of 141.1 ms a step, waiting for a batch",
    ),
    "a wait for data while the GPU is busy": (replace(TORCHAO, data_wait_s=0.03), COMPILED, "casts eat the gain"),
    "throttled": (
        *(SLOWED, replace(bf16(gemm_bf16=76, elementwise=22), sm_clock_mhz=1800.0), "throttled"),
        "it ran at 1200 MHz and the reference's at 1800, throttled: hot 40 % of the time,",
        "costs about 38.7 ms a step",
    ),
    "no fp8": (replace(BASELINE, label="te-fp8:delayed", fp8=True), BASELINE, "no fp8 kernels", "because none of its"),
    "no fp8, alone": (replace(BASELINE, fp8=True), None, "no fp8 kernels", "and none of its GEMMs ran in fp8"),
    "emulated": (replace(TORCHAO, emulated=True), COMPILED, "emulated"),
    "gaps": (*(bf16(0.105, gemm_bf16=60, elementwise=39), bf16(gemm_bf16=60, elementwise=39), "gaps between kernels"),),
    "a cpu that waits": (
        replace(CPU, data_wait_s=0.05),
        None,
        "loader-bound",
        "the device is idle for 50.0 of 100.0 ms",
    ),
    "a cpu": (CPU, None, "none", "what limits it most is Python, between operators"),
}


@pytest.mark.parametrize("case", EXPLAINED.values(), ids=EXPLAINED)
def test_the_cause_and_its_figures_in_one_line(case):
    one, reference, cause, *said = case
    explanation = explain(one, reference)
    assert explanation.cause == cause
    assert [words for words in said if words not in explanation.sentence] == []
    assert explanation.sentence.endswith(".")
    assert "\n" not in explanation.sentence


def test_what_a_replay_would_save_is_what_the_gpu_waits_for_its_host():
    for changes in ({"execution": "graphed"}, {"step_time_s": 0.062}):
        one = replace(WAITS, **changes)
        assert one.replay_saves_at_most_s is None
        assert "could save" not in explain(one, None).sentence
    assert WAITS.replay_saves_at_most_s == pytest.approx(0.04)
    assert replace(WAITS, data_wait_s=0.03).replay_saves_at_most_s == pytest.approx(0.01)
    # NCCL's kernels spin while no work comes.
    assert made("fp8", gemm_fp8=40, nccl=20).replay_saves_at_most_s == pytest.approx(0.06)
    assert made("bf16", device="cpu", gemm_bf16=40).replay_saves_at_most_s is None


@pytest.mark.parametrize("host_lead_s", [None, 0.0, 0.05])
def test_idle_time_convicts_the_host_whatever_its_lead(host_lead_s):
    explained = explain(replace(HOST_BOUND, host_lead_s=host_lead_s), BASELINE)
    assert explained.explained_s == {"host-bound": pytest.approx(0.0377, abs=1e-4)}
    # A deep model: the launch queue, full as it is, is a hundredth of its step.
    deep = made("fp8", step_time_s=2.0, gemm_fp8=1000, cast=500, elementwise=420)
    reference = bf16(1.9, gemm_bf16=1700, elementwise=160)
    assert "host-bound" not in explain(replace(deep, host_lead_s=host_lead_s), reference).explained_s


def test_the_host_is_to_blame_where_the_tables_mark_says_so():
    for step_time_s in (0.09, 0.1, 0.105, 0.115, 0.3):
        one = made("fp8", step_time_s=step_time_s, gemm_fp8=60, elementwise=35)
        assert bool(one.host_bound) == (bottleneck(one.profile.idle_share(step_time_s), None) is not None)
        assert ("host-bound" in explain(one, None).explained_s) == bool(one.host_bound)


def test_what_each_cause_accounts_for():
    reference = bf16(gemm_bf16=50, cast=5, elementwise=40)
    # Casts that merely replace other work eat nothing.
    assert "casts eat the gain" not in explain(made("fp8", gemm_fp8=45, cast=30, elementwise=15), reference).explained_s
    assert "attention dominates" not in explain(TORCHAO, COMPILED).explained_s
    assert explain(*EXPLAINED["shapes"][:2]).explained_s["shapes too small"] == pytest.approx(0.056 - 0.060 / 1.3)
    assert explain(*EXPLAINED["throttled"][:2]).explained_s["throttled"] == pytest.approx(0.116 / 3)
    assert explain(*EXPLAINED["loader"][:2]).explained_s["host-bound"] == pytest.approx(0.0077, abs=1e-4)
    assert explain(*EXPLAINED["a cpu that waits"][:2]).explained_s == {"loader-bound": 0.05}
    found = explain(*EXPLAINED["communication"][:2]).explained_s
    assert list(found) == ["communication-bound", "casts eat the gain", "gaps between kernels"]
    assert "communication-bound" not in explain(*EXPLAINED["communication while the host is late"][:2]).explained_s


def test_a_difference_within_the_noise_of_verdicts_is_not_faster():
    for step_time_s, faster in ((0.0989, True), (0.0991, False), (0.102, False)):
        one = made("fp8", step_time_s=step_time_s, gemm_fp8=30, elementwise=65)
        assert (explain(one, bf16(gemm_bf16=50, elementwise=45)).cause == "faster") is faster


GROWS = {
    **{"copy": "copies", "elementwise": "norms and sums", "attention": "attention", "optimizer": "optimizer"},
    **{"nccl": "communication-bound", "gemm_bf16": "GEMMs", "other": "other kernels"},
}


@pytest.mark.parametrize(("part", "cause"), GROWS.items())
def test_the_part_that_grew_most_is_the_cause_and_casts_are_none_without_fp8(part, cause):
    usual = {"gemm_bf16": 50, "copy": 5, "elementwise": 20, "attention": 10, "optimizer": 2, "nccl": 1, "cast": 2}
    grown = {**usual, part: usual.get(part, 0) + 6, "cast": 10}
    explanation = explain(made("te-bf16", step_time_s=0.11, fp8=False, **grown), bf16(0.095, **usual))
    assert explanation.cause == cause
    assert explanation.explained_s[cause] == pytest.approx(0.006)
    assert "casts" not in explanation.sentence


def test_where_the_gpu_waits_for_the_host_larger_costs_of_kernels_come_second():
    reference = bf16(gemm_bf16=65, elementwise=30)
    starving = made("fp8", step_time_s=0.117, gemm_fp8=40, cast=30, elementwise=32)
    waiting = explain(starving, reference)
    assert waiting.cause == "host-bound"
    assert waiting.explained_s["casts eat the gain"] > waiting.explained_s["host-bound"]
    assert explain(replace(starving, step_time_s=0.105), reference).cause == "casts eat the gain"


def test_facts_are_of_a_record_and_none_without_a_profile():
    known = summary(0.1, data_wait_share=0.05, sm_clock_mhz=1755.0, flags=("power-capped",))
    facts = facts_of(measured("p5", "te-fp8", "delayed", compiled=True, summary=known, profile=profile()))
    assert (facts.label, facts.execution, facts.idle_s) == ("te-fp8:delayed", "compiled", pytest.approx(0.01))
    assert (facts.sm_clock_mhz, facts.flags, facts.data_wait_s) == (1755.0, ("power-capped",), pytest.approx(0.005))
    assert facts_of(measured(summary=summary(0.08, data_wait_s=0.002), profile=profile())).data_wait_s == 0.002
    assert facts_of(measured(summary=summary(0.08), profile=profile())).idle_s == 0.0
    for without in (measured(), published()):
        with pytest.raises(ValueError, match="profile"):
            facts_of(without)
    for enabled in (True, False):
        found = evidence(graph=replayed(enabled=enabled, reason="capture failed"), executed=proof())
        facts = facts_of(measured(evidence=found, profile=profile(), settings={"cuda_graphs": "auto"}))
        assert (facts.replayed, facts.not_replayed) == (enabled, None if enabled else "capture failed")
    # A mode is fp8 when it means it or does it, and an emulation is one.
    for meant, category, fp8 in ((True, "gemm_bf16", True), (False, "gemm_fp8", True), (False, "gemm_bf16", False)):
        record = measured(evidence=evidence(fp8=meant), profile=profile(by_category={category: 0.09}))
        assert facts_of(record).fp8 is fp8
    assert facts_of(emulated(profile=profile(device="cpu"))).emulated


def of(version="2.20.2", **changes):
    found = environment(versions={"torch": "2.11.0"} | ({"transformer-engine": version} if version else {}))
    usual = {"mode": "te-fp8", "recipe": "delayed", "attention": "te:fused", "profile": profile()}
    return measured(environment=found, **(usual | changes))


BF16 = {"mode": "te-bf16", "recipe": None}


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        *((settings, True) for settings in ({}, BF16, {"version": "2.19"}, {"version": "3.0"})),
        *(({"version": version}, False) for version in ("2.18.1", None)),
        *(({"settings": {"workload": name}}, False) for name in ("llm-1b", "timm:vit_large_patch16_224")),
        ({"settings": {"te_switches": "split-qkv"}}, False),
        ({"attention": "sdpa:flash"}, False),
        ({"compiled": True}, False),
        ({"mode": "baseline-bf16", "recipe": None, "attention": "sdpa:cudnn"}, False),
    ],
)
def test_a_switch_is_advised_unless_it_is_on_or_has_no_effect(settings, unused):
    assert facts_of(of(**settings)).unused == (("split-qkv",) if unused else ())


def test_the_explanation_ends_with_it_once_for_both_modes():
    explained = explain_steps(facts_of(of()), facts_of(of(**BF16)))
    advised = f"te-fp8:delayed and te-bf16: {ADVICE['split-qkv']}"
    assert explained.notes[-1] == advised
    assert [note for note in explained.notes if ADVICE["split-qkv"] in note] == [advised]
    assert set(ADVICE) == set(ONLY_GAIN)

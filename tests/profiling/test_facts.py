"""What is known of a step, drawn from a record or a trace."""

import pytest
from builders import emulated, environment, evidence, measured, profile, proof, published, replayed, summary

from fp8bench.kinds.run.explain import explain_steps
from fp8bench.profiling.causes import ADVICE, facts_of
from fp8bench.schema.switches import ONLY_GAIN


def test_of_a_record_and_none_without_a_profile():
    known = summary(0.1, data_wait_share=0.05, sm_clock_mhz=1755.0, flags=("power-capped",))
    facts = facts_of(measured("p5", "te-fp8", "delayed", compiled=True, summary=known, profile=profile()))
    assert (facts.label, facts.execution, facts.idle_s) == ("te-fp8:delayed", "compiled", pytest.approx(0.01))
    assert (facts.sm_clock_mhz, facts.flags, facts.data_wait_s) == (1755.0, ("power-capped",), pytest.approx(0.005))
    assert facts_of(measured(summary=summary(0.08, data_wait_s=0.002), profile=profile())).data_wait_s == 0.002
    assert facts_of(measured(summary=summary(0.08), profile=profile())).idle_s == 0.0
    for without in (measured(), published()):
        with pytest.raises(ValueError, match="profile"):
            facts_of(without)


@pytest.mark.parametrize("enabled", [True, False])
def test_of_a_record_whose_steps_might_be_replayed(enabled):
    found = evidence(graph=replayed(enabled=enabled, reason="capture failed"), executed=proof())
    facts = facts_of(measured(evidence=found, profile=profile(), settings={"cuda_graphs": "auto"}))
    assert (facts.replayed, facts.not_replayed) == (enabled, None if enabled else "capture failed")


def test_a_mode_is_fp8_when_it_means_it_or_does_it_and_an_emulation_is_one():
    for meant, category, fp8 in ((True, "gemm_bf16", True), (False, "gemm_fp8", True), (False, "gemm_bf16", False)):
        record = measured(evidence=evidence(fp8=meant), profile=profile(by_category={category: 0.09}))
        assert facts_of(record).fp8 is fp8
    assert facts_of(emulated(profile=profile(device="cpu"))).emulated


def of(version="2.20.2", mode="te-fp8", recipe="delayed", attention="te:fused", compiled=False, **settings):
    libraries = {"torch": "2.11.0"} | ({"transformer-engine": version} if version else {})
    return measured(
        mode=mode,
        recipe=recipe,
        attention=attention,
        compiled=compiled,
        settings=settings,
        environment=environment(versions=libraries),
        profile=profile(),
    )


BF16 = {"mode": "te-bf16", "recipe": None}


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        *((settings, True) for settings in ({}, BF16, {"version": "2.19"}, {"version": "3.0"})),
        *(({"version": version}, False) for version in ("2.18.1", None)),
        *(({"workload": name}, False) for name in ("llm-1b", "timm:vit_large_patch16_224")),
        ({"te_switches": "split-qkv"}, False),
        ({"attention": "sdpa:flash"}, False),
        ({"compiled": True}, False),
        ({"mode": "baseline-bf16", "recipe": None, "attention": "sdpa:cudnn"}, False),
    ],
)
def test_a_switch_is_advised_unless_it_is_on_or_has_no_effect(settings, unused):
    assert facts_of(of(**settings)).unused == (("split-qkv",) if unused else ())


def test_the_explanation_ends_with_it_once_for_both_modes():
    explained = explain_steps(facts_of(of()), facts_of(of(**BF16)))
    assert explained.notes == (f"te-fp8:delayed and te-bf16: {ADVICE['split-qkv']}",)
    assert set(ADVICE) == set(ONLY_GAIN)

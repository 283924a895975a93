"""Which switches a run could have had on."""

import pytest
from builders import environment, measured, profile

from fp8bench.kinds.run.explain import explain_steps
from fp8bench.profiling.facts import ADVICE, facts_of, unused_switches
from fp8bench.schema.switches import ONLY_GAIN


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


@pytest.mark.parametrize("settings", [{}, {"mode": "te-bf16", "recipe": None}, {"version": "2.19"}, {"version": "3.0"}])
def test_transformer_engines_attention_without_it(settings):
    assert unused_switches(of(**settings)) == ("split-qkv",)


@pytest.mark.parametrize(
    "settings",
    [
        {"te_switches": "split-qkv"},
        {"version": "2.18.1"},
        {"version": None},
        {"attention": "sdpa:flash"},
        {"compiled": True},
        {"workload": "llm-1b"},
        {"workload": "timm:vit_large_patch16_224"},
        {"mode": "baseline-bf16", "recipe": None, "attention": "sdpa:cudnn"},
    ],
)
def test_nothing_is_advised_where_it_is_on_or_has_no_effect(settings):
    assert unused_switches(of(**settings)) == ()


def test_the_explanation_ends_with_it_once_for_both_modes():
    explained = explain_steps(facts_of(of()), facts_of(of(mode="te-bf16", recipe=None)))
    assert explained.notes == (f"te-fp8:delayed and te-bf16: {ADVICE['split-qkv']}",)


def test_every_switch_that_only_gains_has_its_advice():
    assert set(ADVICE) == set(ONLY_GAIN)

"""Which options of Transformer Engine's layer a plan measures, and what it refuses, each with its reason."""

import pytest
from launch.test_plan import planned

from fp8bench.launch.recipes import words_of
from fp8bench.launch.rounds import Entry
from fp8bench.schema.errors import UsageError
from fp8bench.schema.switches import LADDER, NAMES, NONE, RUNGS, joined, parse

PIECES = {"batch_size": 32, "grad_accumulation": 8}
LAYER = {"workload": "gpt-layer", "gpus": 1, **PIECES}


def switches_of(*requested, mode=("te-fp8",), **settings):
    return [one.te_switches for one in planned(mode=mode, te_switch=requested, **{**LAYER, **settings})]


def refused(*requested, **settings):
    with pytest.raises(UsageError) as caught:
        switches_of(*requested, **settings)
    return caught.value


def test_none_is_asked_for_by_default_and_by_its_name():
    assert switches_of() == switches_of(NONE) == [None]


def test_a_combination_has_one_spelling_and_what_it_needs():
    assert switches_of("weight-cache+fused-wgrad") == ["fused-qkv+fused-wgrad+weight-cache"]
    assert switches_of("fused-wgrad", "fused-wgrad+fused-qkv") == ["fused-qkv+fused-wgrad"]
    assert all(parse(name) == (joined([name]),) for name in NAMES)


def test_the_ladder_has_every_rung_and_other_modes_are_measured_once():
    found = planned(mode=("baseline-bf16", "te-fp8", "te-bf16"), te_switch=(LADDER,), **LAYER)
    of = [(one.mode, one.te_switches) for one in found]
    assert of[0] == ("baseline-bf16", None)
    assert [rung for mode, rung in of if mode == "te-fp8"] == [rung or None for rung in RUNGS]
    assert [rung for mode, rung in of if mode == "te-bf16"] == [
        None,
        "parallel-setup",
        "fused-qkv",
        "fused-qkv+fused-wgrad",
    ]


def test_a_layer_that_two_gpus_share_has_no_rung_of_what_sharing_costs_alone():
    found = switches_of(LADDER, gpus=2, tensor_parallel=2)
    assert None in found
    assert "parallel-setup" not in found


def test_a_turn_is_called_by_its_switches():
    [config] = planned(mode=("te-fp8",), te_switch=("fused-qkv",), **LAYER)
    assert Entry(config).label == "te-fp8:delayed+fused-qkv"


@pytest.mark.parametrize(
    ("requested", "settings", "what", "remedy"),
    [
        ("fused-qvk", {}, "unknown switch 'fused-qvk'", "Did you mean 'fused-qkv'?"),
        ("weight-cache", {"grad_accumulation": 1}, "a step of one micro-batch casts them once anyway", "--grad-acc"),
        ("weight-cache", {"mode": ("te-bf16",)}, "which te-bf16 does not have", "--mode te-fp8"),
        ("fused-wgrad", {"optimizer": "adamw"}, "where torch's optimizers do not look", "--optimizer none"),
        ("fused-wgrad", {"gpus": 2}, "neither DDP nor FSDP2 shares gradients", "--tensor-parallel"),
        ("fused-wgrad+parallel-setup", {}, "DDP waits for gradients that never come", "Omit one"),
        ("parallel-setup", {"gpus": 2}, "on a single GPU", "--gpus 1"),
        ("fp8-weights", {}, "delayed scaling has none before the first step", "te-fp8:current"),
        ("fp8-weights", {"mode": ("te-fp8:current",), "parallel": "fsdp"}, "FusedAdam", "--optimizer none"),
        ("fp8-weights+weight-cache", {"mode": ("te-fp8:current",)}, "nothing left to cast", "Omit weight-cache"),
        ("fused-qkv", {"workload": "llm-1b"}, "does not apply to 'llm-1b'", "llm-1b takes weight-cache"),
        ("fused-qkv", {"workload": "vit-huge"}, "does not apply to 'vit-huge'", "--workload gpt-layer"),
        ("split-qkv", {"workload": "llm-1b"}, "does not apply to 'llm-1b'", "llm-1b takes weight-cache"),
        ("fused-qkv", {"te_attention": "sdpa"}, "Transformer Engine's own layer", "Omit --te-attention"),
        ("fused-qkv", {"mode": ("baseline-bf16",)}, "which no requested mode has", "Add --mode te-fp8"),
    ],
)
def test_what_cannot_be_says_why_and_what_can(requested, settings, what, remedy):
    error = refused(requested, **settings)
    assert what in error.what
    assert remedy in error.remedy


@pytest.mark.parametrize("settings", [{"workload": "llm-1b"}, {"te_attention": "sdpa"}], ids=str)
def test_a_switch_that_another_requires_is_not_named_in_its_place(settings):
    assert refused("fused-wgrad", **settings).what.startswith("--te-switch fused-wgrad: it ")


def test_a_language_model_takes_the_cache():
    assert switches_of("weight-cache", workload="llm-1b", gpus=8) == ["weight-cache"]


def test_a_vit_takes_the_split_of_its_queries_keys_and_values():
    for workload in ("vit-huge", "timm:vit_large_patch16_224"):
        settings = {"workload": workload, "batch_size": 32, "gpus": 8}
        assert switches_of(NONE, "split-qkv", mode=("te-bf16",), **settings) == [None, "split-qkv"]


@pytest.mark.parametrize("requested", [(LADDER,), (NONE, "fused-qkv"), ()])
def test_a_session_that_is_resumed_measures_the_same_again(requested):
    found = planned(mode=("te-fp8", "te-bf16", "baseline-bf16"), te_switch=requested, **LAYER)
    again = planned(mode=("te-fp8", "te-bf16", "baseline-bf16"), te_switch=words_of(found), **LAYER)
    assert again == found

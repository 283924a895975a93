"""Ranks whose model is sharded: what the ranks of `joined` wrote down of each scene."""

import pytest
import torch
from worker.several_ranks import of_ranks

from fp8bench.workloads.gpt_layer import GPTLayerMicro

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return of_ranks("worker.execution.joined", tmp_path_factory.mktemp("joined"), 2, 280)


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return of_ranks("worker.execution.joined", tmp_path_factory.mktemp("groups"), 4, 280)


def of(scenes, name):
    return [found[name] for found in scenes]


RIGHT = {
    "fsdp": ("fsdp", 0.1),
    "float8": ("fsdp", 0.1),
    "fsdp layer": ("fsdp", 0.02),
    "tp2": ("tp2", 0.1),
    "fsdp+tp2": ("fsdp+tp2", 0.1),
    "llama, tp2": ("tp2", 0.2),
    "llama, fsdp+tp2": ("fsdp+tp2", 0.2),
    "te layer": ("tp2", 0.1),
    "te llama": ("tp2", 0.1),
    "layer": ("tp2", 0.1),
}


@pytest.mark.parametrize(("name", "expected"), RIGHT.items(), ids=RIGHT)
def test_ranks_that_share_weights_or_layers_do_what_one_does(name, expected, scenes):
    join, most = expected
    for found in of(scenes, name):
        assert (found["join"], found["reference"], found["warning"]) == (join, "whole model", None)
        errors = (found["loss_error"], found["gradient_error"], found["update_error"])
        assert max(errors[: 2 if name == "fsdp layer" else 3]) < most
        assert found["spread"] == (0 if "tp2" in join else None), "what several ranks have all of stays alike"
        if join == "tp2":
            assert found["unshared"] is None, "both see the same samples: rounding alone sets their gradients apart"
        elif "tp2" not in join:
            assert found["unshared"] < 0.01


@pytest.mark.parametrize("name", ["tp2", "llama", "te layer", "te llama"])
def test_groups_that_share_layers_are_joined_by_fsdp_and_do_what_one_rank_does(groups, name):
    for found in of(groups, name):
        assert (found["join"], found["reference"], found["warning"]) == ("fsdp+tp2", "whole model", None)
        assert max(found["loss_error"], found["gradient_error"], found["update_error"]) < 0.2
        assert found["unshared"] < 0.01
        assert found["spread"] == 0, "what every rank of a group has all of stays alike"


def test_what_was_sharded_is_on_record(scenes, groups):
    sharded = {"sharded_blocks": 2, "gathered_dtype": "bfloat16", "reduced_dtype": "float32"}
    asked = {"grad_accumulation": 2, "activation_checkpointing": "full", "checkpointed_blocks": 2}
    known = {"reason": "test", "tensor_parallel": 1, "resharded_after_forward": True, "notes": []}
    assert [found["parallel"] for found in of(scenes, "fsdp")] == [{**known, **asked, **sharded}] * 2
    for found in of(scenes, "float8"):
        assert found["parallel"]["gathered_dtype"] == "float8_e4m3fn"
        assert found["scaled_weights"] == 8, "four linear layers of each block have the scale of the whole weight"
    for found in of(scenes, "fsdp layer"):
        assert (found["parallel"]["sharded_blocks"], found["parallel"]["checkpointed_blocks"]) == (1, 1)
    for name in ("tp2", "fsdp+tp2"):
        assert [found["parallel"]["tensor_parallel"] for found in of(scenes, name)] == [2, 2]
    for found in (*of(scenes, "te layer"), of(groups, "te layer")[0]):
        assert "te-bf16's own arguments" in found["parallel"]["notes"][0]


KEPT = "its ranks keep gradients of their own, which differ from the mean by"
DIVIDES = "--tensor-parallel 2 does not divide "
WRONG = {
    "stale input": "its gradients differ by",
    "no optimizer": "what it makes of the weights differs by 1 ",
    "never reduced": "its gradients differ by 1 ",
    "own gradients": KEPT,
    "frozen scales": "what it makes of fp8's scales differs by 1 ",
    "te layer, not summed": "its gradients differ by",
    "three heads": f"{DIVIDES}the model's 3 attention heads",
    "llama, 33 tokens": f"{DIVIDES}a sequence of 33 tokens, which ranks share",
    "te layer, 33 tokens": "does not divide the model's 33 tokens of a sequence",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_or_cannot_be_shared_is_refused_by_every_rank(name, scenes, groups):
    for found in of(scenes, name):
        assert WRONG[name] in found.get("refused", ""), found
    # Nor do groups that do not add up what they should.
    for of_group, told in (("te layer, not summed", "its gradients differ by"), ("te layer, own gradients", KEPT)):
        for found in of(groups, of_group):
            assert told in found["refused"]


def test_a_second_model_takes_the_same_memory_however_the_first_is_shared(scenes, groups):
    weights = sum(weight.numel() for weight in GPTLayerMicro().build(torch.device("cpu")).parameters())
    for found in (*of(scenes, "layer"), *of(scenes, "te layer")):
        assert found["whole_bytes"] == 16 * weights, "AdamW: weights, gradients and two moments"
    for found in of(groups, "te layer"):
        assert found["whole_bytes"] == 8 * weights, "no optimizer"


def test_what_is_wrong_about_a_shared_step_is_answered_by_the_options_that_share_it(scenes, groups):
    for found in (*of(scenes, "te layer, not summed"), *of(groups, "te layer, not summed")):
        assert found["gate"]["passed"], "the gate compares weight gradients before layers are divided"
    for found in of(scenes, "te layer, not summed"):
        assert found["remedy"] == "Do not use its speed: use --tensor-parallel 1, or try another torch"
    for found in of(scenes, "never reduced"):
        assert "use --cuda-graphs off and --parallel ddp, or" in found["remedy"]


def test_a_layer_that_its_library_shares_or_of_16_bits_is_proved_as_the_model_that_it_is_compared_with(scenes):
    for found in of(scenes, "te layer"):
        assert found["gate"]["passed"], found["gate"]["reason"]
        assert 0 < found["gate"]["weight_gradient_error"] < 0.2
    for found in of(scenes, "te layer, fused"):
        assert found["gate"]["passed"], found["gate"]["reason"]
        assert found["gradient_error"] < 0.1, "of gradients beside the weights"
        assert found["update_error"] == 0, "no optimizer, and no weight changed"
    for found in of(scenes, "16-bit layer"):
        assert found["gradient_error"] < 0.02
        assert found["batch_size"] == 16


def test_groups_that_share_layers_are_joined_by_fsdp_in_every_mode_each_with_its_own_samples(groups):
    reason = "requested with --tensor-parallel 2; auto: FSDP2 joins groups that share layers"
    for found in of(groups, "chosen"):
        assert found == [["fsdp+tp2", True, reason], ["fsdp+tp2", False, reason]]
    found = of(groups, "te layer")
    assert all(one["gate"]["passed"] for one in found)
    first, second, third, fourth = (one["gate"]["input_gradient_error"] for one in found)
    assert (first, third) == (second, fourth)
    assert first != third

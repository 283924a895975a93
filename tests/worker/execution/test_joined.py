"""Ranks whose model is sharded: steps are proved against a whole model's, and each fault is found.

All scenes run in two processes, or in four (see `joined`); a test looks at what the ranks wrote down of one.
"""

import json
from pathlib import Path

import fork_server
import pytest
import torch
from cli.calling import environment

from fp8bench.registry import workloads
from fp8bench.workloads.gpt_layer import GPTLayerMicro

pytestmark = pytest.mark.thorough


def of_ranks(size, folder):
    here = environment(PYTHONPATH=str(Path(__file__).parents[2]))
    code, _, errors = fork_server.called([str(folder), str(size)], folder, here, 280, ("-m", "worker.execution.joined"))
    assert code == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return of_ranks(2, tmp_path_factory.mktemp("joined"))


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return of_ranks(4, tmp_path_factory.mktemp("groups"))


def of(scenes, name):
    return [found[name] for found in scenes]


def test_sharded_steps_in_micro_batches_are_proved_against_a_whole_model(scenes):
    for found in of(scenes, "fsdp"):
        assert (found["join"], found["reference"], found["warning"]) == ("fsdp", "whole model", None)
        assert max(found["loss_error"], found["gradient_error"], found["update_error"]) < 0.1
        assert found["unshared"] < 0.01
        assert found["spread"] is None, "no rank has what another one has"
    assert found["parallel"] == {
        "reason": "test",
        "tensor_parallel": 1,
        "grad_accumulation": 2,
        "activation_checkpointing": "full",
        "checkpointed_blocks": 2,
        "sharded_blocks": 2,
        "gathered_dtype": "bfloat16",
        "reduced_dtype": "float32",
        "resharded_after_forward": True,
        "notes": [],
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stale input", "its gradients differ by"),
        ("no optimizer", "what it makes of the weights differs by 1 "),
        ("never reduced", "its gradients differ by 1 "),
        ("own gradients", "its ranks keep gradients of their own, which differ from the mean by"),
        ("frozen scales", "what it makes of fp8's scales differs by 1 "),
    ],
)
def test_sharded_steps_that_are_wrong_are_found_by_every_rank(name, told, scenes):
    for found in of(scenes, name):
        assert told in found.get("refused", ""), found


def test_weights_that_travel_in_float8_give_the_same_steps(scenes):
    for found in of(scenes, "float8"):
        assert found["parallel"]["gathered_dtype"] == "float8_e4m3fn"
        assert found["scaled_weights"] == 8, "four linear layers of each block have the scale of the whole weight"
        assert max(found["gradient_error"], found["update_error"]) < 0.1


@pytest.mark.parametrize("name", ["tp2", "fsdp+tp2"])
def test_two_ranks_that_share_layers_do_what_one_does(name, scenes):
    for found in of(scenes, name):
        assert (found["join"], found["parallel"]["tensor_parallel"]) == (name, 2)
        assert found["reference"] == "whole model"
        assert max(found["loss_error"], found["gradient_error"], found["update_error"]) < 0.1
        assert found["spread"] == 0, "what both have is alike"


def test_heads_that_ranks_cannot_share_are_refused(scenes):
    for found in of(scenes, "three heads"):
        assert found["refused"] == "--tensor-parallel 2 does not divide the model's 3 attention heads"


needs_llama = pytest.mark.skipif("llm-micro" not in workloads(), reason="this version has no language models")


@needs_llama
@pytest.mark.parametrize("join", ["tp2", "fsdp+tp2"])
def test_two_ranks_that_share_the_layers_and_the_tokens_of_llama_do_what_one_does(join, scenes):
    for found in of(scenes, f"llama, {join}"):
        assert (found["join"], found["reference"], found["spread"]) == (join, "whole model", 0)
        assert max(found["loss_error"], found["gradient_error"], found["update_error"]) < 0.2


@needs_llama
def test_a_sequence_that_ranks_cannot_share_is_refused(scenes):
    for found in of(scenes, "llama, 33 tokens"):
        assert found["refused"] == "--tensor-parallel 2 does not divide a sequence of 33 tokens, which ranks share"


@pytest.mark.parametrize("name", ["te layer", "te llama", "layer"])
def test_a_library_s_own_arguments_and_a_plan_both_share_a_layer_as_proved(scenes, name):
    for found in of(scenes, name):
        assert (found["join"], found["reference"], found["warning"]) == ("tp2", "whole model", None)
        assert max(found["loss_error"], found["gradient_error"], found["update_error"]) < 0.1
        assert found["spread"] == 0, "what every rank has all of stays alike"


def test_a_second_model_takes_the_same_memory_however_the_first_is_shared(scenes, groups):
    weights = sum(weight.numel() for weight in GPTLayerMicro().build(torch.device("cpu")).parameters())
    for found in (*of(scenes, "layer"), *of(scenes, "te layer")):
        assert found["whole_bytes"] == 16 * weights, "AdamW: weights, gradients and two moments"
    for found in of(groups, "te layer"):
        assert found["whole_bytes"] == 8 * weights, "no optimizer"


def test_a_layer_of_16_bit_weights_rounds_as_the_model_that_it_is_compared_with(scenes):
    for found in of(scenes, "16-bit layer"):
        assert found["gradient_error"] < 0.02
        assert found["batch_size"] == 16


def test_a_single_layer_is_the_block_that_is_sharded_and_checkpointed(scenes):
    for found in of(scenes, "fsdp layer"):
        assert (found["join"], found["reference"], found["warning"]) == ("fsdp", "whole model", None)
        assert (found["parallel"]["sharded_blocks"], found["parallel"]["checkpointed_blocks"]) == (1, 1)
        assert max(found["loss_error"], found["gradient_error"]) < 0.02
        assert found["unshared"] < 0.01


def test_what_is_wrong_about_a_shared_step_is_answered_by_the_options_that_share_it(scenes):
    for found in of(scenes, "te layer, not summed"):
        assert found["remedy"] == "Do not use its speed: use --tensor-parallel 1, or try another torch"
    for found in of(scenes, "never reduced"):
        assert "use --cuda-graphs off and --parallel ddp, or" in found["remedy"]


def test_a_layer_that_its_library_shares_is_shared_before_the_gate(scenes):
    for found in of(scenes, "te layer"):
        assert found["gate"]["passed"], found["gate"]["reason"]
        assert 0 < found["gate"]["weight_gradient_error"] < 0.2
    assert "te-bf16's own arguments" in found["parallel"]["notes"][0]


def test_gradients_beside_the_weights_of_a_shared_layer_are_proved(scenes):
    for found in of(scenes, "te layer, fused"):
        assert found["gate"]["passed"], found["gate"]["reason"]
        assert found["gradient_error"] < 0.1
        assert found["update_error"] == 0, "no optimizer, and no weight changed"


def test_gradients_of_norms_that_are_not_added_up_are_found(scenes):
    for found in of(scenes, "te layer, not summed"):
        assert found["gate"]["passed"], "the gate compares weight gradients before layers are divided"
        assert "its gradients differ by" in found["refused"]


def test_a_sequence_that_ranks_of_a_layer_cannot_share_is_refused(scenes):
    assert "does not divide the model's 33 tokens of a sequence" in of(scenes, "te layer, 33 tokens")[0]["refused"]


def test_groups_that_share_layers_are_joined_by_fsdp_in_every_mode(groups):
    reason = "requested with --tensor-parallel 2; auto: FSDP2 joins groups that share layers"
    for found in of(groups, "chosen"):
        assert found == [["fsdp+tp2", True, reason], ["fsdp+tp2", False, reason]]


@needs_llama
@pytest.mark.parametrize("name", ["tp2", "llama", "te layer", "te llama"])
def test_groups_that_share_layers_are_joined_by_fsdp_and_do_what_one_rank_does(groups, name):
    for found in of(groups, name):
        assert (found["join"], found["reference"], found["warning"]) == ("fsdp+tp2", "whole model", None)
        assert max(found["loss_error"], found["gradient_error"], found["update_error"]) < 0.2
        assert found["unshared"] < 0.01
        assert found["spread"] == 0, "what every rank of a group has all of stays alike"


def test_a_layer_that_its_library_shares_is_proved_by_each_group_with_its_own_samples(groups):
    found = of(groups, "te layer")
    assert all(one["gate"]["passed"] for one in found)
    first, second, third, fourth = (one["gate"]["input_gradient_error"] for one in found)
    assert (first, third) == (second, fourth)
    assert first != third
    assert "te-bf16's own arguments" in found[0]["parallel"]["notes"][0]


def test_summands_of_sharded_gradients_that_are_not_added_up_are_found(groups):
    for found in of(groups, "te layer, not summed"):
        assert found["gate"]["passed"], "the gate runs before weights are sharded"
        assert "its gradients differ by" in found["refused"]


def test_groups_that_keep_their_own_gradients_are_found(groups):
    for found in of(groups, "te layer, own gradients"):
        assert "its ranks keep gradients of their own, which differ from the mean by" in found["refused"]

"""Two ranks, or four, that settle how steps of a sharded model are executed: rightly, and wrongly in each way. One set
of processes for all of it, since each takes seconds to begin: python -m worker.execution.test_joined FOLDER RANKS
"""

import sys
from dataclasses import replace
from typing import ClassVar
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from modes import te_stand_in
from outside.outside_plugins import Polite
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.tensor import DTensor
from worker.execution import executing
from worker.execution.executing import CAPTURED, CPU, PLAIN, Delayed, Replayed
from worker.several_ranks import begin, of_ranks

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16
from fp8bench.schema.errors import Fp8benchError
from fp8bench.worker.execution.build import choose_strategy
from fp8bench.worker.execution.parallel.strategy import FSDP, mesh_of
from fp8bench.worker.execution.parallel.tensor import OwnTensorParallel, TensorParallel
from fp8bench.worker.execution.reference import whole_bytes
from fp8bench.worker.parity import prove
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.thorough


class NeverReduced(Replayed):
    """Gradients are left where they add up, and no weight gets one."""

    def __call__(self, batch, marks):
        self.parts.model.set_requires_gradient_sync(False)
        return super().__call__(batch, marks)


class OwnGradients(Replayed):
    """Each rank takes its part of its own gradient for the mean of all."""

    def __call__(self, batch, marks):
        def own(_comm, output_tensor, input_tensor, group, op, **_):
            size, rank = dist.get_world_size(group), dist.get_rank(group)
            summed = op == dist.ReduceOp.SUM
            output_tensor.copy_(input_tensor.view(size, -1)[rank] * (size if summed else 1))

        with mock.patch.object(_fsdp_collectives.DefaultReduceScatter, "__call__", own):
            return super().__call__(batch, marks)


def fsdp(choice=PLAIN):
    return replace(choice, strategy=FSDP("test"))


def tensor(choice=PLAIN, groups=False):
    alone = TensorParallel(mesh_of(2, CPU), "test")
    return replace(choice, strategy=FSDP("test", alone) if groups else alone)


def settled(choice, launch=Replayed, mode=None, tolerance=BF16_TOLERANCE, workload=None, optimizer="adamw", **values):
    rank, size = dist.get_rank() // (2 if "tp2" in choice.strategy.word else 1), dist.get_world_size()
    run = {"optimizer": optimizer, **values}
    try:
        of_rank = {"rank": rank, "world_size": size, "batch_size": 8}
        parts, batches = executing.some_parts(mode, workload, choice, warm=1, **{**of_rank, **run})
    except Fp8benchError as refusal:
        return {"refused": refusal.what}
    found = executing.outcome(launch, choice, tolerance, (parts, batches), cuda_graphs="on", **run)
    held = [weight._local_tensor for weight in parts.plain.parameters() if isinstance(weight, DTensor)]
    scaled = sum(getattr(weight, "_precomputed_scale", None) is not None for weight in held)
    return {"whole_bytes": whole_bytes(parts, optimizer), "scaled_weights": scaled, **found}


class ThreeHeads(ViTMicro):
    architecture: ClassVar = {**ViTMicro.architecture, "embed_dim": 48, "num_heads": 3}


def llama(choice, mode=None, tolerance=BF16_TOLERANCE, length=64):
    return settled(choice, mode=mode, tolerance=tolerance, workload=LLMMicro(sequence_length=length), batch_size=4)


def te_layers(workload, switches=None, groups=False, launch=Replayed, tolerance=BF16_TOLERANCE, **values):
    def choice_of(mode):
        own = OwnTensorParallel(mesh_of(2, CPU), "test", mode)
        return replace(CAPTURED if groups else PLAIN, strategy=FSDP("test", own) if groups else own)

    with mock.patch.dict(sys.modules, te_stand_in.MODULES):
        mode = TEBF16(te_switches=switches)
        try:
            gate = prove(mode, workload, dist.get_rank(), CPU, choice_of(mode).strategy).parity
        except Fp8benchError as refusal:
            return {"refused": refusal.what}
        found = settled(choice_of(mode), launch, mode, tolerance, workload, **values)
        return {**found, "gate": gate.model_dump()}


def not_summed(hook, **values):
    with mock.patch(f"fp8bench.worker.execution.parallel.tensor.{hook}", return_value=lambda gradient: gradient):
        return te_layers(GPTLayerMicro(weight_dtype="float32"), optimizer="sgd", **values)


SCENES = {
    "fsdp": lambda: settled(fsdp(), grad_accumulation=2, activation_checkpointing="full"),
    "stale input": lambda: settled(fsdp(CAPTURED), executing.StaleInput, tolerance=FP8_TOLERANCE),
    "no optimizer": lambda: settled(fsdp(CAPTURED), executing.NoOptimizer, tolerance=FP8_TOLERANCE),
    "never reduced": lambda: settled(fsdp(CAPTURED), NeverReduced, tolerance=FP8_TOLERANCE),
    "own gradients": lambda: settled(fsdp(CAPTURED), OwnGradients, tolerance=FP8_TOLERANCE),
    "frozen scales": lambda: settled(fsdp(CAPTURED), executing.FrozenScales, mode=Delayed(), tolerance=FP8_TOLERANCE),
    "float8": lambda: settled(fsdp(), mode=TorchAOFloat8(), tolerance=FP8_TOLERANCE),
    "tp2": lambda: settled(tensor(), batch_size=16),
    "fsdp+tp2": lambda: settled(tensor(groups=True), batch_size=16),
    "three heads": lambda: settled(tensor(), workload=ThreeHeads()),
    "llama, tp2": lambda: llama(tensor(), mode=TorchAOFloat8(), tolerance=FP8_TOLERANCE),
    "llama, fsdp+tp2": lambda: llama(tensor(groups=True)),
    "llama, 33 tokens": lambda: llama(tensor(), length=33),
    "te layer": lambda: te_layers(GPTLayerMicro(weight_dtype="float32")),
    "te layer, fused": lambda: te_layers(
        GPTLayerMicro(), "fused-qkv+fused-wgrad", optimizer="none", grad_accumulation=2
    ),
    "te layer, not summed": lambda: not_summed("summed_over"),
    "te layer, 33 tokens": lambda: te_layers(GPTLayerMicro(sequence_length=33)),
    "te llama": lambda: te_layers(LLMMicro(data="device"), batch_size=4),
    "16-bit layer": lambda: settled(tensor(), workload=GPTLayerMicro(), batch_size=16, optimizer="none"),
    "fsdp layer": lambda: settled(fsdp(), workload=GPTLayerMicro(), optimizer="none", activation_checkpointing="full"),
    "layer": lambda: settled(tensor(), workload=GPTLayerMicro(weight_dtype="float32"), batch_size=4),
}


def chosen(mode):
    run = executing.settings(world_size=4, tensor_parallel=2)
    strategy = choose_strategy(run, mode, GPTLayerMicro(), CPU)
    return [strategy.word, strategy.divides_early, strategy.evidence().reason]


OF_GROUPS = {
    "chosen": lambda: [chosen(TEBF16()), chosen(Polite())],
    "tp2": lambda: settled(tensor(groups=True), batch_size=16),
    "llama": lambda: llama(tensor(groups=True)),
    "te layer": lambda: te_layers(
        GPTLayerMicro(weight_dtype="float32"), "fused-qkv", groups=True, grad_accumulation=2, optimizer="none"
    ),
    "te llama": lambda: te_layers(LLMMicro(data="device"), groups=True, batch_size=4),
    "te layer, not summed": lambda: not_summed("sum_of_part_over", groups=True),
    "te layer, own gradients": lambda: te_layers(
        GPTLayerMicro(weight_dtype="float32"), groups=True, launch=OwnGradients, optimizer="none"
    ),
}
"""Scenes of four ranks: two groups, whose ranks share layers."""


def scenes():
    return SCENES if dist.get_world_size() == 2 else OF_GROUPS


def of_all(ranks):
    @pytest.fixture(scope="module")
    def by_name(tmp_path_factory):
        found = of_ranks("worker.execution.test_joined", tmp_path_factory.mktemp("joined"), ranks, 280)
        return {name: [one[name] for one in found] for name in found[0]}

    return by_name


two, groups = of_all(2), of_all(4)


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
def test_ranks_that_share_weights_or_layers_do_what_one_does(name, expected, two):
    join, most = expected
    for found in two[name]:
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
    for found in groups[name]:
        assert (found["join"], found["reference"], found["warning"]) == ("fsdp+tp2", "whole model", None)
        assert max(found["loss_error"], found["gradient_error"], found["update_error"]) < 0.2
        assert found["unshared"] < 0.01
        assert found["spread"] == 0, "what every rank of a group has all of stays alike"


def test_what_was_sharded_is_on_record(two, groups):
    sharded = {"sharded_blocks": 2, "gathered_dtype": "bfloat16", "reduced_dtype": "float32"}
    asked = {"grad_accumulation": 2, "activation_checkpointing": "full", "checkpointed_blocks": 2}
    known = {"reason": "test", "tensor_parallel": 1, "resharded_after_forward": True, "notes": []}
    assert [found["parallel"] for found in two["fsdp"]] == [{**known, **asked, **sharded}] * 2
    for found in two["float8"]:
        assert found["parallel"]["gathered_dtype"] == "float8_e4m3fn"
        assert found["scaled_weights"] == 8, "four linear layers of each block have the scale of the whole weight"
    for found in two["fsdp layer"]:
        assert (found["parallel"]["sharded_blocks"], found["parallel"]["checkpointed_blocks"]) == (1, 1)
    for name in ("tp2", "fsdp+tp2"):
        assert [found["parallel"]["tensor_parallel"] for found in two[name]] == [2, 2]
    for found in (*two["te layer"], groups["te layer"][0]):
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
def test_what_is_wrong_or_cannot_be_shared_is_refused_by_every_rank(name, two, groups):
    for found in two[name]:
        assert WRONG[name] in found.get("refused", ""), found
    # Nor do groups that do not add up what they should.
    for of_group, told in (("te layer, not summed", "its gradients differ by"), ("te layer, own gradients", KEPT)):
        for found in groups[of_group]:
            assert told in found["refused"]


def test_a_second_model_takes_the_same_memory_however_the_first_is_shared(two, groups):
    weights = sum(weight.numel() for weight in GPTLayerMicro().build(torch.device("cpu")).parameters())
    for found in (*two["layer"], *two["te layer"]):
        assert found["whole_bytes"] == 16 * weights, "AdamW: weights, gradients and two moments"
    for found in groups["te layer"]:
        assert found["whole_bytes"] == 8 * weights, "no optimizer"


def test_what_is_wrong_about_a_shared_step_is_answered_by_the_options_that_share_it(two, groups):
    for found in (*two["te layer, not summed"], *groups["te layer, not summed"]):
        assert found["gate"]["passed"], "the gate compares weight gradients before layers are divided"
    for found in two["te layer, not summed"]:
        assert found["remedy"] == "Do not use its speed: use --tensor-parallel 1, or try another torch"
    for found in two["never reduced"]:
        assert "use --cuda-graphs off and --parallel ddp, or" in found["remedy"]


def test_a_layer_that_its_library_shares_or_of_16_bits_is_proved_as_the_model_that_it_is_compared_with(two):
    for found in two["te layer"]:
        assert found["gate"]["passed"], found["gate"]["reason"]
        assert 0 < found["gate"]["weight_gradient_error"] < 0.2
    for found in two["te layer, fused"]:
        assert found["gate"]["passed"], found["gate"]["reason"]
        assert found["gradient_error"] < 0.1, "of gradients beside the weights"
        assert found["update_error"] == 0, "no optimizer, and no weight changed"
    for found in two["16-bit layer"]:
        assert found["gradient_error"] < 0.02
        assert found["batch_size"] == 16


def test_groups_that_share_layers_are_joined_by_fsdp_in_every_mode_each_with_its_own_samples(groups):
    reason = "requested with --tensor-parallel 2; auto: FSDP2 joins groups that share layers"
    for found in groups["chosen"]:
        assert found == [["fsdp+tp2", True, reason], ["fsdp+tp2", False, reason]]
    found = groups["te layer"]
    assert all(one["gate"]["passed"] for one in found)
    first, second, third, fourth = (one["gate"]["input_gradient_error"] for one in found)
    assert (first, third) == (second, fourth)
    assert first != third


if __name__ == "__main__":
    begin(sys.argv[1], int(sys.argv[2]), scenes)

"""Two ranks, or four, that settle how steps of a sharded model are executed: rightly, and wrongly in each way. One
set of processes for all of it, since each takes seconds to begin: python -m worker.execution.joined FOLDER RANKS
"""

import sys
from dataclasses import replace
from typing import ClassVar
from unittest import mock

import torch.distributed as dist
from modes import te_stand_in
from outside.outside_plugins import Polite
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.tensor import DTensor
from worker.execution import executing
from worker.execution.executing import CAPTURED, CPU, PLAIN, Delayed, Replayed
from worker.several_ranks import begin

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
    try:
        run = {"optimizer": optimizer, "batch_size": 8, **values}
        parts, batches = executing.some_parts(mode, workload, choice, warm=1, rank=rank, world_size=size, **run)
        run = {"cuda_graphs": "on", "optimizer": optimizer, **values}
        found = executing.decided(launch, choice, tolerance, (parts, batches), **run)
    except Fp8benchError as refusal:
        return {"refused": refusal.what, "remedy": refusal.remedy}
    held = [weight._local_tensor for weight in parts.plain.parameters() if isinstance(weight, DTensor)]
    return {
        "join": found.join,
        "warning": found.warning,
        "parallel": found.parallel.model_dump(),
        "whole_bytes": whole_bytes(parts, optimizer),
        "scaled_weights": sum(getattr(weight, "_precomputed_scale", None) is not None for weight in held),
        **found.executed.model_dump(),
    }


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


if __name__ == "__main__":
    begin(sys.argv[1], int(sys.argv[2]), scenes)

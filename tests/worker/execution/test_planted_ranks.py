"""Two ranks that settle how steps are executed, rightly and with each fault of ranks that share gradients, or that run
the gate; each fault is refused by its name. The ranks run this file: python -m worker.execution.test_planted_ranks
FOLDER 2
"""

import re
import sys
from contextlib import nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from modes import te_stand_in
from worker.execution import executing
from worker.execution.executing import CPU, counted
from worker.several_ranks import begin, of_ranks

from fp8bench.modes.protocol import FP8_TOLERANCE
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker.execution import step
from fp8bench.worker.execution.afterwards import require_own_samples, sketches, spread
from fp8bench.worker.execution.parallel.strategy import DDP, mesh_of
from fp8bench.worker.execution.parallel.tensor import OwnTensorParallel
from fp8bench.worker.execution.proof import MAX_SPREAD
from fp8bench.worker.execution.step import NO_MARKS
from fp8bench.worker.parity import prove
from fp8bench.worker.plugin import Batches
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.slow

RUN = {"world_size": 2}
UPDATE = step.update


def no_all_reduce(parts):
    forward = step.forward

    def alone(parts, model, *rest):
        with model.no_sync():
            return forward(parts, model, *rest)

    return mock.patch.object(step, "forward", alone)


def some_all_reduced(parts):
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(parts.plain, ["norm.bias"])
    object.__setattr__(parts, "model", torch.nn.parallel.DistributedDataParallel(parts.plain))
    return nullcontext()


def summed(parts):
    def add_up(_state, bucket):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    parts.model.register_comm_hook(None, add_up)
    return nullcontext()


def one_steps(parts):
    return mock.patch.object(step, "update", lambda parts: None if dist.get_rank() else UPDATE(parts))


def other_weights(parts):
    with torch.no_grad():
        parts.plain.norm.bias.add_(0.01 * dist.get_rank())
    return nullcontext()


FAULTS = {
    "nothing": lambda parts: nullcontext(),
    "no all-reduce": no_all_reduce,
    "one weight not all-reduced": some_all_reduced,
    "gradients summed": summed,
    "one rank steps": one_steps,
    "other weights": other_weights,
}


def settled(plant, choice, capture, **values):
    parts = executing.some_parts(rank=dist.get_rank(), **RUN, **values)
    with plant(parts[0]):
        return executing.outcome(capture, choice, FP8_TOLERANCE, parts, cuda_graphs="on", **RUN, **values)


def later(plant):
    parts, batches = executing.some_parts(rank=dist.get_rank(), **RUN)
    begun = sketches(parts)
    with plant(parts):
        for _ in range(3):
            step.step(parts, next(batches), NO_MARKS)
    return {"apart": spread(parts, begun, sketches(parts))}


class FaultyOnOne(TorchAOFloat8):
    def convert(self, model):
        model = super().convert(model)
        model.head.bias.requires_grad_(dist.get_rank() == 0)
        return model


def gate(mode, workload, strategy=None, rank=None):
    found = prove(mode, workload, dist.get_rank() if rank is None else rank, CPU, strategy or DDP())
    return {"passed": found.parity.passed, "reason": found.parity.reason, "passes": mode.passes}


def own_layers():
    with mock.patch.dict(sys.modules, te_stand_in.MODULES):
        mode = counted(TEBF16)()
        strategy = OwnTensorParallel(mesh_of(2, CPU), "test", mode)
        return gate(mode, GPTLayerMicro(weight_dtype="float32"), strategy, rank=0)


GATES = {
    "float8": lambda: gate(counted(TorchAOFloat8)(), ViTMicro(data="device")),
    "one is faulty": lambda: gate(counted(FaultyOnOne)(), ViTMicro(data="device")),
    "own layers": own_layers,
}
"""The gate: each rank runs as many passes as the other, whatever it finds."""


def own_samples(batches_of, tensor_parallel=1):
    workload = ViTMicro(data="device")
    run = executing.settings(world_size=2, tensor_parallel=tensor_parallel)
    try:
        require_own_samples(workload, Batches(workload, run.batch_size, batches_of(dist.get_rank()), CPU), run)
    except MeasurementInvalid as refusal:
        return refusal.what


SAMPLES = {
    "samples of each rank": lambda: own_samples(lambda rank: rank),
    "samples of the first rank": lambda: own_samples(lambda _rank: 0),
    "samples of ranks that share layers": lambda: own_samples(lambda _rank: 0, tensor_parallel=2),
}


def scenes():
    return {
        **GATES,
        **SAMPLES,
        **{
            f"{fault}, {name}": partial(settled, plant, executing.PLAIN, executing.Replayed, optimizer=name)
            for fault, plant in FAULTS.items()
            for name in ("sgd", "adamw")
        },
        **{f"{fault}, later": partial(later, plant) for fault, plant in FAULTS.items()},
        **{
            launch: partial(settled, FAULTS["nothing"], executing.CAPTURED, getattr(executing, launch))
            for launch in ("Replayed", "NoAllReduce")
        },
    }


APART = "its ranks' weights move apart by"
TOLD = {
    "no all-reduce": APART,
    "one weight not all-reduced": f"what it makes of norm.bias differs.*{APART}",
    "gradients summed": "its gradients are (99|100)% longer",
    "one rank steps": APART,
    "other weights": APART,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return of_ranks("worker.execution.test_planted_ranks", tmp_path_factory.mktemp("ranks"), 2, 200)


@pytest.mark.parametrize("scene", ["nothing, sgd", "nothing, adamw", "Replayed"])
def test_ranks_that_share_their_gradients_are_proved(scene, outcomes):
    for found in (one[scene] for one in outcomes):
        assert (found["join"], found["spread"]) == ("ddp", 0)
        assert found["update_error"] < 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("fault", TOLD)
def test_ranks_that_do_not_share_as_they_should_are_refused(fault, optimizer, outcomes):
    for found in (one[f"{fault}, {optimizer}"] for one in outcomes):
        assert re.search(TOLD[fault], found["refused"])
        assert found["cause"] == "execution"


@pytest.mark.parametrize("fault", [fault for fault, words in TOLD.items() if APART in words])
def test_ranks_that_move_apart_after_the_proof_are_told_by_sketches(fault, outcomes):
    assert all(APART in one["NoAllReduce"]["refused"] for one in outcomes), "nor is a replay that shares none"
    assert all(one["nothing, later"]["apart"] == 0 for one in outcomes)
    assert all(one[f"{fault}, later"]["apart"] > 10 * MAX_SPREAD for one in outcomes)


@pytest.mark.parametrize("name", SAMPLES)
def test_ranks_that_share_no_layers_have_samples_of_their_own(name, outcomes):
    same = "vit-micro gives ranks 0 and 1 the same batch, and counts its samples for both"
    assert [one[name] for one in outcomes] == [same if "first" in name else None] * 2


@pytest.mark.parametrize("name", GATES)
def test_a_gate_takes_equal_numbers_of_passes_on_both_and_a_rank_whose_model_is_right_does_not_go_on_alone(
    name, outcomes
):
    first, second = (found[name] for found in outcomes)
    assert first["passed"], first["reason"]
    assert second["passed"] == (name != "one is faulty"), second["reason"]
    assert second["passed"] or "does not train head.bias" in second["reason"]
    assert first["passes"] == second["passes"] > 0


if __name__ == "__main__":
    begin(sys.argv[1], int(sys.argv[2]), scenes, "spawn")

"""Two ranks that run the gate, and write down what came of it and how many passes each ran.

python -m worker.gate_ranks FOLDER 2
"""

import sys
from unittest import mock

import torch
import torch.distributed as dist
from modes import te_stand_in
from worker.several_ranks import begin

from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16
from fp8bench.worker.execution.parallel.strategy import DDP, mesh_of
from fp8bench.worker.execution.parallel.tensor import OwnTensorParallel
from fp8bench.worker.parity import prove
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")


def counted(base):
    class Counted(base):
        passes = 0

        def forward_context(self):
            self.passes += 1
            return super().forward_context()

    return Counted


class FaultyOnOne(TorchAOFloat8):
    """On rank 1 a weight is not trained."""

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


SCENES = {
    "float8": lambda: gate(counted(TorchAOFloat8)(), ViTMicro(data="device")),
    "one is faulty": lambda: gate(counted(FaultyOnOne)(), ViTMicro(data="device")),
    "own layers": own_layers,
}


def scenes():
    torch.set_num_threads(1)
    return SCENES


if __name__ == "__main__":
    begin(sys.argv[1], int(sys.argv[2]), scenes)

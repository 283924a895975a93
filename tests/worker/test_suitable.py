"""A workload that cannot be proved is named, before any mode is blamed; what is frozen first is right."""

from functools import partial

import pytest
import torch
from outside.outside_plugins import Polite
from torch import nn
from torch.nn import functional as F

from fp8bench.schema.errors import MeasurementInvalid, RunFailed
from fp8bench.worker import parity
from fp8bench.worker.suitable import require_provable
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.protocol import Batch
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.usefixtures("process_group")

CPU = torch.device("cpu")


class Vectors:
    unit = "samples"

    def __init__(self, model, of_logits=F.cross_entropy):
        self.name, self.model, self.of_logits = "vectors", model, of_logits

    def build(self, device):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.model()

    def batches(self, batch_size, rank, device):
        generator = torch.Generator().manual_seed(rank)
        while True:
            inputs = torch.randn(batch_size, 16, generator=generator)
            yield Batch(inputs, torch.randint(4, (batch_size,), generator=generator))

    def loss(self, model, batch):
        return self.of_logits(model(batch.inputs), batch.targets)


class Net(nn.Module):
    def __init__(self, *inner):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(16, 32), nn.Sequential(*inner), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.inner(self.first(x)))


class FrozenFirst(Net):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            x = self.first(x)
        return self.head(x)


class InATuple(Net):
    def forward(self, x):
        return (super().forward(x),)


def test_a_head_on_a_frozen_model_passes():
    found = parity.prove(Polite(), Vectors(FrozenFirst), 0, CPU).parity
    assert (found.passed, found.leakage) == (True, None), found.reason


def of_valid(logits, targets):
    """A mean over valid targets, whose number differs between samples."""
    weights = torch.where(targets < 2, 4.0, 1.0)
    return (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()


def of_first(outputs, targets):
    return F.cross_entropy(outputs[0], targets)


REFUSED = {
    "dropout": (Vectors(lambda: Net(nn.Dropout(0.2))), "model of vectors gives other results in each pass"),
    "batch norm": (Vectors(lambda: Net(nn.BatchNorm1d(32))), "of a batch see each other in the model of vectors"),
    "a tuple": (Vectors(InATuple, of_first), r"whose output is a tuple.* logits\(model, batch\)"),
    "a sum": (
        Vectors(Net, partial(F.cross_entropy, reduction="sum")),
        "vectors is not the mean of its samples' losses",
    ),
    "of valid targets": (Vectors(Net, of_valid), "vectors is not the mean of its samples' losses"),
}


@pytest.mark.parametrize(("workload", "words"), REFUSED.values(), ids=REFUSED)
def test_the_workload_is_named_and_not_the_mode(workload, words):
    with pytest.raises((MeasurementInvalid, RunFailed), match=words):
        parity.prove(Polite(), workload, 0, CPU)


@pytest.mark.parametrize("workload", [ViTMicro, LLMMicro, GPTLayerMicro])
def test_workloads_of_this_package_are_right(workload):
    of_gate = workload(data="device")
    batch, model = next(of_gate.batches(16, 0, CPU)), of_gate.build(CPU)
    require_provable(model, of_gate, batch, lambda: None)
    assert all(weight.grad is None for weight in model.parameters())

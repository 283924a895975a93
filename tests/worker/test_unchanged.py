"""A mode that changes what the plain model is made of is refused: the plain model would agree with anything."""

from contextlib import contextmanager

import pytest
import timm.layers
import torch
from outside.outside_plugins import Polite
from torch import nn
from torch.nn import functional as F
from transformers.models.llama import modeling_llama

from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.worker import parity
from fp8bench.worker.plugin import Bindings
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.usefixtures("process_group")

CPU = torch.device("cpu")


def mean_of_values(query, key, value, *args, **kwargs):
    return value.mean(-2, keepdim=True).expand_as(query)


def by_hand(x):
    return F.silu(1.7 * x) / 1.7


def without_weight_gradients(self, x):
    return F.linear(x, self.weight.detach(), self.bias)


PATCHES = {
    "no MLP": (timm.layers.Mlp, "forward", lambda self, x: x, ViTMicro),
    "another activation": (nn.GELU, "forward", lambda self, x: by_hand(x), ViTMicro),
    "attention is a mean": (F, "scaled_dot_product_attention", mean_of_values, ViTMicro),
    "no rotation": (modeling_llama, "apply_rotary_pos_emb", lambda q, k, *args, **kwargs: (q, k), LLMMicro),
    "no MLP in Llama": (modeling_llama.LlamaMLP, "forward", lambda self, x: x, LLMMicro),
    "no weight gradients": (nn.Linear, "forward", without_weight_gradients, ViTMicro),
}


@pytest.mark.parametrize(("where", "name", "other", "workload"), PATCHES.values(), ids=PATCHES)
def test_a_conversion_that_replaces_what_both_models_use_is_refused(where, name, other, workload, monkeypatch):
    class Patching(Polite):
        def convert(self, model):
            monkeypatch.setattr(where, name, other)
            return model

    of_gate = workload(data="device")
    before = Bindings.of(of_gate.build(CPU), of_gate)
    found = parity.prove(Patching(), of_gate, 0, CPU, before=before).parity
    assert not found.passed
    assert "it replaces" in found.reason
    assert f".{name}, of which the plain model is made too" in found.reason


@pytest.mark.parametrize("workload", [ViTMicro, LLMMicro, GPTLayerMicro])
def test_the_proof_of_right_modes_replaces_nothing(workload):
    of_gate = workload(data="device")
    before = Bindings.of(of_gate.build(CPU), of_gate)
    for mode in (Polite(), TorchAOFloat8("tensorwise")):
        assert parity.prove(mode, of_gate, 0, CPU, before=before).parity.passed
    assert before.replaced() is None


def test_a_hook_of_all_modules_is_named():
    before = Bindings.of(nn.Linear(2, 2), ViTMicro(data="device"))
    hook = nn.modules.module.register_module_forward_hook(lambda _module, _args, output: output)
    try:
        assert "_global_forward_hooks" in before.replaced()
    finally:
        hook.remove()
    assert before.replaced() is None


def test_what_torch_replaces_of_its_own_is_no_fault(monkeypatch):
    before = Bindings.of(nn.Linear(2, 2), ViTMicro(data="device"))
    monkeypatch.setattr(torch, "manual_seed", torch._disable_dynamo(torch.manual_seed))
    assert before.replaced() is None


def test_what_is_replaced_within_a_context_alone_is_none_of_it(monkeypatch):
    class Within(Polite):
        @contextmanager
        def forward_context(self):
            with monkeypatch.context() as patch:
                patch.setattr(F, "gelu", F.gelu)
                patch.setattr(timm.layers.Mlp, "forward", lambda self, x: self.fc2(self.act(self.fc1(x))))
                yield

    workload = ViTMicro(data="device")
    before = Bindings.of(workload.build(CPU), workload)
    assert parity.prove(Within(), workload, 0, CPU, before=before).parity.passed

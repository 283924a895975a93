"""What a plug-in's class lacks, what its methods return instead of what they should, and what it must leave alone. A
workload that cannot be proved is named, before any mode is blamed; what is frozen first is right.
"""

import inspect
import re
from contextlib import contextmanager
from copy import copy
from functools import partial

import pytest
import timm.layers
import torch
from outside.outside_plugins import Polite, TinyLinear
from torch import nn
from torch.nn import functional as F
from transformers.models.llama import modeling_llama

from fp8bench import registry
from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE, Rounding, stated
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import MeasurementInvalid, RunFailed
from fp8bench.worker import parity
from fp8bench.worker.plugin import OF_MODE, OF_WORKLOAD, Batches, Bindings, made, require_scaling, require_stated
from fp8bench.worker.suitable import require_provable
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.protocol import Batch
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.usefixtures("process_group")

CPU = torch.device("cpu")


class Mode(Polite):
    name = "own"

    def forward_context(self):
        return torch.no_grad()


class WithoutEvidence(Mode):
    evidence = None


class WithoutRecipe(Mode):
    def __init__(self): ...


class Slotted:
    __slots__ = ("recipe",)
    name = "slotted"
    __init__, check, convert = Mode.__init__, Mode.check, Mode.convert
    forward_context, evidence = Mode.forward_context, Mode.evidence


class Workload:
    name = "own"

    def batches(self, batch_size, rank, device):
        return (Batch(torch.zeros(batch_size, 2), torch.zeros(batch_size)) for _ in range(3))


def test_a_method_is_checked_at_its_first_call_alone_on_an_object_of_its_class_and_a_copy_calls_its_own():
    answers = iter([{}, None])
    Fickle = type("Fickle", (Mode,), {"evidence": lambda self, model: next(answers)})
    mode = made("mode", "own", Fickle, OF_MODE, None)
    assert (isinstance(mode, Fickle), type(mode).__name__) == (True, "Fickle")
    assert [mode.evidence(None), mode.evidence(None)] == [{}, None]
    sized = type("Sized", (Mode,), {"evidence": lambda self, model: {"recipe": self.recipe}})
    mode = made("mode", "own", sized, OF_MODE, "first")
    other = copy(mode)
    other.recipe = "second"
    assert (mode.evidence(None), other.evidence(None)) == ({"recipe": "first"}, {"recipe": "second"})
    assert made("mode", "slotted", Slotted, OF_MODE, "a recipe").evidence(nn.Linear(1, 1))["recipe"] == "a recipe"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (WithoutEvidence, "mode 'own' has no method evidence, at worker/"),
        (WithoutRecipe, "mode 'own' cannot be made: its __init__ does not take what it is given (too many positional"),
    ],
)
def test_a_class_that_is_no_mode_is_named_with_its_place(found, said):
    with pytest.raises(RunFailed) as refused:
        made("mode", "own", found, OF_MODE, None)
    assert said in refused.value.what
    assert f"test_plugin.py:{inspect.getsourcelines(found)[1]}" in refused.value.what


def test_a_class_of_another_library_names_no_line_that_it_has_not_and_batches_are_counted_and_closed():
    with pytest.raises(RunFailed, match="workload 'own' has no method build"):
        made("workload", "own", dict, OF_WORKLOAD)
    batches = Batches(Workload(), 4, 0, CPU)
    next(batches)
    assert (batches.taken, batches.prefetched) == (1, 0)
    batches.close()
    with pytest.raises(RunFailed, match=r"Workload\.batches of 'own' ended at step 1 "):
        next(batches)


def stating(**own):
    return type("Stating", (Mode,), own)()


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"tolerance": 0.4}, "tolerance of 'own' is 0.4, and not a Tolerance"),
        ({"tolerance": FP8_TOLERANCE}, "has logits=0.4, and a mode without fp8 may have 0.1 at most"),
        ({"fp8": True, "tolerance": FP8_TOLERANCE.model_copy(update={"input_gradient": 1e6})}, "input_gradient=1e"),
        ({"tolerance": BF16_TOLERANCE.model_copy(update={"max_leakage": 1.0})}, "max_leakage=1"),
        ({"tolerance": BF16_TOLERANCE.model_copy(update={"min_separation": 1e-9})}, "a separation below"),
        ({"rounds": lambda self, model: None}, "says what is rounded to fp8, and its fp8 is False"),
        ({"gate_scales": ()}, r"is \(\), and not a tuple of positive numbers"),
        ({"gate_scales": (0.0,)}, "not a tuple of positive numbers"),
    ],
)
def test_what_a_mode_states_has_limits(own, words):
    with pytest.raises(RunFailed, match=words):
        require_stated(stating(**own))


@pytest.mark.parametrize("entry", [entry for entry in registry.modes().values() if registry.is_built_in(entry.target)])
def test_our_own_modes_keep_them(entry):
    for recipe in entry.recipes or (None,):
        mode = registry.load(entry)(recipe)
        require_stated(mode)
        own = stated(mode, "tolerance")
        assert own.model_copy(update={"settle_passes": 0}) in (BF16_TOLERANCE, FP8_TOLERANCE)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        *(("plain_weights", value) for value in (None, {"a": 3}, {"a": ["b", None]})),
        *(("rounds", value) for value in ({"fc1"}, Rounding(frozenset(), torch.float8_e8m0fnu))),
    ],
)
def test_what_the_gate_asks_of_a_mode_is_checked(method, value):
    wrong = type("Wrong", (Mode,), {method: lambda self, model: value})
    mode = made("mode", "wrong", wrong, OF_MODE, None)
    with pytest.raises(RunFailed, match=rf"Wrong.{method} of 'own' returned .*test_plugin.py"):
        getattr(mode, method)(nn.Linear(1, 1))


def test_names_for_one_weight_or_several_are_right_and_a_loss_scale_without_a_step_is_told():
    right = type("Right", (Mode,), {"plain_weights": lambda self, model: {"qkv": ("q", "k", "v"), "a": "b"}})
    assert made("mode", "right", right, OF_MODE, None).plain_weights(nn.Linear(1, 1))["a"] == "b"
    half_a_scale = type("HalfAScale", (), {"scaled": lambda self, loss: loss})()
    with pytest.raises(RunFailed, match="loss_scaling"):
        require_scaling(stating(loss_scaling=half_a_scale))
    require_scaling(stating(loss_scaling=None))


def mean_of_values(query, key, value, *args, **kwargs):
    return value.mean(-2, keepdim=True).expand_as(query)


PATCHES = {
    "no MLP": (timm.layers.Mlp, "forward", lambda self, x: x, ViTMicro),
    "another activation": (nn.GELU, "forward", lambda self, x: F.silu(1.7 * x) / 1.7, ViTMicro),
    "attention is a mean": (F, "scaled_dot_product_attention", mean_of_values, ViTMicro),
    "no rotation": (modeling_llama, "apply_rotary_pos_emb", lambda q, k, *args, **kwargs: (q, k), LLMMicro),
    "no MLP in Llama": (modeling_llama.LlamaMLP, "forward", lambda self, x: x, LLMMicro),
    "no weight gradients": (nn.Linear, "forward", lambda s, x: F.linear(x, s.weight.detach(), s.bias), ViTMicro),
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
    assert re.search(rf"it replaces .*\.{name}, of which the plain model is made too", found.reason)


@pytest.mark.parametrize("workload", [ViTMicro, LLMMicro, GPTLayerMicro])
def test_workloads_of_this_package_are_right_and_the_proof_of_right_modes_replaces_nothing(workload):
    of_gate = workload(data="device")
    batch, model = next(of_gate.batches(16, 0, CPU)), of_gate.build(CPU)
    require_provable(model, of_gate, batch, lambda: None)
    assert all(weight.grad is None for weight in model.parameters())
    before = Bindings.of(model, of_gate)
    for mode in (Polite(), TorchAOFloat8("tensorwise")):
        assert parity.prove(mode, of_gate, 0, CPU, before=before).parity.passed
    assert before.replaced() is None


def test_a_hook_of_all_modules_is_named_and_what_torch_replaces_of_its_own_is_no_fault(monkeypatch):
    before = Bindings.of(nn.Linear(2, 2), ViTMicro(data="device"))
    hook = nn.modules.module.register_module_forward_hook(lambda _module, _args, output: output)
    try:
        assert "_global_forward_hooks" in before.replaced()
    finally:
        hook.remove()
    assert before.replaced() is None
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


class Vectors(TinyLinear):
    name = "vectors"

    def __init__(self, model, of_logits=F.cross_entropy):
        super().__init__()
        self.model, self.of_logits = model, of_logits

    def build(self, device):
        torch.manual_seed(self.seed)
        return self.model()

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

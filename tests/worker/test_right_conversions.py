"""What is right passes: every mode that runs on a CPU, on plain models of many kinds, and leaves no trace in them.
Which weights stand for which, what is perturbed, and modes whose names are lies.
"""

import pytest
import torch
from kept import thorough_unless
from torch import nn
from torch.nn import functional as F
from worker.faulty_blocks import gradients, refusal, weight_detached
from worker.plain_models import OF_IMAGES, OF_TOKENS, Attending, Frozen, OfTokens, Padded, Patched, PlainModel, Tied

from fp8bench import registry
from fp8bench.modes.baseline import BaselineBF16, BaselineFP16, BaselineFP32
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.worker import parity
from fp8bench.worker.plain_weights import perturb, trained_weights
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
WITHOUT_FP8 = (BaselineBF16, BaselineFP32, BaselineFP16)
RECIPES = ("tensorwise", "rowwise")
BUILT_IN = (ViTMicro, LLMMicro, GPTLayerMicro)
TIMM = {
    "convnext_tiny": 32,
    "swin_tiny_patch4_window7_224": 56,
    "swinv2_tiny_window8_256": 64,
    "vit_tiny_patch16_224": 32,
    "eva02_tiny_patch14_224": 28,
    "deit3_small_patch16_224": 32,
}

pytestmark = pytest.mark.usefixtures("process_group")


OF_CPU = [
    thorough_unless(seed == 0, mode, seed)
    for mode, seed in (
        (BaselineBF16, 0),
        ("tensorwise", 0),
        *zip((*WITHOUT_FP8, *RECIPES), (1, 2, 3, 4, 1), strict=True),
    )
]
"""Each mode with weights of a seed of its own, and those of `make test` with those of another."""


def made(mode):
    return TorchAOFloat8(mode) if isinstance(mode, str) else mode()


def assert_proved(mode, workload):
    proof = parity.prove(mode, workload, 0, CPU)
    found = proof.parity
    assert found.passed, f"{mode.name}: {found.reason}"
    trained = trained_weights(workload.build(CPU))
    named = sum(int(one.rpartition(" x ")[2]) for one in found.blocks.rounding_weights)
    assert found.blocks.compared_weights + named == len(trained)
    fresh = mode.convert(workload.build(CPU))
    for of in (nn.Module.named_parameters, nn.Module.named_buffers):
        torch.testing.assert_close(dict(of(proof.model)), dict(of(fresh)), rtol=0, atol=0)
    assert all(weight.grad is None for weight in proof.model.parameters())
    return proof


@pytest.mark.parametrize(("mode", "seed"), OF_CPU)
@pytest.mark.parametrize("model", [*OF_TOKENS, *OF_IMAGES])
def test_plain_models(model, mode, seed):
    assert_proved(made(mode), PlainModel(model, seed))


@pytest.mark.parametrize(("mode", "seed"), OF_CPU)
@pytest.mark.parametrize("workload", BUILT_IN)
def test_built_in_workloads(workload, mode, seed):
    found = assert_proved(made(mode), workload(data="device", seed=seed)).parity
    if (mode, workload) == (BaselineFP32, ViTMicro):
        assert found.logits_error > 0, "another computation than the plain model's"
    if workload is LLMMicro:
        assert (found.leakage, found.later_leakage, found.batch_size) == (0, 0, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *(("tensorwise", name) for name in TIMM),
        *zip((BaselineFP32, BaselineFP16, "rowwise") * 2, TIMM, strict=True),
    ],
)
def test_models_of_timm(mode, name):
    workload = registry.load(registry.find_workload(f"timm:{name}"))(data="device", image_size=TIMM[name])
    assert_proved(made(mode), workload)


class TestKeysOfAttention:
    @pytest.mark.parametrize("mode", [BaselineBF16, BaselineFP32, TorchAOFloat8])
    def test_its_bias_is_named(self, mode):
        found = parity.prove(mode(), PlainModel(Attending), 0, CPU).parity.blocks
        assert found.rounding_weights == ("blocks.*.k.bias x 2",)

    @pytest.mark.parametrize("change", [lambda g: g + 0.01, torch.zeros_like], ids=["large", "zero"])
    @pytest.mark.parametrize("base", [BaselineBF16, TorchAOFloat8])
    def test_a_gradient_of_another_size_is_refused(self, base, change):
        reason = refusal(base, gradients("blocks.2.k.bias", change), PlainModel(Attending))
        assert "the gradient of blocks.2.k.bias is rounding" in reason


class TestWhatAModeDid:
    def test_a_forward_or_a_buffer_that_a_mode_gave_a_block_stays(self):
        class Patches(BaselineBF16):
            def convert(self, model):
                before = model.blocks[0].forward
                model.blocks[0].forward = lambda x: before(x)
                self.given = model.blocks[0].forward
                return model

        mode = Patches()
        assert assert_proved(mode, PlainModel(Patched)).model.blocks[0].forward is not None
        proof = parity.prove(mode, PlainModel(OfTokens), 0, CPU)
        assert proof.model.blocks[0].forward is mode.given

        class Changes(BaselineBF16):
            def convert(self, model):
                model.register_buffer("scale", torch.full((), 2.0))
                return model

        assert parity.prove(Changes(), PlainModel(OfTokens), 0, CPU).model.scale == 2

    def test_a_mode_that_keeps_copies_of_weights_for_a_step_passes(self):
        class Keeps(BaselineBF16):
            reuses = True

            def convert(self, model):
                self.kept = {}
                for layer in (one for one in model.modules() if isinstance(one, nn.Linear)):
                    layer.forward = lambda x, layer=layer: self.product(x, layer)
                return model

            def product(self, x, layer):
                held = self.kept.setdefault(layer, layer.weight.detach().clone())
                return F.linear(x, layer.weight + (held - layer.weight).detach(), layer.bias)

            def micro_batch(self, first):
                if first:
                    self.kept.clear()

        found = parity.prove(Keeps(), PlainModel(OfTokens), 0, CPU).parity
        assert found.passed, found.reason


class Fused(nn.Module):
    """An Attention of `plain_models` with its queries, keys and values in one."""

    def __init__(self, plain):
        super().__init__()
        self.heads, self.norm, self.out = plain.heads, plain.norm, plain.out
        self.qkv = nn.Linear(plain.q.in_features, 3 * plain.q.out_features)
        for kind in ("weight", "bias"):
            parts = [getattr(one, kind).detach() for one in (plain.q, plain.k, plain.v)]
            setattr(self.qkv, kind, nn.Parameter(torch.cat(parts)))

    def forward(self, x):
        packed = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(*packed).transpose(1, 2).flatten(2))


class FusedMode(BaselineBF16):
    def convert(self, model):
        for place in (0, 2):
            model.blocks[place] = Fused(model.blocks[place])
        return model

    def plain_weights(self, model):
        return {
            f"blocks.{place}.qkv.{kind}": tuple(f"blocks.{place}.{one}.{kind}" for one in "qkv")
            for place in (0, 2)
            for kind in ("weight", "bias")
        }


class Split(nn.Module):
    def __init__(self, packed):
        super().__init__()
        for role, weight, bias in zip("qkv", packed.weight.chunk(3), packed.bias.chunk(3), strict=True):
            part = nn.Linear(packed.in_features, len(bias))
            part.weight, part.bias = (nn.Parameter(one.detach().clone()) for one in (weight, bias))
            self.add_module(role, part)

    def forward(self, x):
        return torch.cat([self.q(x), self.k(x), self.v(x)], -1)


class SplitMode(BaselineBF16):
    def convert(self, model):
        model.layer.qkv = Split(model.layer.qkv)
        return model

    def plain_weights(self, model):
        return {f"layer.qkv.{role}.{kind}": f"layer.qkv.{kind}" for kind in ("weight", "bias") for role in "qkv"}


def lying(said):
    class Lies(FusedMode):
        def plain_weights(self, model):
            return {**super().plain_weights(model), **said}

    return Lies()


W = "blocks.0.qkv.weight"
Q, K, V = (f"blocks.0.{one}.weight" for one in "qkv")
A, B = "blocks.1.norm.weight", "blocks.3.norm.weight"
LIES = {
    "equal shapes swapped": ({A: B, B: A}, f"{A} does not hold the numbers of"),
    "rows swapped": ({W: (K, Q, V)}, f"{W} does not hold the numbers of {K}, {Q}, {V}"),
    "a name left out": ({W: (Q, V)}, f"does not train {K}"),
    "rows left out": ({W: (Q, V)}, f"its {W} of [(96, 32)] is no {Q}, {V} of [(32, 32), (32, 32)]"),
    "a name twice": ({W: (Q, K, K)}, f"does not train {V}"),
    "a name twice and complete": ({W: (Q, K, V, K)}, f"trains {K} more than once"),
    "a name of two": ({"blocks.0.out.weight": Q}, "does not train blocks.0.out.weight"),
    "an unknown name": ({W: (Q, K, "blocks.0.w.weight")}, f"trains {W}, which the plain model does not have"),
    "no names": ({W: ()}, f"does not train {Q}"),
}


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "workload"),
        [
            (FusedMode, PlainModel(Attending)),
            (SplitMode, GPTLayerMicro()),
            (lambda: lying({"of.no.weight": Q}), PlainModel(Attending)),
        ],
        ids=["fused", "split", "names of weights that are not there"],
    )
    def test_right_names_pass_and_the_initial_weights_are_the_workloads(self, mode, workload):
        proof = parity.prove(mode(), workload, 0, CPU)
        assert proof.parity.passed, proof.parity.reason
        fresh = mode().convert(workload.build(CPU))
        torch.testing.assert_close(proof.model.state_dict(), fresh.state_dict(), rtol=0, atol=0)

    @pytest.mark.parametrize(("said", "named"), LIES.values(), ids=LIES)
    def test_lies_are_refused(self, said, named):
        found = parity.prove(lying(said), PlainModel(Attending), 0, CPU).parity
        assert not found.passed
        assert named in found.reason

    def test_a_part_of_a_weight_without_a_gradient_is_refused_by_the_name_of_the_whole(self):
        reason = refusal(SplitMode, weight_detached("layer.qkv.k"), GPTLayerMicro(data="device"))
        assert "the gradient of layer.qkv.weight" in reason

    def test_weights_of_fewer_bits_are_refused(self):
        reason = refusal(BaselineBF16, lambda model: model.bfloat16(), LLMMicro())
        assert "is kept in bfloat16, and the plain model's in float32" in reason


def perturbed(kind, seed=0):
    model, fresh = PlainModel(kind).build(CPU), PlainModel(kind).build(CPU)
    perturb(model, seed)
    return model, fresh


class TestPerturb:
    def test_every_trained_number_is_another_one_of_the_same_size_and_sign(self):
        model, fresh = perturbed(Attending, 3)
        before = trained_weights(fresh)
        for name, weight in trained_weights(model).items():
            assert (weight != before[name]).all(), name
            assert weight.norm() < 1.3 * before[name].norm() + 0.1 * weight.numel() ** 0.5
        assert (model.blocks[0].norm.weight > 0.7).all()

    def test_a_row_of_padding_and_what_is_not_trained_stay_and_a_tied_weight_is_perturbed_once(self):
        model, _ = perturbed(Padded)
        assert not model.embed.weight[3].any()
        assert model.embed.weight[2].any()
        model, fresh = perturbed(Frozen)
        assert torch.equal(model.embed.weight, fresh.embed.weight)
        assert not torch.equal(model.head.weight, fresh.head.weight)
        model, fresh = perturbed(Tied)
        assert model.head.weight is model.embed.weight
        moved = (model.embed.weight - fresh.embed.weight).abs()
        assert moved.max() < 0.2 * 1.31 * fresh.embed.weight.norm() / fresh.embed.weight.numel() ** 0.5 + 1e-6
        one, again, other = (perturbed(Attending, seed)[0].head.weight for seed in (1, 1, 2))
        assert torch.equal(one, again)
        assert not torch.equal(one, other)

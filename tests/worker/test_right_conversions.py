"""What is right passes: every mode that runs on a CPU, on plain models of many kinds, and leaves no trace in them."""

import pytest
import torch
from marks import thorough_unless
from torch import nn
from worker import faulty_blocks as faulty
from worker.plain_models import OF_IMAGES, OF_TOKENS, Attending, OfTokens, Patched, PlainModel

from fp8bench import registry
from fp8bench.modes.baseline import BaselineBF16, BaselineFP16, BaselineFP32
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.worker import parity
from fp8bench.worker.plain_weights import trained_weights
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


OF_CPU = [thorough_unless(mode in (BaselineBF16, "tensorwise"), mode) for mode in (*WITHOUT_FP8, *RECIPES)]


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
    assert_equal(proof.model.named_parameters(), fresh.named_parameters())
    assert_equal(proof.model.named_buffers(), fresh.named_buffers())
    assert all(weight.grad is None for weight in proof.model.parameters())
    return proof


def assert_equal(found, fresh):
    torch.testing.assert_close(dict(found), dict(fresh), rtol=0, atol=0)


@pytest.mark.parametrize("mode", OF_CPU)
@pytest.mark.parametrize("model", [*OF_TOKENS, *OF_IMAGES])
def test_plain_models(model, mode):
    assert_proved(made(mode), PlainModel(model))


@pytest.mark.parametrize("mode", OF_CPU)
@pytest.mark.parametrize("workload", BUILT_IN)
def test_built_in_workloads(workload, mode):
    found = assert_proved(made(mode), workload(data="device")).parity
    if workload is LLMMicro:
        assert (found.leakage, found.later_leakage, found.batch_size) == (0, 0, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 5))
def test_other_seeds(seed):
    models = [PlainModel(model, seed) for model in (*OF_TOKENS, *OF_IMAGES)]
    for mode in map(made, (*WITHOUT_FP8, *RECIPES)):
        for workload in (*models, *(workload(data="device", seed=seed) for workload in BUILT_IN)):
            assert_proved(mode, workload)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TIMM)
@pytest.mark.parametrize("mode", [BaselineFP32, BaselineFP16, *RECIPES])
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
        reason = faulty.refusal(base, faulty.gradients("blocks.2.k.bias", change), PlainModel(Attending))
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
                return nn.functional.linear(x, layer.weight + (held - layer.weight).detach(), layer.bias)

            def micro_batch(self, first):
                if first:
                    self.kept.clear()

        found = parity.prove(Keeps(), PlainModel(OfTokens), 0, CPU).parity
        assert found.passed, found.reason

"""Transformer Engine's conversion on a stand-in, by timm's blocks and layer by layer: which layers, arguments, copied
weights, refusals. tests/gpu has the real one.
"""

import pytest
import torch
from modes import te_stand_in
from torch import nn

from fp8bench.modes.te_block import Swaps, TEBlock, plan_swaps, timm_blocks
from fp8bench.modes.transformer_engine import TEBF16, TEFP8, TEBF16Article
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.parity import prove
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")


class Residual(nn.Module):
    def __init__(self, width=32, inner=64):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-3)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, **sizes):
        super().__init__()
        self.stem = nn.Linear(12, 32)
        self.stages = nn.Sequential(Residual(**sizes), Residual(**sizes))
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 16))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean(1))


class Odd(nn.Linear):
    """A subclass may compute something else."""

    def forward(self, input):
        return super().forward(input) * 2


def test_linear_layers_that_fp8_could_take_and_norms_are_swapped_and_all_others_stay():
    assert plan_swaps(Net()) == Swaps(
        linears=("stages.0.up", "stages.0.down", "stages.1.up", "stages.1.down"),
        norms=("stages.0.norm", "stages.1.norm", "head.0"),
    )
    model = Net()
    model.stages[0].up = Odd(32, 64)
    model.stages[0].norm = nn.LayerNorm(32, bias=False)
    model.stages[1].norm = nn.LayerNorm((5, 32))
    assert plan_swaps(model) == Swaps(linears=("stages.0.down", "stages.1.up", "stages.1.down"), norms=("head.0",))


@pytest.mark.usefixtures("stand_in")
def test_swapped_layers_compute_the_same_and_attention_is_the_models_own_so_that_no_switch_is_about_it():
    mode, plain, inputs = TEBF16(), Net(), torch.randn(2, 5, 12)
    expected = plain(inputs)
    model = mode.convert(plain)
    first = model.stages[0]
    assert (type(first.down), type(first.norm)) == (te_stand_in.Linear, te_stand_in.LayerNorm)
    assert (first.down.bias, first.norm.eps) == (None, 1e-3)
    assert torch.allclose(model(inputs), expected, atol=1e-6)
    found = mode.evidence(model)
    assert (found["converted_layers"], found["total_layers"]) == (4, 6)
    assert (found["te_blocks"], found["te_linears"], found["te_norms"]) == (0, 4, 3)
    assert found["attention"] is None
    assert "gelu" not in found
    with pytest.raises(ModeUnavailable, match="split-qkv is about Transformer Engine's attention"):
        TEBF16(te_switches="split-qkv").convert(Net())


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.ModuleDict({"conv": nn.Conv2d(3, 8, 1)}), "it has no linear layer; 1 Conv2d layers are not linear layers"),
        (nn.ModuleDict({"mlp": nn.Linear(12, 32)}), "mlp is 12 x 32, no multiples of 16"),
        (nn.ModuleDict({"mlp": Odd(32, 32)}), "mlp is of class Odd"),
        (nn.ModuleDict({"head": nn.Linear(32, 32)}), "head gives the logits, and stays plain"),
    ],
)
def test_a_model_of_which_it_can_take_nothing_is_refused_with_the_layer_and_why(model, why):
    with pytest.raises(ModeUnavailable) as refused:
        plan_swaps(model)
    assert refused.value.what == f"Transformer Engine can take none of the model's layers: {why}"


def vision_transformer(**sizes):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**{**ViTMicro.architecture, **sizes})


class TinyConvNext(ViTMicro):
    def build(self, device):
        from timm.models.convnext import ConvNeXt

        torch.manual_seed(0)
        return ConvNeXt(depths=(1, 1, 1, 1), dims=(16, 16, 32, 32), num_classes=16, ls_init_value=1.0).train()


class WrongWeight(TEBF16):
    def convert(self, model):
        model = super().convert(model)
        with torch.no_grad():
            model.stages[1].blocks[0].mlp.fc1.weight.mul_(-1)
        return model


@pytest.mark.slow
@pytest.mark.usefixtures("process_group", "stand_in")
@pytest.mark.parametrize(
    ("mode", "workload", "passes"),
    [
        (TEBF16(te_attention="te"), ViTMicro, True),
        (TEBF16(te_attention="sdpa"), ViTMicro, True),
        (TEBF16Article(), ViTMicro, False),
        (TEBF16(), TinyConvNext, True),
        (WrongWeight(), TinyConvNext, False),
    ],
)
def test_what_is_converted_computes_the_same_and_the_articles_block_or_a_wrong_weight_does_not(mode, workload, passes):
    found = prove(mode, workload(data="device"), 0, CPU).parity
    assert found.passed is passes, found.reason
    assert (found.separation == 0) is isinstance(mode, TEBF16Article)


@pytest.mark.slow
class TestTimmBlocks:
    def test_blocks_are_taken_whole_where_each_can_be_and_else_layer_by_layer_with_the_reason(self):
        assert plan_swaps(vision_transformer()) == Swaps(blocks=("blocks.0", "blocks.1"))
        found = plan_swaps(vision_transformer(global_pool="map"))
        assert len(found.blocks) == 2
        assert all(name.startswith("attn_pool.") for name in found.linears)
        assert found.linears
        model = vision_transformer()
        model.blocks[1].attn.q_norm = nn.LayerNorm(16)
        found = plan_swaps(model)
        assert (found.blocks, len(found.linears)) == ((), 8)
        assert found.why == "blocks.1 uses query and key norms (qk_norm)"
        assert found.evidence()["te_blocks_refused"] == found.why

    @pytest.mark.usefixtures("stand_in")
    def test_the_layer_is_told_everything_that_its_defaults_get_wrong_and_refuses_a_mask(self):
        model = vision_transformer(attn_drop_rate=0.125)
        model.blocks[0].attn.proj_drop.p = model.blocks[0].mlp.drop2.p = 0.25
        block = TEBF16().convert(model).blocks[0]
        assert isinstance(block, TEBlock)
        assert (block.layer.batch_first, block.layer.causal) == (True, False)
        assert block.layer.layernorm_mlp.eps == 1e-6
        assert (block.layer.hidden_dropout, block.layer.attention_dropout) == (0.25, 0.125)
        with pytest.raises(ModeUnavailable, match="attention mask"):
            block(torch.zeros(2, 17, 64), is_causal=True)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"qk_norm": True}, "qk_norm"),
            ({"init_values": 1e-5}, "LayerScale"),
            ({"drop_path_rate": 0.5}, "stochastic depth"),
            ({"act_layer": nn.ReLU}, "the activation ReLU"),
            ({"proj_drop_rate": 0.1}, "dropout inside the MLP"),
            ({"norm_layer": nn.Identity}, "LayerNorm"),
        ],
    )
    def test_what_the_converted_block_would_not_compute_is_refused_by_name(self, changes, named):
        with pytest.raises(ModeUnavailable, match=named):
            timm_blocks(vision_transformer(**changes))

    def test_a_model_without_timms_block_and_a_machine_without_a_gpu_are_refused(self):
        with pytest.raises(ModeUnavailable, match="no timm Block"):
            timm_blocks(nn.Linear(2, 2))
        for mode in (TEBF16(), TEFP8("current"), TEBF16Article()):
            with pytest.raises(ModeUnavailable, match="needs an NVIDIA GPU") as caught:
                mode.check(CPU)
            assert "baseline-bf16" in caught.value.remedy
        assert TEFP8().tolerance.settle_passes > TEFP8("current").tolerance.settle_passes == 0
        assert TEFP8().compile_policy.refusal
        assert TEFP8("current").compile_policy.refusal is None

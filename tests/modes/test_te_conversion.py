"""Transformer Engine's conversion on a stand-in: arguments, copied weights, refusals. tests/gpu has the real one."""

import pytest
import torch

from fp8bench.modes.te_block import TEBlock, timm_blocks
from fp8bench.modes.transformer_engine import TEBF16, TEFP8, TEBF16Article
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.parity import prove
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def vision_transformer(**sizes):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**{**ViTMicro.architecture, "depth": 1, **sizes})


@pytest.mark.usefixtures("process_group", "stand_in")
@pytest.mark.parametrize(
    ("mode", "passes"),
    [(TEBF16(te_attention="te"), True), (TEBF16(te_attention="sdpa"), True), (TEBF16Article(), False)],
)
def test_both_blocks_compute_timms_block_with_its_weights_and_the_articles_does_not(mode, passes):
    found = prove(mode, ViTMicro(data="device"), 0, CPU).parity
    assert found.passed is passes, found.reason
    assert passes or found.separation == 0


@pytest.mark.usefixtures("stand_in")
def test_the_layer_is_told_everything_that_its_defaults_get_wrong_and_refuses_a_mask():
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
        ({"drop_path_rate": 0.5, "depth": 2}, "stochastic depth"),
        ({"act_layer": torch.nn.ReLU}, "the activation ReLU"),
        ({"proj_drop_rate": 0.1}, "dropout inside the MLP"),
        ({"norm_layer": torch.nn.Identity}, "LayerNorm"),
    ],
)
def test_what_the_converted_block_would_not_compute_is_refused_by_name(changes, named):
    with pytest.raises(ModeUnavailable, match=named):
        timm_blocks(vision_transformer(**changes))


def test_a_model_without_timms_block_and_a_machine_without_a_gpu_are_refused():
    with pytest.raises(ModeUnavailable, match="no timm Block"):
        timm_blocks(torch.nn.Linear(2, 2))
    for mode in (TEBF16(), TEFP8("current"), TEBF16Article()):
        with pytest.raises(ModeUnavailable, match="needs an NVIDIA GPU") as caught:
            mode.check(CPU)
        assert "baseline-bf16" in caught.value.remedy
    assert TEFP8().tolerance.settle_passes > TEFP8("current").tolerance.settle_passes == 0
    assert TEFP8().compile_policy.refusal
    assert TEFP8("current").compile_policy.refusal is None

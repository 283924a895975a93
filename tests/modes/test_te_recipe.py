"""Transformer Engine's recipes and layers in fp8: which object is made, which module runs under it."""

import pytest
import torch
from modes.te_stand_in import fp8
from torch import nn

from fp8bench.modes.layers import LayerChoice, counted
from fp8bench.modes.te_recipe import compile_policy, fields_of, layers_in, leave_out, make_recipe, require_fp8_attention
from fp8bench.modes.transformer_engine import TEFP8, TEFP8Article, te_layers
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.recipe import split_recipe
from fp8bench.worker.parity import prove
from fp8bench.worker.view import look
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")


@pytest.mark.usefixtures("stand_in")
class TestRecipes:
    @pytest.mark.parametrize(
        ("name", "made", "fields"),
        [
            ("delayed", "DelayedScaling", {"amax_history_len": 1024, "margin": 0, "fp8_format": "HYBRID"}),
            ("delayed,history=16,margin=1", "DelayedScaling", {"amax_history_len": 16, "margin": 1}),
            ("delayed,amax=most_recent", "DelayedScaling", {"amax_compute_algo": "most_recent"}),
            ("current,dpa=on", "Float8CurrentScaling", {"fp8_dpa": True}),
            ("block,layers=mlp,format=hybrid", "Float8BlockScaling", {"fp8_format": "HYBRID"}),
            ("delayed,format=e4m3", "DelayedScaling", {"fp8_format": "E4M3"}),
            ("mxfp8", "MXFP8BlockScaling", {"fp8_dpa": False}),
        ],
    )
    def test_fields_become_those_of_transformer_engines_object(self, name, made, fields):
        found = make_recipe(split_recipe(name))
        assert type(found).__name__ == made
        assert fields.items() <= fields_of(found).items()

    def test_a_field_that_a_release_lacks_and_heads_that_fp8_attention_cannot_take_are_told(self):
        with pytest.raises(ModeUnavailable, match=r"does not take te-fp8:block,dpa=on: .*fp8_dpa"):
            make_recipe(split_recipe("block,dpa=on"))
        model = nn.Linear(2, 2)
        model.head_dim = 80
        with pytest.raises(ModeUnavailable, match="these are 80 wide"):
            require_fp8_attention(split_recipe("delayed,dpa=on"), model, (9, 0))
        model.head_dim = 128
        require_fp8_attention(split_recipe("delayed,dpa=on"), model, (9, 0))

    def test_delayed_scaling_is_not_compiled_and_says_on_which_versions(self):
        assert f"torch {torch.__version__}" in compile_policy("delayed").refusal
        for recipe in (None, "current", "block", "mxfp8"):
            assert compile_policy(recipe).refusal is None
            assert f"torch {torch.__version__}" in compile_policy(recipe).reason


@pytest.mark.slow
@pytest.mark.usefixtures("process_group", "stand_in")
class TestLayers:
    def converted(self, mode, workload=None):
        workload = workload or ViTMicro(data="device")
        model = mode.convert(workload.build(CPU))
        batch = next(workload.batches(8, 0, CPU))
        look(model, workload, batch, mode.forward_context())
        return mode.evidence(model)

    @pytest.mark.parametrize("attention", ["te", "sdpa"])
    def test_layers_that_are_left_out_run_in_bf16_in_their_place(self, attention):
        found = self.converted(TEFP8("delayed,layers=mlp", attention))
        assert (found["fp8_layers"], found["converted_layers"], found["total_layers"]) == (4, 4, 9)
        assert found["layers"] == "mlp"
        assert found["layers_left_in_bf16"] == ["blocks.*.attn.qkv x 2", "blocks.*.attn.proj x 2"]
        llama = self.converted(TEFP8("delayed,layers=mlp", attention), LLMMicro(data="device", sequence_length=32))
        assert llama["layers_left_in_bf16"][-1] == "model.layers.*.self_attn.o_proj x 2"
        assert (llama["fp8_layers"], llama["total_layers"]) == (6, 15)

    @pytest.mark.parametrize(
        ("recipe", "names", "left"),
        [
            (r"current,layers=^blocks\.1\.", None, "blocks.*.attn.qkv x 1"),
            ("delayed,layers=auto", ("blocks.*.attn.qkv", "blocks.*.attn.proj"), "blocks.*.mlp.fc1 x 2"),
        ],
    )
    def test_by_block_and_by_the_launchers_list(self, recipe, names, left):
        found = self.converted(TEFP8(recipe, fp8_layer_names=names))
        assert (found["fp8_layers"], found["layers_left_in_bf16"][0]) == (4, left)

    def test_what_the_layers_ran_under_is_on_record_field_by_field(self):
        found = self.converted(TEFP8("delayed,history=16,amax=most_recent"))
        fields = {"amax_history_len": 16, "margin": 0, "amax_compute_algo": "most_recent"}
        assert found["recipe_fields"] == {**fields, "fp8_format": "HYBRID", "fp8_dpa": False}
        assert (found["layers"], found["layers_left_in_bf16"], found["fp8_layers"]) == ("all", [], 8)

    @pytest.mark.parametrize(
        ("layers", "what", "remedy"),
        [
            ("fc1", r"takes blocks\.0\.mlp\.fc1 and not blocks\.0\.mlp\.fc2", "all of them or none"),
            ("mpl", "takes no linear layer", "blocks.*.attn.qkv"),
            ("auto", "layers=auto is only resolved by", "a regular expression"),
        ],
    )
    def test_a_choice_that_splits_a_module_takes_nothing_or_was_not_made_is_refused(self, layers, what, remedy):
        with pytest.raises(ModeUnavailable, match=what) as caught:
            TEFP8(f"delayed,layers={layers}").convert(ViTMicro().build(CPU))
        assert remedy in caught.value.remedy

    @pytest.mark.parametrize("recipe", ["delayed", "current", "delayed,history=16"])
    def test_some_layers_in_fp8_pass_the_gate_and_the_articles_block_does_not(self, recipe):
        found = prove(TEFP8(f"{recipe},layers=mlp"), ViTMicro(data="device"), 0, CPU).parity
        assert found.passed, found.reason
        found = prove(TEFP8Article(recipe), ViTMicro(data="device"), 0, CPU).parity
        assert (found.passed, found.separation) == (False, 0)


class TestLayerChoice:
    @pytest.mark.parametrize(
        ("choice", "taken"),
        [
            (LayerChoice(), ["blocks.0.mlp.fc1", "blocks.10.attn.qkv"]),
            (LayerChoice("mlp"), ["blocks.0.mlp.fc1"]),
            (LayerChoice(r"^blocks\.1"), ["blocks.10.attn.qkv"]),
            (LayerChoice("auto", ("blocks.*.attn.qkv",)), ["blocks.10.attn.qkv"]),
            (LayerChoice("auto", ("blocks.*.attn",)), []),
            (LayerChoice("auto", ("blocks.1.attn.qkv",)), []),
        ],
    )
    def test_a_layer_is_taken_by_its_name(self, choice, taken):
        assert [name for name in ("blocks.0.mlp.fc1", "blocks.10.attn.qkv") if choice.takes(name)] == taken

    def test_layers_are_counted_by_their_folded_names_and_one_that_stands_for_no_known_layer_cannot_be_chosen(self):
        assert counted(["a.0.b", "a.11.b", "a.0.c1"]) == ["a.*.b x 2", "a.*.c1 x 1"]
        plain, layer = ["blocks.0.mlp.fc1"], nn.Linear(2, 2)
        modules = [(layers_in(name, layer, {}, plain), layer) for name in (*plain, "odd")]
        assert [layers for layers, _ in modules] == [plain, []]
        with pytest.raises(ModeUnavailable, match="does not know which layer of the model a Linear stands for"):
            leave_out(modules, LayerChoice("mlp"), "te-fp8", lambda: None)


@pytest.mark.usefixtures("stand_in")
def test_a_second_forward_pass_is_in_fp8_and_rolls_no_amax_history():
    mode, ran_in_fp8 = TEFP8("delayed"), []
    with mode.forward_context():
        for _block in range(3):
            mode.checkpoint(lambda: ran_in_fp8.append(fp8.enabled))
    assert fp8.rolls == 1
    for again in fp8.again:
        again()
    assert ran_in_fp8 == [True] * 6
    assert fp8.rolls == 1


@pytest.mark.usefixtures("stand_in")
def test_before_weights_are_sharded_layers_forget_that_they_were_not():
    mode = TEFP8("delayed")
    model = mode.convert(LLMMicro(data="device", workers=0, seed=0).build(CPU))
    layers = te_layers(model).values()
    for layer in layers:
        layer._is_fsdp2 = False
    assert mode.before_sharding(model) is False
    assert layers
    assert not [layer for layer in layers if hasattr(layer, "_is_fsdp2")]

"""A workload by its name, found without importing timm, and with other sizes: what changes, what stays, and which
numbers make no model.
"""

import pytest
import torch

from fp8bench import registry
from fp8bench.schema.errors import UsageError
from fp8bench.worker.execution.checkpointing import repeated_blocks
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.protocol import stated
from fp8bench.workloads.resizable import as_named, resized
from fp8bench.workloads.timm_model import TimmModel
from fp8bench.workloads.timm_names import model_names
from fp8bench.workloads.vit import ViTHuge256, ViTMicro

CPU = torch.device("cpu")


def trained(workload):
    """The gradients of one step, which every size has to give."""
    model = workload.build(CPU)
    workload.loss(model, next(workload.batches(2, 0, CPU))).backward()
    return [weight.grad for weight in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "sizes"),
    [
        (LLMMicro(data="device", seed=3), {"num_hidden_layers": 1, "vocab_size": 64, "sequence_length": 16}),
        (ViTMicro(data="device", seed=3), {"depth": 1, "embed_dim": 32, "img_size": 16, "num_classes": 4}),
        (GPTLayerMicro(seed=3), {"hidden": 32, "ffn": 64, "heads": 2}),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_model_of_other_sizes_is_trained_and_the_first_one_stays_as_it_is(workload, sizes):
    before, flops = workload.sizes(), workload.flops_per_step(2)
    other = resized(workload, sizes)
    assert other.sizes() == {**before, **sizes}
    assert (other.name, other.seed) == (workload.name, 3)
    assert 0 < other.flops_per_step(2) < flops
    assert all(gradient is not None for gradient in trained(other))
    assert (workload.sizes(), workload.flops_per_step(2)) == (before, flops)


@pytest.mark.slow
@pytest.mark.parametrize("entry", registry.BUILTIN_WORKLOADS, ids=lambda entry: entry.name)
def test_the_size_that_is_the_depth_is_the_number_of_blocks(entry):
    workload = registry.load(entry)(data="device")
    depth = stated(workload, "depth_size")
    if depth is None:
        assert len(list(repeated_blocks(workload.build(torch.device("meta"))))) == 1
        return
    for number in (1, 3):
        other = as_named(workload, f"{entry.name},{depth}={number}")
        model = other.build(torch.device("meta"))
        assert len(list(repeated_blocks(model))) == number
        assert other.sizes()[depth] == number


@pytest.mark.parametrize(
    ("workload", "sizes", "told"),
    [
        (ViTMicro(), {"dept": 1}, r"unknown size of vit-micro 'dept'\. Did you mean 'depth'\? Name one of img_size"),
        (ViTMicro(), {"num_heads": 5}, "embed_dim=64 and num_heads=5: the first must be a multiple of the second"),
        (ViTMicro(), {"depth": 10_000}, "10000 blocks are too many"),
        (ViTHuge256(), {"class_token": 1}, "unknown size of vit-huge-256 'class_token'"),
        (LLMMicro(), {"num_key_value_heads": 3}, "num_attention_heads=4 and num_key_value_heads=3"),
        (LLMMicro(), {"hidden_size": 60}, "hidden_size=60 and num_attention_heads=4: .* of twice the second"),
        (GPTLayerMicro(), {"weight_dtype": 3}, "unknown size of gpt-layer-micro 'weight_dtype'"),
        (TimmModel.of("convnext_atto")(), {"depth": 1}, "has sizes that cannot be changed"),
    ],
)
def test_what_makes_no_model_is_refused(workload, sizes, told):
    with pytest.raises(UsageError, match=told):
        resized(workload, sizes)
    assert resized(ViTMicro(), {"num_heads": 5, "embed_dim": 80}).sizes()["num_heads"] == 5, "together they fit"


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("timm:convnxt_base", "unknown workload 'timm:convnxt_base'", "Did you mean 'timm:convnext_base'?"),
        ("timm:", "unknown workload 'timm:'", "See every one with `fp8bench list workloads timm`"),
        ("convnext_base", "unknown workload 'convnext_base'", "Did you mean 'timm:convnext_base'?"),
        ("timm:vit_base_patch16_224.augreg_in21k", "names pretrained weights", "Use timm:vit_base_patch16_224"),
        ("tim:convnext_base", "unknown workload 'tim:convnext_base'", "`fp8bench list workloads`"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest(name, what, remedy):
    with pytest.raises(UsageError) as refused:
        registry.find_workload(name)
    assert what in refused.value.what
    assert remedy in refused.value.remedy


@pytest.mark.slow
def test_the_names_are_those_that_timm_itself_gives():
    import timm

    assert set(model_names()) == set(timm.list_models())
    entry = registry.find_workload("timm:convnext_base")
    assert set(entry.usual) == {"optimizer", "data", "weight_dtype", "image_size", "classes"}

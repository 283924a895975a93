"""`layers=auto`: which layers' GEMMs pay, by a record of this repository, and by one that is made up."""

from pathlib import Path

import pytest
from builders import config, measured
from report.made_gemm import timing

from fp8bench.launch.place import Place
from fp8bench.launch.recipes import judge, paying, with_layers
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import Product, ProductTimings, Shape
from fp8bench.schema.instance import Instance

RESULTS = Path(__file__).parents[2] / "results"
H200 = Instance(key="h200-1x", gpu="NVIDIA H200", gpu_count=1)
HERE = Place(instance=H200, in_catalog=True, results_dir=RESULTS, here=None)
QKV, PROJ, FC1, FC2 = "blocks.*.attn.qkv", "blocks.*.attn.proj", "blocks.*.mlp.fc1", "blocks.*.mlp.fc2"


def run(recipe="tensorwise,layers=auto", mode="torchao-float8", batch_size=256, **changes):
    return config(mode, recipe, batch_size=batch_size, world_size=1, **changes)


@pytest.mark.parametrize(
    ("settings", "layers", "told"),
    [
        ({}, (QKV, FC1, FC2), "by the GEMMs of 20261121T205048Z-gemm-vit-huge-505ecd, with compiled casts"),
        ({"batch_size": 64}, (FC1, FC2), f"{QKV} ("),
        # Transformer Engine casts in its norms.
        (
            {"recipe": "delayed,layers=auto", "mode": "te-fp8", "batch_size": 64},
            (QKV, PROJ, FC1, FC2),
            "casts counted as free",
        ),
    ],
)
def test_the_layers_of_vit_huge_that_pay_on_an_h200(settings, layers, told):
    [found], [note] = with_layers([run(**settings)], HERE)
    assert found.fp8_layer_names == layers
    assert told in note


def test_other_configurations_are_left_as_they_are_and_a_resumed_session_keeps_its_choice():
    plain = [config(), run("tensorwise"), run("tensorwise,layers=mlp")]
    assert with_layers(plain, HERE) == (plain, ())
    before = run(batch_size=8).model_copy(update={"fp8_layer_names": (FC1,)})
    kept = measured(config=before)
    [found], notes = with_layers([run(batch_size=8)], HERE, kept=[kept])
    assert (found.fp8_layer_names, notes) == ((FC1,), ())


@pytest.mark.parametrize(
    ("asked", "to_size", "told", "remedy"),
    [
        (
            *(run(batch_size=48), (), "no record of `fp8bench gemm` of vit-huge at batch 48"),
            "fp8bench gemm --workload vit-huge --batch-size 48",
        ),
        (run(), (run(),), "which layers pay depends on the batch size", ""),
        (run("block,layers=auto", "te-fp8"), (), "not those of block", "Use delayed or current"),
    ],
    ids=["no record", "a batch size that is yet to be found", "gemms that are not timed"],
)
def test_where_nothing_tells_which_layers_pay_it_is_refused_with_what_would(asked, to_size, told, remedy):
    with pytest.raises(UsageError, match=told) as caught:
        with_layers([asked], HERE, to_size=to_size)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(("batch_size", "enough"), [(4, 16), (24, 32)])
def test_a_batch_whose_gemms_cannot_be_timed_is_refused_with_the_next_one_that_can(batch_size, enough):
    with pytest.raises(UsageError, match=f"batch {batch_size} x 17 tokens are") as caught:
        with_layers([run(workload="vit-micro", batch_size=batch_size)], HERE)
    assert caught.value.remedy.startswith(f"Use --batch-size {enough},")
    assert "fp8bench gemm" not in caught.value.remedy
    with pytest.raises(UsageError, match="no record of `fp8bench gemm` of vit-micro at batch"):
        with_layers([run(workload="vit-micro", batch_size=enough)], HERE)


def product(layer, *timings, role="forward"):
    """One GEMM of a layer, which took so long."""
    return ProductTimings(product=Product(shape=Shape(m=64, n=64, k=64), role=role, layers=(layer,)), timings=timings)


def timed(layer, bf16, fp8, role="forward", fast=None):
    """Seconds of one GEMM, slow and fast accumulation alike unless said."""
    by_kind = {"bf16": bf16, "fp8-tensorwise": fp8, "fp8-tensorwise-fast": fp8 if fast is None else fast}
    return product(layer, *(timing(kind, seconds) for kind, seconds in by_kind.items()), role=role)


def test_a_layer_is_judged_by_all_of_its_gemms_and_forward_alone_accumulates_fast():
    products = [timed("a", 1.0, 9.0, fast=0.5), timed("a", 1.0, 1.4, "weight gradient", fast=0.1)]
    [found], casts = judge(products, "tensorwise", te=False)
    assert (found.bf16_s, found.fp8_s, found.pays, casts) == (2.0, pytest.approx(1.9), True, "none")
    # The GEMM that a recipe leaves in bf16 costs what it does there.
    times = timing("bf16", 1.0), timing("fp8-rowwise", 0.25)
    rowwise = [product("a", *times, role=role) for role in ("forward", "weight gradient")]
    [found], _ = judge(rowwise, "rowwise_with_gw_hp", te=False)
    assert found.fp8_s == 1.25


def test_layers_of_one_module_of_transformer_engines_pay_together_or_not_at_all():
    products = [timed("x.mlp.fc1", 1.0, 0.5), timed("x.mlp.fc2", 1.0, 1.6), timed("x.attn.proj", 1.0, 0.9)]
    assert paying(judge(products, "tensorwise", te=False)[0], "m", "g") == ("x.mlp.fc1", "x.attn.proj")
    assert paying(judge(products, "delayed", te=True)[0], "m", "g") == ("x.attn.proj",)
    # Where nothing pays that is said with the times.
    with pytest.raises(ModeUnavailable, match=r"no linear layer's GEMMs take less time in fp8: a \(\+50% time\)"):
        paying(judge([timed("a", 1.0, 1.5)], "tensorwise", te=False)[0], "torchao-float8", "the GEMMs of x")


@pytest.mark.parametrize(
    ("timings", "told"),
    [
        ([timing("bf16", 1.0)], "a (no time in fp8)"),
        ([timing("fp8-tensorwise", 1.0)], "a (no time in bf16)"),
        # An emulated time is none of fp8.
        ([timing("bf16", 1.0), timing("fp8-tensorwise", 0.1, emulated=True)], "a (no time in fp8)"),
    ],
)
def test_a_layer_without_both_times_does_not_pay(timings, told):
    [found], _ = judge([product("a", *timings)], "tensorwise", te=False)
    assert (found.pays, str(found)) == (False, told)

"""What a run's modes are made of --fp8-layers, of which GEMMs pay by records too, which options of Transformer Engine's
layer a plan measures, and what is refused before a process starts, each with its reason.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
from builders import config, instance, measured
from launch.test_plan import planned
from report.made_gemm import timing

from fp8bench import registry
from fp8bench.config.request import RunRequest
from fp8bench.launch import prepare as preparing
from fp8bench.launch.place import Place
from fp8bench.launch.plan import Entry
from fp8bench.launch.prepare import prepare
from fp8bench.launch.recipes import (
    KNOWN,
    chosen,
    judge,
    layers_of,
    paying,
    require_in_names,
    require_possible,
    with_layers,
    words_of,
)
from fp8bench.machine.gpus import Machine
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import Product, ProductTimings, Shape
from fp8bench.schema.instance import Instance
from fp8bench.schema.recipe import attention_refusal
from fp8bench.schema.switches import LADDER, NAMES, NONE, RUNGS, joined, parse

HOPPER, BLACKWELL = (9, 0), (10, 0)


def test_layers_are_of_the_modes_that_name_none_of_their_own_and_a_resumed_session_has_its_own():
    found = chosen(["baseline-bf16", "te-fp8", "torchao-float8:layers=attn"], "mlp")
    assert [own for _, own in found] == [None, "delayed,layers=mlp", "tensorwise,layers=attn"]
    assert [entry.name for entry, _ in found] == ["baseline-bf16", "te-fp8", "torchao-float8"]
    assert [(entry.name, own) for entry, own in chosen(["te-fp8"], "all")] == [("te-fp8", "delayed")]
    labels = ["baseline-bf16", "te-fp8:delayed,margin=1,layers=mlp"]
    for layers in (None, "mlp"):
        require_in_names(labels, layers, "monday")
    with pytest.raises(UsageError, match="--fp8-layers applies to none of them"):
        require_in_names(labels, "attn", "monday")


@pytest.mark.parametrize(
    ("modes", "layers", "told"),
    [
        ("baseline-bf16", "mlp", "applies to none of the modes: baseline-bf16"),
        ("te-fp8-article", "mlp", "applies to none of the modes: te-fp8-article"),
        ("te-fp8 torchao-float8", "torchao", "torchao's own rule"),
        ("te-fp8", "a,b", "cannot stand in a mode's name"),
    ],
)
def test_layers_that_cannot_be_chosen_are_refused(modes, layers, told):
    with pytest.raises(UsageError, match=told):
        chosen(modes.split(), layers)


@pytest.mark.parametrize(
    ("recipe", "head_dim", "capability", "told"),
    [
        ("delayed", 80, HOPPER, "trains heads of 128, and these are 80 wide"),
        ("delayed", 128, HOPPER, None),
        ("delayed", None, HOPPER, None),
        ("current", 128, HOPPER, "delayed scaling only"),
        ("mxfp8", 128, HOPPER, "delayed scaling only"),
        ("delayed", 80, BLACKWELL, None),
        ("current", 64, BLACKWELL, None),
        ("delayed", 128, (8, 9), "there is none on compute capability 8.9"),
        ("delayed", 128, (12, 0), "there is none on compute capability 12.0"),
        ("delayed", 192, BLACKWELL, "heads are 192 wide"),
        ("delayed", 72, None, "heads are 72 wide"),
        ("delayed", 80, None, None),
    ],
)
def test_where_fp8_attention_has_a_backend(recipe, head_dim, capability, told):
    found = attention_refusal(recipe, head_dim, capability)
    assert (found is None) == (told is None)
    assert told is None or told in found


def test_fp8_attention_that_vit_huge_has_no_backend_of_is_refused_before_a_process_starts(monkeypatch, tmp_path):
    h100 = Machine(gpus=("NVIDIA H100 80GB HBM3",), product_name=None, cpu_count=16)
    monkeypatch.setattr(preparing, "this_machine", lambda _environ: h100)
    request = RunRequest(mode=("te-fp8:delayed,dpa=on",), results_dir=tmp_path)
    with pytest.raises(ModeUnavailable, match=r"no backend of fp8 attention .* heads of 128, and these are 80 wide"):
        prepare(request, {})


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (config("te-fp8", "delayed,dpa=on", te_attention="sdpa", workload="llm-7b"), "--te-attention sdpa is torch's"),
        (
            config("torchao-float8", "tensorwise,layers=mpl"),
            r"no linear layer of the model has a name that 'mpl' matches.*blocks.\*.attn.qkv, blocks.\*.attn.proj",
        ),
        (config("torchao-float8", "rowwise_with_gw_hp,layers=torchao"), "no rule of layers for rowwise_with_gw_hp"),
        # Layers that are there, or unknown here, are left to the ranks.
        *(
            (config("torchao-float8", recipe, workload=workload), None)
            for recipe, workload in (
                (r"tensorwise,layers=^blocks\.31\.mlp", "vit-huge"),
                ("tensorwise,layers=down_proj", "llm-7b"),
                ("tensorwise,layers=anything", "outside-linear"),
                ("rowwise,layers=torchao", "vit-huge"),
            )
        ),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(one, told, tmp_path):
    with nullcontext() if told is None else pytest.raises(UsageError, match=told):
        require_possible([one], Place(instance=instance("p5"), results_dir=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit-huge", "vit-huge-256", "vit-micro", "llm-1b", "llm-7b", "llm-8b", "llm-micro"])
def test_what_is_known_of_a_workload_without_torch_is_what_its_model_has(name):
    import torch

    from fp8bench.modes.torchao import convertible
    from fp8bench.numerics.model_facts import linear_gemms

    entry = registry.find_workload(name)
    named = dict(registry.load(entry)().build(torch.device("meta")).named_modules())
    assert sorted(layers_of(name)) == sorted(path for path, module in named.items() if convertible(module, path))
    widths = {one.head_dim for one in named.values() if isinstance(getattr(one, "head_dim", None), int)}
    assert widths == {entry.head_dim}
    if name.startswith("vit"):
        products, _ = linear_gemms(registry.load(entry)(data="device"), 2)
        rows = {one.shape.m for one in products if one.role == "forward" and one.stays_bf16 is None}
        assert rows == {2 * KNOWN[name].tokens}


PIECES = {"batch_size": 32, "grad_accumulation": 8}
LAYER = {"workload": "gpt-layer", "gpus": 1, **PIECES}


def switches_of(*requested, mode=("te-fp8",), **settings):
    return [one.te_switches for one in planned(mode=mode, te_switch=requested, **{**LAYER, **settings})]


def test_by_default_there_is_none_and_a_combination_has_one_spelling_and_what_it_needs():
    assert switches_of() == switches_of(NONE) == [None]
    assert switches_of("weight-cache+fused-wgrad") == ["fused-qkv+fused-wgrad+weight-cache"]
    assert switches_of("fused-wgrad", "fused-wgrad+fused-qkv") == ["fused-qkv+fused-wgrad"]
    assert all(parse(name) == (joined([name]),) for name in NAMES)
    [of_one] = planned(mode=("te-fp8",), te_switch=("fused-qkv",), **LAYER)
    assert Entry(of_one).label == "te-fp8:delayed+fused-qkv", "a turn is called by its switches"


def test_the_ladder_has_every_rung_and_other_modes_are_measured_once():
    found = planned(mode=("baseline-bf16", "te-fp8", "te-bf16"), te_switch=(LADDER,), **LAYER)
    of = [(one.mode, one.te_switches) for one in found]
    assert of[0] == ("baseline-bf16", None)
    assert [rung for mode, rung in of if mode == "te-fp8"] == [rung or None for rung in RUNGS]
    of_bf16 = [rung for mode, rung in of if mode == "te-bf16"]
    assert of_bf16 == [None, "parallel-setup", "fused-qkv", "fused-qkv+fused-wgrad"]
    # A layer that two GPUs share has no rung of what sharing costs alone.
    shared = switches_of(LADDER, gpus=2, tensor_parallel=2)
    assert None in shared
    assert "parallel-setup" not in shared


@pytest.mark.parametrize(
    ("requested", "settings", "what", "remedy"),
    [
        ("fused-qvk", {}, "unknown switch 'fused-qvk'", "Did you mean 'fused-qkv'?"),
        ("weight-cache", {"grad_accumulation": 1}, "a step of one micro-batch casts them once anyway", "--grad-acc"),
        ("weight-cache", {"mode": ("te-bf16",)}, "which te-bf16 does not have", "--mode te-fp8"),
        ("fused-wgrad", {"optimizer": "adamw"}, "where torch's optimizers do not look", "--optimizer none"),
        ("fused-wgrad", {"gpus": 2}, "neither DDP nor FSDP2 shares gradients", "--tensor-parallel"),
        ("fused-wgrad+parallel-setup", {}, "DDP waits for gradients that never come", "Omit one"),
        ("parallel-setup", {"gpus": 2}, "on a single GPU", "--gpus 1"),
        ("fp8-weights", {}, "delayed scaling has none before the first step", "te-fp8:current"),
        ("fp8-weights", {"mode": ("te-fp8:current",), "parallel": "fsdp"}, "FusedAdam", "--optimizer none"),
        ("fp8-weights+weight-cache", {"mode": ("te-fp8:current",)}, "nothing left to cast", "Omit weight-cache"),
        ("fused-qkv", {"workload": "llm-1b"}, "does not apply to 'llm-1b'", "llm-1b takes weight-cache"),
        ("fused-qkv", {"workload": "vit-huge"}, "does not apply to 'vit-huge'", "--workload gpt-layer"),
        ("split-qkv", {"workload": "llm-1b"}, "does not apply to 'llm-1b'", "llm-1b takes weight-cache"),
        ("fused-qkv", {"te_attention": "sdpa"}, "Transformer Engine's own layer", "Omit --te-attention"),
        ("fused-qkv", {"mode": ("baseline-bf16",)}, "which no requested mode has", "Add --mode te-fp8"),
        # A switch that another requires is not named in its place.
        (
            "fused-wgrad",
            {"workload": "llm-1b"},
            "--te-switch fused-wgrad: it does not apply",
            "llm-1b takes weight-cache",
        ),
        ("fused-wgrad", {"te_attention": "sdpa"}, "--te-switch fused-wgrad: it needs", "Omit --te-attention"),
    ],
)
def test_what_cannot_be_says_why_and_what_can(requested, settings, what, remedy):
    with pytest.raises(UsageError) as error:
        switches_of(requested, **settings)
    assert what in error.value.what
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    ("workload", "switch"),
    [("llm-1b", "weight-cache"), ("vit-huge", "split-qkv"), ("timm:vit_large_patch16_224", "split-qkv")],
)
def test_a_language_model_takes_the_cache_and_a_vit_the_split_of_its_queries_keys_and_values(workload, switch):
    assert switches_of(NONE, switch, workload=workload, gpus=8) == [None, switch]


@pytest.mark.parametrize("requested", [(LADDER,), (NONE, "fused-qkv"), ()])
def test_a_session_that_is_resumed_measures_the_same_again(requested):
    found = planned(mode=("te-fp8", "te-bf16", "baseline-bf16"), te_switch=requested, **LAYER)
    again = planned(mode=("te-fp8", "te-bf16", "baseline-bf16"), te_switch=words_of(found), **LAYER)
    assert again == found


RESULTS = Path(__file__).parents[2] / "results"
H200 = Instance(key="h200-1x", gpu="NVIDIA H200", gpu_count=1)
HERE = Place(instance=H200, results_dir=RESULTS, here=None)
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

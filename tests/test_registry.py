"""Names lead to modes and workloads: the built-in ones, their recipes, and those of outside packages."""

import sys

import pytest
from kept import installed

from fp8bench import registry
from fp8bench.schema.errors import UsageError

ON_GPU = ["baseline-bf16", "te-bf16", "te-fp8", "torchao-float8"]
VISIBLE_MODES = [*ON_GPU, "baseline-fp32", "baseline-tf32", "baseline-fp16"]
RECIPES = {
    "te-fp8": ("delayed", "current", "block", "mxfp8"),
    "torchao-float8": ("tensorwise", "rowwise", "rowwise_with_gw_hp"),
}
HIDDEN = "te-bf16-article"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """An installed package with modes and workloads of its own, one of which takes a built-in name."""
    offered = (
        "[fp8bench.modes]\nacme-int8 = acme_bench:Int8\nacme-gone = acme_bench:Gone\nte-fp8 = acme_bench:Int8\n"
        "[fp8bench.workloads]\nacme-llama = acme_bench:Llama\nvit-huge = acme_bench:Llama\n"
    )
    code = "class Int8:\n    name = 'acme-int8'\nclass Llama:\n    unit = 'tokens'\n"
    monkeypatch.syspath_prepend(installed(tmp_path, "acme_bench", code, offered))
    monkeypatch.delitem(sys.modules, "acme_bench", raising=False)


def refused(look_up, name):
    with pytest.raises(UsageError) as caught:
        look_up(name)
    return caught.value


def test_the_promised_modes_are_listed_with_their_recipes_the_default_first():
    modes = registry.modes()

    assert [name for name, entry in modes.items() if not entry.hidden] == VISIBLE_MODES
    assert {name: modes[name].recipes for name in RECIPES} == RECIPES
    assert [name for name, entry in modes.items() if "cuda" in entry.default_on] == ON_GPU
    assert [name for name, entry in modes.items() if "cpu" in entry.default_on] == ["baseline-bf16", "torchao-float8"]
    assert (modes[HIDDEN].hidden, modes[HIDDEN].default_on) == (True, ())
    assert HIDDEN not in str(refused(registry.find_mode, "te-bf16-articl"))
    for device in ("cuda", "cpu"):
        assert len([entry for entry in registry.workloads().values() if device in entry.default_on]) == 1


@pytest.mark.usefixtures("outside")
def test_an_outside_package_adds_names_and_takes_no_built_in_one():
    mode, recipe = registry.find_mode("acme-int8")

    assert (recipe, registry.load(mode).name) == (None, "acme-int8")
    assert "acme-bench" in mode.summary
    assert registry.load(registry.find_workload("acme-llama")).unit == "tokens"
    # Its recipes are for its class to judge.
    assert registry.find_mode("acme-int8:whatever")[1] == "whatever"
    assert registry.find_mode("te-fp8")[0] in registry.BUILTIN_MODES
    assert registry.find_workload("vit-huge") in registry.BUILTIN_WORKLOADS
    assert "'acme-gone' points to 'acme_bench:Gone'" in refused(registry.load, registry.find_mode("acme-gone")[0]).what
    assert "Did you mean 'acme-int8'?" in refused(registry.find_mode, "acme-int").remedy


@pytest.mark.parametrize(
    ("line", "place"), [("import acme_nowhere", "{}/acme{}.py:3"), ("x = = 1", "(acme{1}.py, line 3)")]
)
def test_a_plug_in_that_cannot_be_imported_names_its_file_and_line(line, place, tmp_path, monkeypatch):
    number = len(line)
    (tmp_path / f"acme{number}.py").write_text(f"import os\n\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = registry.ModeEntry("acme-broken", f"acme{number}:Mode", "")
    assert place.format(tmp_path.name, number) in refused(registry.load, entry).what


@pytest.mark.slow
@pytest.mark.parametrize("entry", [one for one in registry.BUILTIN_MODES if not one.hidden], ids=lambda one: one.name)
def test_what_an_entry_says_without_torch_is_what_its_class_does(entry):
    from fp8bench.modes.protocol import stated

    mode_class = registry.load(entry)
    for recipe in entry.recipes or (None,):
        policy = stated(mode_class(recipe), "compile_policy")
        assert policy.auto is entry.compiled_by_auto
        assert (policy.refusal is not None) == (recipe in entry.never_compiled)
    assert ("te_attention" in stated(mode_class, "config_fields")) is entry.heeds_te_attention

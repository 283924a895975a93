"""Names lead to modes and workloads: the built-in ones, their recipes, and those of outside packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from fp8bench import registry
from fp8bench.entries import ModeEntry, WorkloadEntry
from fp8bench.schema.errors import UsageError

VISIBLE_MODES = [
    "baseline-bf16",
    "te-bf16",
    "te-fp8",
    "torchao-float8",
    "baseline-fp32",
    "baseline-tf32",
    "baseline-fp16",
]
RECIPES = {
    "te-fp8": ("delayed", "current", "block", "mxfp8"),
    "torchao-float8": ("tensorwise", "rowwise", "rowwise_with_gw_hp"),
}
HIDDEN = "te-bf16-article"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with modes and workloads of its own, one of which takes a built-in name."""
    info = tmp_path / "acme_bench-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-bench\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fp8bench.modes]\nacme-int8 = acme_bench:Int8\nacme-gone = acme_bench:Gone\nte-fp8 = acme_bench:Int8\n"
        "[fp8bench.workloads]\nacme-llama = acme_bench:Llama\nvit-huge = acme_bench:Llama\n"
    )
    (tmp_path / "acme_bench.py").write_text("class Int8:\n    name = 'acme-int8'\nclass Llama:\n    unit = 'tokens'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_bench", raising=False)


class TestModes:
    @pytest.mark.parametrize("name", VISIBLE_MODES)
    def test_the_promised_modes_are_there_and_listed(self, name: str) -> None:
        assert registry.modes()[name].name == name
        assert not registry.modes()[name].hidden

    @pytest.mark.parametrize(("name", "recipes"), RECIPES.items())
    def test_the_promised_recipes_are_there_with_the_default_first(self, name: str, recipes: tuple[str, ...]) -> None:
        assert registry.modes()[name].recipes == recipes

    @pytest.mark.parametrize(
        ("label", "name", "recipe"),
        [
            ("te-fp8", "te-fp8", "delayed"),
            ("te-fp8:current", "te-fp8", "current"),
            ("te-fp8:mxfp8", "te-fp8", "mxfp8"),
            ("torchao-float8", "torchao-float8", "tensorwise"),
            ("torchao-float8:rowwise_with_gw_hp", "torchao-float8", "rowwise_with_gw_hp"),
            ("baseline-bf16", "baseline-bf16", None),
        ],
    )
    def test_a_label_gives_the_mode_and_its_recipe_or_the_default_one(
        self, label: str, name: str, recipe: str | None
    ) -> None:
        entry, found = registry.find_mode(label)

        assert (entry.name, found) == (name, recipe)

    @pytest.mark.parametrize(
        ("label", "near"),
        [("te-fp9", "te-fp8"), ("baseline-bf61", "baseline-bf16"), ("torchao-fp8", "torchao-float8")],
    )
    def test_an_unknown_mode_is_refused_with_the_nearest_name(self, label: str, near: str) -> None:
        with pytest.raises(UsageError) as caught:
            registry.find_mode(label)

        assert repr(label) in caught.value.what
        assert f"Did you mean {near!r}?" in caught.value.remedy
        assert "`fp8bench list modes`" in caught.value.remedy

    def test_an_unknown_recipe_is_refused_with_the_nearest_one_of_that_mode(self) -> None:
        with pytest.raises(UsageError) as caught:
            registry.find_mode("te-fp8:curent")

        assert "'curent'" in caught.value.what
        assert "te-fp8" in caught.value.what
        assert "Did you mean 'current'?" in caught.value.remedy

    def test_another_modes_recipe_is_unknown(self) -> None:
        with pytest.raises(UsageError, match="unknown recipe of te-fp8 'rowwise'"):
            registry.find_mode("te-fp8:rowwise")

    def test_a_mode_without_recipes_takes_none(self) -> None:
        with pytest.raises(UsageError, match="'baseline-bf16' has no recipes, so not 'delayed'") as caught:
            registry.find_mode("baseline-bf16:delayed")

        assert "`--mode baseline-bf16`" in caught.value.remedy

    def test_the_articles_faulty_block_is_found_by_name_but_hidden(self) -> None:
        entry, recipe = registry.find_mode(HIDDEN)

        assert (entry.name, entry.hidden, recipe) == (HIDDEN, True, None)

    def test_a_hidden_mode_is_never_suggested_nor_run_by_default(self) -> None:
        with pytest.raises(UsageError) as caught:
            registry.find_mode("te-bf16-articl")

        assert HIDDEN not in str(caught.value)
        assert registry.modes()[HIDDEN].default_on == ()

    def test_each_device_has_a_baseline_and_an_fp8_mode_by_default(self) -> None:
        entries = registry.modes().values()
        on_gpu = [entry.name for entry in entries if "cuda" in entry.default_on]
        on_cpu = [entry.name for entry in entries if "cpu" in entry.default_on]

        assert on_gpu == ["baseline-bf16", "te-bf16", "te-fp8", "torchao-float8"]
        assert on_cpu == ["baseline-bf16", "torchao-float8"]


class TestWorkloads:
    @pytest.mark.parametrize("name", ["vit-huge", "vit-huge-256", "vit-micro"])
    def test_the_promised_workloads_are_found(self, name: str) -> None:
        assert registry.find_workload(name).name == name

    def test_an_unknown_workload_is_refused_with_the_nearest_name(self) -> None:
        with pytest.raises(UsageError, match="unknown workload 'vit-hug'") as caught:
            registry.find_workload("vit-hug")

        assert "Did you mean 'vit-huge'?" in caught.value.remedy
        assert "`fp8bench list workloads`" in caught.value.remedy

    @pytest.mark.parametrize("device", ["cuda", "cpu"])
    def test_each_device_has_exactly_one_default(self, device: str) -> None:
        assert len([entry for entry in registry.workloads().values() if device in entry.default_on]) == 1


class TestLoad:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "entry", [*registry.BUILTIN_MODES, *registry.BUILTIN_WORKLOADS], ids=lambda entry: entry.name
    )
    def test_every_built_in_target_is_a_class_that_calls_itself_by_its_registered_name(
        self, entry: ModeEntry | WorkloadEntry
    ) -> None:
        loaded = registry.load(entry)

        assert isinstance(loaded, type)
        assert loaded.name == entry.name
        assert isinstance(entry, ModeEntry) or loaded.unit == registry.unit_of(entry.name)

    def test_a_member_of_a_family_counts_what_its_family_does_and_an_unknown_workload_nothing(self) -> None:
        assert registry.unit_of("timm:convnext_base") == registry.find_workload("timm:convnext_base").unit == "images"
        assert registry.unit_of("of-a-plug-in") is registry.unit_of("another:member") is None

    @pytest.mark.parametrize("target", ["no_such_module_at_all:Mode", "fp8bench.registry:NoSuchMode"])
    def test_a_broken_target_is_told_with_its_name(self, target: str) -> None:
        with pytest.raises(UsageError, match="cannot be imported") as caught:
            registry.load(ModeEntry("acme", target, "broken"))

        assert "'acme'" in caught.value.what
        assert repr(target) in caught.value.what

    @pytest.mark.slow
    def test_looking_names_up_imports_no_torch(self) -> None:
        code = (
            "import sys\n"
            "from fp8bench import registry\n"
            "registry.find_mode('te-fp8'); registry.find_workload('vit-huge')\n"
            "print(sorted({'torch', 'timm', 'torchao', 'transformer_engine'} & set(sys.modules)))\n"
        )

        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("outside")
class TestOutsidePackages:
    def test_its_modes_and_workloads_are_found_and_loaded(self) -> None:
        mode, recipe = registry.find_mode("acme-int8")
        workload = registry.find_workload("acme-llama")

        assert recipe is None
        assert "acme-bench" in mode.summary
        assert registry.load(mode).name == "acme-int8"
        assert registry.load(workload).unit == "tokens"

    def test_its_recipes_are_for_its_class_to_judge(self) -> None:
        _, recipe = registry.find_mode("acme-int8:whatever")

        assert recipe == "whatever"

    def test_it_cannot_take_a_built_in_name(self) -> None:
        assert registry.find_mode("te-fp8")[0] in registry.BUILTIN_MODES
        assert registry.find_workload("vit-huge") in registry.BUILTIN_WORKLOADS

    def test_a_class_that_it_promised_and_lacks_is_told_by_name(self) -> None:
        with pytest.raises(UsageError, match="'acme-gone' points to 'acme_bench:Gone'"):
            registry.load(registry.find_mode("acme-gone")[0])

    def test_its_names_are_suggested_too(self) -> None:
        with pytest.raises(UsageError) as caught:
            registry.find_mode("acme-int")

        assert "Did you mean 'acme-int8'?" in caught.value.remedy


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

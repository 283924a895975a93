"""The catalogue that travels with the program is sound, and files laid over it win or are refused by line and field."""

from collections import Counter
from datetime import date
from pathlib import Path

import pytest
import yaml

from fp8bench.pricing.catalog import find, load
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import INSTANCES_YAML
from fp8bench.schema.instance import Catalog

TWO_INSTANCES = """\
instances:
- key: mine
  gpu: B200
  gpu_count: 2
  prices:
  - usd_per_hour: 5
    purchase: on_demand
    as_of: '2026-01-01'
    source: my invoice
  - usd_per_hour: 4
    purchase: spot
    as_of: null
    source: my invoice
- key: p5
  gpu: H100-SXM5-80GB
  gpu_count: 8
"""

ONE_INSTANCE = """\
key: my-box
gpu: null
gpu_count: 0
prices:
- usd_per_hour: 0.4
  purchase: on_demand
  as_of: 2026-01-01
  source: the power bill
"""

ONE_GPU = """\
gpus:
- name: L4
  product_names: [NVIDIA L4]
  compute_capability: '8.9'
  dense_bf16_tflops: 1
  dense_fp8_tflops: 2
  dense_fp4_tflops: null
  memory_bandwidth_gb_s: 300
  memory_gb: 24
  nvlink_gb_s: null
  tdp_w: 72
  sources: {}
  figures: made up
"""


@pytest.fixture(scope="module")
def packaged() -> Catalog:
    return load()


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    return tmp_path / "overlay.yaml"


def refusal_of(path: Path, text: str) -> UsageError:
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load([path])
    return caught.value


class TestPackaged:
    def test_every_price_that_is_null_has_a_reason(self, packaged: Catalog) -> None:
        nulls = [(i.key, p) for i in packaged.instances.values() for p in i.prices if p.usd_per_hour is None]

        assert nulls
        assert [key for key, price in nulls if not price.reason] == []

    def test_every_price_that_is_not_null_has_a_source(self, packaged: Catalog) -> None:
        known = [(i.key, p) for i in packaged.instances.values() for p in i.prices if p.usd_per_hour is not None]

        assert known
        assert [key for key, price in known if not price.source] == []

    def test_every_instances_gpu_is_a_known_one(self, packaged: Catalog) -> None:
        assert {i.gpu for i in packaged.instances.values() if i.gpu is not None} <= set(packaged.gpus)

    def test_no_key_and_no_name_is_there_twice(self, packaged: Catalog) -> None:
        document = yaml.safe_load(INSTANCES_YAML.read_text(encoding="utf-8"))

        assert len(document["instances"]) == len(packaged.instances)
        assert len(document["gpus"]) == len(packaged.gpus)

    def test_a_driver_name_belongs_to_one_gpu_only(self, packaged: Catalog) -> None:
        counts = Counter(name for gpu in packaged.gpus.values() for name in gpu.product_names)

        assert [name for name, count in counts.items() if count > 1] == []

    @pytest.mark.parametrize(("key", "usd_per_hour"), [("p4d", 32.77), ("p5", 98.32)])
    def test_the_articles_prices_hold_on_the_articles_day(
        self, packaged: Catalog, key: str, usd_per_hour: float
    ) -> None:
        then = choose(packaged.instances[key].prices, PriceQuery(as_of=date(2023, 11, 15), current=False))

        assert then is not None
        assert then.usd_per_hour == usd_per_hour

    @pytest.mark.parametrize(("key", "usd_per_hour"), [("p4d", 21.957642), ("p5", 55.04)])
    def test_after_the_cut_of_2025_the_newer_prices_hold(
        self, packaged: Catalog, key: str, usd_per_hour: float
    ) -> None:
        later = choose(packaged.instances[key].prices, PriceQuery(as_of=date(2026, 11, 21), current=False))

        assert later is not None
        assert later.usd_per_hour == usd_per_hour

    def test_the_day_before_the_article_no_price_is_known(self, packaged: Catalog) -> None:
        assert choose(packaged.instances["p5"].prices, PriceQuery(as_of=date(2023, 11, 14), current=False)) is None

    @pytest.mark.parametrize("key", ["p4d", "p5"])
    def test_the_articles_instances_have_eight_gpus(self, packaged: Catalog, key: str) -> None:
        assert packaged.instances[key].gpu_count == 8

    def test_fp8_peaks_are_null_where_the_gpu_has_no_fp8_unit(self, packaged: Catalog) -> None:
        without = [gpu.name for gpu in packaged.gpus.values() if gpu.compute_capability in ("7.0", "7.5", "8.0", "8.6")]

        assert any(name.startswith("A100") for name in without)
        assert {packaged.gpus[name].dense_fp8_tflops for name in without} == {None}


class TestGpuByProduct:
    @pytest.mark.parametrize(
        ("product_name", "name"),
        [
            ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
            ("NVIDIA H200", "H200-SXM-141GB"),
            ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
            ("NVIDIA L4", "L4"),
        ],
    )
    def test_the_drivers_name_leads_to_the_gpu(self, packaged: Catalog, product_name: str, name: str) -> None:
        gpu = packaged.gpu_by_product(product_name)

        assert gpu is not None
        assert gpu.name == name

    @pytest.mark.parametrize(
        "product_name",
        ["NVIDIA H100 PCIe", "NVIDIA H100", "nvidia h200", "NVIDIA H200 NVL", "NVIDIA L40", "H100-SXM5-80GB", "", None],
    )
    def test_a_name_that_is_not_exactly_known_is_unknown(self, packaged: Catalog, product_name: str | None) -> None:
        assert packaged.gpu_by_product(product_name) is None


class TestFind:
    @pytest.mark.parametrize("name", ["p5", "p5.48xlarge"])
    def test_an_instance_is_found_by_its_key_and_by_its_clouds_name(self, packaged: Catalog, name: str) -> None:
        assert find(packaged, name).key == "p5"

    def test_every_instance_is_found_by_its_key(self, packaged: Catalog) -> None:
        assert [find(packaged, key).key for key in packaged.instances] == list(packaged.instances)

    @pytest.mark.parametrize(("name", "near"), [("p4", "p4d"), ("p6b200", "p6-b200"), ("p5ex", "p5e")])
    def test_an_unknown_one_is_refused_with_the_nearest_key(self, packaged: Catalog, name: str, near: str) -> None:
        with pytest.raises(UsageError, match=f"unknown instance '{name}'") as caught:
            find(packaged, name)

        assert f"Did you mean {near!r}?" in caught.value.remedy
        assert "`fp8bench list instances`" in caught.value.remedy

    @pytest.mark.parametrize("name", ["p4d.24xlarg", "p5.48xlarg"])
    def test_a_mistyped_cloud_name_suggests_the_clouds_name(self, packaged: Catalog, name: str) -> None:
        with pytest.raises(UsageError) as caught:
            find(packaged, name)

        assert f"Did you mean '{name}e'?" in caught.value.remedy

    def test_other_right_names_are_suggested_too(self, packaged: Catalog) -> None:
        with pytest.raises(UsageError) as caught:
            find(packaged, "my-own-bxo", more=["my-own-box"])

        assert "Did you mean 'my-own-box'?" in caught.value.remedy


class TestOverlays:
    def test_its_instances_are_added_and_win_by_key(self, packaged: Catalog, overlay: Path) -> None:
        overlay.write_text(TWO_INSTANCES)

        catalog = load([overlay])

        assert [p.usd_per_hour for p in catalog.instances["mine"].prices] == [5, 4]
        assert catalog.instances["p5"].prices == ()
        assert catalog.instances["p4d"] == packaged.instances["p4d"]
        assert set(catalog.instances) == {*packaged.instances, "mine"}

    def test_its_gpus_win_by_name(self, overlay: Path) -> None:
        overlay.write_text(ONE_GPU)

        catalog = load([overlay])

        assert catalog.gpus["L4"].dense_fp8_tflops == 2
        found = catalog.gpu_by_product("NVIDIA L4")
        assert found is not None
        assert found.figures == "made up"

    def test_a_file_may_be_one_instance_by_itself(self, overlay: Path) -> None:
        overlay.write_text(ONE_INSTANCE)

        mine = load([overlay]).instances["my-box"]

        assert (mine.gpu, mine.gpu_count) == (None, 0)
        assert mine.prices[0].usd_per_hour == 0.4
        assert mine.prices[0].as_of == date(2026, 1, 1)

    def test_the_prices_of_one_by_itself_go_before_the_catalogues(self, packaged: Catalog, overlay: Path) -> None:
        overlay.write_text(ONE_INSTANCE.replace("my-box", "p5").replace("gpu_count: 0", "gpu_count: 8"))

        joined = load([overlay]).instances["p5"].prices

        assert joined[0].source == "the power bill"
        assert joined[1:] == packaged.instances["p5"].prices

    def test_the_later_of_two_wins(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
        one.write_text(ONE_INSTANCE)
        two.write_text(ONE_INSTANCE.replace("0.4", "0.9"))

        assert load([one, two]).instances["my-box"].prices[0].usd_per_hour == 0.9
        assert load([two, one]).instances["my-box"].prices[0].usd_per_hour == 0.4

    def test_an_empty_file_changes_nothing(self, packaged: Catalog, overlay: Path) -> None:
        overlay.write_text("# nothing yet\n")

        assert load([overlay]) == packaged

    def test_another_base_stands_alone(self, overlay: Path) -> None:
        overlay.write_text(TWO_INSTANCES)

        assert set(load(base=overlay).instances) == {"mine", "p5"}
        assert load(base=overlay).gpus == {}


class TestRefusals:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"absent\.yaml"):
            load([tmp_path / "absent.yaml"])

    def test_what_is_not_yaml_by_file_and_line(self, overlay: Path) -> None:
        error = refusal_of(overlay, "instances:\n- key: [mine\n- key: p5\n")

        assert error.what.startswith(f"{overlay} line 3 is not YAML")

    def test_a_list_on_top(self, overlay: Path) -> None:
        assert refusal_of(overlay, "- key: mine\n").what.startswith(f"{overlay} line 1 is not a mapping")

    def test_an_unknown_section_by_file_and_line(self, overlay: Path) -> None:
        error = refusal_of(overlay, "instances: []\n\ninstance:\n- key: mine\n")

        assert error.what == f"{overlay} line 3: unknown section 'instance'"
        assert "`instances:`" in error.remedy

    @pytest.mark.parametrize("section", ["instances", "gpus"])
    def test_a_section_that_is_no_list(self, overlay: Path, section: str) -> None:
        error = refusal_of(overlay, f"meta: {{}}\n{section}:\n  mine: {{}}\n")

        assert error.what == f"{overlay} line 2: {section} is not a list"

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            (TWO_INSTANCES.replace("key: p5", "key: mine"), "line 14: 'mine' is there twice"),
            (ONE_GPU + ONE_GPU.removeprefix("gpus:\n"), "line 14: 'L4' is there twice"),
        ],
        ids=["key", "name"],
    )
    def test_a_key_or_name_that_is_twice_in_one_file(self, overlay: Path, text: str, what: str) -> None:
        assert refusal_of(overlay, text).what == f"{overlay} {what}"

    @pytest.mark.parametrize("text", ["false\n", "0\n", "[]\n", "''\n"])
    def test_nothing_else_passes_for_an_empty_file(self, overlay: Path, text: str) -> None:
        assert refusal_of(overlay, text).what.startswith(f"{overlay} line 1 is not a mapping")

    @pytest.mark.parametrize(
        ("right", "wrong", "line", "field"),
        [
            ("usd_per_hour: 4\n", "usd_per_hour: -4\n", 10, "instances.0.prices.1.usd_per_hour"),
            ("purchase: spot", "purchase: stolen", 11, "instances.0.prices.1.purchase"),
            ("'2026-01-01'", "'2026-13-01'", 8, "instances.0.prices.0.as_of"),
            ("key: p5", "key: P 5", 14, "instances.1.key"),
            ("gpu_count: 8", "gpus: 8", 14, "instances.1.gpu_count"),
            ("gpu_count: 8", "gpu_count: 8\n  colour: green", 17, "instances.1.colour"),
        ],
    )
    def test_a_wrong_field_by_file_line_and_field(
        self, overlay: Path, right: str, wrong: str, line: int, field: str
    ) -> None:
        error = refusal_of(overlay, TWO_INSTANCES.replace(right, wrong))

        assert error.what.startswith(f"{overlay} line {line}, field {field}: ")

    def test_a_wrong_field_of_an_instance_by_itself(self, overlay: Path) -> None:
        error = refusal_of(overlay, ONE_INSTANCE.replace("0.4", "cheap"))

        assert error.what.startswith(f"{overlay} line 5, field prices.0.usd_per_hour: ")

    def test_a_gpu_without_its_figures(self, overlay: Path) -> None:
        error = refusal_of(overlay, ONE_GPU.replace("  tdp_w: 72\n", ""))

        assert error.what.startswith(f"{overlay} line 2, field gpus.0.tdp_w: ")

"""What the catalogue lacks of an instance is kept beside its records, as a file that the catalogue can read."""

from datetime import date
from pathlib import Path

import pytest
import yaml
from builders import instance, price

from fp8bench.pricing.catalog import load
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.records.instances import files, keep
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Instance

OWN = instance("my-box", gpu="B200", gpu_count=2, instance_type="Größe 2", vcpus=16, memory_gib=0.5)
TODAY = price(3.0, region=None, as_of=date(2026, 11, 21), source="given with --price")
BEFORE = price(2.0, region=None, as_of=date(2026, 1, 1), source="given with --price")
P5_TODAY, P5_BEFORE = (each.model_copy(update={"usd_per_hour": 50.0}) for each in (TODAY, BEFORE))


def test_an_instance_that_nobody_knew_is_kept_as_the_catalogue_reads_it(tmp_path: Path) -> None:
    path = keep(OWN, None, in_catalog=False, results_dir=tmp_path)

    assert path == tmp_path / "my-box" / "instance.yaml"
    assert load([path]).instances["my-box"] == OWN


def test_an_instance_without_a_gpu_is_kept_too(tmp_path: Path) -> None:
    cpu = instance("cpu", gpu=None, gpu_count=0)

    path = keep(cpu, None, in_catalog=False, results_dir=tmp_path)

    assert path is not None
    assert load([path]).instances["cpu"] == cpu


def test_its_first_price_is_kept_with_it(tmp_path: Path) -> None:
    path = keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path)

    assert path is not None
    assert load([path]).instances["my-box"].prices == (TODAY,)


def test_a_price_goes_in_front_of_those_that_were_known(tmp_path: Path) -> None:
    keep(OWN, BEFORE, in_catalog=False, results_dir=tmp_path)

    path = keep(OWN, TODAY, in_catalog=True, results_dir=tmp_path)

    assert path is not None
    assert load([path]).instances["my-box"].prices == (TODAY, BEFORE)


def test_a_price_for_an_instance_of_the_catalogue_goes_in_front_of_the_catalogues_own(tmp_path: Path) -> None:
    p5 = load().instances["p5"]

    path = keep(p5, P5_TODAY, in_catalog=True, results_dir=tmp_path)

    assert path is not None
    kept = load([path]).instances["p5"]
    assert kept.prices == (P5_TODAY.model_copy(update={"own": True}), *p5.prices)
    assert kept == p5.model_copy(update={"prices": kept.prices})


def test_the_file_holds_ones_own_prices_and_none_of_the_catalogues(tmp_path: Path) -> None:
    """The catalogue's own would grow old there, and hide those of a newer catalogue."""
    p5 = load().instances["p5"]
    keep(p5, P5_BEFORE, in_catalog=True, results_dir=tmp_path)
    joined = load(files(tmp_path)).instances["p5"]

    path = keep(joined, P5_TODAY, in_catalog=True, results_dir=tmp_path)

    assert path is not None
    written = Instance.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert written == p5.model_copy(update={"prices": (P5_TODAY, P5_BEFORE)})
    own = tuple(each.model_copy(update={"own": True}) for each in (P5_TODAY, P5_BEFORE))
    assert load(files(tmp_path)).instances["p5"].prices == (*own, *p5.prices)


def test_a_second_price_of_the_same_day_is_the_one_that_holds(tmp_path: Path) -> None:
    corrected = TODAY.model_copy(update={"usd_per_hour": 4.0})
    keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path)

    path = keep(OWN, corrected, in_catalog=True, results_dir=tmp_path)

    assert path is not None
    prices = load([path]).instances["my-box"].prices
    assert choose(prices, PriceQuery(as_of=date(2026, 11, 21), current=True)) == corrected


def test_the_same_price_twice_is_one_price(tmp_path: Path) -> None:
    for given in (BEFORE, TODAY, TODAY):
        keep(OWN, given, in_catalog=False, results_dir=tmp_path)

    assert load(files(tmp_path)).instances["my-box"].prices == (TODAY, BEFORE)


def test_a_price_given_again_is_the_one_that_holds(tmp_path: Path) -> None:
    corrected = TODAY.model_copy(update={"usd_per_hour": 4.0})
    for given in (TODAY, corrected, TODAY):
        keep(OWN, given, in_catalog=False, results_dir=tmp_path)

    prices = load(files(tmp_path)).instances["my-box"].prices
    assert prices == (TODAY,)
    assert choose(prices, PriceQuery(as_of=date(2026, 11, 21), current=True)) == TODAY


def test_nothing_is_written_where_there_is_nothing_to_add(tmp_path: Path) -> None:
    assert keep(OWN, None, in_catalog=True, results_dir=tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_run_after_run_the_file_gathers_every_price_newest_first(tmp_path: Path) -> None:
    keep(OWN, BEFORE, in_catalog=False, results_dir=tmp_path)
    keep(load(files(tmp_path)).instances["my-box"], TODAY, in_catalog=True, results_dir=tmp_path)

    assert load(files(tmp_path)).instances["my-box"].prices == (TODAY, BEFORE)
    assert [path.name for path in (tmp_path / "my-box").iterdir()] == ["instance.yaml"]


def test_the_file_is_one_that_people_can_read_and_write(tmp_path: Path) -> None:
    path = keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path)

    assert path is not None
    text = path.read_text(encoding="utf-8")
    assert text.startswith("key: my-box\n")
    assert "Größe 2" in text
    assert yaml.safe_load(text)["prices"] == [
        {"usd_per_hour": 3.0, "purchase": "on_demand", "as_of": "2026-11-21", "source": "given with --price"}
    ]


def test_a_run_without_a_price_leaves_the_prices_of_earlier_ones(tmp_path: Path) -> None:
    keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path)
    keep(OWN, None, in_catalog=False, results_dir=tmp_path)

    assert load(files(tmp_path)).instances["my-box"].prices == (TODAY,)


@pytest.mark.parametrize(
    ("text", "words"),
    [("key: my-box\nprices: [\n", "is not YAML"), ("key: my-box\ngpu: B200\ngpu_count: many\n", "field gpu_count")],
    ids=["not YAML", "wrong field"],
)
def test_a_file_that_is_broken_is_told_and_left_as_it_is(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "my-box" / "instance.yaml"
    path.parent.mkdir()
    path.write_text(text)

    with pytest.raises(UsageError, match=words) as caught:
        keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path)

    assert caught.value.what.startswith(f"{path} line 3")
    assert path.read_text() == text


def test_every_kept_instance_is_found_and_nothing_else(tmp_path: Path) -> None:
    one = keep(OWN, None, in_catalog=False, results_dir=tmp_path)
    two = keep(instance("another"), None, in_catalog=False, results_dir=tmp_path)
    (tmp_path / "my-box" / "record.json").write_text("{}")
    (tmp_path / "instance.yaml").write_text("key: not-here\n")

    assert files(tmp_path) == [two, one]
    assert files(tmp_path / "absent") == []


def test_a_folder_that_cannot_be_written_to_is_told_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(UsageError, match="cannot write") as caught:
        keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path / "file")

    assert str(tmp_path / "file" / "my-box" / "instance.yaml") in caught.value.what
    assert "--results-dir" in caught.value.remedy


class TestStrictNumbers:
    """A file written by hand: what YAML 1.1 reads in another way than its writer is refused, with file and line."""

    @pytest.mark.parametrize(
        "word", ["12:30", "010", "0x10", "0b11", "1_000", "true", "yes", ".nan", ".inf", "'3.2'", "-3"]
    )
    def test_what_is_no_plain_number_is_no_price(self, tmp_path: Path, word: str) -> None:
        path = tmp_path / "my-box" / "instance.yaml"
        path.parent.mkdir()
        path.write_text(f"key: my-box\ngpu: null\ngpu_count: 1\nprices:\n- usd_per_hour: {word}\n{OF_A_DAY}")
        with pytest.raises(UsageError, match=r"instance\.yaml line 5") as caught:
            load([path])
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize("word", ["true", "010", "1:30"])
    def test_nor_a_number_of_gpus(self, tmp_path: Path, word: str) -> None:
        path = tmp_path / "my-box" / "instance.yaml"
        path.parent.mkdir()
        path.write_text(f"key: my-box\ngpu: null\ngpu_count: {word}\n")
        with pytest.raises(UsageError, match=r"instance\.yaml line 3"):
            load([path])

    @pytest.mark.parametrize("word", ["3", "3.2", "0.5", "12"])
    def test_a_plain_one_is(self, tmp_path: Path, word: str) -> None:
        path = tmp_path / "my-box" / "instance.yaml"
        path.parent.mkdir()
        path.write_text(f"key: my-box\ngpu: null\ngpu_count: 1\nprices:\n- usd_per_hour: {word}\n{OF_A_DAY}")
        assert load([path]).instances["my-box"].prices[0].usd_per_hour == float(word)

    def test_two_prices_of_one_day_are_refused_unless_they_are_of_unlike_things(self, tmp_path: Path) -> None:
        path = tmp_path / "my-box" / "instance.yaml"
        path.parent.mkdir()
        text = f"key: my-box\ngpu: null\ngpu_count: 1\nprices:\n- usd_per_hour: 3\n{OF_A_DAY}- usd_per_hour: 300\n"
        path.write_text(text + OF_A_DAY)
        with pytest.raises(UsageError, match=r"instance\.yaml line 9: .* on line 5"):
            load([path])
        path.write_text(text + OF_A_DAY + "  region: elsewhere\n")
        assert len(load([path]).instances["my-box"].prices) == 2


OF_A_DAY = "  purchase: on_demand\n  as_of: 2026-11-01\n  source: me\n"

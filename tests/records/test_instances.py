"""What the catalogue lacks of an instance is kept beside its records, as a file that the catalogue can read."""

import re
from datetime import date

import pytest
import yaml
from builders import instance, price
from kept import put

from fp8bench.pricing.catalog import laid_over, load, load_beside
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.records.instances import files, keep
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Instance

OWN = instance("my-box", gpu="B200", gpu_count=2, instance_type="Größe 2", vcpus=16, memory_gib=0.5)
TODAY = price(3.0, region=None, as_of=date(2026, 11, 21), source="given with --price")
BEFORE = price(2.0, region=None, as_of=date(2026, 1, 1), source="given with --price")
CORRECTED = TODAY.model_copy(update={"usd_per_hour": 4.0})
P5_TODAY, P5_BEFORE = (each.model_copy(update={"usd_per_hour": 50.0}) for each in (TODAY, BEFORE))
OF_A_DAY = "  purchase: on_demand\n  as_of: 2026-11-01\n  source: me\n"


@pytest.mark.parametrize(
    ("given", "prices"),
    [
        ([BEFORE, TODAY, TODAY], (TODAY, BEFORE)),
        ([TODAY, CORRECTED], (CORRECTED,)),
        ([TODAY, None], (TODAY,)),
    ],
)
def test_prices_are_kept_newest_first_and_the_last_of_a_day_holds(tmp_path, given, prices):
    for each in given:
        keep(OWN, each, in_catalog=False, results_dir=tmp_path)
    kept = load_beside(files(tmp_path)).instances["my-box"].prices

    assert kept == prices
    assert choose(kept, PriceQuery(as_of=date(2026, 11, 21), current=True)) == prices[0]
    assert [path.name for path in (tmp_path / "my-box").iterdir()] == ["instance.yaml"]


def test_the_file_holds_ones_own_prices_in_front_of_the_catalogues_and_none_of_these(tmp_path):
    """The catalogue's own would grow old there, and hide those of a newer catalogue."""
    p5 = load().instances["p5"]
    keep(p5, P5_BEFORE, in_catalog=True, results_dir=tmp_path)
    path = keep(load_beside(files(tmp_path)).instances["p5"], P5_TODAY, in_catalog=True, results_dir=tmp_path)
    written = Instance.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    own = tuple(each.model_copy(update={"own": True}) for each in (P5_TODAY, P5_BEFORE))

    assert written == p5.model_copy(update={"prices": (P5_TODAY, P5_BEFORE)})
    assert laid_over(load(), path).instances["p5"] == p5.model_copy(update={"prices": (*own, *p5.prices)})


def test_the_file_of_one_that_nobody_knew_is_one_that_people_can_read_and_write_and_the_catalogue_reads(tmp_path):
    path = keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path)
    text = path.read_text(encoding="utf-8")

    assert path == tmp_path / "my-box" / "instance.yaml"
    assert laid_over(load(), path).instances["my-box"] == OWN.model_copy(update={"prices": (TODAY,)})
    assert text.startswith("key: my-box\n")
    assert "Größe 2" in text
    assert yaml.safe_load(text)["prices"] == [
        {"usd_per_hour": 3.0, "purchase": "on_demand", "as_of": "2026-11-21", "source": "given with --price"}
    ]


def test_a_file_that_is_broken_is_told_and_left_as_it_is(tmp_path):
    """In which ways it may be, tests/pricing/test_catalog.py has."""
    text = "key: my-box\ngpu: B200\ngpu_count: many\n"
    path = put(tmp_path / "my-box" / "instance.yaml", text)
    with pytest.raises(UsageError, match=re.escape(f"{path} line 3, field gpu_count")):
        keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path)
    assert path.read_text() == text


def test_every_kept_instance_is_found_and_nothing_else_nor_written_where_there_is_nothing_to_add(tmp_path):
    assert keep(OWN, None, in_catalog=True, results_dir=tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    one = keep(OWN, None, in_catalog=False, results_dir=tmp_path)
    two = keep(instance("another"), None, in_catalog=False, results_dir=tmp_path)
    (tmp_path / "my-box" / "record.json").write_text("{}")
    (tmp_path / "instance.yaml").write_text("key: not-here\n")
    assert files(tmp_path) == [two, one]
    assert files(tmp_path / "absent") == []
    with pytest.raises(UsageError, match=r"cannot write .*my-box/instance\.yaml.*--results-dir"):
        keep(OWN, TODAY, in_catalog=False, results_dir=tmp_path / "instance.yaml")


def test_two_prices_of_one_day_are_refused_unless_they_are_of_unlike_things(tmp_path):
    text = "key: my-box\ngpu: null\ngpu_count: 1\nprices:\n"
    text += f"- usd_per_hour: 3\n{OF_A_DAY}- usd_per_hour: 300\n{OF_A_DAY}"
    path = put(tmp_path / "my-box" / "instance.yaml", text)
    with pytest.raises(UsageError, match=r"instance\.yaml line 9: .* on line 5"):
        laid_over(load(), path)
    path.write_text(f"{text}  region: elsewhere\n")
    assert len(laid_over(load(), path).instances["my-box"].prices) == 2

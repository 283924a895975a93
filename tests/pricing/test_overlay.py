"""One's own file beside the results adds prices, and makes no other machine of an instance."""

import re
from datetime import date

import pytest

from fp8bench.pricing.catalog import load, load_beside, require_read
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.schema.errors import UsageError

TODAY = date(2026, 11, 22)
P5 = """\
key: p5
gpu: H100-SXM5-80GB
gpu_count: 8
prices:
- {usd_per_hour: 40.0, purchase: on_demand, as_of: 2026-11-01, source: our contract}
"""


def written(folder, name, text):
    path = folder / name / "instance.yaml"
    path.parent.mkdir()
    path.write_text(text)
    return path


OTHER_GPU = "line 2: gpu is 'B200', and the catalogue's p5 has 'H100-SXM5-80GB'"


def own_price(folder, text):
    return load([written(folder, "p5", text)]).instances["p5"].prices[0]


@pytest.mark.parametrize(
    ("folder", "text", "words"),
    [
        ("p4d", "# ours\n" + P5, "line 2: its key is 'p5', and its folder is 'p4d'"),
        ("p5", P5.replace("gpu_count: 8", "gpu_count: 4"), "line 3: gpu_count is 4, and the catalogue's p5 has 8"),
        (
            "p5",
            P5.replace("H100-SXM5-80GB", "B200"),
            "line 2: gpu is 'B200', and the catalogue's p5 has 'H100-SXM5-80GB'",
        ),
    ],
)
def test_a_key_or_machine_that_contradicts_its_folder_or_the_catalogue_is_refused(folder, text, words, tmp_path):
    path = written(tmp_path, folder, text)
    with pytest.raises(UsageError) as refusal:
        load([path])
    assert refusal.value.what == f"{path} {words}"


def test_a_gpu_that_is_not_said_contradicts_nothing(tmp_path):
    assert load([written(tmp_path, "p5", P5.replace("H100-SXM5-80GB", "null"))]).instances["p5"].gpu_count == 8


@pytest.mark.parametrize(
    ("usd_per_hour", "far"), [(440.0, "8.0 times"), (6.88, "1/8.0 of"), (276.0, "5.0 times"), (10.9, "1/5.0 of")]
)
def test_a_price_far_from_the_catalogues_is_doubted_with_both(usd_per_hour, far, tmp_path):
    own = own_price(tmp_path, P5.replace("40.0", str(usd_per_hour)))
    assert own.usd_per_hour == usd_per_hour
    assert f"{usd_per_hour:,.2f} USD/h (our contract), is {far} the catalogue's 55.04" in own.doubt


@pytest.mark.parametrize(
    "text",
    [
        P5,
        P5.replace("40.0", "11.1"),
        P5.replace("40.0", "275.0"),
        P5.replace("40.0", "4.0").replace("on_demand", "spot"),
        P5.replace("40.0", "480.0").replace("2026-11-01", "2024-01-01"),
    ],
    ids=["near", "a fifth", "five times", "a spot price among its own", "an old one beside those of its day"],
)
def test_one_within_five_times_of_its_kind_and_day_goes_first_and_is_not_doubted(text, tmp_path):
    own = own_price(tmp_path, text)
    assert (own.source, own.doubt) == ("our contract", None)


def test_a_folder_is_called_as_it_is_named_and_not_as_what_it_links_to(tmp_path):
    written(tmp_path, "box-one", P5)
    (tmp_path / "p5").symlink_to(tmp_path / "box-one")

    assert load([tmp_path / "p5" / "instance.yaml"]).instances["p5"].prices[0].usd_per_hour == 40.0


def test_a_contract_is_paid_though_the_catalogue_has_a_newer_price(tmp_path):
    p5 = load([written(tmp_path, "p5", P5.replace("2026-11-01", "2024-01-01"))]).instances["p5"]

    now, before = (choose(p5.prices, PriceQuery(day, current=False)) for day in (TODAY, date(2023, 11, 15)))

    assert (now.usd_per_hour, now.as_of) == (40.0, date(2024, 1, 1))
    assert before.usd_per_hour == 98.32


@pytest.mark.parametrize("text", [P5, P5.replace("purchase: on_demand, ", ""), P5 + "gpu: null\n", "key: p5\n\t- ["])
def test_a_refused_file_stops_those_alone_who_ask_for_its_instance(text, tmp_path):
    path = written(tmp_path, "renamed", text)

    catalog = load_beside([path])

    assert catalog.instances == load().instances
    require_read(catalog, ["p4d"])
    for name in ("p5", "renamed"):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            require_read(catalog, ["p4d", name])

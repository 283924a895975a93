"""The catalogue that travels with the program is sound; files laid over it win or are refused by line and field; one's
own file beside the results adds prices, and makes no other machine of an instance; snapshots of offers are read
strictly, joined by their days, and never written over.
"""

import json
import re
from collections import Counter
from datetime import date
from functools import partial, reduce

import pytest
from kept import put

from fp8bench.pricing.catalog import find, laid_over, load, load_beside, read_snapshot, require_read
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.records import instances
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import INSTANCES_JSON
from fp8bench.schema.instance import FIELDS

MINE = """\
key: mine
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
"""

PACKAGED = load()


def beside(*paths):
    """The catalogue with these files."""
    return reduce(laid_over, paths, PACKAGED)


DAY_OF_THE_ARTICLE, LATER = date(2023, 11, 15), date(2026, 11, 21)


@pytest.fixture
def overlay(tmp_path):
    """Write a file to be laid over the catalogue; returns its path."""
    return partial(put, tmp_path / "overlay.yaml")


def test_every_price_has_a_source_or_a_reason_every_name_is_there_once_and_found_and_no_fp8_peak_without_a_unit():
    prices = [(one.key, price) for one in PACKAGED.instances.values() for price in one.prices]
    document = json.loads(INSTANCES_JSON.read_text(encoding="utf-8"))
    product_names = Counter(name for gpu in PACKAGED.gpus.values() for name in gpu.product_names)

    assert {price.usd_per_hour is None for _, price in prices} == {True, False}
    assert [key for key, price in prices if not (price.reason if price.usd_per_hour is None else price.source)] == []
    assert {one.gpu for one in PACKAGED.instances.values()} - {None} <= set(PACKAGED.gpus)
    assert (len(document["instances"]), len(document["gpus"])) == (len(PACKAGED.instances), len(PACKAGED.gpus))
    assert [name for name, count in product_names.items() if count > 1] == []
    assert (PACKAGED.instances["p4d"].gpu_count, PACKAGED.instances["p5"].gpu_count) == (8, 8)
    without = [gpu for gpu in PACKAGED.gpus.values() if gpu.compute_capability in ("7.0", "7.5", "8.0", "8.6")]
    assert any(gpu.name.startswith("A100") for gpu in without)
    assert {gpu.dense_fp8_tflops for gpu in without} == {None}
    assert [find(PACKAGED, key).key for key in PACKAGED.instances] == list(PACKAGED.instances)
    assert find(PACKAGED, "p5.48xlarge").key == "p5"


def test_the_articles_prices_hold_on_the_articles_day_and_newer_ones_later():
    for key, day, usd_per_hour in (
        *(("p4d", DAY_OF_THE_ARTICLE, 32.77), ("p5", DAY_OF_THE_ARTICLE, 98.32), ("p5", date(2023, 11, 14), None)),
        *(("p4d", LATER, 21.957642), ("p5", LATER, 55.04)),
    ):
        found = choose(PACKAGED.instances[key].prices, PriceQuery(as_of=day, current=False))
        assert (found and found.usd_per_hour) == usd_per_hour


def test_an_instance_is_added_beside_those_of_the_catalogue(overlay, tmp_path):
    catalog = beside(overlay(MINE))
    assert [price.usd_per_hour for price in catalog.instances["mine"].prices] == [5, 4]
    assert {**catalog.instances} == {**PACKAGED.instances, "mine": catalog.instances["mine"]}
    assert catalog.gpus == PACKAGED.gpus
    with pytest.raises(UsageError, match=r"absent\.yaml"):
        beside(tmp_path / "absent.yaml")


def test_the_drivers_exact_name_leads_to_the_gpu():
    assert PACKAGED.gpu_by_product("NVIDIA H100 80GB HBM3").name == "H100-SXM5-80GB"
    for no_name in ("NVIDIA H100", "nvidia h200", "NVIDIA L40", "", "H100-SXM5-80GB", None):
        assert PACKAGED.gpu_by_product(no_name) is None


USD = ("-4", "true", ".nan", ".inf", "'3.2'")


def changed(right, wrong, text=MINE):
    return text.replace(right, wrong)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("key: [mine\ngpu: B200\n", " line 2 is not YAML"),
        ("- key: mine\n", " line 1, field the whole file: "),
        ("# nothing yet\n", " line 1, field the whole file: "),
        *(
            (changed("usd_per_hour: 4\n", f"usd_per_hour: {usd}\n"), " line 9, field prices.1.usd_per_hour: ")
            for usd in USD
        ),
        (changed("gpu_count: 2", "gpu_count: true"), " line 3, field gpu_count: "),
        (changed("purchase: spot", "purchase: stolen"), " line 10, field prices.1.purchase: "),
        (changed("'2026-01-01'", "'2026-13-01'"), " line 7, field prices.0.as_of: "),
        (changed("key: mine", "key: P 5"), " line 1, field key: "),
        (changed("gpu_count: 2", "gpus: 2"), " line 1, field gpu_count: "),
        (changed("gpu_count: 2", "gpu_count: 2\ncolour: green"), " line 4, field colour: "),
        (changed("gpu: B200\n", "gpu: B200\ngpu: B200\n"), " line 3: 'gpu' is given twice"),
    ],
)
def test_what_is_wrong_is_named_by_file_line_and_field(text, what, overlay):
    path = overlay(text)
    with pytest.raises(UsageError) as refused:
        beside(path)

    assert refused.value.what.startswith(f"{path}{what}")
    assert refused.value.remedy


TODAY = date(2026, 11, 22)
P5 = """\
key: p5
gpu: H100-SXM5-80GB
gpu_count: 8
prices:
- {usd_per_hour: 40.0, purchase: on_demand, as_of: 2026-11-01, source: our contract}
"""


@pytest.mark.parametrize(
    ("folder", "text", "words"),
    [
        ("p4d", "# ours\n" + P5, "line 2: its key is 'p5', and its folder is 'p4d'"),
        ("p5", changed("gpu_count: 8", "gpu_count: 4", P5), "line 3: gpu_count is 4, and the catalogue's p5 has 8"),
        ("p5", changed("H100-SXM5-80GB", "B200", P5), "line 2: gpu is 'B200', and the catalogue's p5 has 'H100-SXM5-"),
    ],
)
def test_a_key_or_machine_that_contradicts_its_folder_or_the_catalogue_is_refused(folder, text, words, tmp_path):
    path = put(tmp_path / folder / "instance.yaml", text)
    with pytest.raises(UsageError, match=re.escape(f"{path} {words}")):
        beside(path)


DOUBTED = {
    "near": (P5, None),
    "a fifth": (changed("40.0", "11.1", P5), None),
    "five times": (changed("40.0", "275.0", P5), None),
    "a spot price": (changed("40.0", "4.0", P5).replace("on_demand", "spot"), None),
    "old, as those of its day": (changed("40.0", "480.0", P5).replace("2026-11-01", "2024-01-01"), None),
    "undated, as the newest": (
        changed("40.0", "480.0", P5).replace("2026-11-01", "null"),
        "8.7 times the catalogue's 55.04",
    ),
    "an unsaid GPU": (changed("H100-SXM5-80GB", "null", P5), None),
    **{
        f"{usd}": (changed("40.0", usd, P5), f"{float(usd):,.2f} USD/h (our contract), is {far} the catalogue's 55.04")
        for usd, far in (("440.0", "8.0 times"), ("6.88", "1/8.0 of"), ("276.0", "5.0 times"), ("10.9", "1/5.0 of"))
    },
}


@pytest.mark.parametrize(("text", "doubt"), DOUBTED.values(), ids=DOUBTED)
def test_ones_own_price_goes_first_and_is_doubted_beyond_five_times_of_its_kind_and_day(text, doubt, tmp_path):
    own = beside(put(tmp_path / "p5" / "instance.yaml", text)).instances["p5"].prices[0]
    assert (own.source, own.doubt is None) == ("our contract", doubt is None)
    assert doubt is None or doubt in own.doubt


def test_a_contract_is_paid_though_the_catalogue_has_a_newer_price_and_a_folder_is_called_as_it_is_named(tmp_path):
    put(tmp_path / "box-one" / "instance.yaml", P5.replace("2026-11-01", "2024-01-01"))
    (tmp_path / "p5").symlink_to(tmp_path / "box-one")
    p5 = beside(tmp_path / "p5" / "instance.yaml").instances["p5"]
    now, before = (choose(p5.prices, PriceQuery(day, current=False)) for day in (TODAY, date(2023, 11, 15)))
    assert (now.usd_per_hour, now.as_of) == (40.0, date(2024, 1, 1))
    assert before.usd_per_hour == 98.32


HEADER = ",".join(FIELDS)
DAY = date(2026, 11, 20)
KNOWN = ["p4d", "p5"]


def line(instance="p5", usd="50.0", purchase="on_demand", region="us-east-1", as_of="2026-11-20"):
    return f"{instance},{usd},{purchase},{region},,{as_of},an offer"


@pytest.fixture
def snapshot(tmp_path):
    """Write a snapshot of these lines; returns its path."""
    return lambda *lines, name="2026-11-20.csv": put(tmp_path / "prices" / name, "\n".join((HEADER, *lines)) + "\n")


def in_force(folder, day=DAY, **query):
    found = load_beside(instances.files(folder))
    return choose(found.instances["p5"].prices, PriceQuery(day, True, **query))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (line(usd="0"), "field usd_per_hour: invalid value '0': input should be greater than"),
        (line(usd="1e9"), "field usd_per_hour: invalid value '1e9': input should be less than or equal to 10000000"),
        (line(usd="nan"), "field usd_per_hour: invalid value 'nan'"),
        (line(usd="cheap"), "field usd_per_hour: invalid value 'cheap'"),
        (line(usd=""), "field usd_per_hour: it is empty"),
        (line(as_of=""), "field as_of: it is empty"),
        (line(as_of="2026-02-30"), "field as_of: invalid value '2026-02-30'"),
        (line(purchase="stolen"), "field purchase: invalid value 'stolen'"),
        (line(instance="p55"), "field instance: unknown instance 'p55'. Did you mean 'p5'?"),
        ("p5,50.0,on_demand", "has 3 cells, not 7"),
        (line(usd="51"), "p5 is offered twice as on_demand in us-east-1, the first time on line 2"),
    ],
)
def test_what_is_wrong_in_a_snapshot_is_named_by_file_line_and_field(wrong, words, snapshot):
    path = snapshot(line(), wrong)

    with pytest.raises(UsageError) as refusal:
        read_snapshot(path, KNOWN)

    assert str(refusal.value).startswith(f"{path} line 3")
    assert words in str(refusal.value)


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("a,b\n", "line 1 is not the header")])
def test_a_file_that_is_no_snapshot_is_refused(text, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        read_snapshot(put(tmp_path / "2026-11-20.csv", text), KNOWN)


def test_the_newest_snapshot_of_the_day_holds_unless_ones_own_price_does_or_it_is_far_from_the_catalogues(
    snapshot, tmp_path
):
    snapshot(line(usd="52", as_of="2026-11-18"), name="2026-11-18.csv")
    for number, usd in ((2, "50"), (10, "49")):
        snapshot(line(usd=usd), name=f"2026-11-20.{number}.csv")
    assert (in_force(tmp_path).usd_per_hour, in_force(tmp_path).as_of) == (49, DAY)
    assert in_force(tmp_path).source == "an offer"
    assert in_force(tmp_path, date(2026, 11, 19)).usd_per_hour == 52
    own = "- {usd_per_hour: 40.0, purchase: on_demand, as_of: 2026-11-01, source: ours}\n"
    put(tmp_path / "p5" / "instance.yaml", f"key: p5\ngpu: H100-SXM5-80GB\ngpu_count: 8\nprices:\n{own}")
    assert in_force(tmp_path).usd_per_hour == 40
    put(tmp_path / "far" / "prices" / "2026-11-20.csv", f"{HEADER}\n{line(usd='6.88')}\n")
    doubted = load_beside(instances.files(tmp_path / "far")).instances["p5"].prices[0]
    assert doubted.doubtful
    assert "6.88 USD/h (an offer), is 1/8.0 of the catalogue's 55.04" in doubted.doubt
    assert in_force(tmp_path / "far").usd_per_hour == 55.04


def test_a_refused_snapshot_stops_those_alone_who_ask_for_an_instance_of_it(snapshot, tmp_path):
    snapshot(line(), line("p4d", usd="0"))
    catalog = load_beside(instances.files(tmp_path))

    require_read(catalog, ["nebius-8x-h100"])
    for key in ("p4d", "p5"):
        with pytest.raises(UsageError, match="line 3, field usd_per_hour"):
            require_read(catalog, [key])


def test_a_second_snapshot_of_a_day_is_written_beside_the_first_or_refused_in_one_line(tmp_path):
    paths = [instances.keep_snapshot(f"{number}\n", DAY, tmp_path) for number in range(12)]
    assert [path.name for path in paths[:3]] == ["2026-11-20.csv", "2026-11-20.2.csv", "2026-11-20.3.csv"]
    assert [path.read_text() for path in instances.snapshots(tmp_path)] == [f"{number}\n" for number in range(12)]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "prices").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot write .*other/prices: .*Choose another --results-dir"):
        instances.keep_snapshot("", DAY, tmp_path / "other")

"""Current offers, out of real catalogues of gpuhunt's on disk; and snapshots of them: read strictly, joined to the
catalogue by their days, never written over.
"""

from datetime import date

import pytest
from builders import instance, price
from kept import put
from pricing.gpuhunt_catalog import AWS, GCP, NEBIUS, RUNPOD, folder_of, item, published

from fp8bench.pricing.catalog import load, load_beside, read_snapshot, require_read
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.pricing.offers import LOCAL, changes, fetch, known_offers, offers
from fp8bench.records import instances
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import FIELDS, Catalog, Offer, OfferedAs

TODAY = date(2026, 11, 22)
CATALOG = load()


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A local catalogue of these offers."""

    def writing(**items):
        monkeypatch.setenv(LOCAL, str(folder_of(tmp_path / "gpuhunt", **items)))

    return writing


def found(*providers):
    wanted = [one for one in CATALOG.instances.values() if one.provider in providers]
    return offers(fetch(providers), CATALOG, wanted, TODAY)


def listed(offered):
    return [(one.instance, one.price.purchase, one.price.region, one.price.usd_per_hour) for one in offered]


def test_the_region_that_the_catalogue_lists_first_goes_first_and_of_zones_the_cheapest_stands_for_it(local):
    local(aws=AWS, gcp=GCP)
    assert listed(found("aws")) == [
        ("p5", "on_demand", "us-east-1", 50.0),
        ("p5", "on_demand", "eu-west-1", 40.0),
        ("p5", "spot", "us-east-1", 15.0),
        ("p5-4xlarge", "on_demand", "us-east-1", 6.5),
    ]
    # Other terms are not on demand.
    (only,) = found("gcp")
    assert listed([only]) == [("a3-highgpu-8g", "on_demand", "us-central1", 87.0)]
    assert only.price.zone == "us-central1-b"


def test_an_instance_is_known_by_its_providers_name_or_by_what_its_gpus_driver_calls_them(local):
    local(runpod=RUNPOD, nebius=NEBIUS)
    assert listed(found("nebius", "runpod")) == [
        ("nebius-8x-h200", "on_demand", "eu-north1", 28.0),
        ("runpod-1x-h100", "on_demand", "CA", 2.6),
    ]


def test_a_published_catalogue_is_of_the_day_of_its_version(monkeypatch, tmp_path):
    monkeypatch.delenv(LOCAL, raising=False)
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", published(tmp_path / "s3", "20261118-42", aws=AWS))
    fetched = fetch(["aws", "gcp"])
    first = offers(fetched, CATALOG, [CATALOG.instances["p5"]], TODAY)[0].price

    assert fetched.versions == {"aws": "20261118-42"}
    assert fetched.missing == ("gcp",)
    assert any("Failed to load gcp catalog" in said for said in fetched.said)
    assert first.as_of == date(2026, 11, 18)
    assert "catalogue 20261118-42 of aws" in first.source


def test_a_local_catalogue_is_of_today_and_a_row_that_gpuhunt_skips_is_told(local, tmp_path):
    local(aws=AWS)
    assert {one.price.as_of for one in found("aws")} == {TODAY}
    assert fetch(["aws", "gcp"]).missing == ("gcp",)
    path = tmp_path / "gpuhunt" / "aws.csv"
    path.write_text(path.read_text().replace(",50.0,", ",fifty,"))
    assert "Skipping malformed row in aws catalog at line 3" in fetch(["aws"]).said[0]


@pytest.mark.parametrize("usd", [0.0, -1.0, 1e9])
def test_an_absurd_price_is_refused_by_instance_and_place(usd, local):
    local(aws=[item("aws", "p5.48xlarge", "us-east-1", usd)])

    with pytest.raises(UsageError, match=r"gpuhunt offers p5 in us-east-1 for .* which no machine costs"):
        found("aws")


def test_a_folder_without_any_of_the_catalogues_is_wrong_usage(monkeypatch, tmp_path):
    monkeypatch.setenv(LOCAL, str(tmp_path))

    with pytest.raises(UsageError, match=r"has none of aws\.csv, gcp\.csv"):
        fetch(["aws", "gcp"])


HEADER = ",".join(FIELDS)
DAY, LATER = date(2026, 11, 20), date(2026, 11, 21)
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
def test_what_is_wrong_is_named_by_file_line_and_field(wrong, words, snapshot):
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
    with pytest.raises(UsageError, match=r"cannot write .*prices/2026-11-20.csv: .*Choose another --results-dir"):
        instances.keep_snapshot("", DAY, tmp_path / "other")


def test_what_is_new_changed_and_gone_is_told_beside_the_newest_offer_that_was_known():
    """The user's own price is no offer, and a doubtful one is none that was known."""
    west, nowhere = (OfferedAs("p5", "on_demand", region) for region in ("us-west-2", "eu-west-9"))
    prices = price(48.0, as_of=date(2026, 11, 1)), price(52.0, as_of=DAY), price(9.0, as_of=DAY, own=True)
    more = price(9.0, as_of=LATER, doubtful=True), price(30.0, region="us-west-2", as_of=None)
    known = known_offers(Catalog(instances={"p5": instance("p5", prices=(*prices, *more))}, gpus={}))
    now = [Offer(instance="p5", price=price(usd, region=region)) for region, usd in (("us-east-1", 26), ("eu", None))]
    found = [tuple(one.model_dump().values())[2:] for one in changes(now, known, [west, nowhere])]
    assert found == [
        ("us-east-1", 52, DAY, 26, -0.5),
        ("eu", None, None, None, None),
        ("us-west-2", 30, None, None, None),
    ]
    assert changes([Offer(instance="p5", price=price(52.0, as_of=LATER))], known, []) == []

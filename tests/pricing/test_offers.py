"""Current offers come from real catalogues of gpuhunt's on disk, and are told beside what was known."""

from datetime import date

import pytest
from builders import instance, price
from pricing.gpuhunt_catalog import AWS, GCP, NEBIUS, RUNPOD, folder_of, item, published

from fp8bench.pricing.catalog import load
from fp8bench.pricing.offers import LOCAL, changes, fetch, known_offers, offers
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Offer, OfferedAs

PACKAGED = load()
TODAY, DAY, LATER = date(2026, 11, 22), date(2026, 11, 20), date(2026, 11, 21)


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A local catalogue of these offers."""

    def writing(**items):
        monkeypatch.setenv(LOCAL, str(folder_of(tmp_path / "gpuhunt", **items)))

    return writing


def found(*providers):
    wanted = [one for one in PACKAGED.instances.values() if one.provider in providers]
    return offers(fetch(providers), PACKAGED, wanted, TODAY)


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
    first = offers(fetched, PACKAGED, [PACKAGED.instances["p5"]], TODAY)[0].price

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


def test_an_absurd_price_is_refused_by_instance_and_place_and_a_folder_without_any_of_the_catalogues(local):
    for usd in (0.0, -1.0, 1e9):
        local(aws=[item("aws", "p5.48xlarge", "us-east-1", usd)])
        with pytest.raises(UsageError, match=r"gpuhunt offers p5 in us-east-1 for .* which no machine costs"):
            found("aws")
    with pytest.raises(UsageError, match=r"has none of azure\.csv, gcp\.csv"):
        fetch(["azure", "gcp"])


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

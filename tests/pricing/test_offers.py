"""Current offers, out of real catalogues of gpuhunt's on disk."""

from datetime import date

import pytest
from pricing.gpuhunt_catalog import AWS, GCP, NEBIUS, RUNPOD, folder_of, item, published

from fp8bench.pricing.catalog import load
from fp8bench.pricing.offers import LOCAL, fetch, offers
from fp8bench.schema.errors import UsageError

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


@pytest.mark.parametrize("price", [0.0, -1.0, 1e9])
def test_an_absurd_price_is_refused_by_instance_and_place(price, local):
    local(aws=[item("aws", "p5.48xlarge", "us-east-1", price)])

    with pytest.raises(UsageError, match=r"gpuhunt offers p5 in us-east-1 for .* which no machine costs"):
        found("aws")


def test_a_folder_without_any_of_the_catalogues_is_wrong_usage(monkeypatch, tmp_path):
    monkeypatch.setenv(LOCAL, str(tmp_path))

    with pytest.raises(UsageError, match=r"has none of aws\.csv, gcp\.csv"):
        fetch(["aws", "gcp"])

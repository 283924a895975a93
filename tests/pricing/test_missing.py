"""Why there is no price, and what to do; and what some GPUs of a bigger instance cost."""

from dataclasses import replace
from datetime import date

import pytest
from builders import instance, price

from fp8bench.pricing.catalog import load
from fp8bench.pricing.choose import PriceQuery, choose, has_no_price, of_listed, require_region, why_no_price
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog

NOW = PriceQuery(date(2026, 11, 21), current=True)
THEN = PriceQuery(date(2025, 1, 1), current=False)
EAST, WEST = price(10.0), price(12.0, region="us-west-2")


@pytest.mark.parametrize(
    ("prices", "query", "words"),
    [
        ((), NOW, ("none is known of 'box'", "--price")),
        ((price(None),), NOW, ("none is known of 'box' (not on the list)", "--price")),
        ((EAST,), replace(NOW, purchase="spot"), ("none of 'box' is spot; there are on_demand", "--purchase")),
        ((EAST, WEST), replace(NOW, region="eu"), ("region eu; there are us-east-1, us-west-2", "--region")),
        ((price(1.0, region=None),), replace(NOW, region="eu"), ("there are none that name a region", "--region")),
        (
            (price(1.0, as_of=date(2027, 1, 1)), price(1.0, as_of=date(2026, 12, 1))),
            NOW,
            ("none of 'box' is known for 2026-11-21: the earliest is of 2026-12-01", "--price-as-of"),
        ),
        ((EAST,), THEN, ("known for 2025-01-01: the earliest is of 2026-11-01", "--price-as-of")),
        ((price(1.0, as_of=None),), THEN, ("have no date and apply only today", "--price-as-of today")),
    ],
)
def test_what_cannot_be_priced_says_why_and_names_the_remedy(prices, query, words):
    assert choose(prices, query) is None
    told = why_no_price("box", instance("box", prices=prices), query)

    assert told.startswith("no price: ")
    assert all(word in told for word in words)
    told = why_no_price("box", None, query)
    assert told.startswith("no price: the catalogue does not know 'box'; give one with `fp8bench run --price`")


CATALOG = Catalog(
    instances={
        "a": instance("a", prices=(EAST, WEST, price(1.0, region="all"))),
        "b": instance("b", prices=(price(2.0, region="eu-west-1"),)),
        "c": instance("c", prices=(price(2.0, region=None),)),
    },
    gpus={},
)


@pytest.mark.parametrize(
    ("keys", "there"),
    [
        (["a"], "us-east-1, us-west-2"),
        *((keys, "eu-west-1, us-east-1, us-west-2") for keys in (["a", "b"], ["c"], ["unknown"])),
    ],
)
def test_one_that_none_is_of_is_refused_with_those_of_the_instances(keys, there):
    with pytest.raises(UsageError, match="no price is of region 'us-est-1'") as refusal:
        require_region("us-est-1", CATALOG, keys)
    assert refusal.value.remedy == f"There are: {there}"
    for region in (None, "us-east-1", "eu-west-1"):
        assert require_region(region, CATALOG, keys) is None


def listed(key, *prices, gpus=8, provider="a cloud"):
    return instance(key, gpu="B200", gpu_count=gpus, provider=provider, prices=prices)


def stands_in(*instances, gpus=1):
    found = of_listed("B200", gpus, Catalog(instances={one.key: one for one in instances}, gpus={}), NOW)
    return found and found.instance


def test_dated_prices_go_before_undated_ones_and_only_an_instance_of_a_cloud_with_enough_gpus_and_a_price_stands_in():
    undated, dated = price(as_of=None), price(as_of=date(2026, 1, 1))
    doubtful = dated.model_copy(update={"doubtful": True})
    assert stands_in(listed("a", doubtful), listed("b", undated), listed("c", dated), listed("d", dated)) == "c"
    assert stands_in(listed("a", doubtful), listed("b", undated)) == "b"
    few = listed("small", dated, gpus=1)
    assert stands_in(few, listed("own", dated, provider=None), listed("none"), gpus=2) is None
    share = of_listed("H100-SXM5-80GB", 1, load(), NOW)
    assert (share.instance, share.gpus, share.of, share.price.usd_per_hour) == ("p5", 1, 8, 55.04)
    # Of which nothing is known.
    bought = price(usd_per_hour=2.0, purchase="spot")
    owned = (None, listed("own", provider=None), listed("own", bought, provider=None), listed("p5e"))
    assert [has_no_price(one) for one in owned] == [True, True, False, False]

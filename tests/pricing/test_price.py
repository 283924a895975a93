"""The price that holds for a row: the newest one known on the day, and never a guess; why there is none and what to do;
what some GPUs of a bigger instance cost; and what a price makes of a rate, by its laws and by the published example.
"""

from dataclasses import replace
from datetime import date

import pytest
from builders import instance, price
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.cli.prices import known
from fp8bench.pricing.catalog import load
from fp8bench.pricing.choose import PriceQuery, choose, has_no_price, of_listed, require_region, why_no_price
from fp8bench.pricing.cost import (
    break_even_usd_per_hour,
    front,
    gain,
    job_hours,
    job_usd,
    mfu,
    rate_interval,
    units_per_usd,
)
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog

UNDATED = price(5.0, as_of=None)

days = st.sampled_from([date(2025, 6, day) for day in (4, 5, 6)])
prices_of_any_kind = st.builds(
    price,
    st.sampled_from([1.0, 2.0, 3.0, None]),
    region=st.sampled_from(["all", "us-east-1", None]),
    purchase=st.sampled_from(["on_demand", "on_demand", "spot"]),
    as_of=st.none() | days,
    doubtful=st.booleans(),
    own=st.booleans(),
)
queries = st.builds(
    PriceQuery,
    as_of=days,
    current=st.booleans(),
    region=st.sampled_from([None, "us-east-1"]),
    purchase=st.sampled_from(["on_demand", "on_demand", "spot"]),
)


TODAY = PriceQuery(as_of=date(2026, 12, 1), current=True)


@pytest.mark.slow
@given(st.lists(prices_of_any_kind, max_size=8), queries)
def test_what_is_chosen_fits_the_question_and_nothing_that_fits_is_newer_and_as_sure(prices, query):
    chosen = choose(prices, query)
    rivals = [
        price
        for price in prices
        if price.usd_per_hour is not None
        and price.purchase == query.purchase
        and (query.region is None or price.region in (query.region, "all"))
        and (query.current if price.as_of is None else price.as_of <= query.as_of)
    ]
    assert (chosen is None) == (not rivals)
    if chosen is not None:
        # Of equals, the first in the catalogue's order.
        assert chosen is max(
            rivals, key=lambda price: (price.own, not price.doubtful, price.as_of is not None, price.as_of or date.min)
        )


ENDED = price(39.33, as_of=None, until=date(2025, 1, 1))


def test_a_price_whose_source_states_an_end_holds_until_then():
    assert choose([ENDED], PriceQuery(date(2024, 12, 31), current=True)) is ENDED
    assert choose([ENDED], PriceQuery(date(2025, 1, 1), current=True)) is None
    assert choose([ENDED, UNDATED], TODAY) is UNDATED
    instance, query = load().instances["p5"], replace(TODAY, purchase="capacity_block")
    assert choose(instance.prices, query) is None
    assert "ended, the last on 2025-01-01" in why_no_price("p5", instance, query)
    assert not any(one.in_force for one in known(instance, query, ["capacity_block"]))


ON_A_DAY = PriceQuery(date(2026, 11, 21), current=True)
LONG_AGO = PriceQuery(date(2025, 1, 1), current=False)
AT_TEN, AT_TWELVE = price(10.0), price(12.0, region="us-west-2")


@pytest.mark.parametrize(
    ("prices", "query", "words"),
    [
        ((), ON_A_DAY, ("none is known of 'box'", "--price")),
        ((price(None),), ON_A_DAY, ("none is known of 'box' (not on the list)", "--price")),
        ((AT_TEN,), replace(ON_A_DAY, purchase="spot"), ("none of 'box' is spot; there are on_demand", "--purchase")),
        (
            (AT_TEN, AT_TWELVE),
            replace(ON_A_DAY, region="eu"),
            ("region eu; there are us-east-1, us-west-2", "--region"),
        ),
        ((price(1.0, region=None),), replace(ON_A_DAY, region="eu"), ("there are none that name a region", "--region")),
        (
            (price(1.0, as_of=date(2027, 1, 1)), price(1.0, as_of=date(2026, 12, 1))),
            ON_A_DAY,
            ("none of 'box' is known for 2026-11-21: the earliest is of 2026-12-01", "--price-as-of"),
        ),
        ((AT_TEN,), LONG_AGO, ("known for 2025-01-01: the earliest is of 2026-11-01", "--price-as-of")),
        ((price(1.0, as_of=None),), LONG_AGO, ("have no date and apply only today", "--price-as-of today")),
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
        "a": instance("a", prices=(AT_TEN, AT_TWELVE, price(1.0, region="all"))),
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
    found = of_listed("B200", gpus, Catalog(instances={one.key: one for one in instances}, gpus={}), ON_A_DAY)
    return found and found.instance


def test_dated_prices_go_before_undated_ones_and_only_an_instance_of_a_cloud_with_enough_gpus_and_a_price_stands_in():
    undated, dated = price(as_of=None), price(as_of=date(2026, 1, 1))
    doubtful = dated.model_copy(update={"doubtful": True})
    assert stands_in(listed("a", doubtful), listed("b", undated), listed("c", dated), listed("d", dated)) == "c"
    assert stands_in(listed("a", doubtful), listed("b", undated)) == "b"
    few = listed("small", dated, gpus=1)
    assert stands_in(few, listed("own", dated, provider=None), listed("none"), gpus=2) is None
    share = of_listed("H100-SXM5-80GB", 1, load(), ON_A_DAY)
    assert (share.instance, share.gpus, share.of, share.price.usd_per_hour) == ("p5", 1, 8, 55.04)
    # Of which nothing is known.
    bought = price(usd_per_hour=2.0, purchase="spot")
    owned = (None, listed("own", provider=None), listed("own", bought, provider=None), listed("p5e"))
    assert [has_no_price(one) for one in owned] == [True, True, False, False]


P4D = units_per_usd(throughput_per_s=8 * 64 / 0.41, usd_per_hour=32.77)
P5 = units_per_usd(throughput_per_s=8 * 64 / 0.199, usd_per_hour=98.32)


def test_the_published_example_a_job_and_the_mfu_of_vit_huge_on_one_h200():
    assert (round(P4D), round(P5)) == (137_187, 94_206)
    assert round(100 * gain(P5, P4D), 1) == -31.3
    assert break_even_usd_per_hour(8 * 64 / 0.199, P4D) == pytest.approx(32.77 * 0.41 / 0.199)
    assert job_hours(90e6, 734.0) == pytest.approx(34.06, abs=0.01)
    assert job_usd(90e6, 662_458.0) == pytest.approx(135.86, abs=0.01)
    assert mfu(763.5e9 * 64, 0.1375, 1, 989) == pytest.approx(0.3593, abs=0.0001)
    assert mfu(flops_per_step=8 * 989e12 * 0.5, step_time_s=0.5, gpus=8, peak_tflops=989) == pytest.approx(1.0)


def test_what_a_dollar_buys_is_least_where_steps_are_longest_and_unbounded_where_these_are():
    assert rate_interval(100.0, 0.1, (0.09, 0.12)) == pytest.approx((100 * 0.1 / 0.12, 100 * 0.1 / 0.09))
    assert rate_interval(100.0, 0.1, None) is rate_interval(100.0, 0.1, (0.0, 0.2)) is None


@given(st.lists(st.tuples(*[st.integers(1, 6).map(float)] * 2), max_size=12))
def test_what_is_slower_and_dearer_is_off_the_front_and_equal_ones_are_on_it_together(points):
    def beaten(one):
        return any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points)

    assert front(points) == [not beaten(one) for one in points]

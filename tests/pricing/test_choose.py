"""The price that holds for a row: the newest one known on the day, and never a guess."""

from dataclasses import replace
from datetime import date

import pytest
from builders import price
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.pricing.catalog import load
from fp8bench.pricing.choose import PriceQuery, choose, why_no_price
from fp8bench.pricing.document import known

DAY = date(2025, 6, 5)
THEN = PriceQuery(as_of=DAY, current=False)
NOW = PriceQuery(as_of=DAY, current=True)

OLD = price(1.0, as_of=date(2023, 11, 15))
OLDER = price(2.0, as_of=date(2022, 1, 1))
SAME_DAY = price(3.0, as_of=DAY)
LATER = price(4.0, as_of=date(2025, 6, 6))
UNDATED = price(5.0, as_of=None)

prices_of_any_kind = st.builds(
    price,
    st.none() | st.floats(min_value=0.1, max_value=100),
    region=st.sampled_from([None, "all", "us-east-1", "us-west-2"]),
    purchase=st.sampled_from(["on_demand", "spot", "capacity_block"]),
    as_of=st.none() | st.dates(date(2023, 1, 1), date(2026, 12, 31)),
    doubtful=st.booleans(),
)
queries = st.builds(
    PriceQuery,
    as_of=st.dates(date(2023, 1, 1), date(2026, 12, 31)),
    current=st.booleans(),
    region=st.sampled_from([None, "us-east-1", "us-west-2"]),
    purchase=st.sampled_from(["on_demand", "spot", "capacity_block"]),
)


EAST, WEST = price(1.0, region="us-east-1"), price(2.0, region="us-west-2")
ALL, UNSAID = price(3.0, region="all"), price(4.0, region=None)
TODAY = PriceQuery(as_of=date(2026, 12, 1), current=True)
IN_WEST = replace(TODAY, region="us-west-2")
SURE_TWIN, TWIN = price(7.0, as_of=DAY), price(8.0, as_of=DAY)
UNDATED_TWIN = price(8.0, as_of=None)
DOUBTFUL = price(9.0, as_of=DAY, doubtful=True)
OLD_DOUBTFUL = price(9.0, as_of=OLD.as_of, doubtful=True)
SPOT, BLOCK = price(1.0, purchase="spot"), price(1.0, purchase="capacity_block")


@pytest.mark.parametrize(
    ("prices", "query", "chosen"),
    [
        # The newest that was known on the day.
        ([OLDER, OLD, LATER], THEN, OLD),
        ([OLDER, OLD, LATER], NOW, OLD),
        ([OLD, SAME_DAY, LATER], THEN, SAME_DAY),
        ([LATER], THEN, None),
        # Without a date: only today, and after dated ones.
        ([UNDATED], NOW, UNDATED),
        ([UNDATED], THEN, None),
        ([UNDATED, OLD], NOW, OLD),
        ([OLD, UNDATED], NOW, OLD),
        # The catalogue's order decides between equals.
        ([SURE_TWIN, TWIN], THEN, SURE_TWIN),
        ([TWIN, SURE_TWIN], THEN, TWIN),
        ([UNDATED, UNDATED_TWIN], NOW, UNDATED),
        ([UNDATED_TWIN, UNDATED], NOW, UNDATED_TWIN),
        # A doubtful one comes last, though it is newer.
        ([DOUBTFUL, OLDER], THEN, OLDER),
        ([DOUBTFUL, UNDATED], NOW, UNDATED),
        ([LATER, UNDATED, OLD_DOUBTFUL], THEN, OLD_DOUBTFUL),
        # With a region only its own and those of all count; without one, every price.
        ([EAST, WEST], IN_WEST, WEST),
        ([EAST], IN_WEST, None),
        ([EAST, ALL], IN_WEST, ALL),
        ([UNSAID], IN_WEST, None),
        *(([only], TODAY, only) for only in (EAST, WEST, ALL, UNSAID)),
        # Another way of buying never stands in.
        ([SPOT, EAST], TODAY, EAST),
        ([EAST, BLOCK], replace(TODAY, purchase="spot"), None),
        ([EAST, BLOCK, SPOT], replace(TODAY, purchase="spot"), SPOT),
        ([EAST, SPOT], replace(TODAY, purchase="capacity_block"), None),
        ([BLOCK, SPOT], TODAY, None),
        # What is null is passed over.
        ([price(None, as_of=DAY), OLD], THEN, OLD),
        ([price(None, as_of=None)], NOW, None),
        ([], NOW, None),
    ],
)
def test_the_price_that_holds(prices, query, chosen):
    assert choose(prices, query) == chosen


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
        best = max(rivals, key=lambda price: (not price.doubtful, price.as_of is not None, price.as_of or date.min))
        assert chosen in rivals
        assert (chosen.doubtful, chosen.as_of) == (best.doubtful, best.as_of)


ENDED = price(39.33, as_of=None, until=date(2025, 1, 1))


@pytest.mark.parametrize(("day", "taken"), [(date(2024, 12, 31), True), (date(2025, 1, 1), False)])
def test_a_price_whose_source_states_an_end_holds_until_then(day, taken):
    assert (choose([ENDED], PriceQuery(day, current=True)) is ENDED) == taken
    assert choose([ENDED, UNDATED], TODAY) is UNDATED
    instance, query = load().instances["p5"], replace(TODAY, purchase="capacity_block")
    assert choose(instance.prices, query) is None
    assert "ended, the last on 2025-01-01" in why_no_price("p5", instance, query)
    assert not any(one.in_force for one in known(instance, query, ["capacity_block"]))

"""The price that holds for a row: the newest one known on the day, and never a guess."""

from datetime import date

import pytest
from builders import price
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.pricing.catalog import load
from fp8bench.pricing.choose import PriceQuery, choose, why_no_price
from fp8bench.pricing.known import known
from fp8bench.schema.instance import Price, Purchase

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


class TestDate:
    @pytest.mark.parametrize("query", [THEN, NOW])
    def test_the_newest_price_not_after_the_day_holds(self, query: PriceQuery) -> None:
        assert choose([OLDER, OLD, LATER], query) == OLD

    def test_a_price_of_the_very_day_holds(self) -> None:
        assert choose([OLD, SAME_DAY, LATER], THEN) == SAME_DAY

    def test_a_later_price_was_not_known_yet(self) -> None:
        assert choose([LATER], THEN) is None

    def test_a_price_without_a_date_stands_in_only_for_today(self) -> None:
        assert choose([UNDATED], NOW) == UNDATED
        assert choose([UNDATED], THEN) is None

    @pytest.mark.parametrize("prices", [[UNDATED, OLD], [OLD, UNDATED]])
    def test_dated_prices_go_before_undated_ones(self, prices: list[Price]) -> None:
        assert choose(prices, NOW) == OLD

    def test_the_catalogues_order_decides_between_equals(self) -> None:
        first, second = price(7.0, as_of=DAY), price(8.0, as_of=DAY)
        assert choose([first, second], THEN) == first
        assert choose([second, first], THEN) == second

        first, second = price(7.0, as_of=None), price(8.0, as_of=None)
        assert choose([first, second], NOW) == first
        assert choose([second, first], NOW) == second


class TestDoubt:
    def test_a_doubtful_price_comes_last_though_it_is_newer(self) -> None:
        assert choose([price(9.0, as_of=DAY, doubtful=True), OLDER], THEN) == OLDER

    def test_today_even_an_undated_sure_price_goes_before_it(self) -> None:
        assert choose([price(9.0, as_of=DAY, doubtful=True), UNDATED], NOW) == UNDATED

    def test_it_is_taken_where_there_is_nothing_else(self) -> None:
        doubtful = price(9.0, as_of=OLD.as_of, doubtful=True)

        assert choose([LATER, UNDATED, doubtful], THEN) == doubtful


class TestRegion:
    EAST = price(1.0, region="us-east-1")
    WEST = price(2.0, region="us-west-2")
    ALL = price(3.0, region="all")
    UNSAID = price(4.0, region=None)
    QUERY = PriceQuery(as_of=date(2026, 12, 1), current=True)
    IN_WEST = PriceQuery(as_of=date(2026, 12, 1), current=True, region="us-west-2")

    def test_with_a_region_only_its_own_prices_count(self) -> None:
        assert choose([self.EAST, self.WEST], self.IN_WEST) == self.WEST
        assert choose([self.EAST], self.IN_WEST) is None

    def test_a_price_of_all_regions_counts_in_each(self) -> None:
        assert choose([self.EAST, self.ALL], self.IN_WEST) == self.ALL

    def test_a_price_whose_source_names_no_region_counts_in_none(self) -> None:
        assert choose([self.UNSAID], self.IN_WEST) is None

    @pytest.mark.parametrize("only", [EAST, WEST, ALL, UNSAID])
    def test_without_a_region_every_price_counts(self, only: Price) -> None:
        assert choose([only], self.QUERY) == only


class TestPurchase:
    def test_on_demand_is_what_is_meant_unless_said_otherwise(self) -> None:
        spot, on_demand = price(1.0, purchase="spot"), price(9.0)

        assert choose([spot, on_demand], PriceQuery(as_of=date(2026, 12, 1), current=True)) == on_demand

    @pytest.mark.parametrize("purchase", ["on_demand", "spot", "capacity_block"])
    def test_another_way_of_buying_never_stands_in(self, purchase: Purchase) -> None:
        others = [p for p in ("on_demand", "spot", "capacity_block") if p != purchase]
        query = PriceQuery(as_of=date(2026, 12, 1), current=True, purchase=purchase)

        assert choose([price(1.0, purchase=other) for other in others], query) is None
        assert choose([*(price(1.0, purchase=o) for o in others), price(2.0, purchase=purchase)], query) == price(
            2.0, purchase=purchase
        )


class TestUnknown:
    def test_a_null_price_is_passed_over(self) -> None:
        assert choose([price(None, as_of=DAY), OLD], THEN) == OLD
        assert choose([price(None, as_of=None)], NOW) is None

    def test_no_prices_give_none(self) -> None:
        assert choose([], NOW) is None


@pytest.mark.slow
@given(st.lists(prices_of_any_kind, max_size=8), queries)
def test_what_is_chosen_always_fits_the_question(prices: list[Price], query: PriceQuery) -> None:
    chosen = choose(prices, query)

    if chosen is not None:
        assert chosen in prices
        assert chosen.usd_per_hour is not None
        assert chosen.purchase == query.purchase
        assert query.region is None or chosen.region in (query.region, "all")
        assert query.current if chosen.as_of is None else chosen.as_of <= query.as_of


@pytest.mark.slow
@given(st.lists(prices_of_any_kind, max_size=8), queries)
def test_nothing_that_fits_is_newer_and_as_sure_as_what_is_chosen(prices: list[Price], query: PriceQuery) -> None:
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
        assert (chosen.doubtful, chosen.as_of) == (best.doubtful, best.as_of)


TODAY = date(2026, 11, 23)


class TestEnded:
    """A price whose source states an end is historical."""

    BLOCK = price(39.33, as_of=None, until=date(2025, 1, 1))

    @pytest.mark.parametrize(("day", "taken"), [(date(2024, 12, 31), True), (date(2025, 1, 1), False), (TODAY, False)])
    def test_it_holds_until_then(self, day, taken):
        assert (choose([self.BLOCK], PriceQuery(day, current=True)) is self.BLOCK) == taken

    def test_a_price_without_an_end_is_taken_instead(self):
        other = price(45.0, as_of=None)
        assert choose([self.BLOCK, other], PriceQuery(TODAY, current=True)) is other

    def test_the_catalogues_capacity_blocks_of_2024_are_not_in_force(self):
        for key in ("p4d", "p5", "p5e"):
            instance = load().instances[key]
            query = PriceQuery(TODAY, current=True, purchase="capacity_block")
            assert choose(instance.prices, query) is None
            assert "ended, the last on 2025-01-01" in why_no_price(key, instance, query)
            assert not any(one.in_force for one in known(instance, query, ["capacity_block"]))

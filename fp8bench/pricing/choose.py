"""Which of an instance's prices holds for a row. Every price keeps its date; none is guessed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from fp8bench.schema.instance import Price, Purchase

EVERYWHERE = "all"
ANY_MACHINE = "any"


@dataclass(frozen=True)
class PriceQuery:
    """as_of: the day for which the price must hold. current: that day is now, so that a price without a date may
    stand in. machine: id of the one that was measured; None where it is unknown, which has no price of a machine's own;
    ANY_MACHINE takes the price of any.
    """

    as_of: date
    current: bool
    region: str | None = None
    purchase: Purchase = "on_demand"
    machine: str | None = None


def choose(prices: Sequence[Price], query: PriceQuery) -> Price | None:
    """The newest price that was known on the day, or None.

    One's own prices go before the catalogue's, however new those are: a contract is what is paid. Then
    sure ones go before doubtful ones, dated ones before undated ones, and the catalogue's order decides between equals.
    With a region, only prices of that region (or of all) count; one whose source names no region does not.
    """
    fitting = [price for price in prices if _fits(price, query)]
    for own, doubtful in ((True, False), (True, True), (False, False), (False, True)):
        known = [price for price in fitting if (price.own, price.doubtful) == (own, doubtful)]
        dated = [price for price in known if price.as_of is not None and price.as_of <= query.as_of]
        if dated:
            return max(dated, key=lambda price: price.as_of or date.min)
        undated = [price for price in known if price.as_of is None]
        if undated and query.current:
            return undated[0]
    return None


def _fits(price: Price, query: PriceQuery) -> bool:
    if price.usd_per_hour is None or price.purchase != query.purchase:
        return False
    if price.machine not in (None, query.machine) and query.machine != ANY_MACHINE:
        return False
    return query.region is None or price.region in (query.region, EVERYWHERE)


def only_another_machines(prices: Sequence[Price], query: PriceQuery) -> bool:
    """Whether there is a price for the query but for the machine, and none of the machine's own."""
    own = [price for price in prices if price.machine is not None and price.machine == query.machine]
    others = [price for price in prices if price.machine not in (None, query.machine)]
    return choose(own, query) is None and choose(others, replace(query, machine=ANY_MACHINE)) is not None

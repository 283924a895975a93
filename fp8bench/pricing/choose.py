"""Which of an instance's prices holds for a row, or why none does. Every price keeps its date; none is guessed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date

from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Instance, Price, Purchase

EVERYWHERE = "all"
GIVE_ONE = "give one with `fp8bench run --price`, or in its instance.yaml"
ANY_MACHINE = "any"


@dataclass(frozen=True)
class PriceQuery:
    """as_of: the day for which the price must hold. current: that day is today, so that a price without a date will do.
    machine: id of the one that was measured; None where it is unknown, which has no price of a machine's own;
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


def why_no_price(key: str, instance: Instance | None, query: PriceQuery) -> str:
    """`no price: ...; ...`, for a question that `choose` answers with None. key: what the instance is called."""
    what, remedy = _missing(key, instance, query)
    return f"no price: {what}; {remedy}"


def _missing(key: str, instance: Instance | None, query: PriceQuery) -> tuple[str, str]:
    if instance is None:
        return f"the catalogue does not know {key!r}", GIVE_ONE
    known = [price for price in instance.prices if price.usd_per_hour is not None]
    if not known:
        reason = next((f" ({price.reason})" for price in instance.prices if price.reason), "")
        return f"none is known of {key!r}{reason}", GIVE_ONE
    bought = [price for price in known if price.purchase == query.purchase]
    if not bought:
        there = _listed(price.purchase for price in known)
        return f"none of {key!r} is {query.purchase}; there are {there}", f"choose with --purchase, or {GIVE_ONE}"
    here = [price for price in bought if query.region is None or price.region in (query.region, EVERYWHERE)]
    if not here:
        there = _listed(price.region for price in bought if price.region) or "none that name a region"
        what = f"none of {key!r} is of region {query.region}; there are {there}"
        return what, f"choose with --region, or {GIVE_ONE}"
    earliest = min((price.as_of for price in here if price.as_of is not None), default=None)
    if earliest is None:
        return f"those of {key!r} carry no date, and hold today only", "see them with --price-as-of today"
    what = f"none of {key!r} is known for {query.as_of}: the earliest is of {earliest}"
    return what, f"--price-as-of {earliest} takes it, or {GIVE_ONE}"


def require_region(region: str | None, catalog: Catalog, keys: Iterable[str]) -> None:
    """Raises UsageError where no price of the catalogue is of that region. keys: of the instances that are compared,
    whose regions are named.
    """
    everywhere = _regions(catalog.instances.values())
    if region is None or region in everywhere:
        return
    of_these = _regions(instance for key in keys if (instance := catalog.instances.get(key)))
    raise UsageError(f"no price is of region {region!r}", f"There are: {', '.join(of_these or everywhere) or 'none'}")


def _regions(instances: Iterable[Instance]) -> list[str]:
    return sorted({price.region for one in instances for price in one.prices if price.region} - {EVERYWHERE})


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(sorted({name for name in names if name}))

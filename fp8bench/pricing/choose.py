"""Decides which of an instance's prices applies to a row, or why none does, and what a share of its GPUs costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple

from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Instance, Price, Purchase

EVERYWHERE = "all"
ANY_MACHINE = "any"

OLD_DAYS = 90
"""The age from which a price should be checked again: GPU prices fell by a third and more within a year."""


@dataclass(frozen=True)
class PriceQuery:
    """as_of: the day that is priced. current: whether that is today, so that an undated price will do. machine: id of
    the measured machine; None, if unknown, takes no machine's own price, ANY_MACHINE that of any.
    """

    as_of: date
    current: bool
    region: str | None = None
    purchase: Purchase = "on_demand"
    machine: str | None = None


def choose(prices: Sequence[Price], query: PriceQuery) -> Price | None:
    """Return the newest price that was known on the date and had not ended, or None. The user's own come before the
    catalogue's, certain ones before doubtful ones, dated ones before undated ones; the catalogue's order decides
    between equals. With a region, only prices of it (or of all) count.
    """
    known = (
        price
        for price in prices
        if price.usd_per_hour is not None
        and price.purchase == query.purchase
        and (query.current if price.as_of is None else price.as_of <= query.as_of)
        and (price.until is None or query.as_of < price.until)
        and (price.machine in (None, query.machine) or query.machine == ANY_MACHINE)
        and in_region(price, query.region)
    )
    return min(
        known, key=lambda price: (not price.own, price.doubtful, -(price.as_of or date.min).toordinal()), default=None
    )


def in_region(price: Price, region: str | None) -> bool:
    """Return whether the price holds in a region, or in all; of None every one does."""
    return region is None or price.region in (region, EVERYWHERE)


def only_another_machines(prices: Sequence[Price], query: PriceQuery) -> bool:
    """Return whether other machines have a price for the query, and this machine has none of its own."""
    own = [price for price in prices if price.machine is not None and price.machine == query.machine]
    others = [price for price in prices if price.machine not in (None, query.machine)]
    any_of_them = replace(query, machine=ANY_MACHINE)
    return query != any_of_them and choose(own, query) is None and choose(others, any_of_them) is not None


def why_no_price(key: str, instance: Instance | None, query: PriceQuery) -> str:
    """Return `no price: ...; ...` for a query that `choose` answers with None. key: the name used for the instance."""
    give = "give one with `fp8bench run --price`, or in its instance.yaml"
    if instance is None:
        return f"no price: the catalogue does not know {key!r}; {give}"
    known = [price for price in instance.prices if price.usd_per_hour is not None]
    bought = [price for price in known if price.purchase == query.purchase]
    here = [price for price in bought if in_region(price, query.region)]
    days = [price.as_of for price in here if price.as_of is not None]
    ends = [price.until for price in here if price.until is not None and price.until <= query.as_of]
    if not known:
        what = f"none is known of {key!r}{next((f' ({one.reason})' for one in instance.prices if one.reason), '')}"
    elif not bought:
        there = ", ".join(sorted({price.purchase for price in known}))
        what = f"none of {key!r} is {query.purchase}; there are {there}; choose with --purchase"
    elif not here:
        there = ", ".join(sorted({price.region for price in bought if price.region})) or "none that name a region"
        what = f"none of {key!r} is of region {query.region}; there are {there}; choose with --region"
    elif len(ends) == len(here):
        what = f"those of {key!r} ended, the last on {max(ends)}; choose with --purchase"
    elif days:
        what = f"none of {key!r} is known for {query.as_of}: the earliest is of {min(days)}; --price-as-of takes it"
    else:
        what = f"those of {key!r} have no date and apply only today, with --price-as-of today"
    return f"no price: {what}; {give}"


def require_region(region: str | None, catalog: Catalog, keys: Iterable[str]) -> None:
    """Raise UsageError if no price of the catalogue is of that region. keys: instances whose regions it names."""
    of_each = {key: {price.region or EVERYWHERE for price in one.prices} for key, one in catalog.instances.items()}
    everywhere = set().union(*of_each.values()) - {EVERYWHERE}
    if region is not None and region not in everywhere:
        there = everywhere & set().union(*(of_each.get(key, ()) for key in keys)) or everywhere
        raise UsageError(f"no price is of region {region!r}", f"There are: {', '.join(sorted(there)) or 'none'}")


class Share(NamedTuple):
    """Some GPUs of an instance. gpus: the number used, of the `of` that it has. price: of the complete instance."""

    instance: str
    price: Price
    gpus: int
    of: int

    @property
    def share(self) -> float:
        """The share of the price, above 0 and at most 1."""
        return self.gpus / self.of

    @property
    def usd_per_hour(self) -> float:
        return (self.price.usd_per_hour or 0.0) * self.share

    def __str__(self) -> str:
        return f"{self.gpus} of {self.of} GPUs of {self.instance}"


def has_no_price(instance: Instance | None) -> bool:
    """Return whether nothing is known of the machine's price, and nobody lists it."""
    return instance is None or (instance.provider is None and not any(one.usd_per_hour for one in instance.prices))


def of_listed(gpu: str | None, gpus: int, catalog: Catalog, query: PriceQuery) -> Share | None:
    """Return the share of the first listed instance with this GPU, enough of them, and a certain and dated price."""
    found = []
    for one in catalog.instances.values():
        if one.provider is not None and gpu is not None and one.gpu == gpu and one.gpu_count >= gpus:
            price = choose(one.prices, replace(query, machine=None))
            found += [Share(one.key, price, gpus, one.gpu_count)] if price is not None else []
    return min(found, key=lambda share: (share.price.doubtful, share.price.as_of is None), default=None)

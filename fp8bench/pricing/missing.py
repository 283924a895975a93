"""Why an instance has no price for a question, and what to do about it: in words, for under a table."""

from collections.abc import Iterable, Sequence

from fp8bench.pricing.choose import EVERYWHERE, PriceQuery
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Instance, Price

GIVE_ONE = "give one with `fp8bench run --price`, or in its instance.yaml"


def why_no_price(key: str, instance: Instance | None, query: PriceQuery) -> str:
    """`no price: ...; ...`, for a question that `choose` answers with None. key: what the instance is called."""
    if instance is None:
        return _told(f"the catalogue does not know {key!r}", GIVE_ONE)
    known = [price for price in instance.prices if price.usd_per_hour is not None]
    if not known:
        reason = next((f" ({price.reason})" for price in instance.prices if price.reason), "")
        return _told(f"none is known of {key!r}{reason}", GIVE_ONE)
    bought = [price for price in known if price.purchase == query.purchase]
    if not bought:
        there = _listed(price.purchase for price in known)
        return _told(
            f"none of {key!r} is {query.purchase}; there are {there}", f"choose with --purchase, or {GIVE_ONE}"
        )
    here = [price for price in bought if query.region is None or price.region in (query.region, EVERYWHERE)]
    if not here:
        there = _listed(price.region for price in bought if price.region) or "none that name a region"
        what = f"none of {key!r} is of region {query.region}; there are {there}"
        return _told(what, f"choose with --region, or {GIVE_ONE}")
    return _of_another_day(key, here, query)


def _of_another_day(key: str, here: Sequence[Price], query: PriceQuery) -> str:
    days = sorted(price.as_of for price in here if price.as_of is not None)
    if not days:
        return _told(f"those of {key!r} carry no date, and hold today only", "see them with --price-as-of today")
    earliest = days[0]
    what = f"none of {key!r} is known for {query.as_of}: the earliest is of {earliest}"
    return _told(what, f"--price-as-of {earliest} takes it, or {GIVE_ONE}")


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


def _told(what: str, remedy: str) -> str:
    return f"no price: {what}; {remedy}"

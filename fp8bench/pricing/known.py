"""Every known price of an instance, and which of them is in force: what `fp8bench prices show` lists."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from fp8bench.pricing.choose import EVERYWHERE, PriceQuery, choose
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Instance, Price, Purchase


class KnownPrice(Frozen):
    """One price of one instance; or, if usd_per_hour is null, the fact that there is none, with the reason.

    The names are the keys of `fp8bench prices show --format json` and the columns of csv. age_days: days since as_of;
    null if undated. until: from when on it no longer holds, as its source says. in_force: whether this price is used
    today for its purchase, in the chosen region if there is one.
    """

    instance: str
    provider: str | None
    gpu: str | None
    gpu_count: int
    purchase: Purchase
    region: str | None
    usd_per_hour: float | None
    usd_per_gpu_hour: float | None
    as_of: date | None
    until: date | None
    age_days: int | None
    source: str | None
    own: bool
    derived: bool
    doubtful: bool
    in_force: bool
    note: str | None
    reason: str | None


def known(instance: Instance, query: PriceQuery, purchases: Iterable[Purchase]) -> list[KnownPrice]:
    """Return the prices of one instance: by purchase, the price in force first and the others in the order of the
    catalogue. query: its day is today; its purchase is ignored. A purchase without a price has one line that says so.
    """
    found: list[KnownPrice] = []
    for purchase in purchases:
        chosen = choose(instance.prices, replace(query, purchase=purchase))
        regions = (query.region, EVERYWHERE)
        of_purchase = [
            one
            for one in instance.prices
            if one.purchase == purchase and (query.region is None or one.region in regions)
        ]
        priced = [one for one in of_purchase if one.usd_per_hour is not None]
        others = [one for one in priced if one is not chosen]
        found += [_line(instance, one, query.as_of, one is chosen) for one in ([chosen] if chosen else []) + others]
        if not priced:
            why = next((one.reason for one in of_purchase if one.reason), None)
            none = Price(usd_per_hour=None, purchase=purchase, as_of=None, source=None, reason=why)
            found.append(_line(instance, none, query.as_of, False))
    return found


def _line(instance: Instance, price: Price, today: date, in_force: bool) -> KnownPrice:
    per_gpu = price.usd_per_hour / instance.gpu_count if price.usd_per_hour and instance.gpu_count else None
    return made_of(
        KnownPrice,
        instance,
        price,
        instance=instance.key,
        usd_per_gpu_hour=per_gpu,
        age_days=(today - price.as_of).days if price.as_of else None,
        doubtful=price.doubtful or price.doubt is not None,
        in_force=in_force,
        note=price.doubt or price.note,
    )

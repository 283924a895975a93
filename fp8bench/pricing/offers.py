"""Current offers from the gpuhunt library's catalogue: which of them are known instances, of what date, and what they
change. A version of a provider's catalogue begins with its date; a folder of PROVIDER.csv, named by gpuhunt's own
variable `GPUHUNT_CATALOG_DIR`, has none. gpuhunt is an optional dependency, imported inside the functions that need it.
"""

import logging
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from importlib.metadata import version
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, NamedTuple

from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import FIELDS, Catalog, Instance, Offer, OfferedAs, Price, Purchase
from fp8bench.tables.document import CsvLines, Document
from fp8bench.tables.render import render

if TYPE_CHECKING:
    from gpuhunt import CatalogItem

PROVIDERS = {
    "aws": "aws", "azure": "azure", "gcp": "gcp", "lambda": "lambdalabs", "nebius": "nebius", "oci": "oci",
    "runpod": "runpod",
}  # fmt: skip
"""The catalogue's names of providers, and gpuhunt's."""

LOCAL = "GPUHUNT_CATALOG_DIR"
OTHER_TERMS = re.compile("calendar|reserv|preview|cluster")
"""Flags of offers that are bought neither on demand nor as spot."""

TIMEOUT_S = 20.0
MOST_USD_PER_HOUR = 1_000_000.0
_ZONE = re.compile(r"-[a-z]$")


class Fetched(NamedTuple):
    """items: by the catalogue's name of their provider. versions: of gpuhunt's catalogues; empty for a local folder."""

    items: "Mapping[str, Sequence[CatalogItem]]"
    versions: Mapping[str, str]
    missing: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def fetch(providers: Sequence[str]) -> Fetched:
    """Return every offer of these providers, from gpuhunt's published catalogue or a local one. Raises ModeUnavailable
    without gpuhunt, RunFailed if its catalogue cannot be reached, UsageError for a folder with none of these.
    """
    try:
        import gpuhunt
    except ImportError as error:
        raise ModeUnavailable(
            "current prices need the gpuhunt library, which is not installed",
            "Install it: `pip install 'fp8bench[prices]'`",
        ) from error
    local = os.environ.get(LOCAL)
    catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
    found: dict[str, Sequence[CatalogItem]] = {}
    with _bounded() as said:
        try:
            if local is None:
                catalog.load()
        except gpuhunt.GPUHuntError as error:
            reason = getattr(error.__cause__, "reason", None) or error.__cause__ or error
            raise RunFailed(
                f"gpuhunt's price catalogue cannot be reached: {reason}",
                f"Connect to the internet, or name a folder with gpuhunt's catalogue in {LOCAL}",
            ) from error
        for provider in providers:
            if local is not None or PROVIDERS[provider] in catalog.catalog:
                with suppress(OSError):
                    found[provider] = catalog.query(provider=PROVIDERS[provider], min_gpu_count=1)
    missing = [one for one in providers if one not in found]
    if not found:
        names = ", ".join(f"{PROVIDERS[one]}.csv" for one in missing)
        raise UsageError(f"{LOCAL} {local} has none of {names}", f"Name gpuhunt's folder, or unset {LOCAL}")
    versions = {one: catalog.catalog[PROVIDERS[one]].version for one in found} if local is None else {}
    told = dict.fromkeys(record.getMessage() for record in said)
    return Fetched(found, versions, tuple(missing), tuple(told))


@contextmanager
def _bounded() -> Iterator[list[logging.LogRecord]]:
    """Keep what gpuhunt warns of, and bound its waits: it has no timeout, and behind a firewall would wait for ever."""
    logger, kept, before = logging.getLogger("gpuhunt"), BufferingHandler(sys.maxsize), socket.getdefaulttimeout()
    kept.setLevel(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(kept)
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        yield kept.buffer
    finally:
        socket.setdefaulttimeout(before)
        logger.removeHandler(kept)
        logger.propagate = propagates


def offers(fetched: Fetched, catalog: Catalog, wanted: Sequence[Instance], today: date) -> list[Offer]:
    """Return the cheapest offer of each of these instances, purchase and region, in the catalogue's order of regions
    and then by price. today: the date if none is known. Raises UsageError for a price that no machine has.
    """
    found: list[Offer] = []
    for instance in wanted:
        provider, cheapest, day = instance.provider or "", dict[OfferedAs, Offer](), today
        published = fetched.versions.get(provider)
        with suppress(ValueError):
            day = date.fromisoformat(published[:8]) if published else today
        catalogue = f"catalogue {published}" if published else "local catalogue"
        source = f"gpuhunt {version('gpuhunt')}, {catalogue} of {PROVIDERS.get(provider, provider)}"
        for item in fetched.items.get(provider, ()):
            if _is(item, instance, catalog) and not any(map(OTHER_TERMS.search, item.flags)):
                offer = Offer(instance=instance.key, price=_price(item, instance, day, source))
                cheapest[offer.place] = min(cheapest.get(offer.place, offer), offer, key=_usd)
        # Without a chosen region, this order decides between an instance's prices of a day.
        regions = [*dict.fromkeys(price.region for price in instance.prices if price.region)]
        rank = {region: place - len(regions) for place, region in enumerate(regions)}
        by_price = sorted(cheapest.values(), key=lambda offer: (_usd(offer), offer.price.region or ""))
        found += sorted(by_price, key=lambda offer: (offer.price.purchase, rank.get(offer.price.region or "", 0)))
    return found


def _is(item: "CatalogItem", instance: Instance, catalog: Catalog) -> bool:
    if item.gpu_count != instance.gpu_count or instance.instance_type is None:
        return False
    # For Nebius, our names are as in its own catalogue, which joins platform and preset; gpuhunt uses a space.
    if item.instance_name.replace(" ", "_") == instance.instance_type.replace(" ", "_"):
        return True
    gpu = catalog.gpus.get(instance.gpu or "")
    return gpu is not None and item.instance_name in gpu.product_names


def _price(item: "CatalogItem", instance: Instance, day: date, source: str) -> Price:
    if not 0 < item.price <= MOST_USD_PER_HOUR:
        raise UsageError(
            f"gpuhunt offers {instance.key} in {item.location} for {item.price:g} USD an hour, which no machine costs",
            f"Omit {instance.provider} with --provider, or look at {source}",
        )
    zone = item.location if instance.provider == "gcp" and _ZONE.search(item.location) else None
    return Price(
        usd_per_hour=item.price,
        purchase="spot" if item.spot else "on_demand",
        region=_ZONE.sub("", item.location) if zone else item.location or None,
        zone=zone,
        as_of=day,
        source=source,
    )


def _usd(offer: Offer) -> float:
    return offer.price.usd_per_hour or 0.0


def text_of(offers: Iterable[Offer]) -> str:
    rows = ((offer.instance, *(getattr(offer.price, name) for name in FIELDS[1:])) for offer in offers)
    return render(Document((), lines=CsvLines(FIELDS, tuple(rows))), "csv") + "\n"


class Change(Frozen):
    """What costs another price now, in USD an hour: the names are those of json and csv. change: 0.1 is 10 % dearer.
    Null: unknown before, undated, or gone.
    """

    instance: str
    purchase: Purchase
    region: str | None
    usd_per_hour_before: float | None
    as_of_before: date | None
    usd_per_hour: float | None
    change: float | None


def known_offers(catalog: Catalog) -> dict[OfferedAs, Price]:
    """Return the newest price of each thing that is offered. The user's own prices are not offers."""
    found: dict[OfferedAs, Price] = {}
    for instance in catalog.instances.values():
        for price in instance.prices:
            place = OfferedAs(instance.key, price.purchase, price.region)
            newer = place not in found or (price.as_of or date.min) > (found[place].as_of or date.min)
            if newer and price.usd_per_hour is not None and not price.own and not price.doubtful:
                found[place] = price
    return found


def changes(offers: Sequence[Offer], known: dict[OfferedAs, Price], last: Iterable[OfferedAs]) -> list[Change]:
    """Return what is new or costs another price, in the offers' order; then what only the last snapshot had."""
    now = {offer.place: offer.price.usd_per_hour for offer in offers}
    found = []
    for place in [*now, *(place for place in last if place in known and place not in now)]:
        before, usd = known.get(place), now.get(place)
        was, since = (before.usd_per_hour, before.as_of) if before else (None, None)
        if before is None or usd != was:
            change = usd / was - 1 if usd and was else None
            found.append(
                Change(**place._asdict(), usd_per_hour_before=was, as_of_before=since, usd_per_hour=usd, change=change)
            )
    return found

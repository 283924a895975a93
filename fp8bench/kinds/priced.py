"""The price of an hour of a record's machines, whatever was measured on them, or why there is no price."""

from dataclasses import replace
from typing import NamedTuple

from fp8bench.kinds.kind import CompareOptions
from fp8bench.pricing.catalog import doubted
from fp8bench.pricing.choose import OLD_DAYS, choose, has_no_price, of_listed, only_another_machines, why_no_price
from fp8bench.schema.instance import Catalog, Price, Purchase
from fp8bench.schema.record import RecordHead

WHAT_IF = "what-if"
"""The source, and the mark, of a price that is assumed for one comparison."""

PRICED_ELSEWHERE = "instance.yaml has the price of another machine, which is not this row's: give its own with --price"


class Priced(NamedTuple):
    """A price, or why there is none. price: of one machine. nodes: machines to pay for. told: what a reader must know
    of the price, or why there is none. not_yet: for a reader, if the user's own price is dated in the future. share_of:
    the instance of whose price only a share counts; gpus: those that are used, and those that the price is for, on all
    machines. instead_of: what was asked for and is not listed, so that this is the on-demand price.
    """

    price: Price | None
    nodes: int
    told: tuple[str, ...] = ()
    not_yet: str = ""
    share_of: str | None = None
    gpus: tuple[int, int] | None = None
    instead_of: Purchase | None = None

    @property
    def share(self) -> float | None:
        """The share of the price that is counted; None if all of it is."""
        return self.gpus[0] / self.gpus[1] if self.gpus else None

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all machines together, or of the GPUs that are used on them."""
        known = self.price and self.price.usd_per_hour
        return known * self.nodes * (self.share or 1) if known else None


class Used(NamedTuple):
    """What a record used. workers: GPUs, or processes of a CPU, on all nodes."""

    workers: int
    nodes: int
    on_gpu: bool


def priced(record: RecordHead, used: Used, catalog: Catalog, options: CompareOptions) -> Priced:
    """Return the record's price on the day of `options`; a price without a date is used if the day is not past. A price
    in `options.price` overrides every other. If only some GPUs are used, their share of the price counts; if no price
    is known, the share for the same number of GPUs of a listed instance.
    """
    instance = catalog.instances.get(record.instance)
    if record.instance in options.price:
        usd = options.price[record.instance]
        assumed = Price(usd_per_hour=usd, purchase=options.purchase, as_of=None, source=WHAT_IF, own=True)
        assumed = doubted(assumed, instance) if instance else assumed
        return Priced(assumed, used.nodes, _told(assumed))
    query = options.query(record.machine.id if record.machine else None)
    price, instead_of = choose(instance.prices, query) if instance else None, None
    if instance and price is None and not any(one.purchase == query.purchase for one in instance.prices):
        on_demand = replace(query, purchase="on_demand")
        if (price := choose(instance.prices, on_demand)) is not None:
            query, instead_of = on_demand, options.purchase
    nodes, ran_on = used.nodes, catalog.gpu_by_product(record.environment.device_name) if record.environment else None
    # A GPU that the catalogue does not know may be the instance's.
    if instance and instance.gpu in catalog.gpus and ran_on and ran_on.name != instance.gpu:
        why_none = (
            f"no price: it ran on {ran_on.name}, and {record.instance!r} has {instance.gpu}; "
            "measure it under the instance that it ran on, with `fp8bench run --instance`"
        )
        return Priced(None, nodes, (why_none,))
    elsewhere = instance is not None and only_another_machines(instance.prices, query)
    own = [one.as_of for one in instance.prices if one.own and one.as_of] if instance else []
    day = min((day for day in own if day > options.today), default=None)
    future = f"your price of {record.instance} is of {day}, which is in the future, and not used: correct its as_of"
    not_yet = future if day else ""
    if instance and price:
        # The price in a user's own contract holds however old it is.
        old = price.as_of is not None and not price.own and (options.day - price.as_of).days > OLD_DAYS
        share = (used.workers, there) if used.workers < (there := instance.gpu_count * nodes) else None
        of = instance.key if share else None
        return Priced(price, nodes, _told(price, old, instead_of, elsewhere), not_yet, of, share, instead_of)
    if elsewhere:
        return Priced(None, nodes, (PRICED_ELSEWHERE,))
    # A listed instance is matched by the GPU's name: no slice or unknown GPU gets another GPU's price.
    if has_no_price(instance) and used.on_gpu and ran_on and used.workers % nodes == 0:
        if listed := of_listed(ran_on.name, used.workers // nodes, catalog, query):
            gpus = used.workers, listed.of * nodes
            return Priced(listed.price, nodes, _told(listed.price), "", listed.instance, gpus)
    return Priced(None, nodes, (why_no_price(record.instance, instance, query),), not_yet)


def _told(
    price: Price, old: bool = False, instead_of: Purchase | None = None, elsewhere: bool = False
) -> tuple[str, ...]:
    said = {
        WHAT_IF: price.source == WHAT_IF,
        "undated price": price.as_of is None and price.source != WHAT_IF,
        f"price of {price.as_of}, older than {OLD_DAYS} days": old,
        f"on-demand price, since no {instead_of} one is known": instead_of is not None,
        "per-GPU price x GPUs": price.derived,
        "doubtful price": price.doubtful or price.doubt,
        PRICED_ELSEWHERE: elsewhere,
    }
    return tuple(text for text, holds in said.items() if holds)

"""The share of an instance's price that some of its GPUs cost: of an instance of which a part is used, and of a listed
one that stands in for a machine without any price.

A cloud rents whole instances, so a share is what the GPUs would cost if the others were put to use; whoever shows it
says of what it is a share.
"""

from dataclasses import dataclass, replace

from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.schema.instance import Catalog, Instance, Price


@dataclass(frozen=True)
class Share:
    """gpus: that are used, of the `of` that the instance has. price: of the whole instance."""

    instance: str
    price: Price
    gpus: int
    of: int


def has_no_price(instance: Instance | None) -> bool:
    """Whether nothing at all is known of what the machine costs, and nobody lists it: another's price says then more
    than none.
    """
    return instance is None or (instance.provider is None and not any(one.usd_per_hour for one in instance.prices))


def of_listed(gpu: str | None, gpus: int, catalog: Catalog, query: PriceQuery) -> Share | None:
    """So many GPUs of the first instance in the catalogue that has them and as many, and has a price: a sure one before
    a doubtful one, then a dated one before an undated one. None where there is none.

    gpu: its name in the catalogue. query: the region and the purchase hold for the listed instance.
    """
    found = []
    anywhere = replace(query, machine=None)
    for one in catalog.instances.values():
        if one.provider is None or one.gpu is None or one.gpu != gpu or one.gpu_count < gpus:
            continue
        price = choose(one.prices, anywhere)
        if price is not None:
            found.append(Share(one.key, price, gpus, one.gpu_count))
    return min(found, key=lambda share: (share.price.doubtful, share.price.as_of is None), default=None)

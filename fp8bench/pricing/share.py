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
    """gpus: that are used, of the `of` that the instance has; both 0 of a CPU. price: of the whole instance."""

    instance: str
    price: Price
    gpus: int
    of: int

    @property
    def share(self) -> float:
        """Of the price, above 0 and at most 1."""
        return self.gpus / self.of if self.of else 1.0

    @property
    def usd_per_hour(self) -> float:
        """Of the GPUs that are used."""
        return (self.price.usd_per_hour or 0.0) * self.share

    def __str__(self) -> str:
        """`2 of 8 GPUs of p5en`."""
        return f"{self.gpus} of {self.of} GPUs of {self.instance}"


def of_used(instance: Instance | None, gpu: str | None, gpus: int, catalog: Catalog, query: PriceQuery) -> Share | None:
    """What so many GPUs of an instance cost: their share of its price; of a machine of which no price is known, that of
    a listed instance. None where there is neither, and where the GPU is not the one that the instance has.

    instance: None where the catalogue does not know it. gpu: its name in the catalogue; None: unknown, or none.
    """
    if instance is not None and gpu is not None and instance.gpu in catalog.gpus and instance.gpu != gpu:
        return None
    price = choose(instance.prices, query) if instance else None
    if instance is not None and price is not None:
        return Share(instance.key, price, gpus, instance.gpu_count)
    return of_listed(gpu, gpus, catalog, query) if has_no_price(instance) else None


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

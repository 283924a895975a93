"""What a comparison of two instances says at other providers: those that list the GPUs of both."""

from collections.abc import Callable

from fp8bench.kinds.run.row import Elsewhere, Pair
from fp8bench.schema.instance import Catalog, Instance

PriceOf = Callable[[Instance], float | None]
"""Returns USD an hour for an instance, or None."""


def elsewhere(pair: Pair, catalog: Catalog, price_of: PriceOf) -> Elsewhere | None:
    """Return the range of the gain over providers that list both GPUs, each by its lowest price a GPU; None for less
    than two.
    """
    one, other = (catalog.instances.get(row.instance) for row in (pair.row, pair.reference))
    speedup = pair.row.speedup_vs_reference
    if one is None or other is None or not one.gpu or not other.gpu or one.gpu == other.gpu or speedup is None:
        return None
    dear, cheap = _by_provider(one.gpu, catalog, price_of), _by_provider(other.gpu, catalog, price_of)
    per_gpu = speedup * pair.reference.world_size / pair.row.world_size
    gains = [per_gpu * cheap[name] / dear[name] - 1 for name in dear.keys() & cheap.keys()]
    return Elsewhere(providers=len(gains), least=min(gains), most=max(gains)) if len(gains) > 1 else None


def _by_provider(gpu: str, catalog: Catalog, price_of: PriceOf) -> dict[str, float]:
    """Return the lowest price of an hour of one such GPU, by provider."""
    found: dict[str, float] = {}
    for instance in catalog.instances.values():
        usd = price_of(instance) if instance.provider and instance.gpu == gpu and instance.gpu_count else None
        if instance.provider and usd is not None:
            a_gpu = usd / instance.gpu_count
            found[instance.provider] = min(a_gpu, found.get(instance.provider, a_gpu))
    return found

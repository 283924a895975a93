"""One number of each weight, by which it shows that weights moved while steps were timed, and moved alike on all ranks.

A copy would take memory meanwhile. The sketch <z, w> of a weight w, z being seeded noise of unit variance (a
Johnson-Lindenstrauss projection on one dimension), moves with any change d by |d| in the root mean square.
"""

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist

from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.step import Parts
from fp8bench.worker.plain_weights import trained_weights
from fp8bench.worker.relative import ratio

AT_ONCE = 1 << 24
"""Elements of a sketch whose noise is made at once."""


@torch.no_grad()
def sketches(parts: Parts) -> dict[str, float]:
    """Return this rank's sketch of each trained weight. In 16 bits a small step may round to none."""
    held = {name: local(weight).detach() for name, weight in trained_weights(parts.plain).items()}
    found = {}
    for number, (name, values) in enumerate(held.items()):
        if values.dtype == torch.float32 and values.numel():
            generator = torch.Generator(values.device).manual_seed(number)
            found[name] = sum(
                float(part @ torch.empty_like(part).normal_(generator=generator))
                for part in values.double().flatten().split(AT_ONCE)
            )
    return found


def spread(parts: Parts, begun: Mapping[str, float], now: Mapping[str, float]) -> float | None:
    """Return how far sketches are from the mean of the ranks with the same weights, in units of what they changed since
    `begun`; None if no other holds the same. Every rank calls this.
    """
    weights = trained_weights(parts.plain)
    groups: dict[dist.ProcessGroup, list[str]] = {}
    for name in now:
        if (group := parts.strategy.replicas(weights[name])) is not None:
            groups.setdefault(group, []).append(name)
    apart = moved = 0.0
    for group, names in groups.items():
        start, mine = (
            torch.tensor([of[name] for name in names], dtype=torch.float64, device=parts.device) for of in (begun, now)
        )
        mean = mine.clone()
        dist.all_reduce(mean, group=group)
        mean /= dist.get_world_size(group)
        apart = math.hypot(apart, float((mine - mean).norm()))
        moved = math.hypot(moved, float((mean - start).norm()))
    if not groups:
        return None
    return 0.0 if apart == 0 else ratio(apart, moved)

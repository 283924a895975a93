"""Sketches of weights: one number of each, which shows whether it moved, and whether ranks still hold the same.

A copy of all weights would take their memory again while steps are timed. The sketch of a weight w is <z, w>, z being
seeded noise of unit variance (a Johnson-Lindenstrauss projection on one dimension). It changes with any change d of the
weight, by |d| in the root mean square, and is equal on ranks that hold the same numbers.
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
"""Elements whose noise is made at once."""


@torch.no_grad()
def sketches(parts: Parts) -> dict[str, float]:
    """Return the sketch of each trained weight, as this rank holds it, by name. Weights of 16 bits are left out, since
    a small step may round to none.
    """
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
    """Return how far this rank's weights are from the mean over the ranks that hold the same, in units of what they
    changed since `begun`; None if no other holds the same. Every rank calls this.
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

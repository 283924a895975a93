"""Which choices nothing beats in both time and cost: the Pareto front.

A choice is off the front where another is no slower and no dearer, and better in one of the two. By the estimates
themselves: two choices whose intervals overlap may change places when they are measured again.
"""

from collections.abc import Sequence

Point = tuple[float, float]
"""Seconds a unit, USD a unit."""


def front(points: Sequence[Point]) -> list[bool]:
    """Whether each point is on the front, in their order; equal points are on it or off it together.

    By time and then cost, a point is on the front where it is cheaper than all that are faster, and as cheap as the
    cheapest of its own time (Kung, Luccio & Preparata, On finding the maxima of a set of vectors, JACM 1975).
    """
    on_front: set[Point] = set()
    cheapest = float("inf")
    for time, cost in sorted(set(points)):
        if cost < cheapest:
            on_front.add((time, cost))
            cheapest = cost
    return [point in on_front for point in points]

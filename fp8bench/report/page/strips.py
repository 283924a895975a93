"""Every sample of a series as a dot, so that tails, states and drift are visible, which a mean does not show."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from fp8bench.report.page.drawing import MINUTE, Chart, Dots, Drawing, Element, Label, Line, described, heading


@dataclass(frozen=True)
class Strip:
    """A row of samples. rounds: the samples of each round, in order. text: what a sample is like."""

    number: int
    name: str
    text: str
    rounds: tuple[tuple[float, ...], ...]


ROUND_PX = 13


@dataclass(frozen=True)
class Strips(Chart):
    """Every sample as a dot, a line for each round, at its distance from the row's median, stretched (`_stretched`) so
    that a hundredth is visible next to a half. An upright line marks each round's mean.
    """

    strips: tuple[Strip, ...]

    def draw(self, width: float) -> Drawing:
        centres = [median(sample for steps in strip.rounds for sample in steps) for strip in self.strips]
        all_off = [
            sample / centre - 1
            for strip, centre in zip(self.strips, centres, strict=True)
            for steps in strip.rounds
            for sample in steps
        ]
        low, high = _stretched(min(*all_off, -0.02)), _stretched(max(*all_off, 0.02))

        def at(off: float) -> float:
            return 30 + (_stretched(off) - low) / (high - low) * (width - 40)

        elements: list[Element] = []
        y = 24.0
        for strip, centre in zip(self.strips, centres, strict=True):
            named, y = heading(strip.number, strip.name, strip.text, y, width)
            elements += named
            y += 4
            for number, steps in enumerate(strip.rounds, start=1):
                elements += _round(number, [sample / centre - 1 for sample in steps], y, at)
                y += ROUND_PX
            y += 6
        ticks = _shares(min(all_off), max(all_off), at, width - TICK_PX / 2)
        grid = [Line(at(off), 16, at(off), y - 8, "grid") for off in ticks]
        heads = [
            Label(at(off), 10, f"{off * 100:+z.0f} %" if off else "median", "faint", "middle", MINUTE) for off in ticks
        ]
        numbers = described((strip.number, strip.name, strip.text) for strip in self.strips)
        return Drawing(self.title, numbers, width, y, (*grid, *heads, *elements))


EVEN = 0.01


def _stretched(off: float) -> float:
    """Return an offset on a scale that is linear within EVEN, where the noise is, and logarithmic beyond it."""
    return math.asinh(off / EVEN)


TICK_PX = 44
"""Pixels that a number above or below an axis needs."""


def _shares(low: float, high: float, at: Callable[[float], float], end: float) -> list[float]:
    """Return round shares within the axis, as many as fit."""
    shares = (0.0, 0.01, 0.05, 0.2, 1.0, 5.0, 20.0, 0.5, 2.0)
    wanted = [0.0, *(sign * share for share in shares[1:] for sign in (-1, 1))]
    taken: list[float] = []
    for off in wanted:
        there = min(low, -0.02) <= off <= max(high, 0.02) and (not off or TICK_PX / 2 <= at(off) <= end)
        if there and all(abs(at(off) - at(other)) >= TICK_PX for other in taken):
            taken.append(off)
    return taken


def _round(number: int, offs: Sequence[float], y: float, at: Callable[[float], float]) -> Iterator[Element]:
    yield Label(0, y + 4, f"r{number}", "faint", size=10)
    yield Dots(tuple((at(off), y + (place % 5 - 2) * 1.2) for place, off in enumerate(offs)), 2.2, "first")
    mean = at(fmean(offs))
    yield Line(mean, y - 6, mean, y + 6, "bad", 2)

"""Points whose x and y are both better if smaller, and the front of points that no other point beats in both."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fp8bench.report.page.drawing import (
    MINUTE,
    SMALL,
    Chart,
    Dots,
    Drawing,
    Element,
    Label,
    Line,
    described,
    shortened,
    text_width,
)


@dataclass(frozen=True)
class Point:
    """A point; smaller x and y are better. ends: both ends of its interval, (x, y) each. front: on the front."""

    number: int
    name: str
    x: float
    y: float
    text: str
    ends: tuple[tuple[float, float], tuple[float, float]] | None = None
    front: bool = False


@dataclass(frozen=True)
class Scatter(Chart):
    """Points with their row's number, each named below. Points on the front are filled, and a line connects them."""

    x_title: str
    y_title: str
    points: tuple[Point, ...]

    def draw(self, width: float) -> Drawing:
        """Draw the points, with a height of 0.42 times the width but at least 230 pixels, and their names below."""
        left, right, top, height = 50.0, width - 14, 26.0, max(230.0, width * 0.42)
        bottom = top + height
        x_axis = _axis(
            [x for one in self.points for x in (one.x, *(end[0] for end in one.ends or ()))], left + 10, right
        )
        y_axis = _axis(
            [y for one in self.points for y in (one.y, *(end[1] for end in one.ends or ()))], bottom - 8, top
        )
        elements: list[Element] = [Label(0, 12, self.y_title, "faint", size=MINUTE)]
        for value, text in x_axis.ticks:
            elements += [Line(x_axis.at(value), top, x_axis.at(value), bottom, "grid")]
            elements += [Label(x_axis.at(value), bottom + 16, text, "faint", "middle", MINUTE)]
        for value, text in y_axis.ticks:
            elements += [Line(left, y_axis.at(value), right, y_axis.at(value), "grid")]
            elements += [Label(left - 6, y_axis.at(value) + 4, text, "faint", "end", MINUTE)]
        elements.append(Label(right, bottom + 32, self.x_title, "faint", "end", MINUTE))
        elements += _front([one for one in self.points if one.front], x_axis, y_axis)
        elements += _numbered(self.points, x_axis, y_axis)
        fits = max(text_width(text, SMALL) for one in self.points for text in (one.name, one.text)) + 32 <= width / 2
        below, columns = bottom + 54, 2 if fits else 1
        deep = math.ceil(len(self.points) / columns)
        for place, one in enumerate(self.points):
            x = place // deep * (width / columns + 4)
            elements += _named_point(one, x, below + 36 * (place % deep), width / columns - 8)
        numbers = described(
            (one.number, f"{one.name}{' (on the front)' if one.front else ''}", one.text) for one in self.points
        )
        return Drawing(self.title, numbers, width, below + 36 * deep - 8, tuple(elements))


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    begin: float
    end: float
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


def _axis(values: Sequence[float], begin: float, end: float) -> _Axis:
    """Return an axis around the values, not from zero, with ticks at round numbers."""
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = max(0.0, low - margin), high + margin
    step = _round_step((high - low) / 5)
    digits = max(0, -math.floor(math.log10(step)))
    first = math.ceil(low / step)
    ticks = tuple((place * step, f"{place * step:,.{digits}f}") for place in range(first, math.floor(high / step) + 1))
    return _Axis(low, high, begin, end, ticks)


def _round_step(least: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * nice for nice in (1, 2, 5, 10) if power * nice >= least * 0.999)


def _front(points: Sequence[Point], x_axis: _Axis, y_axis: _Axis) -> Iterator[Element]:
    """Yield the lines of a staircase: each point's y holds until the x of the next point."""
    ordered = sorted(points, key=lambda point: point.x)
    for one, after in pairwise(ordered):
        x1, y1, x2, y2 = x_axis.at(one.x), y_axis.at(one.y), x_axis.at(after.x), y_axis.at(after.y)
        yield Line(x1, y1, x2, y1, "first", 1.5)
        yield Line(x2, y1, x2, y2, "first", 1.5)


DOT_PX = 5
PLACES: tuple[tuple[float, float], ...] = tuple(
    (reach * x, reach * y)
    for reach in (14, 24, 34)
    for x, y in ((0, -1), (1, 0), (-1, 0), (0, 1), (0.8, -0.7), (0.8, 0.7), (-0.8, -0.7), (-0.8, 0.7))
)
"""Offsets of a point's number from the point's centre, the best first."""

PLACES_ON_FRONT = ((0.0, 16.0), (-14.0, 0.0), (-11.0, 10.0), *PLACES)
"""Offsets for a point on the front, whose line comes from above and leaves to the right."""


def _numbered(points: Sequence[Point], x_axis: _Axis, y_axis: _Axis) -> Iterator[Element]:
    """Yield dots at their positions, and each number at a place where it covers no other, if there is one."""
    at = {one.number: (x_axis.at(one.x), y_axis.at(one.y)) for one in points}
    for one in points:
        if one.ends is not None:
            (x1, y1), (x2, y2) = one.ends
            yield Line(x_axis.at(x1), y_axis.at(y1), x_axis.at(x2), y_axis.at(y2), "ink", 1.5)
    taken = list(at.values())
    for one in points:
        x, y = at[one.number]
        look = "first" if one.front else "paper"
        yield Dots(((x, y),), DOT_PX, look, "first" if one.front else "ink", f"{one.number} {one.name}: {one.text}")
        free = ((x + dx, y + dy) for dx, dy in (PLACES_ON_FRONT if one.front else PLACES))
        place = next((p for p in free if all(math.dist(p, other) > 13 for other in taken)), (x + 14, y))
        taken.append(place)
        if math.dist(place, (x, y)) > 20:
            yield Line(x, y, *place, "grid")
        yield Label(place[0], place[1] + 4, str(one.number), "ink", "middle", SMALL, bold=one.front)


def _named_point(one: Point, x: float, y: float, width: float) -> Iterator[Element]:
    yield Dots(((x + 9, y - 2),), 8, "first" if one.front else "paper", "first" if one.front else "faint")
    yield Label(x + 9, y + 2, str(one.number), "paper" if one.front else "ink", "middle", 10, bold=True)
    yield Label(x + 24, y + 2, shortened(one.name, width - 24, SMALL), size=SMALL, bold=one.front)
    yield Label(x + 24, y + 16, shortened(one.text, width - 24, MINUTE), "faint", size=MINUTE)

"""Charts: what they say, and how they are laid out in a given width (`draw`), from 300 pixels on.

A name stands over its bar and not beside it, so that a long one fits a phone. Numbers are written as whoever makes the
chart wrote them: nothing is computed here but places.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from fp8bench.report.page.drawing import (
    WHITE_TEXT,
    Dots,
    Drawing,
    Label,
    Line,
    Look,
    Mark,
    Rect,
    shortened,
    text_width,
)

FILE, WIDE, NARROW = 760, 560, 340
"""Pixels: in a file of its own, in a page on a desk (two side by side), and on a phone."""

SMALL = 12
MINUTE = 11


@dataclass(frozen=True)
class Bar:
    """number: of its row in the table. name, detail: which row it is, and what is said of it. value: at least 0; said:
    in words. interval: its ends, if it has any. look, edge: of the bar.
    """

    number: int
    name: str
    detail: str
    value: float
    said: str
    interval: tuple[float, float] | None = None
    look: Look = "other"
    edge: Look = ""


@dataclass(frozen=True)
class Bars:
    """Bars from zero, one below the other. mark: a value that a broken line across each bar shows."""

    name: str
    title: str
    caption: str
    bars: tuple[Bar, ...]
    mark: float | None = None

    def draw(self, width: float) -> Drawing:
        """Names over bars, values after them."""
        room = width - max(text_width(bar.said, SMALL) for bar in self.bars) - 14
        most = max(end for bar in self.bars for end in (bar.value, *(bar.interval or ())))
        # An interval that nobody would draw a bar for does not make all bars short.
        most = min(most, 1.5 * max(bar.value for bar in self.bars)) or 1.0

        def at(value: float) -> float:
            return min(room, value / most * room)

        marks: list[Mark] = []
        height = 4.0
        for bar in self.bars:
            heading, below = _heading(bar.number, bar.name, bar.detail, height, width)
            marks += [*heading, *_bar(bar, below, at, None if self.mark is None else at(self.mark))]
            height = below + BAR_PX + 11
        return Drawing(
            self.title, _told((bar.number, bar.name, bar.said) for bar in self.bars), width, height, tuple(marks)
        )


BAR_PX = 17


def _heading(number: int, name: str, detail: str, y: float, width: float) -> tuple[list[Mark], float]:
    """The name of a row and what is said of it, side by side where both have room; and where what follows begins."""
    named = f"{number}  {name}"
    marks: list[Mark] = [Label(0, y + 13, shortened(named, width), bold=True)]
    if text_width(named) + text_width(detail, SMALL) + 16 <= width:
        return [*marks, Label(width, y + 13, detail, "faint", "end", SMALL)], y + 19
    return [*marks, Label(0, y + 29, shortened(detail, width, SMALL), "faint", size=SMALL)], y + 35


def _bar(bar: Bar, y: float, at: Callable[[float], float], mark: float | None) -> Iterator[Mark]:
    """mark: where a broken line is; what is said of the bar stands to either side of it."""
    end = at(bar.value)
    yield Rect(0.5, y, max(end - 0.5, 1), BAR_PX, bar.look, bar.edge, f"{bar.name}: {bar.said}")
    middle = y + BAR_PX / 2
    if bar.interval is not None:
        low, high = at(bar.interval[0]), at(bar.interval[1])
        yield Line(low, middle, high, middle, "ink", 1.5)
        yield Line(low, middle - 4, low, middle + 4, "ink", 1.5)
        yield Line(high, middle - 4, high, middle + 4, "ink", 1.5)
        end = max(end, high)
    if mark is not None:
        yield Line(mark, y, mark, y + BAR_PX, "ink", dashed=True)
        end = mark if end < mark < end + 14 + text_width(bar.said, SMALL) else end
    yield Label(end + 7, middle + 4, bar.said, size=SMALL)


@dataclass(frozen=True)
class Point:
    """x, y: both better where smaller. ends: of its interval, (x, y) each. front: no other is better in both."""

    number: int
    name: str
    x: float
    y: float
    said: str
    ends: tuple[tuple[float, float], tuple[float, float]] | None = None
    front: bool = False


@dataclass(frozen=True)
class Scatter:
    """Points by their row's number, each told below; those of the front are full, and a line joins them."""

    name: str
    title: str
    caption: str
    x_title: str
    y_title: str
    points: tuple[Point, ...]

    def draw(self, width: float) -> Drawing:
        """As high as a half of its width, and a line a point below."""
        left, right, top, height = 50.0, width - 14, 26.0, max(230.0, width * 0.42)
        bottom = top + height
        x_axis = _axis(
            [x for one in self.points for x in (one.x, *(end[0] for end in one.ends or ()))], left + 10, right
        )
        y_axis = _axis(
            [y for one in self.points for y in (one.y, *(end[1] for end in one.ends or ()))], bottom - 8, top
        )
        marks: list[Mark] = [Label(0, 12, self.y_title, "faint", size=MINUTE)]
        for value, text in x_axis.ticks:
            marks += [Line(x_axis.at(value), top, x_axis.at(value), bottom, "grid")]
            marks += [Label(x_axis.at(value), bottom + 16, text, "faint", "middle", MINUTE)]
        for value, text in y_axis.ticks:
            marks += [Line(left, y_axis.at(value), right, y_axis.at(value), "grid")]
            marks += [Label(left - 6, y_axis.at(value) + 4, text, "faint", "end", MINUTE)]
        marks.append(Label(right, bottom + 32, self.x_title, "faint", "end", MINUTE))
        marks += _front([one for one in self.points if one.front], x_axis, y_axis)
        marks += _numbered(self.points, x_axis, y_axis)
        below, columns = bottom + 54, 2 if width >= WIDE else 1
        deep = math.ceil(len(self.points) / columns)
        for place, one in enumerate(self.points):
            x = place // deep * (width / columns + 4)
            marks += _told_point(one, x, below + 36 * (place % deep), width / columns - 8)
        told = _told(
            (one.number, f"{one.name}{' (on the front)' if one.front else ''}", one.said) for one in self.points
        )
        return Drawing(self.title, told, width, below + 36 * deep - 8, tuple(marks))


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
    """Around the values, not from zero; ticks at round numbers."""
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = max(0.0, low - margin), high + margin
    step = _round_step((high - low) / 5)
    digits = max(0, -math.floor(math.log10(step)))
    first = math.ceil(low / step)
    ticks = tuple((place * step, f"{place * step:,.{digits}f}") for place in range(first, math.floor(high / step) + 1))
    return _Axis(low, high, begin, end, ticks)


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * nice for nice in (1, 2, 5, 10) if power * nice >= least * 0.999)


def _front(points: Sequence[Point], x_axis: _Axis, y_axis: _Axis) -> Iterator[Mark]:
    """A staircase: what the one before costs holds until the next is as quick."""
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
"""Where a point's number may stand, from its middle, the best first."""


def _numbered(points: Sequence[Point], x_axis: "_Axis", y_axis: "_Axis") -> Iterator[Mark]:
    """Dots where they belong, and each one's number where it covers no other, if there is such a place."""
    at = {one.number: (x_axis.at(one.x), y_axis.at(one.y)) for one in points}
    for one in points:
        if one.ends is not None:
            (x1, y1), (x2, y2) = one.ends
            yield Line(x_axis.at(x1), y_axis.at(y1), x_axis.at(x2), y_axis.at(y2), "ink", 1.5)
    taken = list(at.values())
    for one in points:
        x, y = at[one.number]
        look = "first" if one.front else "paper"
        yield Dots(((x, y),), DOT_PX, look, "first" if one.front else "ink", f"{one.number} {one.name}: {one.said}")
        free = ((x + dx, y + dy) for dx, dy in PLACES)
        place = next((p for p in free if all(math.dist(p, other) > 13 for other in taken)), (x + 14, y))
        taken.append(place)
        if math.dist(place, (x, y)) > 20:
            yield Line(x, y, *place, "grid")
        yield Label(place[0], place[1] + 4, str(one.number), "ink", "middle", SMALL, bold=one.front)


def _told_point(one: Point, x: float, y: float, width: float) -> Iterator[Mark]:
    yield Dots(((x + 9, y - 2),), 8, "first" if one.front else "paper", "first" if one.front else "faint")
    yield Label(x + 9, y + 2, str(one.number), "paper" if one.front else "ink", "middle", 10, bold=True)
    yield Label(x + 24, y + 2, shortened(one.name, width - 24, SMALL), size=SMALL, bold=one.front)
    yield Label(x + 24, y + 16, shortened(one.said, width - 24, MINUTE), "faint", size=MINUTE)


@dataclass(frozen=True)
class Strip:
    """rounds: the samples of each, in order. said: what a sample is like, in words."""

    number: int
    name: str
    said: str
    rounds: tuple[tuple[float, ...], ...]


ROUND_PX = 13


@dataclass(frozen=True)
class Strips:
    """Every sample as a dot, a line a round; along the axis how far it is from the median of its row, so that a
    hundredth can be seen beside a half (`_stretched`). A round's mean is an upright line.
    """

    name: str
    title: str
    caption: str
    strips: tuple[Strip, ...]

    def draw(self, width: float) -> Drawing:
        """Rows one below the other, over one axis."""
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

        marks: list[Mark] = []
        y = 24.0
        for strip, centre in zip(self.strips, centres, strict=True):
            heading, y = _heading(strip.number, strip.name, strip.said, y, width)
            marks += heading
            y += 4
            for number, steps in enumerate(strip.rounds, start=1):
                marks += _round(number, [sample / centre - 1 for sample in steps], y, at)
                y += ROUND_PX
            y += 6
        ticks = _shares(min(all_off), max(all_off), at, width - TICK_PX / 2)
        grid = [Line(at(off), 16, at(off), y - 8, "grid") for off in ticks]
        heads = [
            Label(at(off), 10, f"{off * 100:+.0f} %" if off else "median", "faint", "middle", MINUTE) for off in ticks
        ]
        told = _told((strip.number, strip.name, strip.said) for strip in self.strips)
        return Drawing(self.title, told, width, y, (*grid, *heads, *marks))


EVEN = 0.01


def _stretched(off: float) -> float:
    """Even within EVEN, where the noise of steps is, and logarithmic beyond, where a late one is."""
    return math.asinh(off / EVEN)


TICK_PX = 48
"""What a number under or over an axis needs."""


def _shares(low: float, high: float, at: Callable[[float], float], end: float) -> list[float]:
    """Round shares within the axis, as many as have room."""
    shares = (0.0, 0.01, 0.05, 0.2, 1.0, 5.0, 20.0, 0.5, 2.0)
    wanted = [0.0, *(sign * share for share in shares[1:] for sign in (-1, 1))]
    taken: list[float] = []
    for off in wanted:
        there = min(low, -0.02) <= off <= max(high, 0.02) and (not off or TICK_PX / 2 <= at(off) <= end)
        if there and all(abs(at(off) - at(other)) >= TICK_PX for other in taken):
            taken.append(off)
    return taken


def _round(number: int, offs: Sequence[float], y: float, at: Callable[[float], float]) -> Iterator[Mark]:
    yield Label(0, y + 4, f"r{number}", "faint", size=10)
    yield Dots(tuple((at(off), y + (place % 5 - 2) * 1.2) for place, off in enumerate(offs)), 2.2, "first")
    mean = at(fmean(offs))
    yield Line(mean, y - 6, mean, y + 6, "bad", 2)


STACK_PX = 22


@dataclass(frozen=True)
class Stack:
    """parts: what each is called and how long it is, in the unit of the chart; said: of all together."""

    number: int
    name: str
    detail: str
    said: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Stacks:
    """looks: of each part's name, in the order of the legend. write: a part's number."""

    name: str
    title: str
    caption: str
    stacks: tuple[Stack, ...]
    looks: tuple[tuple[str, Look], ...]
    write: Callable[[float], str]

    def draw(self, width: float) -> Drawing:
        """The legend on top, then names over bars."""
        looks = dict(self.looks)
        there = [
            (name, look) for name, look in self.looks if any(name == one for s in self.stacks for one, _ in s.parts)
        ]
        marks, y = _legend(there, width)
        room = width - max(text_width(stack.said, SMALL) for stack in self.stacks) - 10
        longest = max(sum(length for _, length in stack.parts) for stack in self.stacks) or 1.0
        for stack in self.stacks:
            heading, y = _heading(stack.number, stack.name, stack.detail, y, width)
            marks += heading
            left = 0.0
            for name, length in stack.parts:
                wide = length / longest * room
                text = self.write(length)
                look = looks[name]
                marks.append(Rect(left, y, wide, STACK_PX, look, "paper", f"{name}: {text}"))
                if wide > text_width(text, MINUTE) + 4:
                    ink = "on-dark" if look in WHITE_TEXT else "ink" if look == "idle" else "on-light"
                    marks.append(Label(left + wide / 2, y + 15, text, ink, "middle", MINUTE))
                left += wide
            marks.append(Label(left + 6, y + 15, stack.said, size=SMALL, bold=True))
            y += STACK_PX + 12
        told = _told(
            (stack.number, stack.name, ", ".join(f"{n} {self.write(v)}" for n, v in stack.parts))
            for stack in self.stacks
        )
        return Drawing(self.title, told, width, y, tuple(marks))


def _legend(there: Sequence[tuple[str, Look]], width: float) -> tuple[list[Mark], float]:
    """Its marks, and how high it is."""
    marks: list[Mark] = []
    x, y = 0.0, 4.0
    for name, look in there:
        wide = 18 + text_width(name, SMALL) * 0.9 + 12
        if x and x + wide > width:
            x, y = 0.0, y + 20
        marks += [Rect(x, y, 12, 12, look, "grid"), Label(x + 17, y + 10, name, "ink", size=SMALL)]
        x += wide
    return marks, y + 26


Chart = Bars | Scatter | Strips | Stacks


def _told(rows: Iterator[tuple[int, str, str]]) -> str:
    """Of each row its number, name and values."""
    return "; ".join(f"{number} {name}: {said}" for number, name, said in rows)

"""Bars from zero, each with one value (`Bars`) or the parts of one (`Stacks`).

Numbers come as text: only positions are computed here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fp8bench.report.page.drawing import (
    MINUTE,
    SMALL,
    WHITE_TEXT,
    Chart,
    Drawing,
    Element,
    Label,
    Line,
    Look,
    Rect,
    described,
    heading,
    text_width,
)

BAR_PX = 17
STACK_PX = 22


@dataclass(frozen=True)
class Bar:
    """A bar. number: the number of its row in the table. name, detail: what the row is. value: at least 0. text: the
    value as text. interval: its ends, if any. look, edge: of the bar.
    """

    number: int
    name: str
    detail: str
    value: float
    text: str
    interval: tuple[float, float] | None = None
    look: Look = "other"
    edge: Look = ""


@dataclass(frozen=True)
class Bars(Chart):
    """Bars from zero, one below the other. broken_at: a value marked by a broken line across each bar."""

    bars: tuple[Bar, ...]
    broken_at: float | None = None

    def draw(self, width: float) -> Drawing:
        room = width - max(text_width(bar.text, SMALL) for bar in self.bars) - 14
        most = max(end for bar in self.bars for end in (bar.value, *(bar.interval or ())))
        # A single very wide interval does not shorten all bars.
        most = min(most, 1.5 * max(bar.value for bar in self.bars)) or 1.0

        def at(value: float) -> float:
            return min(room, value / most * room)

        elements: list[Element] = []
        height = 4.0
        for bar in self.bars:
            named, below = heading(bar.number, bar.name, bar.detail, height, width)
            elements += [*named, *_bar(bar, below, at, None if self.broken_at is None else at(self.broken_at))]
            height = below + BAR_PX + 11
        return Drawing(
            self.title, described((bar.number, bar.name, bar.text) for bar in self.bars), width, height, tuple(elements)
        )


def _bar(bar: Bar, y: float, at: Callable[[float], float], broken_at: float | None) -> Iterator[Element]:
    """Yield the elements of a bar. broken_at: the position of a broken line, which the bar's text must not cross."""
    end = at(bar.value)
    yield Rect(0.5, y, max(end - 0.5, 1), BAR_PX, bar.look, bar.edge, f"{bar.name}: {bar.text}")
    middle = y + BAR_PX / 2
    if bar.interval is not None:
        low, high = at(bar.interval[0]), at(bar.interval[1])
        yield Line(low, middle, high, middle, "ink", 1.5)
        yield Line(low, middle - 4, low, middle + 4, "ink", 1.5)
        yield Line(high, middle - 4, high, middle + 4, "ink", 1.5)
        end = max(end, high)
    if broken_at is not None:
        yield Line(broken_at, y, broken_at, y + BAR_PX, "ink", dashed=True)
        end = broken_at if end < broken_at < end + 14 + text_width(bar.text, SMALL) else end
    yield Label(end + 7, middle + 4, bar.text, size=SMALL)


@dataclass(frozen=True)
class Stack:
    """A bar of parts. parts: the name and length of each, in the unit of the chart. text: the text for all together."""

    number: int
    name: str
    detail: str
    text: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Stacks(Chart):
    """Bars of parts. looks: each part's name and look, in the order of the legend. write: formats a part's number."""

    stacks: tuple[Stack, ...]
    looks: tuple[tuple[str, Look], ...]
    write: Callable[[float], str]

    def draw(self, width: float) -> Drawing:
        looks = dict(self.looks)
        there = [
            (name, look) for name, look in self.looks if any(name == one for s in self.stacks for one, _ in s.parts)
        ]
        elements, y = _legend(there, width)
        room = width - max(text_width(stack.text, SMALL) for stack in self.stacks) - 10
        longest = max(sum(length for _, length in stack.parts) for stack in self.stacks) or 1.0
        for stack in self.stacks:
            named, y = heading(stack.number, stack.name, stack.detail, y, width)
            elements += named
            left = 0.0
            for name, length in stack.parts:
                wide = length / longest * room
                text = self.write(length)
                look = looks[name]
                elements.append(Rect(left, y, wide, STACK_PX, look, "paper", f"{name}: {text}"))
                if wide > text_width(text, MINUTE) + 4:
                    ink = "on-dark" if look in WHITE_TEXT else "ink" if look == "idle" else "on-light"
                    elements.append(Label(left + wide / 2, y + 15, text, ink, "middle", MINUTE))
                left += wide
            elements.append(Label(left + 6, y + 15, stack.text, size=SMALL, bold=True))
            y += STACK_PX + 12
        numbers = described(
            (stack.number, stack.name, ", ".join(f"{n} {self.write(v)}" for n, v in stack.parts))
            for stack in self.stacks
        )
        return Drawing(self.title, numbers, width, y, tuple(elements))


def _legend(there: Sequence[tuple[str, Look]], width: float) -> tuple[list[Element], float]:
    """Return the legend's elements and its height."""
    elements: list[Element] = []
    x, y = 0.0, 4.0
    for name, look in there:
        wide = 18 + text_width(name, SMALL) * 0.9 + 12
        if x and x + wide > width:
            x, y = 0.0, y + 20
        elements += [Rect(x, y, 12, 12, look, "grid"), Label(x + 17, y + 10, name, "ink", size=SMALL)]
        x += wide
    return elements, y + 26

"""A page of HTML that needs nothing beside itself: styles, script and charts are in it.

Whatever a record holds is text here: the template escapes everything, controls and bidirectional characters are written
out, and the page forbids itself every request and every script but its own, so that an error in either has no effect.
"""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fp8bench.report.document import Column, Emphasis, Note, Sentence, Table, Tone, Warned
from fp8bench.report.page.drawing import DARK, LIGHT, NARROW, WIDE, Chart, svg
from fp8bench.schema.errors import inert

HERE = Path(__file__).parent

Part = Sentence | Note | Warned | Table | Chart


@dataclass(frozen=True)
class Tile:
    """A number that a reader came for. below: what it is of."""

    number: str
    what: str
    below: str = ""


@dataclass(frozen=True)
class Section:
    """key: its anchor. lead: how to read what follows."""

    key: str
    heading: str
    parts: tuple[Part, ...]
    lead: str = ""


@dataclass(frozen=True)
class Page:
    """answer: what the page says in a sentence; grounds: what it rests on. foot: what made the page, and of what."""

    title: str
    answer: str
    grounds: tuple[str, ...]
    tiles: tuple[Tile, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    foot: str


def render(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "what": lambda part: type(part).__name__,
        "charts": _drawn,
        "rows": _rows,
        # A number and its per cent stay on one line.
        "whole": lambda text: text.replace(" %", "\u00a0%"),
    }
    environment.tests["cards"] = _as_cards
    style, script = _style(), (HERE / "page.js").read_text(encoding="utf-8")
    # Markup: both are files of the package's own.
    return environment.get_template("page.html").render(
        page=page, style=Markup(style), script=Markup(script), style_hash=_hash(style), script_hash=_hash(script)
    )


def _harmless(value: Any) -> Any:
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


MOST_OF_A_CARD = 7
"""Columns of a table whose rows are cards on a phone, where a long text in the last column would widen all."""


def _as_cards(table: Table) -> bool:
    return len(table.columns) <= MOST_OF_A_CARD and any(column.kind == "note" for column in table.columns[1:])


def _hash(text: str) -> str:
    """As a page's policy names a style or script that may be used."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _style() -> str:
    looks = "".join(f".f-{look}{{fill:var(--{look})}}.s-{look}{{stroke:var(--{look})}}" for look in LIGHT)
    light, dark = ("".join(f"--{look}:{colour};" for look, colour in one.items()) for one in (LIGHT, DARK))
    themes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{themes}{looks}{(HERE / 'page.css').read_text(encoding='utf-8')}"


def _drawn(chart: Chart) -> list[tuple[str, Markup]]:
    """For a wide screen and for a narrow one, of which a reader sees one."""
    return [
        (form, svg(chart.draw(width), f"{chart.name}-{form}")) for form, width in (("wide", WIDE), ("narrow", NARROW))
    ]


def _rows(table: Table) -> list[tuple[Emphasis, list[tuple[Column, str, Tone]]]]:
    """Of each row its emphasis, and of each cell its column, its text and its tone."""
    rows: list[tuple[Emphasis, list[tuple[Column, str, Tone]]]] = []
    for place in range(table.height):
        cells: list[tuple[Column, str, Tone]] = [
            (one, one.cells[place], one.tones[place] if one.tones else "") for one in table.columns
        ]
        rows.append((table.emphasis[place] if table.emphasis else "", cells))
    return rows

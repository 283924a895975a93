"""A self-contained page of HTML: it includes its style and its charts, and has no script.

Everything that a record holds is text here: the template escapes it, control and bidirectional characters are written
out, and the page forbids itself every request and every script, so that an error in either has no effect.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from fp8bench.schema.errors import inert
from fp8bench.tables.document import Note, Table
from fp8bench.tables.row_chart import Chart

HERE = Path(__file__).parent
Part = Note | Table | Chart
HYPHENED = re.compile(r"(?<![\w-])(?=\w*-)[\w-]{3,24}(?![\w-])")


@dataclass(frozen=True)
class Section:
    """key: its anchor."""

    key: str
    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Page:
    """A page. answer: its message in a sentence. grounds: what that rests on. foot: what made the page, from what."""

    title: str
    answer: str
    grounds: tuple[str, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    foot: str


def render(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Safe: an SVG has only what chart.inlined lets through.
    environment.filters["drawn"] = lambda chart: Markup(chart.svg())
    # On one line stay a number and its unit, and in sentences short words with hyphens.
    environment.filters["spaced"] = lambda text: re.sub(r"(?<=\d) (?=%|ms)", "\u00a0", text)
    kept = r'<span class="whole">\g<0></span>'
    environment.filters["whole"] = lambda text: Markup(HYPHENED.sub(kept, str(escape(inert(text)))))
    style = (HERE / "page.css").read_text(encoding="utf-8")
    # By its hash, the page's policy allows its style.
    allowed = f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}"
    # Markup is safe here: the style is a file of this package.
    return environment.get_template("page.html").render(page=page, style=Markup(style), style_hash=allowed)

"""What is shown, before it is text: headings, sentences, notes, warnings, tables of typed columns, and figures.

A command makes a document of what it found, and a renderer (`report.render`) makes text of it. A document knows no
format: what a cell says and means is here, how it is drawn is not.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

NOTHING = "-"
"""A cell of which nothing is known."""

CellKind = Literal["word", "quantity", "interval", "verdict", "note"]
"""What the cells of a column are: a name; a number; a number with its 95 % interval; what was decided; remarks."""

Tone = Literal["", "good", "doubtful", "bad"]
Emphasis = Literal["", "strong", "faint"]


class Text(NamedTuple):
    """What a document says beside its tables."""

    text: str


class Heading(Text):
    """What the next block is about."""


class Sentence(Text):
    """What follows from a table, or how it was measured."""


class Note(Text):
    """A footnote, or an aside: quieter than a sentence."""


class Warned(Text):
    """What a reader must be warned of. A command shows it on standard error too."""


class Column(NamedTuple):
    """One column of a table, a cell a row. A heading may have soft hyphens (U+00AD) where a narrow one is divided.

    kind: what its cells are. unit: of all, where the heading has none. of: the record that they are of, where several
    stand side by side. tones: of each cell; empty: all plain. once: a cell is left empty below an equal one, if the
    cells of such columns before it are. spare: the first to be omitted where there is no room, since others say the
    same.
    """

    heading: str
    cells: tuple[str, ...]
    kind: CellKind = "quantity"
    unit: str = ""
    of: str = ""
    tones: tuple[Tone, ...] = ()
    once: bool = False
    spare: bool = False

    @property
    def title(self) -> str:
        """The heading with the unit."""
        return f"{self.heading}, {self.unit}" if self.unit else self.heading

    @property
    def numeric(self) -> bool:
        """Whether its cells are to be read digit under digit."""
        return self.kind in ("quantity", "interval")

    @property
    def says_something(self) -> bool:
        return any(cell not in ("", NOTHING) for cell in self.cells)

    def at(self, places: Sequence[int]) -> "Column":
        tones = tuple(self.tones[place] for place in places) if self.tones else ()
        return self._replace(cells=tuple(self.cells[place] for place in places), tones=tones)


RowT = TypeVar("RowT")


class Rows(NamedTuple, Generic[RowT]):
    """What the rows of a table are of: their columns are made from it."""

    of: Sequence[RowT]

    def column(
        self,
        heading: str,
        write: Callable[[RowT], str],
        kind: CellKind = "quantity",
        *,
        tone: Callable[[RowT], Tone] | None = None,
        **looks: Any,
    ) -> Column:
        """write, tone: of a cell, from what its row is of. looks: other fields of the column."""
        tones = tuple(map(tone, self.of)) if tone else ()
        return Column(heading, tuple(map(write, self.of)), kind, tones=tones, **looks)


class Table(NamedTuple):
    """naming: how many of the first columns name a row. sections: how many of those name several rows together, which
    have a table of their own where there is no room, and apart: in any terminal. numbered: rows get numbers where the
    columns are divided over several tables. tight: headings are folded where there is no room, as the numbers below
    are narrower. whole: never divided; where there is no room its cells are folded, and spare columns omitted.
    emphasis: of each row; empty: all plain.
    """

    columns: tuple[Column, ...]
    naming: int = 1
    sections: int = 0
    apart: bool = False
    numbered: bool = False
    tight: bool = False
    whole: bool = False
    emphasis: tuple[Emphasis, ...] = ()

    @property
    def height(self) -> int:
        return len(self.columns[0].cells)

    def at(self, places: Sequence[int], columns: Sequence[Column]) -> "Table":
        emphasis = tuple(self.emphasis[place] for place in places) if self.emphasis else ()
        return self._replace(columns=tuple(column.at(places) for column in columns), emphasis=emphasis)

    def cells(self) -> list[list[str]]:
        """Row by row, as they are shown: what is said once is not repeated."""
        shown: list[list[str]] = []
        above: list[str] | None = None
        for row in zip(*(column.cells for column in self.columns), strict=True):
            names = [cell for column, cell in zip(self.columns, row, strict=True) if column.once]
            same = _same(above, names)
            once = iter(range(len(names)))
            shown.append(
                ["" if c.once and next(once) < same else cell for c, cell in zip(self.columns, row, strict=True)]
            )
            above = names
        return shown


def telling(*columns: Column) -> list[Column]:
    """Those in which any cell says something."""
    return [column for column in columns if column.says_something]


def _same(above: Sequence[str] | None, names: Sequence[str]) -> int:
    """How many of the first names are those of the row above."""
    differing = (place for place, name in enumerate(names) if above is None or above[place] != name)
    return next(differing, len(names))


class Figure(NamedTuple):
    """A picture that the document names. draw: to a .png, .svg or .pdf file; raises as `paper.figure`."""

    name: str
    draw: Callable[[Path], None]


Part = Heading | Sentence | Note | Warned | Table


class CsvLines(NamedTuple):
    """For csv: what machines read line by line, numbers unrounded."""

    fields: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, model: "type[BaseModel]", rows: "Iterable[BaseModel]") -> "CsvLines":
        """Every field of every row. model: of the rows."""
        return cls(tuple(model.model_fields), tuple(tuple(row.model_dump(mode="json").values()) for row in rows))


class Document(NamedTuple):
    """blocks: each of parts that belong together. data: for json, of pydantic models and plain values, numbers
    unrounded. lines: None where the document has no csv.
    """

    blocks: tuple[tuple[Part, ...], ...]
    data: Any = None
    lines: CsvLines | None = None
    figures: tuple[Figure, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(part.text for block in self.blocks for part in block if isinstance(part, Warned))

    def figure(self, name: str) -> Figure | None:
        """None: there is nothing to draw under this name."""
        return next((one for one in self.figures if one.name == name), None)


def blocks(*parts: Sequence[Part]) -> tuple[tuple[Part, ...], ...]:
    return tuple(tuple(block) for block in parts if block)


class Letters:
    """Gives each text a letter when it is first used; equal texts share one. After `z` comes `aa`, then `bb`.

    texts: get theirs at once, in this order.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._given: dict[str, str] = {}
        for text in texts:
            self.of(text)

    def of(self, text: str) -> str:
        """`a`."""
        place = len(self._given)
        return self._given.setdefault(text, ascii_lowercase[place % 26] * (1 + place // 26))

    def refer(self, status: str | None, reason: str) -> str:
        """`invalid [a]`: for a cell of what is not ok."""
        return f"{status} [{self.of(reason)}]"

    def lines(self) -> list[str]:
        """`[a] the text`, a line each."""
        return [f"[{letter}] {text}" for text, letter in self._given.items()]

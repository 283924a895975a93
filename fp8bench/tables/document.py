"""What is shown, before it is text: headings, sentences, notes, warnings, tables of typed columns, and figures.

A command makes a document of what it found, and `render` turns it into text. A document knows no format: it defines
what a cell says and means, not how the cell is drawn. `study` makes tables of rows and columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pydantic import BaseModel

NOTHING = "-"
"""The text of a cell whose value is unknown."""

CellKind = Literal["word", "quantity", "verdict", "note"]
"""Kinds of cells: a name; a number, also with its interval; a decision; remarks."""

Tone = Literal["", "good", "doubtful", "bad"]
Emphasis = Literal["", "strong", "faint"]


class Text(NamedTuple):
    """A text of a document outside its tables."""

    text: str

    @property
    def said(self) -> str:
        return self.text


class Heading(Text):
    """The subject of the next block."""


class Sentence(Text):
    """A statement of what follows from a table, or how it was measured."""


class Hint(Sentence):
    """What else there is than a table shows, above it. A command logs it where no text is printed."""


class Note(Text):
    """A footnote, or an aside: quieter than a sentence."""


class Warned(Text):
    """A warning for the reader. A command also shows it on standard error, unless that is where it printed it."""

    @property
    def said(self) -> str:
        return f"warning: {self.text}"


class Cells(NamedTuple):
    """A column of a table as it is shown, with one text for each row.

    unit: of all cells, if the heading has none. of: the record that the cells belong to, if several are side by side.
    tones: one for each cell; empty: all plain. once: whether a cell is left empty below an equal one, if the cells of
    such columns before it are equal too. spare: whether the column is omitted first if there is no room.
    """

    heading: str
    texts: tuple[str, ...]
    kind: CellKind = "quantity"
    unit: str = ""
    of: str = ""
    tones: tuple[Tone, ...] = ()
    once: bool = False
    spare: bool = False

    @property
    def title(self) -> str:
        return f"{self.heading}, {self.unit}" if self.unit else self.heading

    @property
    def numeric(self) -> bool:
        """Whether the cells are aligned digit under digit."""
        return self.kind == "quantity"

    @property
    def says_something(self) -> bool:
        return any(text not in ("", NOTHING) for text in self.texts)


class Table(NamedTuple):
    """A table. naming: how many of the first columns name a row. numbered: whether rows have numbers where the columns
    are divided over several tables, as those of a terminal are rather than folded. whole: whether the columns are never
    divided, and folded in a pipe too. emphasis: one for each row; empty: all plain.
    """

    columns: tuple[Cells, ...]
    naming: int = 1
    numbered: bool = False
    whole: bool = False
    emphasis: tuple[Emphasis, ...] = ()

    @property
    def height(self) -> int:
        return len(self.columns[0].texts)

    def rows(self) -> list[list[str]]:
        """Return the cells row by row as they are shown: the cells of `once` columns are not repeated."""
        shown: list[list[str]] = []
        above: tuple[str, ...] = ()
        for row in zip(*(column.texts for column in self.columns), strict=True):
            same, cells = bool(above), []
            for place, (column, text) in enumerate(zip(self.columns, row, strict=True)):
                same = same and (not column.once or text == above[place])
                cells.append("" if column.once and same else text)
            shown.append(cells)
            above = row
        return shown


def telling(*columns: Cells) -> list[Cells]:
    """Return the columns in which at least one cell says something."""
    return [column for column in columns if column.says_something]


Part = Heading | Sentence | Note | Warned | Table


class CsvLines(NamedTuple):
    """The lines of the csv output, which programs read: numbers are not rounded."""

    fields: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, model: "type[BaseModel]", rows: "Iterable[BaseModel]") -> "CsvLines":
        """Return lines with every field of every row. model: the class of the rows."""
        fields = tuple(name for name, field in model.model_fields.items() if not field.exclude)
        return cls(fields, tuple(tuple(row.model_dump(mode="json").values()) for row in rows))


class Document(NamedTuple):
    """A document. blocks: parts that belong together. data: for json, made of pydantic models and plain values, with
    numbers that are not rounded. answer: the same for what follows from them. lines: None if the document has no csv.
    figures: by name, draw a .png, .svg or .pdf file; they raise as `chart.draw`.
    """

    blocks: tuple[tuple[Part, ...], ...]
    data: Any = None
    lines: CsvLines | None = None
    figures: Mapping[str, Callable[[Path], None]] = MappingProxyType({})
    answer: Any = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.told(Warned)

    def told(self, kind: type[Text]) -> tuple[str, ...]:
        return tuple(part.text for block in self.blocks for part in block if isinstance(part, kind))


def notes(*every: tuple[object, str]) -> list[Note]:
    """Return the notes whose condition holds. every: pairs of a condition and a text."""
    return [Note(text) for condition, text in every if condition]


def blocks(*parts: Sequence[Part]) -> tuple[tuple[Part, ...], ...]:
    return tuple(tuple(block) for block in parts if block)


class Letters:
    """Gives each text a letter when it is first used, and equal texts the same one."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, text: str) -> str:
        """Return the letter of a text, e.g. `a`."""
        place = len(self._given)
        return self._given.setdefault(text, ascii_lowercase[place % 26] * (1 + place // 26))

    def refer(self, status: str | None, reason: str) -> str:
        """Return `invalid [a]`, the text of a cell whose status is not ok."""
        return f"{status} [{self.of(reason)}]"

    def lines(self) -> list[str]:
        """Return one line for each text: `[a] the text`."""
        return [f"[{letter}] {text}" for text, letter in self._given.items()]

"""What a study shows: rows, columns and sentences, for one record, or several of the same work side by side."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fp8bench.tables import document as doc
from fp8bench.tables.document import NOTHING
from fp8bench.tables.written import Interval, number, with_interval

if TYPE_CHECKING:
    from fp8bench.schema.instance import Catalog
    from fp8bench.schema.record import RecordHead
    from fp8bench.tables.chart import Figure


def labels(records: "Sequence[RecordHead]") -> tuple[str, ...]:
    """Return a unique name for each record: its instance, and as much of its time in UTC as distinguishes the records
    of that instance, or its id if even the second is the same.
    """

    def label(record: "RecordHead") -> str:
        alike = [other for other in records if other.instance == record.instance]
        forms = ("{0.instance}", *(f"{{0.instance}} {{0.created_utc:%Y-%m-%d %H:%M{end}}}" for end in ("", ":%S")))
        precise = (form for form in forms if len(set(map(form.format, alike))) == len(alike))
        return next(precise, "{0.instance} {0.run_id}").format(record)

    return tuple(map(label, records))


def where(reports: Sequence[Any], names: Sequence[str]) -> str:
    """Return each record's name and device in words, e.g. `p5 (NVIDIA H100 80GB HBM3)`. names: of the records."""
    return ", ".join(f"{name} ({one.device_name or 'CPU'})" for name, one in zip(names, reports, strict=True))


def differences_line(records: "Sequence[RecordHead]", names: Sequence[str]) -> list[str]:
    """Return one line that lists, record by record, the differences that change a GEMM's time or a mode's error: the
    machine if one instance has several, the device, packages and the driver; empty if there are none.
    """
    known: list[dict[str, str | None]] = []
    for record in records:
        there = record.environment
        # Without a GPU, the CPU computes.
        of = {"": there.device_name or there.cpu, **there.versions, "driver": there.driver} if there else {}
        known.append({"machine": str(record.machine) if record.machine else None, **of})
    machines = {(record.instance, record.machine and record.machine.id) for record in records}
    # Machines of different instances differ anyway.
    several = ["machine"] if len(machines) > len({instance for instance, _ in machines}) else []
    moving = (*several, "", "torch", "cuda", "transformer-engine", "torchao", "driver")
    differing = [name for name in moving if len({one.get(name) for one in known}) > 1]
    every = (
        f"{label}: {', '.join(f'{name} {one.get(name) or NOTHING}'.strip() for name in differing)}"
        for label, one in zip(names, known, strict=True)
    )
    return [f"{'; '.join(every)}."] if differing else []


RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Column(Generic[RowT]):
    """One column of a study.

    get: returns a row's value, unrounded, in the unit of the record; None is unknown and shown as `-`. format: the
    specification of a number, e.g. `,.1f`, or a function that writes the value. scale: the factor from the value to the
    number that is shown. interval: the value's 95 % interval. below: whether a text stands below the table, once, and
    its letter in the cells. The rest is as in `document.Cells`.
    """

    heading: str
    get: Callable[[RowT], Any]
    format: str | Callable[[Any], str] = ""
    kind: doc.CellKind = "quantity"
    unit: str = ""
    scale: float = 1
    after: str = ""
    interval: Callable[[RowT], Interval | None] | None = None
    tone: Callable[[RowT], doc.Tone] | None = None
    once: bool = False
    spare: bool = False
    below: bool = False

    def text(self, row: RowT | None) -> str:
        value = None if row is None else self.get(row)
        if value is None or row is None:
            return doc.NOTHING
        if self.interval is not None:
            return with_interval(value, self.interval(row), self.format, self.scale, self.after)
        if callable(self.format):
            return self.format(value)
        return number(value, self.format, self.scale, self.after) if self.kind == "quantity" else str(value)

    def value(self, row: RowT) -> Any:
        """Return what rows are filtered by: the value in the unit that is shown."""
        value = self.get(row)
        return value * self.scale if isinstance(value, int | float) and self.scale != 1 else value

    def cells(self, rows: Sequence[RowT | None], of: str = "") -> doc.Cells:
        """Return the column as it is shown. of: the record that all rows are of."""
        tones = tuple("" if row is None else self.tone(row) for row in rows) if self.tone else ()
        texts = tuple(map(self.text, rows))
        return doc.Cells(self.heading, texts, self.kind, self.unit, of, tones, self.once, self.spare)


def word(heading: str, get: Callable[[RowT], Any], **looks: Any) -> Column[RowT]:
    return Column(heading, get, kind="word", **looks)


def table_of(
    columns: Sequence[Column[RowT]],
    rows: Sequence[RowT],
    naming: int = 1,
    emphasis: Callable[[RowT], doc.Emphasis] = lambda _row: "",
    every: bool = False,
    **looks: bool,
) -> doc.Table:
    """Return the rows, at least one, in a table. naming: how many of the columns name a row. emphasis: of a row. every:
    whether columns that say nothing are shown too. looks: as in `document.Table`.
    """
    cells = [column.cells(rows) for column in columns]
    named, others = (part if every else doc.telling(*part) for part in (cells[:naming], cells[naming:]))
    return doc.Table((*named, *others), len(named), emphasis=tuple(map(emphasis, rows)), **looks)


@dataclass(frozen=True, kw_only=True)
class StudyTable(Generic[RowT]):
    """A table of a study: the same rows for one record, and for several side by side.

    naming: the columns that name a row. columns: what is shown of one record; beside: of each record side by side;
    without any, the rows of several records stand below each other. Columns that say nothing are omitted. rows: of a
    record's numbers. heading: of the table, if it is not the only one. key: joins the rows of several records. order:
    sorts the joined rows, which else are as they come, the first record's first. against: adds a column that compares
    each record with the first, by a ratio's text and tone. refused: returns the status and the reason of a row without
    a value; the first column that follows the naming ones shows it, with a letter.
    """

    naming: Sequence[Column[RowT]]
    columns: Sequence[Column[RowT]]
    rows: Callable[[Any], Sequence[RowT]] = lambda report: report.rows
    heading: str = ""
    beside: Sequence[Column[RowT]] = ()
    key: Callable[[RowT], Hashable] = id
    order: Callable[[RowT], Any] = lambda _row: 0
    against: Callable[[RowT, RowT], tuple[str, doc.Tone]] | None = None
    refused: Callable[[RowT], tuple[str, str] | None] = lambda _row: None

    def _aligned(self, of_records: Sequence[Sequence[RowT]]) -> list[tuple[RowT | None, ...]]:
        if len(of_records) == 1 or not self.beside:
            return [(row,) for row in chain(*of_records)]
        known = [{self.key(row): row for row in rows} for rows in of_records]
        first = {name: row for rows in reversed(known) for name, row in rows.items()}
        names = dict.fromkeys(chain(*known))
        return [
            tuple(rows.get(name) for rows in known) for name in sorted(names, key=lambda one: self.order(first[one]))
        ]

    def of(self, of_records: Sequence[Sequence[RowT]], names: Sequence[str], letters: doc.Letters) -> doc.Table:
        """Return the table. of_records: the rows of each record, at least one row. names: of the records."""
        alone, shown, found = not self.beside or len(names) == 1, [], self._aligned(of_records)
        first, *others = self.columns if alone else self.beside
        for place, name in enumerate([""] if alone else names):
            mine = [rows[place] for rows in found]
            cells = first.cells(mine, name)
            refused = (None if row is None else self.refused(row) for row in mine)
            texts = (letters.refer(*why) if why else text for why, text in zip(refused, cells.texts, strict=True))
            shown.append(cells._replace(texts=tuple(texts)))
            if place and self.against is not None:
                pairs = [(rows[place], rows[0]) for rows in found]
                known = [None if one is None or other is None else self.against(one, other) for one, other in pairs]
                ratios, tones = zip(*(ratio or (doc.NOTHING, "") for ratio in known), strict=True)
                shown.append(doc.Cells("ratio", ratios, of=name, tones=tones))
            for column in others:
                cells = column.cells(mine, name)
                texts = (f"[{letters.of(text)}]" if column.below and text != NOTHING else text for text in cells.texts)
                shown.append(cells._replace(texts=tuple(texts)))
        rows = [next(row for row in of_key if row is not None) for of_key in found]
        naming = doc.telling(*(column.cells(rows) for column in self.naming))
        if alone and len(names) > 1:
            of_each = (name for name, mine in zip(names, of_records, strict=True) for _ in mine)
            naming.insert(0, doc.Cells("instance", tuple(of_each), "word", once=True))
        emphasis: tuple[doc.Emphasis, ...] = tuple("faint" if alone and self.refused(row) else "" for row in rows)
        return doc.Table((*naming, *doc.telling(*shown)), len(naming), emphasis=emphasis)


RecordT = TypeVar("RecordT", bound="RecordHead")
ReportT = TypeVar("ReportT")
"""The numbers of one record, with its `device_name` and its `warnings`."""


@dataclass(frozen=True, kw_only=True)
class Study(Generic[RecordT, ReportT]):
    """What is shown of the records of one kind.

    reports: returns the numbers of each record of the same work, by the catalogue and what the user requests of a
    comparison, if anything. title: returns the heading, from reports and the names of their records. tables: in their
    order. found: returns what one record says, in sentences; those that several records share are said once. notes:
    returns how to read the tables. warned: returns the warnings. lines: returns the csv. figures: returns what can be
    drawn of one record: by name, a function of its report.
    """

    reports: "Callable[[Sequence[RecordT], Catalog, Any], Sequence[ReportT]]"
    title: Callable[[Sequence[ReportT], Sequence[str]], str]
    tables: Sequence[StudyTable[Any]]
    found: Callable[[ReportT], Sequence[str]] = lambda _report: ()
    notes: Callable[[Sequence[ReportT], Sequence[str]], Sequence[str]]
    warned: Callable[[ReportT], Sequence[str]] = attrgetter("warnings")
    lines: Callable[[Sequence[ReportT]], doc.CsvLines]
    figures: "Callable[[ReportT], Mapping[str, Callable[[ReportT], Figure]]]" = lambda _report: {}

    def document(
        self, records: Sequence[RecordT], groups: Sequence[Sequence[RecordT]], catalog: "Catalog", options: Any = None
    ) -> doc.Document:
        """Return the document. groups: the same records, those of the same work together, which share their tables."""
        # Imported here: most tables have no figure.
        from fp8bench.tables.chart import drawing

        of_groups = [self.reports(group, catalog, options) for group in groups]
        of_id = {record.run_id: report for record, report in zip(chain(*groups), chain(*of_groups), strict=True)}
        every = [of_id[record.run_id] for record in records]
        blocks = (self._blocks(*group, len(records) > 1) for group in zip(groups, of_groups, strict=True))
        known = self.figures(every[0]) if len(every) == 1 else {}
        figures = {name: drawing(partial(make, every[0])) for name, make in known.items()}
        return doc.Document(tuple(chain(*blocks)), data=every, lines=self.lines(every), figures=figures)

    def _blocks(
        self, group: Sequence[RecordT], reports: Sequence[ReportT], several: bool
    ) -> tuple[tuple[doc.Part, ...], ...]:
        names, letters = labels(group), doc.Letters()
        blocks: list[list[doc.Part]] = []
        for table in self.tables:
            rows = [table.rows(report) for report in reports]
            if any(rows):
                above = [doc.Heading(table.heading)] if table.heading else []
                blocks.append([*above, table.of(rows, names, letters)])
        warned = [
            doc.Warned(f"{name}: {text}" if several else text)
            for name, report in zip(names, reports, strict=True)
            for text in self.warned(report)
        ]
        found = [self.found(report) for report in reports]
        said = []
        for sentence in dict.fromkeys(chain(*found)):
            who = [name for name, known in zip(names, found, strict=True) if sentence in known]
            said.append(sentence if len(who) == len(names) else f"{', '.join(who)}: {sentence}")
        return doc.blocks(
            [doc.Heading(self.title(reports, names))],
            *blocks,
            [*map(doc.Note, letters.lines())],
            [*map(doc.Sentence, [*differences_line(group, names), *said])],
            [*map(doc.Note, self.notes(reports, names)), *warned],
        )

"""Collectives as a document: one record, or records side by side. The data has every number unrounded."""

from collections.abc import Sequence
from functools import partial

from fp8bench.kinds.collectives import figure
from fp8bench.kinds.collectives.measure import CollectivesRecord
from fp8bench.kinds.collectives.rows import CollectiveRow, CollectivesReport, collectives_report, size_of
from fp8bench.records.select import same_work
from fp8bench.schema.collectives import Dtype, Operation
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.side_by_side import differences, differences_line, labels
from fp8bench.tables.written import number, with_interval

PICTURE = "bandwidth"
METHOD = (
    "Bus bandwidth is that of nccl-tests: bytes over time, times 2 (n - 1) / n for an all-reduce and (n - 1) / n for "
    "the others, so that it is a link's own and numbers of ranks can be compared. Each result was compared with the "
    "exact one before it was timed. Repetitions follow each other without a wait; a small one's time holds its launch "
    "from Python. Intervals are of one group of processes."
)
BY_LINK = "of link: of NVLink in one direction, by its datasheet."


def document(records: Sequence[CollectivesRecord], catalog: Catalog) -> doc.Document:
    """Return the document. records: in the order of the columns. The figure is only drawn for a single record."""
    reports = [collectives_report(record, catalog) for record in records]
    of = {report.run_id: report for report in reports}
    shown: list[tuple[doc.Part, ...]] = []
    for group in same_work(records):
        together = [of[record.run_id] for record in group]
        shown += alone(together[0]) if len(group) == 1 else _compared(together, group)
    figures = (doc.Figure(PICTURE, partial(figure.draw, reports[0])),) if len(reports) == 1 else ()
    lines = doc.CsvLines.of(CollectiveRow, [row for report in reports for row in report.rows])
    return doc.Document(tuple(shown), data=reports, lines=lines, figures=figures)


def alone(report: CollectivesReport) -> tuple[tuple[doc.Part, ...], ...]:
    """Return the blocks of a single record."""
    rows, letters = report.rows, doc.Letters()

    column = doc.Rows(rows).column
    naming = _naming(rows)
    columns = doc.telling(
        column("us (95 %)", microseconds, "interval"),
        column("algorithm GB/s", lambda row: gb_s(row.algorithm_gb_s)),
        column("bus GB/s (95 %)", _bus, "interval"),
        column("of link", lambda row: number(row.share_of_link, ".0f", 100, " %")),
        column("notes", lambda row: letters.refer(row.status, row.reason) if row.reason else "", "note"),
    )
    emphasis: tuple[doc.Emphasis, ...] = tuple("" if row.status == "ok" else "faint" for row in rows)
    return doc.blocks(
        [doc.Heading(f"Collectives of {report.where}"), doc.Table((*naming, *columns), len(naming), emphasis=emphasis)],
        [*map(doc.Note, letters.lines())],
        [*map(doc.Sentence, answers(report)), doc.Note(METHOD), *([doc.Note(BY_LINK)] if report.link_gb_s else [])],
        [*map(doc.Warned, report.warnings)],
    )


def answers(report: CollectivesReport) -> list[str]:
    """Say for each operation the most bandwidth that it reaches, and the time of its smallest message."""
    said = []
    for operation in dict.fromkeys(row.operation for row in report.rows):
        timed = [row for row in report.rows if row.operation == operation and row.bus_gb_s and row.time_s]
        if not timed:
            continue
        most = max(timed, key=lambda row: row.bus_gb_s or 0.0)
        small = min(timed, key=lambda row: (row.size_bytes, row.time_s))
        of_link = f", {most.share_of_link * 100:.0f} % of its link" if most.share_of_link else ""
        most_of = f"{size_of(most.size_bytes)} of {most.dtype}"
        said.append(
            f"{operation}: {gb_s(most.bus_gb_s)} GB/s at most, with {most_of}{of_link}; "
            f"{microseconds(small, bare=True)} us for {size_of(small.size_bytes)}."
        )
    return said


def _compared(
    reports: Sequence[CollectivesReport], records: Sequence[CollectivesRecord]
) -> tuple[tuple[doc.Part, ...], ...]:
    """Show one row for each operation, type and size, and two columns for each record."""
    names = labels(records)
    known = [{_case(row, report): row for row in report.rows} for report in reports]
    cases = list(dict.fromkeys(case for one in known for case in one))
    first = [next(one[case] for one in known if case in one) for case in cases]
    naming = _naming(first)
    columns = []
    for name, one in zip(names, known, strict=True):
        mine = [one.get(case) for case in cases]
        for quantity, write in (("us (95 %)", microseconds), ("bus GB/s (95 %)", _bus)):
            cells = tuple(write(row) if row else "-" for row in mine)
            columns.append(doc.Cells(quantity, cells, "interval", of=name))
    who = [f"{name}: {report.where}." for name, report in zip(names, reports, strict=True)]
    said = [f"{name}: {line}" for name, report in zip(names, reports, strict=True) for line in answers(report)]
    reasons = dict.fromkeys(
        f"{name}: {row.reason}" for name, one in zip(names, known, strict=True) for row in one.values() if row.reason
    )
    warned = dict.fromkeys(f"{n}: {text}" for n, one in zip(names, reports, strict=True) for text in one.warnings)
    return doc.blocks(
        [doc.Heading("Collectives side by side"), doc.Table((*naming, *columns), len(naming))],
        [*map(doc.Sentence, [*who, *said]), *map(doc.Note, reasons), doc.Note(METHOD)],
        [*map(doc.Note, differences_line(differences(records), names)), *map(doc.Warned, warned)],
    )


def _case(row: CollectiveRow, report: CollectivesReport) -> tuple[Operation, Dtype, int]:
    """Identify a size by its rank among sizes, because sizes are rounded up to complete elements for each rank."""
    sizes = sorted({one.size_bytes for one in report.rows if (one.operation, one.dtype) == (row.operation, row.dtype)})
    return row.operation, row.dtype, sizes.index(row.size_bytes)


def _naming(rows: Sequence[CollectiveRow]) -> list[doc.Cells]:
    return [
        doc.Cells("operation", tuple(row.operation for row in rows), "word", once=True),
        doc.Cells("type", tuple(row.dtype for row in rows), "word", once=True),
        doc.Cells("size", tuple(size_of(row.size_bytes) for row in rows)),
    ]


def gb_s(value: float | None) -> str:
    """Write a bandwidth with three digits."""
    return number(value, ".0f" if value and value >= 100 else ".3g")


def microseconds(row: CollectiveRow, bare: bool = False) -> str:
    """Write the time in us, with its interval unless `bare`."""
    form = ",.0f" if (row.time_s or 0.0) >= 1e-4 else ".1f"
    return with_interval(row.time_s, None if bare else row.time_ci_s, form, scale=1e6)


def _bus(row: CollectiveRow) -> str:
    value = row.bus_gb_s or 0.0
    form = ".0f" if value >= 100 else ".1f" if value >= 10 else ".2f" if value >= 1 else ".2g"
    return with_interval(row.bus_gb_s, row.bus_gb_s_ci, form)

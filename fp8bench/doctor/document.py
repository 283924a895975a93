"""An examination of the machine as a document: a table for each subject, the worst findings first, remedies in extra
rows.

Checks that are unknown for the same reason share one row, because twenty rows of `no GPU here` hide the one that
counts.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fp8bench.doctor.check import WORST_FIRST, Examination, Finding, Subject
from fp8bench.tables.document import CsvLines, Document, Emphasis, Heading, Part, Sentence, Table, Tone, blocks
from fp8bench.tables.study import Column, word

SUBJECTS: dict[Subject, str] = {"gpu": "GPU", "software": "Software", "host": "Host"}
TONES: dict[str, Tone] = {"problem": "bad", "warning": "doubtful", "ok": "good"}
EMPHASIS: dict[str, Emphasis] = {"problem": "strong", "unknown": "faint"}
REMEDY = "-> "


class Row(NamedTuple):
    """A row. status, check: empty in a row with a remedy. check: also empty if several checks share the row."""

    status: str
    check: str
    found: str


COLUMNS: tuple[Column[Row], ...] = (
    Column("status", lambda row: row.status, kind="verdict", tone=lambda row: TONES.get(row.status, "")),
    word("check", lambda row: row.check),
    Column("found", lambda row: row.found, kind="note"),
)


def document(examination: Examination) -> Document:
    """Return the examination as a document. Its data has every field of every finding, in the order of the checks."""
    findings, machine = examination.findings, examination.machine
    gpus = [f"{gpu.count} x {gpu.name}" for gpu in machine.gpus] or ["no GPU"]
    here = ", ".join([*gpus, machine.cpu or "unknown CPU", f"{machine.cores} cores"])
    groups: list[list[Part]] = []
    for subject, title in SUBJECTS.items():
        rows = [*_rows([one for one in findings if one.subject == subject])]
        if rows:
            emphasis = tuple(EMPHASIS.get(row.status, "") for row in rows)
            table = Table(tuple(column.cells(rows) for column in COLUMNS), naming=2, emphasis=emphasis)
            groups.append([Heading(title), table])
    return Document(
        blocks([Sentence(here)], *groups, [Sentence(examination.summary)]),
        data=examination,
        lines=CsvLines.of(Finding, findings),
    )


def _rows(findings: Sequence[Finding]) -> Iterable[Row]:
    unknown: dict[str, list[str]] = {}
    for finding in sorted(findings, key=lambda one: WORST_FIRST.index(one.status)):
        if finding.status == "unknown":
            unknown.setdefault(finding.found, []).append(finding.title)
            continue
        yield Row(finding.status, finding.title, finding.found)
        if finding.remedy:
            yield Row("", "", REMEDY + finding.remedy)
    for reason, titles in unknown.items():
        alone = len(titles) == 1
        yield Row("unknown", titles[0] if alone else "", reason if alone else f"{reason}: {', '.join(titles)}")

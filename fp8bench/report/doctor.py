"""An examination of the machine as a document: a table for each subject, the worst findings first, remedies in extra
rows.

Checks that are unknown for the same reason share one row, because twenty rows of `no GPU here` hide the one that
counts.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fp8bench.doctor.finding import Examination, Finding, MachineSummary, Status, Subject
from fp8bench.tables.document import CsvLines, Document, Emphasis, Heading, Part, Rows, Sentence, Table, Tone, blocks

SUBJECTS: dict[Subject, str] = {"gpu": "GPU", "software": "Software", "host": "Host"}
WORST_FIRST: tuple[Status, ...] = ("problem", "warning", "ok", "unknown")
TONES: dict[str, Tone] = {"problem": "bad", "warning": "doubtful", "ok": "good"}
EMPHASIS: dict[str, Emphasis] = {"problem": "strong", "unknown": "faint"}
REMEDY = "-> "


class Row(NamedTuple):
    """A row. status, check: empty in a row with a remedy. check: also empty if several checks share the row."""

    status: str
    check: str
    found: str


def document(examination: Examination) -> Document:
    """Return the examination as a document. Its data has every field of every finding, in the order of the checks."""
    findings = examination.findings
    return Document(
        blocks(
            [Sentence(machine_line(examination.machine))],
            *(_group(subject, findings) for subject in SUBJECTS),
            [Sentence(examination.summary)],
        ),
        data=examination,
        lines=CsvLines.of(Finding, findings),
    )


def machine_line(machine: MachineSummary) -> str:
    """Describe the machine, e.g. `2 x NVIDIA H200, AMD EPYC, 32 cores`."""
    gpus = [f"{gpu.count} x {gpu.name}" for gpu in machine.gpus] or ["no GPU"]
    return ", ".join([*gpus, machine.cpu or "unknown CPU", f"{machine.cores} cores"])


def _group(subject: Subject, findings: Sequence[Finding]) -> list[Part]:
    """Return a heading and a table of the findings on one subject; nothing if there are no findings."""
    here = sorted((one for one in findings if one.subject == subject), key=lambda one: WORST_FIRST.index(one.status))
    rows = [*_known(here), *_unknown(here)]
    if not rows:
        return []
    column = Rows(rows).column
    columns = (
        column("status", lambda row: row.status, "verdict", tone=lambda row: TONES.get(row.status, "")),
        column("check", lambda row: row.check, "word"),
        column("found", lambda row: row.found, "note"),
    )
    emphasis = tuple(EMPHASIS.get(row.status, "") for row in rows)
    return [Heading(SUBJECTS[subject]), Table(columns, naming=2, emphasis=emphasis)]


def _known(findings: Sequence[Finding]) -> Iterable[Row]:
    for finding in findings:
        if finding.status != "unknown":
            yield Row(finding.status, finding.title, finding.found)
            if finding.remedy:
                yield Row("", "", REMEDY + finding.remedy)


def _unknown(findings: Sequence[Finding]) -> Iterable[Row]:
    checks: dict[str, list[str]] = {}
    for finding in findings:
        if finding.status == "unknown":
            checks.setdefault(finding.found, []).append(finding.title)
    for reason, titles in checks.items():
        alone = len(titles) == 1
        yield Row("unknown", titles[0] if alone else "", reason if alone else f"{reason}: {', '.join(titles)}")

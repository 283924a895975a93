"""An examination as a document: a table for each subject, the worst first, remedies in extra rows. Checks that are
unknown for the same reason share one row, because twenty rows of `no GPU here` hide the one that counts.
"""

from collections.abc import Iterable, Sequence

from fp8bench.doctor.check import WORST_FIRST, Examination, Finding
from fp8bench.tables.document import Cells, CsvLines, Document, Emphasis, Heading, Part, Sentence, Table, Tone, blocks

SUBJECTS = {"gpu": "GPU", "software": "Software", "host": "Host"}
TONES: dict[str, Tone] = {"problem": "bad", "warning": "doubtful", "ok": "good"}
EMPHASIS: dict[str, Emphasis] = {"problem": "strong", "unknown": "faint"}


def document(examination: Examination) -> Document:
    """Return the examination as a document. Its data has every field of every finding, in the order of the checks."""
    findings, machine = examination.findings, examination.machine
    gpus = [f"{gpu.count} x {gpu.name}" for gpu in machine.gpus] or ["no GPU"]
    here = ", ".join([*gpus, machine.cpu or "unknown CPU", f"{machine.cores} cores"])
    groups: list[list[Part]] = []
    for subject, title in SUBJECTS.items():
        if rows := [*_rows([finding for finding in findings if finding.subject == subject])]:
            status, check, found = zip(*rows, strict=True)
            tones = tuple(TONES.get(of_row, "") for of_row in status)
            columns = (
                Cells("status", status, "verdict", tones=tones),
                Cells("check", check, "word"),
                Cells("found", found, "note"),
            )
            emphasis = tuple(EMPHASIS.get(of_row, "") for of_row in status)
            groups.append([Heading(title), Table(columns, naming=2, emphasis=emphasis)])
    return Document(
        blocks([Sentence(here)], *groups, [Sentence(examination.summary)]),
        data=examination,
        lines=CsvLines.of(Finding, findings),
    )


def _rows(findings: Sequence[Finding]) -> Iterable[tuple[str, str, str]]:
    """Yield status, check, and what was found. A row with a remedy has only that; one of several checks no check."""
    unknown: dict[str, list[str]] = {}
    for finding in sorted(findings, key=lambda finding: WORST_FIRST.index(finding.status)):
        if finding.status == "unknown":
            unknown.setdefault(finding.found, []).append(finding.title)
            continue
        yield finding.status, finding.title, finding.found
        if finding.remedy:
            yield "", "", f"-> {finding.remedy}"
    for reason, titles in unknown.items():
        alone = len(titles) == 1
        yield "unknown", titles[0] if alone else "", reason if alone else f"{reason}: {', '.join(titles)}"

"""An examination as text: grouped, the worst first, remedies on lines of their own. Looks only.

What is unknown for one and the same reason is one line, since twenty lines of `no GPU here` hide the one that counts.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fp8bench.doctor.finding import Examination, Finding, Machine, Status, Subject

SUBJECTS: dict[Subject, str] = {"gpu": "GPU", "software": "Software", "host": "Host"}
WORST_FIRST: tuple[Status, ...] = ("problem", "warning", "ok", "unknown")
STYLES = {"problem": "bold red", "warning": "yellow", "ok": "green", "unknown": "dim"}
ARROW = "-> "
STATUS_WIDTH = max(map(len, WORST_FIRST))


class Line(NamedTuple):
    """One line of a group; `title` is empty for what several checks share."""

    status: Status
    title: str
    found: str
    remedy: str | None


def machine_line(machine: Machine) -> str:
    """`2 x NVIDIA H200, AMD EPYC, 32 cores`."""
    gpus = [f"{gpu.count} x {gpu.name}" for gpu in machine.gpus] or ["no GPU"]
    return ", ".join([*gpus, machine.cpu or "unknown CPU", f"{machine.cores} cores"])


def groups(findings: Sequence[Finding]) -> Iterable[tuple[str, list[Line]]]:
    """(heading, lines) of every subject that has findings."""
    for subject, heading in SUBJECTS.items():
        here = sorted((f for f in findings if f.subject == subject), key=lambda f: WORST_FIRST.index(f.status))
        if here:
            yield heading, _lines(here)


def _lines(findings: Sequence[Finding]) -> list[Line]:
    unknown: dict[str, list[str]] = {}
    for finding in findings:
        if finding.status == "unknown":
            unknown.setdefault(finding.found, []).append(finding.title)
    told = [Line(f.status, f.title, f.found, f.remedy) for f in findings if f.status != "unknown"]
    return told + [_untold(reason, titles) for reason, titles in unknown.items()]


def _untold(reason: str, titles: Sequence[str]) -> Line:
    if len(titles) == 1:
        return Line("unknown", titles[0], reason, None)
    return Line("unknown", "", f"{reason}: {', '.join(titles)}", None)


def to_plain(examination: Examination) -> str:
    """For a pipe or a file: a line a finding, however long."""
    lines = [machine_line(examination.machine)]
    width = _title_width(examination)
    for heading, group in groups(examination.findings):
        lines += ["", heading]
        for line in group:
            title = f"{line.title:<{width}}  " if line.title else ""
            lines.append(f"  {line.status:<{STATUS_WIDTH}}  {title}{line.found}")
            if line.remedy:
                lines.append(f"  {'':<{STATUS_WIDTH}}  {'':<{width}}  {ARROW}{line.remedy}")
    return "\n".join([*lines, "", examination.summary])


def _title_width(examination: Examination) -> int:
    return max((len(line.title) for _, group in groups(examination.findings) for line in group), default=0)


def print_rich(examination: Examination, console: Any = None) -> None:
    """To the terminal, in its width. console: rich's."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    width = _title_width(examination)
    console.print(Text(machine_line(examination.machine)))
    for heading, group in groups(examination.findings):
        console.print()
        console.print(Text(heading, style="bold"))
        for line in group:
            console.print(_row(line, width))
    console.print()
    console.print(Text(examination.summary, style="bold"))


def _row(line: Line, width: int) -> Any:
    """A table of its own a line, so that what several checks share may use the title's column too."""
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=STATUS_WIDTH + 2, no_wrap=True)
    status = Text(f"  {line.status}", style=STYLES[line.status])
    if not line.title:
        row.add_column(overflow="fold")
        row.add_row(status, Text(line.found, style=STYLES["unknown"]))
        return row
    row.add_column(width=width, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(status, Text(line.title), Text(line.found))
    if line.remedy:
        row.add_row("", "", Text(ARROW + line.remedy, style="italic"))
    return row


def to_json(examination: Examination) -> str:
    """{"machine": {...}, "findings": [...]}."""
    return examination.model_dump_json(indent=1)

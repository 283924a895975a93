"""Stored files as documents: files that were sent, records that are broken, and those that can be removed."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from fp8bench.records.audit import Audit, Spent
from fp8bench.report.document import CsvLines, Document, Part, Rows, Sentence, Table, Warned, blocks
from fp8bench.report.written import counted


def pushed(address: str, sent: Sequence[str], same: Sequence[str], refused: Sequence[str]) -> Document:
    """Show the result for each file; files that were already there are only counted."""
    rows = [*(("sent", name) for name in sent), *(("refused", name) for name in refused)]
    said = f"{address}: {counted(len(sent), 'file')} sent, {len(same)} there already, {len(refused)} refused."
    warned = (
        [Warned("a refused file has the name of another one there, which is kept, or is a link out of the folder")]
        if refused
        else []
    )
    return _document(
        rows, ("result", "file"), [Sentence(said), *warned],
        {"address": address, "sent": list(sent), "same": list(same), "refused": list(refused)},
    )  # fmt: skip


def verified(where: str, audit: Audit) -> Document:
    rows = [(one.path, one.reason) for one in audit.bad]
    said = f"{where}: {counted(audit.read, 'file')} read, {len(rows)} bad."
    data = {"where": where, "read": audit.read, "bad": [{"file": path, "reason": reason} for path, reason in rows]}
    return _document(rows, ("file", "reason"), [Sentence(said)], data)


def prunable(where: str, found: Sequence[tuple[str, Spent]], removed: bool) -> Document:
    """Show records that can be removed. found: each file's name, relative to the folder, and why it can be removed."""
    rows = [(name, f"{one.record.created_utc:%Y-%m-%d %H:%M}", one.reason) for name, one in found]
    verb = "removed" if removed else "can be removed; nothing was, since --yes was not given"
    said = f"{where}: {len(rows)} records {verb}." if rows else f"{where}: no record is superseded or failed."
    listed = [{"file": name, "created": day, "reason": reason} for name, day, reason in rows]
    data = {"where": where, "removed": removed, "records": listed}
    return _document(rows, ("file", "created, UTC", "reason"), [Sentence(said)], data)


def migrated(
    where: str, found: Sequence[tuple[str, int, str | None]], left: Sequence[tuple[str, str]], rewritten: bool
) -> Document:
    """Show migrated records. found: each file's name, its format, and the name under which the old file is kept. left:
    the files that are left unchanged, and why.
    """
    rows = [
        *(
            (name, f"format {version}", f"the old file is kept as {kept}" if kept else "")
            for name, version, kept in found
        ),
        *((name, "left as it is", reason) for name, reason in left),
    ]
    verb = "rewritten" if rewritten else "of an older format; nothing was changed, since --yes was not given"
    said = f"{where}: {counted(len(found), 'record')} {verb}, {len(left)} left as they are."
    return _document(
        rows, ("file", "was", "remark"), [Sentence(said)],
        {
            "where": where,
            "rewritten": rewritten,
            "records": [{"file": name, "format": version, "kept": kept} for name, version, kept in found],
            "left": [{"file": name, "reason": reason} for name, reason in left],
        },
    )  # fmt: skip


def _document(rows: Sequence[tuple[str, ...]], headings: tuple[str, ...], said: list[Part], data: Any) -> Document:
    columns = [Rows(rows).column(heading, itemgetter(place), "word") for place, heading in enumerate(headings)]
    table = [Table(tuple(columns))] if rows else []
    return Document(blocks(table, said), data=data, lines=CsvLines(headings, tuple(rows)))

"""Stored files as documents: files that were sent, and records that are broken."""

from collections.abc import Sequence
from typing import Any

from fp8bench.records.audit import Audit
from fp8bench.tables.document import Cells, CsvLines, Document, Part, Sentence, Table, Warned, blocks
from fp8bench.tables.written import counted


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


def _document(rows: Sequence[tuple[str, ...]], headings: tuple[str, ...], said: list[Part], data: Any) -> Document:
    texts = zip(*rows, strict=True)
    table = (
        [Table(tuple(Cells(heading, of, "word") for heading, of in zip(headings, texts, strict=True)))] if rows else []
    )
    return Document(blocks(table, said), data=data, lines=CsvLines(headings, tuple(rows)))

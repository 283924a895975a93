"""What switches gain, as a document: a table for each mode and instance, in milliseconds of a micro-batch, like the
published figures.
"""

from collections.abc import Sequence
from itertools import groupby

from fp8bench.kinds.run.switches.published import PublishedSwitches
from fp8bench.kinds.run.switches.rows import SwitchRow
from fp8bench.report import document as doc
from fp8bench.report.written import change, counted, number, with_interval
from fp8bench.schema.switches import NONE, SWITCHES, split

TONES: dict[str, doc.Tone] = {"faster": "good", "slower": "bad", "inconclusive": "doubtful"}


def document(rows: Sequence[SwitchRow], published: Sequence[PublishedSwitches]) -> doc.Document:
    """Return the document. Its data has every field of every row."""
    letters = doc.Letters()
    parts: list[list[doc.Part]] = []
    for _, together in groupby(rows, key=_group):
        group = list(together)
        parts.append([doc.Heading(_heading(group[0])), _table(group, letters), *map(doc.Sentence, _answer(group))])
    named = {name for row in rows for name in split(row.te_switches)}
    below: list[doc.Part] = [*map(doc.Note, letters.lines())]
    below += [doc.Note(f"{one.name}: {one.summary}.") for one in SWITCHES if one.name in named]
    cited = {row.published for row in rows}
    below += [
        doc.Note(f"Published: {one.citation} ({one.gpu}, {one.published_on}): {one.note}.")
        for one in published
        if one.citation in cited
    ]
    return doc.Document(doc.blocks(*parts, below), data=list(rows), lines=doc.CsvLines.of(SwitchRow, rows))


def _group(row: SwitchRow) -> tuple[object, ...]:
    sizes = (row.samples, row.world_size, row.tensor_parallel, row.micro_batches)
    return (row.instance, row.workload, row.mode_label, *sizes)


def _heading(row: SwitchRow) -> str:
    pieces = counted(row.micro_batches, "micro-batch", "micro-batches")
    shared = f", shared by {row.tensor_parallel}" if row.tensor_parallel > 1 else ""
    where = f"{row.mode_label} on {row.instance}: {row.workload}"
    return f"{where}, {pieces} of {row.samples:g} a step, {counted(row.world_size, 'GPU')}{shared}"


def _table(rows: Sequence[SwitchRow], letters: doc.Letters) -> doc.Table:
    column = doc.Rows(rows).column
    columns = [
        column("switches", lambda row: row.te_switches or NONE, "word"),
        *doc.telling(column("execution", lambda row: row.execution or doc.NOTHING, "word")),
        column("micro-batch, ms (95 %)", _milliseconds, "interval"),
        column("faster than none (95 %)", lambda row: change(row.faster, row.faster_ci), "interval", tone=_tone),
        column("verdict", _verdict, "verdict", tone=_tone),
        *doc.telling(column("peak GiB", lambda row: number(row.peak_memory_bytes, ".1f", 2**-30))),
        *doc.telling(column("published, ms", lambda row: number(row.published_s, ".2f", 1e3))),
        *doc.telling(column("published faster", lambda row: change(row.published_faster, None))),
        *doc.telling(column("notes", lambda row: _lettered(_notes(row), letters), "note")),
    ]
    return doc.Table(tuple(columns), naming=1, emphasis=tuple("" if row.te_switches else "strong" for row in rows))


def _milliseconds(row: SwitchRow) -> str:
    if row.status != "ok":
        return row.status
    return with_interval(row.micro_batch_s, row.micro_batch_ci_s, ".2f", scale=1e3)


def _verdict(row: SwitchRow) -> str:
    return row.verdict or ("reference" if row.te_switches is None and row.status == "ok" else doc.NOTHING)


def _tone(row: SwitchRow) -> doc.Tone:
    return TONES.get(row.verdict or "", "")


def _notes(row: SwitchRow) -> list[str]:
    found = [row.reason, row.why, f"ranks joined by {row.joined}" if row.joined and "ddp" in row.joined else None]
    return [one for one in found if one]


def _lettered(texts: Sequence[str], letters: doc.Letters) -> str:
    return f"[{' '.join(map(letters.of, texts))}]" if texts else doc.NOTHING


def _answer(rows: Sequence[SwitchRow]) -> list[str]:
    """Say what gains most, if anything does."""
    gaining = [row for row in rows if row.verdict == "faster"]
    if not gaining:
        judged = [row for row in rows if row.verdict]
        return ["No switch is faster beyond noise."] if judged else []
    best = max(gaining, key=lambda row: row.faster or 0)
    return [f"{best.te_switches} gains most: {change(best.faster, best.faster_ci)} of micro-batches a second."]

"""Errors of precision modes as a document: one record, or records of the same work side by side.

The first table of a record has a row for each layer, input and mode: the relative error of the output, of the input
gradient and of the weight gradient, each with its SQNR in dB, and the worst share of an operand's values that the casts
saturated or flushed to zero. A mode that did not run has a row that says so, with its reason below the table. The
second table is about the jump: at how many steps more than one value in 100 saturated, how far off the worst cast was,
and how many steps after the fall the scale was back at current scaling's.

The data has each record by itself, unrounded, so that programs can compare them as they like.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fp8bench.kinds.numerics import figures
from fp8bench.kinds.numerics.compared import (
    CLOSE,
    Agreement,
    JumpResponse,
    NumericsComparison,
    Quantity,
    Reading,
    come_back_text,
    compare_errors,
    response_to,
    scaling_name,
    source_name,
)
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.records.select import same_work
from fp8bench.schema.instance import Catalog
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS, AmaxJump, LayerError, TensorName
from fp8bench.tables import document as doc
from fp8bench.tables.side_by_side import device, differences_line, labels, reasons
from fp8bench.tables.written import error, share

SHORT: dict[TensorName, str] = {
    "output": "output",
    "input_gradient": "input grad.",
    "weight_gradient": "weight grad.",
}
ERRORS, JUMP = "errors", "jump"
"""The names of the figures."""

METHOD = (
    "Errors are relative, against float64. ratio: the error over that of {first}, so that above 1 it is less exact "
    "than {first}."
)
JUMP_ALIKE = f"All ways of scaling answered alike, with worst errors within {CLOSE * 100:.0f} % of each other."
JUMP_UNLIKE = "What was not alike:"

WRITE: dict[Quantity, Callable[[JumpResponse], str]] = {
    "steps that saturate": lambda found: str(found.steps_that_saturate),
    "worst error": lambda found: error(found.worst_error),
    "steps to come back": come_back_text,
}


@dataclass(frozen=True)
class ModeErrors:
    """One row of the table: the errors of one mode, layer and input or, for a mode that did not run, the reason."""

    instance: str
    rows: dict[TensorName | None, LayerError]

    @property
    def first(self) -> LayerError:
        return next(iter(self.rows.values()))


def document(records: Sequence[NumericsRecord], _catalog: Catalog | None = None) -> doc.Document:
    """Return the document. records: in the order of the columns. Figures are only drawn for a single record."""
    groups = same_work(records)
    shown: list[tuple[doc.Part, ...]] = []
    for group in groups:
        if len(groups) > 1 or len(group) > 1:
            shown.append((doc.Heading(title(group)),))
        shown += _compared(group) if len(group) > 1 else blocks(group)
    found = []
    if len(records) == 1:
        (record,) = records
        errors = [doc.Figure(ERRORS, partial(figures.error_dots, record))] if record.status == "ok" else []
        found = [*errors, doc.Figure(JUMP, partial(figures.jump_lines, record))]
    return doc.Document(tuple(shown), data=records, lines=_lines(records), figures=tuple(found))


def _lines(records: Sequence[NumericsRecord]) -> doc.CsvLines:
    """Return a line for each tensor, with every field of `LayerError`. The jump is not included."""
    rows = (
        (record.instance, record.run_id, *row.model_dump(mode="json").values())
        for record in records
        for row in record.rows
    )
    return doc.CsvLines(("instance", "run_id", *LayerError.model_fields), tuple(rows))


def title(group: Sequence[NumericsRecord]) -> str:
    config = group[0].config
    where = ", ".join(f"{label} ({device(record)})" for label, record in zip(labels(group), group, strict=True))
    return f"numerics, width {config.width}, {config.tokens} tokens, seed {config.seed}, on {where}"


def blocks(records: Sequence[NumericsRecord]) -> tuple[tuple[doc.Part, ...], ...]:
    """Return a table of all errors, and one of each record's jump. Instances have a column if there are several."""
    letters = doc.Letters()
    several = len({record.instance for record in records}) > 1
    of_errors = _error_table(lines(records), several, letters)
    of_jumps: list[tuple[doc.Part, ...]] = []
    for record in records:
        about = jump_sentence(record.history) + (f" ({record.instance})" if len(records) > 1 else "")
        of_jumps += [(doc.Heading(about),), (jump_table(record.history),)]
    return ((of_errors, *map(doc.Note, letters.lines())), *of_jumps)


def lines(records: Sequence[NumericsRecord]) -> list[ModeErrors]:
    """Sort rows by layer, then input, mode in the requested order, and record; modes that did not run are last."""
    found: dict[tuple[int, int, int, int], ModeErrors] = {}
    for place, record in enumerate(records):
        for row in record.rows:
            key = (
                LAYERS.index(row.layer) if row.layer else len(LAYERS),
                INPUTS.index(row.input) if row.input else len(INPUTS),
                record.config.modes.index(row.mode),
                place,
            )
            found.setdefault(key, ModeErrors(record.instance, {})).rows[row.tensor] = row
    return [found[key] for key in sorted(found)]


def _error_table(found: Sequence[ModeErrors], several: bool, letters: doc.Letters) -> doc.Table:
    column = doc.Rows(found).column
    shown = [
        *([column("instance", lambda line: line.instance, "word")] if several else []),
        column("layer", lambda line: line.first.layer or doc.NOTHING, "word"),
        column("input", lambda line: line.first.input or doc.NOTHING, "word"),
        column("mode", lambda line: line.first.mode, "word"),
    ]
    naming = len(shown)
    for tensor in TENSORS:
        of_tensor = doc.Rows([line.rows.get(tensor) for line in found]).column
        shown.append(of_tensor(SHORT[tensor], lambda row: error(row.relative_error if row else None)))
        shown.append(of_tensor("dB", _sqnr, spare=True))
    shown.append(column("saturated", lambda line: _worst([row.saturated for row in line.rows.values()])))
    shown.append(column("flushed", lambda line: _worst([row.flushed for row in line.rows.values()])))
    notes = column("notes", lambda line: _notes(line, letters), "note")
    if letters.lines():
        shown.append(notes)
    return doc.Table(tuple(shown), naming)


def _notes(line: ModeErrors, letters: doc.Letters) -> str:
    """Return the statuses that are not ok, with a letter for the reason; equal reasons share one."""
    marks = [letters.refer(row.status, row.reason) for row in line.rows.values() if row.reason is not None]
    return ", ".join(dict.fromkeys(marks))


def _sqnr(row: LayerError | None) -> str:
    if row is None or row.relative_error is None:
        return doc.NOTHING
    return "inf" if row.sqnr_db is None else f"{row.sqnr_db:.1f}"


def _worst(shares: Sequence[float | None]) -> str:
    known = [one for one in shares if one is not None]
    return share(max(known)) if known else doc.NOTHING


def jump_sentence(history: AmaxJump) -> str:
    return (
        f"A jump: values {history.factor:g} times as large from step {history.up_at} to step {history.down_at}, "
        f"{history.steps} steps, cast to e4m3"
    )


def jump_table(history: AmaxJump) -> doc.Table:
    """Show a row for each way of scaling. `>`: not within the steps of the jump."""
    of_trace = doc.Rows(history.traces).column
    of_answer = doc.Rows([response_to(trace, history) for trace in history.traces]).column
    columns = (
        of_trace("scaling", scaling_name, "word"),
        of_trace("by", source_name, "word"),
        of_answer("steps that saturate", lambda one: str(one.steps_that_saturate)),
        of_answer("worst share", lambda one: share(one.worst_share)),
        of_answer("worst error", lambda one: error(one.worst_error)),
        of_answer("steps to come back", come_back_text),
    )
    return doc.Table(columns, naming=2)


def _compared(group: Sequence[NumericsRecord]) -> tuple[tuple[doc.Part, ...], ...]:
    compared = compare_errors(group)
    letters = doc.Letters(reasons(compared.rows))
    about = f"{jump_sentence(group[0].history)}. {JUMP_UNLIKE if compared.jump else JUMP_ALIKE}"
    return doc.blocks(
        [_errors_compared(compared, letters)],
        [*map(doc.Note, letters.lines()), *map(doc.Sentence, sentences(compared))],
        [doc.Heading(about) if compared.jump else doc.Sentence(about)],
        [_jump_compared(compared)] if compared.jump else [],
    )


def _errors_compared(compared: NumericsComparison, letters: doc.Letters) -> doc.Table:
    """Show a row for each layer, input, mode and tensor. letters: refer to why there is no error."""
    rows = compared.rows
    column = doc.Rows(rows).column
    shown = [
        column("layer", lambda row: row.layer or doc.NOTHING, "word", once=True),
        column("input", lambda row: row.input or doc.NOTHING, "word", once=True),
        column("mode", lambda row: row.mode, "word", once=True),
        column("tensor", lambda row: SHORT[row.tensor] if row.tensor else doc.NOTHING, "word"),
    ]
    naming = len(shown)

    def found(reading: Reading) -> str:
        return error(reading.error) if reading.reason is None else letters.refer(reading.status, reading.reason)

    for place, label in enumerate(compared.labels):
        of_record = doc.Rows([row.readings[place] for row in rows]).column
        shown.append(of_record("error", found, of=label))
        if place:
            shown.append(of_record("ratio", lambda reading: ratio_text(reading.ratio), of=label))
    return doc.Table(tuple(shown), naming)


def _jump_compared(compared: NumericsComparison) -> doc.Table:
    """Show a row for each way of scaling and quantity that differ."""
    column = doc.Rows(compared.jump).column
    shown = [
        column("scaling", lambda row: scaling_name(row.trace), "word", once=True),
        column("by", lambda row: source_name(row.trace), "word", once=True),
        column("quantity", lambda row: row.quantity, "word"),
    ]
    for place, label in enumerate(compared.labels):
        responses = [(row.quantity, row.responses[place]) for row in compared.jump]
        shown.append(
            doc.Rows(responses).column("answer", lambda one: WRITE[one[0]](one[1]) if one[1] else doc.NOTHING, of=label)
        )
    return doc.Table(tuple(shown), naming=3)


def ratio_text(ratio: float | None) -> str:
    """Write a ratio with two decimals; a small one with two significant digits, and a large one without decimals."""
    if ratio is None:
        return doc.NOTHING
    if ratio >= 100:
        return f"{ratio:,.0f}"
    return f"{ratio:.2g}" if 0 < ratio < 0.1 else f"{ratio:.2f}"


def sentences(compared: NumericsComparison) -> list[str]:
    """Return lines about how the machines differ, how far their errors agree, and how to read the table."""
    first = compared.labels[0]
    return [
        *differences_line(compared.differences, compared.labels),
        *(_agreement(one, first) for one in compared.agreements),
        METHOD.format(first=first),
    ]


def _agreement(one: Agreement, first: str) -> str:
    if one.furthest is None:
        return f"{one.label} and {first} have no error in common."
    within = f"within {CLOSE * 100:.0f} % of {first}'s"
    if one.alike == one.both:
        return f"{one.label}: the errors that both have, {one.both} of them, are all {within}."
    row, ratio = one.furthest
    tensor = SHORT[row.tensor].replace("grad.", "gradient") if row.tensor else ""
    words = ", ".join(word for word in (row.layer, row.input, row.mode, tensor) if word)
    return (
        f"{one.label}: {one.alike} of {one.both} errors that both have are {within}; the furthest is "
        f"{ratio_text(ratio)} times as large ({words})."
    )

"""Errors of precision modes on several machines as text: those of the same work side by side, a record that has no like
as `numerics_text` writes it. Looks only; the numbers are in `numerics_compared`.

Each function takes records of `fp8bench numerics` in the order of the columns. Machines get each record by itself,
unrounded, and hold them against each other as they like.
"""

from collections.abc import Callable, Sequence

from fp8bench.records.select import same_work
from fp8bench.report import numerics_text
from fp8bench.report.cell_text import safe_in
from fp8bench.report.jump import Answer
from fp8bench.report.letters import Letters
from fp8bench.report.numerics_compared import (
    CLOSE,
    Agreement,
    ErrorRow,
    JumpRow,
    NumericsComparison,
    Quantity,
    Reading,
    compare_errors,
)
from fp8bench.report.numerics_text import SHORT, come_back_text, error_text, jump_sentence, scaling_name, source_name
from fp8bench.report.side_by_side import device, labels
from fp8bench.report.side_by_side_text import NOTHING, Column, Table, print_table, to_text, told
from fp8bench.schema.numerics import NumericsRecord
from fp8bench.schema.plain_text import inert

METHOD = (
    "Errors are relative, against float64. ratio: the error over that of {first}, so that above 1 it is less exact "
    "than {first}."
)
JUMP_ALIKE = f"All ways of scaling answered alike, with worst errors within {CLOSE * 100:.0f} % of each other."
JUMP_UNLIKE = "What was not alike:"

to_json = numerics_text.to_json
to_csv = numerics_text.to_csv

WRITE: dict[Quantity, Callable[[Answer], str]] = {
    "steps that saturate": lambda found: str(found.steps_that_saturate),
    "worst error": lambda found: error_text(found.worst_error),
    "steps to come back": come_back_text,
}


def to_markdown(records: Sequence[NumericsRecord]) -> str:
    """GitHub tables, each with its sentences under it."""
    return _written(records, "github", "\n\n", numerics_text.to_markdown)


def to_plain(records: Sequence[NumericsRecord]) -> str:
    """Tables for a pipe or a file."""
    return _written(records, "simple", "\n", numerics_text.to_plain)


def _written(
    records: Sequence[NumericsRecord], form: str, between: str, alone: Callable[[Sequence[NumericsRecord]], str]
) -> str:
    safe = safe_in(form)
    groups = same_work(records)
    parts = []
    for group in groups:
        if len(groups) > 1 or len(group) > 1:
            parts.append(safe(title(group)))
        if len(group) == 1:
            parts.append(alone(group))
            continue
        compared = compare_errors(group)
        letters = Letters(compared.reasons)
        table = to_text(error_rows(compared, letters), form)
        parts += [table, between.join(map(safe, [*letters.lines(), *sentences(compared)])), jump_title(group, compared)]
        if compared.jump:
            parts.append(to_text(jump_rows(compared), form))
    return "\n\n".join(parts)


def print_rich(records: Sequence[NumericsRecord]) -> None:
    """To the terminal; where the table of errors is too wide, as one for each layer and input."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    groups = same_work(records)
    for group in groups:
        if len(groups) > 1 or len(group) > 1:
            console.print(Text(inert(title(group)), style="bold"))
        if len(group) == 1:
            numerics_text.print_rich(group)
            continue
        compared = compare_errors(group)
        letters = Letters(compared.reasons)
        print_table(error_rows(compared, letters), console)
        for note in letters.lines():
            console.print(Text(inert(note), style="dim"))
        for line in sentences(compared):
            console.print(Text(inert(line)))
        console.print()
        console.print(Text(jump_title(group, compared), style="bold" if compared.jump else ""))
        if compared.jump:
            print_table(jump_rows(compared), console)


def title(group: Sequence[NumericsRecord]) -> str:
    """What was examined, and where."""
    config = group[0].config
    where = ", ".join(f"{label} ({device(record)})" for label, record in zip(labels(group), group, strict=True))
    return f"numerics, width {config.width}, {config.tokens} tokens, seed {config.seed}, on {where}"


def error_rows(compared: NumericsComparison, letters: Letters) -> Table[ErrorRow]:
    """A row a layer, input, mode and tensor. letters: of the reasons of what has no error."""
    columns: list[Column[ErrorRow]] = [
        Column("layer", lambda row: row.layer or NOTHING, numeric=False),
        Column("input", lambda row: row.input or NOTHING, numeric=False),
        Column("mode", lambda row: row.mode, numeric=False),
        Column("tensor", lambda row: SHORT[row.tensor] if row.tensor else NOTHING, numeric=False),
    ]
    naming = len(columns)
    for place, label in enumerate(compared.labels):
        columns.append(Column("error", _of(place, lambda reading: _error(reading, letters)), label))
        if place:
            columns.append(Column("ratio", _of(place, lambda reading: ratio_text(reading.ratio)), label))
    return Table(columns, compared.rows, naming, 2)


def _of(place: int, write: Callable[[Reading], str]) -> Callable[[ErrorRow], str]:
    return lambda row: write(row.readings[place])


def _error(reading: Reading, letters: Letters) -> str:
    if reading.reason is not None:
        return letters.mark(reading.status, reading.reason)
    return error_text(reading.error)


def ratio_text(ratio: float | None) -> str:
    """Two digits after the point, but two that count of a small one, and none of a large one."""
    if ratio is None:
        return NOTHING
    if ratio >= 100:
        return f"{ratio:,.0f}"
    return f"{ratio:.2g}" if 0 < ratio < 0.1 else f"{ratio:.2f}"


def sentences(compared: NumericsComparison) -> list[str]:
    """How the machines differ, how far their errors agree, and how to read the table; a line each."""
    first = compared.labels[0]
    return [
        *told(compared.differences, compared.labels),
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


def jump_title(group: Sequence[NumericsRecord], compared: NumericsComparison) -> str:
    """What was done, and whether it had the same answer everywhere."""
    return f"{jump_sentence(group[0].history)}. {JUMP_UNLIKE if compared.jump else JUMP_ALIKE}"


def jump_rows(compared: NumericsComparison) -> Table[JumpRow]:
    """A row a way of scaling and quantity that differ."""
    columns: list[Column[JumpRow]] = [
        Column("scaling", lambda row: scaling_name(row.trace), numeric=False),
        Column("by", lambda row: source_name(row.trace), numeric=False),
        Column("quantity", lambda row: row.quantity, numeric=False),
    ]
    answers = [Column("answer", _answer(place), label) for place, label in enumerate(compared.labels)]
    return Table([*columns, *answers], compared.jump, len(columns))


def _answer(place: int) -> Callable[[JumpRow], str]:
    def write(row: JumpRow) -> str:
        found = row.answers[place]
        return NOTHING if found is None else WRITE[row.quantity](found)

    return write

"""Errors of precision modes as text: tables in a terminal, plain text, markdown, csv or json. Looks only; the numbers
are in `schema.numerics`.

The first table has a line for each layer, input and mode: the relative error of the output, of the input gradient and
of the weight gradient, each with its SQNR in dB, and the worst share of an operand's values that the casts saturated or
flushed to zero. A mode that did not run has a line that says so, its reason under the table. The second table is about
the jump: at how many steps more than one value in 100 saturated, how far off the worst cast was, and how many steps
after the fall the scale was again where current scaling has it.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fp8bench.report.cell_text import csv_cell, safe_in
from fp8bench.report.jump import Answer, answer
from fp8bench.report.letters import Letters
from fp8bench.report.rich_table import empty_table
from fp8bench.schema.numerics import (
    INPUTS,
    LAYERS,
    TENSORS,
    AmaxJump,
    LayerError,
    NumericsRecord,
    ScalingTrace,
    TensorName,
)
from fp8bench.schema.plain_text import inert

NOTHING = "-"
EMPTY = ("", NOTHING)
SHORT = {"output": "output", "input_gradient": "input grad.", "weight_gradient": "weight grad."}
NARROW = 112
"""Columns that the whole first table needs; in fewer, SQNR is left out: it says nothing that the error does not."""

JUMP_HEADINGS = ("scaling", "by", "steps that saturate", "worst share", "worst error", "steps to come back")
"""`>`: not in the steps that there were."""


@dataclass(frozen=True)
class Line:
    """What belongs on one line: the rows of one mode, layer and input; of a mode that did not run, its one row."""

    instance: str
    rows: dict[TensorName | None, LayerError]

    @property
    def first(self) -> LayerError:
        """Any of them, for what they share."""
        return next(iter(self.rows.values()))


def lines(records: Sequence[NumericsRecord]) -> list[Line]:
    """By layer, then input, then mode as asked for, then record; modes that did not run last."""
    found: dict[tuple[int, int, int, int], Line] = {}
    for number, record in enumerate(records):
        for row in record.rows:
            place = (
                LAYERS.index(row.layer) if row.layer else len(LAYERS),
                INPUTS.index(row.input) if row.input else len(INPUTS),
                record.config.modes.index(row.mode),
                number,
            )
            found.setdefault(place, Line(record.instance, {})).rows[row.tensor] = row
    return [found[place] for place in sorted(found)]


def to_json(records: Sequence[NumericsRecord]) -> str:
    """The records, every number unrounded."""
    return json.dumps([record.model_dump(mode="json") for record in records], indent=1)


def to_csv(records: Sequence[NumericsRecord]) -> str:
    """A line a tensor, every field of `LayerError`, numbers unrounded, null empty. The jump is not in it."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=["instance", "run_id", *LayerError.model_fields], lineterminator="\n")
    writer.writeheader()
    for record in records:
        for row in record.rows:
            line = {"instance": record.instance, "run_id": record.run_id, **row.model_dump(mode="json")}
            writer.writerow({name: csv_cell(value) for name, value in line.items()})
    return buffer.getvalue().rstrip("\n")


def to_markdown(records: Sequence[NumericsRecord]) -> str:
    """GitHub tables, notes under the first."""
    return _with_tabulate(records, "github", "\n\n")


def to_plain(records: Sequence[NumericsRecord]) -> str:
    """Tables for a pipe or a file."""
    return _with_tabulate(records, "simple", "\n")


def _with_tabulate(records: Sequence[NumericsRecord], form: str, between: str) -> str:
    from tabulate import tabulate

    headings, cells, notes = error_table(records)
    safe = safe_in(form)
    cells = [[safe(cell) for cell in line] for line in cells]
    parts = [between.join([_tabulate(tabulate, headings, cells, form), *map(safe, notes)])]
    for record in records:
        about = jump_sentence(record.history) + (f" ({record.instance})" if len(records) > 1 else "")
        table = _tabulate(tabulate, JUMP_HEADINGS, jump_table(record.history), form, named=2)
        parts.append(f"{about}\n\n{table}")
    return "\n\n".join(parts)


def _tabulate(tabulate: Any, headings: Sequence[str], cells: Any, form: str, named: int | None = None) -> str:
    left = headings.index("mode") + 1 if named is None else named
    align = ["left"] * left + ["right"] * (len(headings) - left)
    if headings[-1] == "notes":
        align[-1] = "left"
    table: str = tabulate(cells, headers=headings, tablefmt=form, colalign=align, disable_numparse=True)
    return table


def print_rich(records: Sequence[NumericsRecord]) -> None:
    """To the terminal: a table for each layer and input, and one of the modes that did not run."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    headings, cells, notes = error_table(records, with_sqnr=console.width >= NARROW)
    left = headings.index("mode")
    for name, group in groupby(cells, key=lambda line: tuple(line[:left])):
        together = [line[left:] for line in group]
        # A column in which no line of a table says anything is left out of it.
        shown = [place for place in range(len(headings) - left) if any(line[place] not in EMPTY for line in together)]
        title = inert(", ".join(word for word in name if word not in EMPTY) or "not run")
        console.print(Text(title, style="bold"))
        console.print(
            _rich_table([headings[left + place] for place in shown], [[line[p] for p in shown] for line in together], 1)
        )
    for note in notes:
        console.print(Text(inert(note), style="dim"))
    for record in records:
        console.print()
        console.print(Text(jump_sentence(record.history), style="bold"))
        console.print(_rich_table(JUMP_HEADINGS, jump_table(record.history), 2))


def _rich_table(headings: Sequence[str], cells: Sequence[Sequence[str]], left: int) -> Any:
    from rich.text import Text

    table = empty_table(collapse_padding=True)
    for place, heading in enumerate(headings):
        is_left = place < left or heading == "notes"
        # A narrow heading in two lines leaves the mode's name whole in 80 columns.
        folded = heading.replace("saturated", "satu-\nrated").replace(" grad.", "\ngrad.")
        table.add_column(folded, justify="left" if is_left else "right", no_wrap=is_left, overflow="fold")
    for line in cells:
        table.add_row(*map(Text, map(inert, line)))
    return table


def error_table(
    records: Sequence[NumericsRecord], with_sqnr: bool = True
) -> tuple[list[str], list[list[str]], list[str]]:
    """(headings, cells, notes). The instance has a column where there are several."""
    several = len({record.instance for record in records}) > 1
    letters = Letters()
    headings = ["instance"] * several + ["layer", "input", "mode"]
    for tensor in TENSORS:
        headings += [SHORT[tensor], "dB"] if with_sqnr else [SHORT[tensor]]
    headings += ["saturated", "flushed", "notes"]
    cells = [[line.instance] * several + _cells(line, with_sqnr, letters) for line in lines(records)]
    notes = letters.lines()
    if not notes:
        headings, cells = headings[:-1], [line[:-1] for line in cells]
    return headings, cells, notes


def _cells(line: Line, with_sqnr: bool, letters: Letters) -> list[str]:
    cells = [line.first.layer or NOTHING, line.first.input or NOTHING, line.first.mode]
    for tensor in TENSORS:
        row = line.rows.get(tensor)
        cells.append(error_text(row.relative_error if row else None))
        if with_sqnr:
            cells.append(_sqnr(row))
    rows = line.rows.values()
    cells += [_worst([row.saturated for row in rows]), _worst([row.flushed for row in rows])]
    return [*cells, _notes(line, letters)]


def _notes(line: Line, letters: Letters) -> str:
    """The status of what did not go well, and a letter for its reason; equal reasons share one."""
    marks = [letters.mark(row.status, row.reason) for row in line.rows.values() if row.reason is not None]
    return ", ".join(dict.fromkeys(marks))


def error_text(value: float | None) -> str:
    """Two digits."""
    return NOTHING if value is None else f"{value:.1e}" if value else "0"


def _sqnr(row: LayerError | None) -> str:
    if row is None or row.relative_error is None:
        return NOTHING
    return "inf" if row.sqnr_db is None else f"{row.sqnr_db:.1f}"


def _worst(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return _share(max(known)) if known else NOTHING


def _share(share: float) -> str:
    """Per cent; two digits of a small one, so that a single value in a million is not shown as none."""
    return "0 %" if share == 0 else f"{share * 100:.2g} %"


def jump_sentence(history: AmaxJump) -> str:
    """What was done."""
    return (
        f"A jump: values {history.factor:g} times as large from step {history.up_at} to step {history.down_at}, "
        f"{history.steps} steps, cast to e4m3"
    )


def jump_table(history: AmaxJump) -> list[list[str]]:
    """Cells under JUMP_HEADINGS, one line a trace."""
    return [_jump_cells(trace, history) for trace in history.traces]


def _jump_cells(trace: ScalingTrace, history: AmaxJump) -> list[str]:
    found = answer(trace, history)
    return [
        scaling_name(trace),
        source_name(trace),
        str(found.steps_that_saturate),
        _share(found.worst_share),
        error_text(found.worst_error),
        come_back_text(found),
    ]


def scaling_name(trace: ScalingTrace) -> str:
    """In words: `delayed, max of 1024`."""
    if trace.scaling == "current":
        return "current"
    return "delayed, most recent" if trace.algo == "most_recent" else f"delayed, max of {trace.history_len}"


def source_name(trace: ScalingTrace) -> str:
    """Who did it."""
    return "Transformer Engine" if trace.source == "transformer_engine" else "simulation"


def come_back_text(found: Answer) -> str:
    """`> 40`: in none of the 40 steps that there were."""
    return f"> {found.steps_after}" if found.steps_to_come_back is None else str(found.steps_to_come_back)

"""Where a session's seconds went, by phase and mode, from its records."""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from fp8bench.schema.record import Phase, Record
from fp8bench.tables import document as doc
from fp8bench.tables.written import number

WORDS: dict[Phase, str] = {
    "prepare": "fp8bench itself",
    "start": "start and imports",
    "warm_up": "warm-up and compile",
    "timed": "timed steps",
}
"""What phases are called in the table, where that is not their name."""


def seconds(records: Sequence[Record]) -> list[doc.Part]:
    """Return a table with a line for each phase and a column for each mode, of all its rounds together. Records of
    older formats do not say; without any that does there is no table.
    """
    by_mode: dict[str, Counter[Phase]] = {}
    for record in records:
        if record.phases_s:
            by_mode.setdefault(record.what.mode_label, Counter()).update(record.phases_s)
    if not by_mode:
        return [doc.Note("The records of this session do not say where its seconds went.")]
    every = sum(by_mode.values(), Counter[Phase]())
    phases: list[Phase] = [phase for phase in get_args(Phase) if every[phase]]
    columns = [doc.Cells("phase", (*(WORDS.get(phase, phase) for phase in phases), "together"), "word")]
    for mode, sums in {**by_mode, **({"all": every} if len(by_mode) > 1 else {})}.items():
        shown = [*(sums[phase] for phase in phases), sum(sums.values())]
        columns.append(doc.Cells(f"{mode}, s", tuple(number(value or None, ".1f") for value in shown)))
    plain: list[doc.Emphasis] = [""] * len(phases)
    return [doc.Table(tuple(columns), emphasis=(*plain, "strong"))]

"""Where a session's seconds went, by phase and mode, from its records."""

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
    told = [record for record in records if record.phases_s]
    by_mode: dict[str, list[Record]] = {}
    for record in told:
        by_mode.setdefault(record.what.mode_label, []).append(record)
    if not told:
        return [doc.Note("The records of this session do not say where its seconds went.")]
    sums = {mode: {phase: _sum(of_mode, phase) for phase in get_args(Phase)} for mode, of_mode in by_mode.items()}
    sums |= {"all": {phase: _sum(told, phase) for phase in get_args(Phase)}} if len(sums) > 1 else {}
    phases: list[Phase | None] = [phase for phase in get_args(Phase) if _sum(told, phase)]
    columns = [
        doc.Rows([*phases, None]).column(
            "phase", lambda phase: WORDS.get(phase, phase) if phase else "together", "word"
        )
    ]
    for mode, of_phase in sums.items():
        shown = [*(of_phase[phase] for phase in phases if phase), sum(of_phase.values())]
        columns.append(doc.Rows(shown).column(f"{mode}, s", lambda value: number(value or None, ".1f")))
    plain: list[doc.Emphasis] = [""] * len(phases)
    return [doc.Table(tuple(columns), emphasis=(*plain, "strong"))]


def _sum(records: Sequence[Record], phase: Phase) -> float:
    return sum((record.phases_s or {}).get(phase, 0.0) for record in records)

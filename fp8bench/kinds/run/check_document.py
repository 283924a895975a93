"""A check as a document: the answer in a sentence, then a row a variant, what fails first."""

from collections.abc import Callable

from fp8bench.kinds.run.checked import Check, CheckedRow
from fp8bench.report.document import (
    NOTHING,
    CellKind,
    Column,
    Document,
    Emphasis,
    Letters,
    Lines,
    Note,
    Part,
    Sentence,
    Table,
    Tone,
    blocks,
    telling,
)
from fp8bench.report.written import gain_bounds, number, with_interval

NAMING_COLUMNS = 3


def document(check: Check) -> Document:
    """Machines get the check with every number unrounded, csv a line a variant."""
    letters = Letters()
    notes = Column("notes", tuple(_notes(row, letters) for row in check.rows), "note")
    emphasis: tuple[Emphasis, ...] = tuple("strong" if check.fails(row) else "" for row in check.rows)
    table = Table((*_columns(check), notes), naming=NAMING_COLUMNS, numbered=True, emphasis=emphasis)
    below: list[Part] = list(map(Note, letters.lines()))
    data = {**check.model_dump(mode="json"), "passed": check.exit_code == 0, "exit_code": check.exit_code}
    lines = Lines(
        tuple(CheckedRow.model_fields), tuple(tuple(row.model_dump(mode="json").values()) for row in check.rows)
    )
    held = Sentence(
        f"Session {', '.join(check.sessions)} against {check.reference}; a step may take {_allowed(check)} longer."
    )
    remedies: list[Part] = [Sentence(text) for text in _remedies(check)]
    return Document(blocks([Sentence(sentence(check)), held], [table], below, remedies), data=data, lines=lines)


def sentence(check: Check) -> str:
    """The answer: what failed, or that nothing did, and what is undecided."""
    failing = [row for row in check.rows if check.fails(row)]
    undecided = [row for row in check.of("inconclusive") if row not in failing]
    open_ = f"; inconclusive: {_names(undecided, check)}" if undecided else ""
    if not failing:
        passed = len(check.of("ok"))
        return f"Passed: {passed} of {len(check.rows)} variants take no more than {_allowed(check)} longer{open_}."
    kinds = dict.fromkeys(row.outcome for row in failing)
    parts = [f"{kind}: {_names([row for row in failing if row.outcome == kind], check)}" for kind in kinds]
    return f"Failed: {'; '.join(parts)}{open_}."


def _names(rows: list[CheckedRow], check: Check) -> str:
    return ", ".join(f"{_name(row, check)}{f', {_change(row)}' if row.outcome == 'regression' else ''}" for row in rows)


def _name(row: CheckedRow, check: Check) -> str:
    """The label, and the batch where it tells variants apart."""
    several = [other for other in check.rows if other.label == row.label]
    return row.label if len(several) == 1 else f"{row.label} at batch {row.batch_size} x {row.world_size}"


def _allowed(check: Check) -> str:
    return f"{check.max_regression * 100:.3g} %"


def _remedies(check: Check) -> list[str]:
    """What to do about it, where that is more than to look for the cause."""
    found = []
    if check.of("not comparable"):
        found.append("What is not comparable was not judged: measure a new reference, or give --allow-mismatch.")
    if check.of("inconclusive"):
        found.append("Inconclusive variants need more rounds (`fp8bench run --rounds`), here or in the reference.")
    if check.of("missing"):
        found.append("A reference that holds other hosts too has a folder of each: give --against that folder.")
    return found


def _columns(check: Check) -> list[Column]:
    rows = check.rows

    def column(heading: str, write: Callable[[CheckedRow], str], kind: CellKind = "quantity") -> Column:
        return Column(heading, tuple(map(write, rows)), kind)

    tones: tuple[Tone, ...] = tuple(_tone(row, check) for row in rows)
    works = {(row.workload, row.optimizer) for row in rows}
    return [
        column("instance", lambda r: r.instance, "word"),
        column("mode", lambda r: r.mode_label, "word"),
        *telling(column("execution", lambda r: r.execution or NOTHING, "word")),
        column("batch x GPUs", lambda r: f"{r.batch_size} x {r.world_size}"),
        *([column("work", lambda r: f"{r.workload}, {r.optimizer}", "word")] if len(works) > 1 else []),
        Column("outcome", tuple(row.outcome for row in rows), "verdict", tones=tones),
        column("step time, change (95 %)", _change, "interval"),
        column("now, ms", lambda r: with_interval(r.step_time_s, r.step_time_ci_s, ".1f", scale=1e3), "interval"),
        column(
            "reference, ms",
            lambda r: with_interval(r.reference_step_time_s, r.reference_step_time_ci_s, ".1f", scale=1e3),
            "interval",
        ),
        column("rounds", lambda r: f"{r.rounds or NOTHING} / {r.reference_rounds or NOTHING}"),
    ]


def _change(row: CheckedRow) -> str:
    change = number(row.change, "+.1f", scale=100, after=" %")
    if row.change_ci is None:
        return change
    return f"{change} ({gain_bounds(*row.change_ci, lambda end: f'{end * 100:+.1f}')})"


def _tone(row: CheckedRow, check: Check) -> Tone:
    if check.fails(row):
        return "bad"
    return "good" if row.outcome == "ok" else "doubtful" if row.outcome == "inconclusive" else ""


def _notes(row: CheckedRow, letters: Letters) -> str:
    texts = [*([row.reason] if row.reason else []), *row.marks]
    return " ".join(f"[{letters.of(text)}]" for text in texts)

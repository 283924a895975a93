"""A check as a document: the answer in a sentence, then a row for each variant, failures first."""

from fp8bench.kinds.run.check.result import Check, CheckedRow
from fp8bench.report import document as doc
from fp8bench.report.written import change, with_interval

NAMING_COLUMNS = 3


def document(check: Check) -> doc.Document:
    """Return the document. Its data has the check with every number unrounded, its csv a line for each variant."""
    letters = doc.Letters()
    notes = doc.Rows(check.rows).column("notes", lambda row: _notes(row, letters), "note")
    emphasis: tuple[doc.Emphasis, ...] = tuple("strong" if check.fails(row) else "" for row in check.rows)
    table = doc.Table((*_columns(check), notes), naming=NAMING_COLUMNS, numbered=True, emphasis=emphasis)
    data = {**check.model_dump(mode="json"), "passed": check.exit_code == 0, "exit_code": check.exit_code}
    against = doc.Sentence(
        f"Session {', '.join(check.sessions)} against {check.reference}; a step may take {_allowed(check)} longer."
    )
    return doc.Document(
        doc.blocks(
            [doc.Sentence(sentence(check)), against],
            [table],
            [*map(doc.Note, letters.lines())],
            [*map(doc.Sentence, _remedies(check))],
        ),
        data=data,
        lines=doc.CsvLines.of(CheckedRow, check.rows),
    )


def sentence(check: Check) -> str:
    """Return the answer: what failed, or that nothing did, and what is undecided."""
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
    """Return the label. If several variants have it, it is followed by the batch, and by the workload or optimizer if
    they differ in it.
    """
    several = [other for other in check.rows if other.label == row.label]
    if len(several) == 1:
        return row.label
    of_workload = [other for other in several if other.workload == row.workload]
    of = f" of {row.workload}" if of_workload != several else ""
    by = f" with {row.optimizer}" if len({other.optimizer for other in of_workload}) > 1 else ""
    return f"{row.label}{of}{by} at batch {row.batch_size} x {row.world_size}"


def _allowed(check: Check) -> str:
    return f"{check.max_regression * 100:.3g} %"


def _remedies(check: Check) -> list[str]:
    """Return what to do about it, if that is more than looking for the cause."""
    found = []
    if check.of("not comparable"):
        found.append("What is not comparable was not judged: measure a new reference, or give --allow-mismatch.")
    if check.of("inconclusive"):
        found.append("Inconclusive variants need more rounds (`fp8bench run --rounds`), here or in the reference.")
    if check.of("missing"):
        found.append("A reference that holds other hosts too has a folder of each: give --against that folder.")
    return found


def _columns(check: Check) -> list[doc.Column]:
    column = doc.Rows(check.rows).column
    works = {(row.workload, row.optimizer) for row in check.rows}
    return [
        column("instance", lambda r: r.instance, "word"),
        column("mode", lambda r: r.mode_label, "word"),
        *doc.telling(column("execution", lambda r: r.execution or doc.NOTHING, "word")),
        column("batch x GPUs", lambda r: f"{r.batch_size} x {r.world_size}"),
        *([column("work", lambda r: f"{r.workload}, {r.optimizer}", "word")] if len(works) > 1 else []),
        column("outcome", lambda r: r.outcome, "verdict", tone=lambda r: _tone(r, check)),
        column("step time, change (95 %)", _change, "interval"),
        column("now, ms", lambda r: with_interval(r.step_time_s, r.step_time_ci_s, ".1f", scale=1e3), "interval"),
        column(
            "reference, ms",
            lambda r: with_interval(r.reference_step_time_s, r.reference_step_time_ci_s, ".1f", scale=1e3),
            "interval",
        ),
        column("rounds", lambda r: f"{r.rounds or doc.NOTHING} / {r.reference_rounds or doc.NOTHING}"),
    ]


def _change(row: CheckedRow) -> str:
    return change(row.change, row.change_ci)


def _tone(row: CheckedRow, check: Check) -> doc.Tone:
    if check.fails(row):
        return "bad"
    return "good" if row.outcome == "ok" else "doubtful" if row.outcome == "inconclusive" else ""


def _notes(row: CheckedRow, letters: doc.Letters) -> str:
    texts = [*([row.reason] if row.reason else []), *row.marks]
    return " ".join(f"[{letters.of(text)}]" for text in texts)

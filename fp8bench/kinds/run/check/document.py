"""A check as a document: the answer in a sentence, then a row for each variant, failures first."""

from collections.abc import Sequence

from fp8bench.kinds.run.check.result import Check, CheckedRow
from fp8bench.tables import document as doc
from fp8bench.tables.written import change, number, with_interval

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


def plan(check: Check) -> doc.Document:
    """Return what these rounds can find, and how many find the limit: first in a sentence, then for each variant."""
    column, letters = doc.Rows(check.rows).column, doc.Letters()
    table = doc.Table(
        (
            *_naming(check),
            column("rounds", _rounds),
            column("finds from", lambda row: number(row.smallest_found, "+.1f", 100, " %")),
            column(f"rounds for {_allowed(check)}", lambda row: number(row.rounds_to_find, "d")),
            column("notes", lambda row: _notes(row, letters) if row.smallest_found is None else "", "note"),
        ),
        numbered=True,
        naming=NAMING_COLUMNS,
    )
    data = {**check.model_dump(mode="json"), "exit_code": check.plan_exit_code}
    return doc.Document(
        doc.blocks([doc.Sentence(plan_sentence(check))], [table], [*map(doc.Note, letters.lines())]),
        data=data,
        lines=doc.CsvLines.of(CheckedRow, check.rows),
    )


def sentence(check: Check) -> str:
    """Return the answer: what failed, else what is undecided, else that everything passed."""
    failing = [row for row in check.rows if check.fails(row)]
    undecided = check.of("inconclusive")
    if failing:
        kinds = dict.fromkeys(row.outcome for row in failing)
        parts = [f"{kind}: {_names([row for row in failing if row.outcome == kind], check)}" for kind in kinds]
        parts += [f"undecided: {_names(undecided, check)}"] if undecided else []
        return f"Failed: {'; '.join(parts)}."
    passed = f"{len(check.of('ok'))} of {len(check.rows)} variants take no more than {_allowed(check)} longer"
    if check.exit_code:
        open_ = _names(undecided, check) or "nothing was compared"
        return f"Undecided: {open_}; {passed}. {_power(undecided, check)}"
    return f"Passed: {passed}."


def plan_sentence(check: Check) -> str:
    """Return what the rounds of both sides can find. Its first word is the answer's if they can find nothing."""
    ran = [row for row in check.rows if row.rounds and row.reference_rounds]
    against = f"session {', '.join(check.sessions)} against {check.reference}"
    lacking = ", ".join(_name(row, check) for row in check.rows if row.smallest_found is None)
    unknown = f" Unknown of: {lacking}." if lacking else ""
    return f"{'Undecided' if check.plan_exit_code else 'Plan'}: {against}. {_power(ran, check)}{unknown}"


def _power(rows: Sequence[CheckedRow], check: Check) -> str:
    """Return the smallest slow-down that these rounds could have found in each of the rows, and how many more would
    find what is allowed.
    """
    known = [row.smallest_found for row in rows if row.smallest_found is not None]
    said = [f"These rounds find a slow-down of {max(known) * 100:.3g} % or more"] if known else []
    if len(known) < len(rows) or not rows:
        said.append(
            "nothing is found without an interval, which takes two rounds or more on either side "
            "(`fp8bench run --rounds`), of enough steps"
        )
    needed = [row.rounds_to_find for row in rows if row.smallest_found is not None]
    if None in needed:
        said.append(f"no number of rounds finds {_allowed(check)} reliably: processes differ too much")
    elif needed:
        said.append(f"{max(filter(None, needed))} on either side find {_allowed(check)}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _names(rows: Sequence[CheckedRow], check: Check) -> str:
    measured = ("regression", "inconclusive")
    return ", ".join(f"{_name(row, check)}{f', {_change(row)}' if row.outcome in measured else ''}" for row in rows)


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
    if check.of("inconclusive") and any(map(check.fails, check.rows)):
        found.append(f"Undecided variants: {_power(check.of('inconclusive'), check)}")
    if check.of("missing"):
        found.append("A reference that holds other hosts too has a folder of each: give --against that folder.")
    return found


def _naming(check: Check) -> list[doc.Cells]:
    column = doc.Rows(check.rows).column
    works = {(row.workload, row.optimizer) for row in check.rows}
    return [
        column("instance", lambda r: r.instance, "word"),
        column("mode", lambda r: r.mode_label, "word"),
        *doc.telling(column("execution", lambda r: r.execution or doc.NOTHING, "word")),
        column("batch x GPUs", lambda r: f"{r.batch_size} x {r.world_size}"),
        *([column("work", lambda r: f"{r.workload}, {r.optimizer}", "word")] if len(works) > 1 else []),
    ]


def _columns(check: Check) -> list[doc.Cells]:
    column = doc.Rows(check.rows).column
    return [
        *_naming(check),
        column("outcome", lambda r: r.outcome, "verdict", tone=lambda r: _tone(r, check)),
        column("step time, change (95 %)", _change, "interval"),
        column("now, ms", lambda r: with_interval(r.step_time_s, r.step_time_ci_s, ".1f", scale=1e3), "interval"),
        column(
            "reference, ms",
            lambda r: with_interval(r.reference_step_time_s, r.reference_step_time_ci_s, ".1f", scale=1e3),
            "interval",
        ),
        column("rounds", _rounds),
    ]


def _rounds(row: CheckedRow) -> str:
    return f"{row.rounds or doc.NOTHING} / {row.reference_rounds or doc.NOTHING}"


def _change(row: CheckedRow) -> str:
    return change(row.change, row.change_ci)


def _tone(row: CheckedRow, check: Check) -> doc.Tone:
    if check.fails(row):
        return "bad"
    return "good" if row.outcome == "ok" else "doubtful" if row.outcome == "inconclusive" else ""


def _notes(row: CheckedRow, letters: doc.Letters) -> str:
    texts = [*([row.reason] if row.reason else []), *row.marks]
    return " ".join(f"[{letters.of(text)}]" for text in texts)

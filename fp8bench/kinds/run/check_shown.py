"""A check for its reader: the answer in a sentence, and a row for each variant, failures first; and in file formats.

JUnit XML (junit-10.xsd of Jenkins' xUnit plugin): a test case for each variant. A variant that fails is a failure, one
that did not run an error, and one that is not judged is skipped.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree

from fp8bench.kinds.run.check import Check, CheckedRow
from fp8bench.schema.errors import inert
from fp8bench.tables import document as doc
from fp8bench.tables.render import render
from fp8bench.tables.written import change, number, with_interval

SUITE = "fp8bench check"


def document(check: Check) -> doc.Document:
    """Return the document. Its data has the check with every number unrounded, its csv a line for each variant."""
    column = doc.Rows(check.rows).column

    def tone(row: CheckedRow) -> doc.Tone:
        decided: doc.Tone = "good" if row.outcome == "ok" else "doubtful" if row.outcome == "inconclusive" else ""
        return "bad" if check.fails(row) else decided

    columns = (
        column("outcome", lambda r: r.outcome, "verdict", tone=tone),
        column("step time, change (95 %)", lambda r: change(r.change, r.change_ci), "interval"),
        column("now, ms", lambda r: with_interval(r.step_time_s, r.step_time_ci_s, ".1f", scale=1e3), "interval"),
        column(
            "reference, ms",
            lambda r: with_interval(r.reference_step_time_s, r.reference_step_time_ci_s, ".1f", scale=1e3),
            "interval",
        ),
        column("rounds", _rounds),
    )
    allowed = _allowed(check)
    against = f"Session {', '.join(check.sessions)} against {check.reference}; a step may take {allowed} longer."
    undecided = check.of("inconclusive")
    remedies = doc.notes(
        (
            check.of("not comparable"),
            "What is not comparable was not judged: measure a new reference, or give --allow-mismatch.",
        ),
        (undecided and any(map(check.fails, check.rows)), f"Undecided variants: {_power(undecided, check)}"),
        (
            check.of("missing"),
            "A reference that holds other hosts too has a folder of each: give --against that folder.",
        ),
    )
    said = [sentence(check), against], [note.text for note in remedies]
    code = check.exit_code
    return _document(check, *said, columns, lambda _row: True, passed=code == 0, exit_code=code)


def plan(check: Check) -> doc.Document:
    """Return what these rounds can find, and how many find the limit."""
    column = doc.Rows(check.rows).column
    columns = (
        column("rounds", _rounds),
        column("finds from", lambda row: number(row.smallest_found, "+.1f", 100, " %")),
        column(f"rounds for {_found(check)}", lambda row: number(row.rounds_to_find, "d")),
    )
    unknown = [plan_sentence(check)], ()
    return _document(check, *unknown, columns, lambda row: row.smallest_found is None, exit_code=check.plan_exit_code)


def _document(
    check: Check,
    above: Sequence[str],
    below: Sequence[str],
    columns: Sequence[doc.Cells],
    noted: Callable[[CheckedRow], bool],
    **data: object,
) -> doc.Document:
    column, letters = doc.Rows(check.rows).column, doc.Letters()

    def notes(row: CheckedRow) -> str:
        texts = [*([row.reason] if row.reason else []), *row.marks] if noted(row) else []
        return " ".join(f"[{letters.of(text)}]" for text in texts)

    works = {(row.workload, row.optimizer) for row in check.rows}
    naming = [
        column("instance", lambda r: r.instance, "word"),
        column("mode", lambda r: r.mode_label, "word"),
        *doc.telling(column("execution", lambda r: r.execution or doc.NOTHING, "word")),
        column("batch x GPUs", lambda r: f"{r.batch_size} x {r.world_size}"),
        *([column("work", lambda r: f"{r.workload}, {r.optimizer}", "word")] if len(works) > 1 else []),
    ]
    emphasis: tuple[doc.Emphasis, ...] = tuple("strong" if check.fails(row) else "" for row in check.rows)
    table = doc.Table((*naming, *columns, column("notes", notes, "note")), 3, numbered=True, emphasis=emphasis)
    return doc.Document(
        doc.blocks(
            [*map(doc.Sentence, above)], [table], [*map(doc.Note, letters.lines())], [*map(doc.Sentence, below)]
        ),
        data={**check.model_dump(mode="json"), **data},
        lines=doc.CsvLines.of(CheckedRow, check.rows),
    )


def sentence(check: Check) -> str:
    """Return the answer: what failed, else what is undecided, else that everything passed; and what was tested."""
    word, colon, rest = _judged(check).partition(":")
    tested = f" with {', '.join(check.under_test)}" if check.under_test else ""
    return f"{word}{tested}{colon}{rest}"


def _judged(check: Check) -> str:
    failing = [row for row in check.rows if check.fails(row)]
    undecided = check.of("inconclusive")
    if failing:
        outcomes = dict.fromkeys(row.outcome for row in failing)
        parts = [f"{one}: {_names([row for row in failing if row.outcome == one], check)}" for one in outcomes]
        parts += [f"undecided: {_names(undecided, check)}"] if undecided else []
        return f"Failed: {'; '.join(parts)}."
    passed = f"{len(check.of('ok'))} of {len(check.rows)} variants take no more than {_allowed(check)} longer"
    if check.exit_code:
        which = _names(undecided, check) or "nothing was compared"
        return f"Undecided: {which}; {passed}. {_power(undecided, check)}"
    return f"Passed: {passed}."


def plan_sentence(check: Check) -> str:
    """Return what the rounds of both sides can find."""
    ran = [row for row in check.rows if row.rounds and row.reference_rounds]
    lacking = ", ".join(_name(row, check) for row in check.rows if row.smallest_found is None)
    return (
        f"{'Undecided' if check.plan_exit_code else 'Plan'}: session {', '.join(check.sessions)} against "
        f"{check.reference}. {_power(ran, check)}{f' Unknown of: {lacking}.' if lacking else ''}"
    )


def _power(rows: Sequence[CheckedRow], check: Check) -> str:
    known = [row for row in rows if row.smallest_found is not None]
    least = max((row.smallest_found or 0.0 for row in known), default=None)
    said = [] if least is None else [f"These rounds find a slow-down of {least * 100:.3g} % or more"]
    if len(known) < len(rows) or not rows:
        said.append(
            f"{'n' if said else 'N'}othing is found without an interval, which takes two rounds or more on either side "
            "(`fp8bench run --rounds`), of enough steps"
        )
    if any(row.rounds_to_find is None for row in known):
        said.append(f"no number of rounds finds {_found(check)} reliably: processes differ too much")
    elif known:
        said.append(f"{max(row.rounds_to_find or 0 for row in known)} on either side find {_found(check)}")
    return f"{'; '.join(said)}."


def _names(rows: Sequence[CheckedRow], check: Check) -> str:
    measured = ("regression", "inconclusive")
    names = ((_name(row, check), row) for row in rows)
    return ", ".join(
        f"{name}, {change(row.change, row.change_ci)}" if row.outcome in measured else name for name, row in names
    )


def _name(row: CheckedRow, check: Check) -> str:
    several = [other for other in check.rows if other.label == row.label]
    return row.label if len(several) == 1 else _long_name(row)


def _long_name(row: CheckedRow) -> str:
    optimizer = f", {row.optimizer}" if row.optimizer else ""
    return f"{row.label} ({row.workload}, batch {row.batch_size} x {row.world_size}{optimizer})"


def _allowed(check: Check) -> str:
    return f"{check.max_regression * 100:.3g} %"


def _found(check: Check) -> str:
    """Return the slow-down that is found with an interval no wider than what is allowed: it lies beyond that by it."""
    return f"{2 * check.max_regression * 100:.3g} %"


def _rounds(row: CheckedRow) -> str:
    return f"{row.rounds or doc.NOTHING} / {row.reference_rounds or doc.NOTHING}"


def _by_name(check: Check) -> dict[str, CheckedRow]:
    found: dict[str, list[CheckedRow]] = {}
    for row in check.rows:
        found.setdefault(inert(_long_name(row)), []).append(row)
    return {f"{name} [{row.attention}]" if len(rows) > 1 else name: row for name, rows in found.items() for row in rows}


def _junit(check: Check) -> str:

    def tag(row: CheckedRow) -> str:
        if not check.fails(row):
            return "" if row.outcome == "ok" else "skipped"
        return "error" if row.outcome in ("failed", "missing") else "failure"

    tags = Counter(map(tag, check.rows))
    counts = {"failures": tags["failure"], "errors": tags["error"], "skipped": tags["skipped"]}
    shown = {name: str(count) for name, count in {"tests": len(check.rows), **counts}.items()}
    suites = ElementTree.Element("testsuites", shown)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": SUITE, **shown})
    for name, row in _by_name(check).items():
        case = ElementTree.SubElement(suite, "testcase", {"classname": _xml(row.instance), "name": _xml(name)})
        if row.step_time_s is not None:
            case.set("time", f"{row.step_time_s:.9f}")
        if tag(row):
            outcome = {} if tag(row) == "skipped" else {"type": row.outcome}
            ElementTree.SubElement(case, tag(row), {"message": _xml(_message(row)), **outcome})
    ElementTree.SubElement(suite, "system-out").text = _xml(sentence(check))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode")


def _message(row: CheckedRow) -> str:
    """Return e.g. `regression: step time +12.3 % (+11.0 to +13.6)`, with the reason."""
    longer = "" if row.change is None else f"step time {change(row.change, row.change_ci)}"
    outcome = "undecided" if row.outcome == "inconclusive" else row.outcome
    return inert(f"{outcome}: {'; '.join(filter(None, (longer, row.reason, *row.marks)))}")


def _xml(text: str) -> str:
    return re.sub("[\ufffe\uffff]", "\ufffd", inert(text))


EXPORTS: Mapping[str, Callable[[Check], str]] = {
    "junit": _junit,
    "csv": lambda check: render(document(check), "csv"),
    "markdown": lambda check: render(document(check), "markdown"),
    "json": lambda check: render(document(check), "json"),
}
"""Exports by the name that `--export` takes; each returns the text of one file."""

"""A check for its reader: the answer and a row for each variant, also as JUnit XML (junit-10.xsd of Jenkins' xUnit
plugin); and rounds that are added to a session until a check of it decides (`fp8bench run --until-decided`).
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from fp8bench.kinds.run.check import Check, CheckedRow, check
from fp8bench.kinds.run.sessions import find, read
from fp8bench.records.select import Filter, grouped
from fp8bench.schema.errors import UsageError, inert
from fp8bench.schema.execution import executed
from fp8bench.tables import document as doc
from fp8bench.tables.render import render
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import change


def _rounds(row: CheckedRow) -> str:
    return f"{row.rounds or doc.NOTHING} / {row.reference_rounds or doc.NOTHING}"


def document(check: Check) -> doc.Document:
    """Return the document. Its data has the check with every number unrounded, its csv a line for each variant."""

    def tone(row: CheckedRow) -> doc.Tone:
        decided: doc.Tone = "good" if row.outcome == "ok" else "doubtful" if row.outcome == "inconclusive" else ""
        return "bad" if check.fails(row) else decided

    ms = partial(Column[CheckedRow], format=".1f", scale=1e3)
    columns: tuple[Column[CheckedRow], ...] = (
        Column("outcome", lambda row: row.outcome, kind="verdict", tone=tone),
        Column("step time, change (95 %)", lambda row: change(row.change, row.change_ci), str),
        ms("now, ms", lambda row: row.step_time_s, interval=lambda row: row.step_time_ci_s),
        ms("reference, ms", lambda row: row.reference_step_time_s, interval=lambda row: row.reference_step_time_ci_s),
        Column("rounds", _rounds, str),
    )
    undecided, code, below = check.of("inconclusive"), check.exit_code, list[str]()
    if check.of("not comparable"):
        below.append("What is not comparable was not judged: measure a new reference, or give --allow-mismatch.")
    if undecided and any(map(check.fails, check.rows)):
        below.append(f"Undecided variants: {_power(undecided, check)}")
    if check.of("missing"):
        below.append("A reference that holds other hosts too has a folder of each: give --against that folder.")
    sessions = f"Session {', '.join(check.sessions)} against {check.reference}"
    above = [sentence(check), f"{sessions}; a step may take {_percent(check.max_regression)} longer."]
    return _document(check, columns, above, below, lambda _row: True, {"passed": code == 0, "exit_code": code})


def plan(check: Check) -> doc.Document:
    """Return what these rounds can find, and how many find the limit."""
    columns: tuple[Column[CheckedRow], ...] = (
        Column("rounds", _rounds, str),
        Column("finds from", lambda row: row.smallest_found, "+.1f", scale=100, after=" %"),
        Column(f"rounds for {_percent(2 * check.max_regression)}", lambda row: row.rounds_to_find, "d"),
    )
    data = {"exit_code": check.plan_exit_code}
    return _document(check, columns, [plan_sentence(check)], (), lambda row: row.smallest_found is None, data)


def _document(
    check: Check,
    columns: Sequence[Column[CheckedRow]],
    above: Sequence[str],
    below: Sequence[str],
    noted: Callable[[CheckedRow], bool],
    data: Mapping[str, object],
) -> doc.Document:
    rows, letters = check.rows, doc.Letters()

    def notes(row: CheckedRow) -> str:
        texts = [*([row.reason] if row.reason else []), *row.marks] if noted(row) else []
        return " ".join(f"[{letters.of(text)}]" for text in texts)

    naming: list[Column[CheckedRow]] = [
        word("instance", lambda row: row.instance),
        word("mode", lambda row: row.switched_label),
        word("execution", lambda row: executed(row.execution) or None),
        Column("batch x GPUs", lambda row: f"{row.batch_size} x {row.world_size}", str),
    ]
    if len({(row.workload, row.optimizer) for row in rows}) > 1:
        naming.append(word("work", lambda row: f"{row.workload}, {row.optimizer}"))
    every = [*naming, *columns, Column("notes", notes, kind="note")]
    table = table_of(every, rows, 2, lambda row: "strong" if check.fails(row) else "", numbered=True)
    blocks = doc.blocks(
        [*map(doc.Sentence, above)],
        [table],
        [*map(doc.Note, letters.lines())],
        [*map(doc.Sentence, below)],
    )
    return doc.Document(blocks, {**check.model_dump(mode="json"), **data}, doc.CsvLines.of(CheckedRow, rows))


def sentence(check: Check) -> str:
    """Return the answer: what failed, else what is undecided, else that everything passed; and what was tested."""
    failing, undecided = [row for row in check.rows if check.fails(row)], check.of("inconclusive")
    passed = f"{len(check.of('ok'))} of {len(check.rows)} variants take no more than "
    passed += f"{_percent(check.max_regression)} longer"
    if failing:
        outcomes = dict.fromkeys(row.outcome for row in failing)
        parts = [f"{one}: {_names([row for row in failing if row.outcome == one], check)}" for one in outcomes]
        word, said = "Failed", "; ".join([*parts, *([f"undecided: {_names(undecided, check)}"] if undecided else [])])
    elif check.exit_code:
        word, said = "Undecided", f"{_names(undecided, check) or 'nothing was compared'}; {passed}"
    else:
        word, said = "Passed", passed
    tested = f" with {', '.join(check.under_test)}" if check.under_test else ""
    return f"{word}{tested}: {said}.{f' {_power(undecided, check)}' if word == 'Undecided' else ''}"


def plan_sentence(check: Check) -> str:
    ran = [row for row in check.rows if row.rounds and row.reference_rounds]
    word = "Undecided" if check.plan_exit_code else "Plan"
    return f"{word}: session {', '.join(check.sessions)} against {check.reference}. {_power(ran, check)}"


def _power(rows: Sequence[CheckedRow], check: Check) -> str:
    known = [row for row in rows if row.smallest_found is not None]
    # What is found has an interval no wider than what is allowed, and lies beyond that by it.
    found = _percent(2 * check.max_regression)
    least = max((row.smallest_found or 0.0 for row in known), default=None)
    said = [] if least is None else [f"These rounds find a slow-down of {_percent(least)} or more"]
    if len(known) < len(rows) or not rows:
        said.append(
            f"{'n' if said else 'N'}othing is found without an interval, which takes two rounds or more on either side "
            "(`fp8bench run --rounds`), of enough steps"
        )
    if any(row.rounds_to_find is None for row in known):
        said.append(f"no number of rounds finds {found} reliably: processes differ too much")
    elif known:
        said.append(f"{max(row.rounds_to_find or 0 for row in known)} on either side find {found}")
    return f"{'; '.join(said)}."


def _names(rows: Sequence[CheckedRow], check: Check) -> str:
    labels, told = Counter(map(_name, check.rows)), []
    for row in rows:
        by = f", {change(row.change, row.change_ci)}" if row.outcome in ("regression", "inconclusive") else ""
        told.append((_name(row) if labels[_name(row)] == 1 else _long_name(row)) + by)
    return ", ".join(told)


def _name(row: CheckedRow) -> str:
    return f"{row.instance}:{row.variant_label}"


def _long_name(row: CheckedRow) -> str:
    optimizer = f", {row.optimizer}" if row.optimizer else ""
    return f"{_name(row)} ({row.workload}, batch {row.batch_size} x {row.world_size}{optimizer})"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _junit(check: Check) -> str:
    def tag(row: CheckedRow) -> str:
        if not check.fails(row):
            return "" if row.outcome == "ok" else "skipped"
        return "error" if row.outcome in ("failed", "missing") else "failure"

    tags, names = Counter(map(tag, check.rows)), grouped(check.rows, _long_name)
    counts = {"failures": tags["failure"], "errors": tags["error"], "skipped": tags["skipped"]}
    shown = {name: str(count) for name, count in {"tests": len(check.rows), **counts}.items()}
    suites = ElementTree.Element("testsuites", shown)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "fp8bench check", **shown})
    # Rows of one name differ in their attention, and stand together.
    for name, row in ((name, row) for name, rows in names.items() for row in rows):
        several = f" [{row.attention}]" if len(names[name]) > 1 else ""
        named = {"classname": _xml(row.instance), "name": _xml(f"{inert(name)}{several}")}
        case = ElementTree.SubElement(suite, "testcase", named)
        if row.step_time_s is not None:
            case.set("time", f"{row.step_time_s:.9f}")
        if tag(row):
            longer = "" if row.change is None else f"step time {change(row.change, row.change_ci)}"
            outcome = "undecided" if row.outcome == "inconclusive" else row.outcome
            message = f"{outcome}: {'; '.join(filter(None, (longer, row.reason, *row.marks)))}"
            kind = {} if tag(row) == "skipped" else {"type": row.outcome}
            ElementTree.SubElement(case, tag(row), {"message": _xml(message), **kind})
    ElementTree.SubElement(suite, "system-out").text = _xml(sentence(check))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode")


def _xml(text: str) -> str:
    return re.sub("[\ufffe\uffff]", "\ufffd", inert(text))


def exported(check: Check, form: str) -> str:
    """Return the text of one file. form: one of EXPORTS, which `--export` takes."""
    return _junit(check) if form == "junit" else render(document(check), form)


EXPORTS = ("junit", "csv", "markdown", "json")


@dataclass(frozen=True)
class UntilDecided:
    """What the session is held against. reference: a folder of results. max_regression: as in `Check`. limit_s: for all
    rounds of this call, in seconds. Raises UsageError for a reference in which nothing ran.
    """

    reference: Path
    max_regression: float
    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        remedy = "Give a folder of results, as for `fp8bench check --against`"
        if not self.reference.is_dir():
            raise UsageError(f"--until-decided {self.reference} is no folder", remedy)
        if not Filter(source="measured", status="ok").of(record for record, _ in read(self.reference)):
            raise UsageError(f"--until-decided {self.reference} has no measurement that ran", remedy)

    def undecided(self, results_dir: Path, session: str) -> str:
        """Return the undecided variants in a sentence, if any; not those that the reference measured in one round."""
        sides = find(results_dir, session, str(self.reference), lambda _broken: None)
        found = check(sides, self.max_regression, allow_mismatch=True)
        left = tuple(row for row in found.of("inconclusive") if row.reference_rounds > 1)
        return sentence(found.model_copy(update={"rows": left})) if left else ""

    def of(self, results_dir: Path, session: str, say: Callable[[str], None]) -> Callable[[int], bool]:
        """Return a function that takes the rounds of this call and returns whether another is run: something is
        undecided, and as much time is left as a round took so far. say: takes the reason.
        """

        def undecided(rounds: int) -> bool:
            spent_s = time.monotonic() - self.began_s
            if spent_s + spent_s / max(rounds, 1) > self.limit_s or not (left := self.undecided(results_dir, session)):
                return False
            say(f"more rounds. {left}")
            return True

        return undecided

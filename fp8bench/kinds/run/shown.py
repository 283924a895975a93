"""A comparison of runs as a document: a table of 80 characters that answers, or a table of columns with short marks in
its rows and letters for the rest; the answer in sentences; and notes, those first that would change a decision.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from textwrap import shorten
from typing import TypeVar

from fp8bench.kinds.kind import AS_IT_IS, Named, View
from fp8bench.kinds.run.answer import ROUNDED, Comparison
from fp8bench.kinds.run.columns import COLUMNS, EVERY, NOTES, OF_A_BUDGET, OF_A_JOB, RowColumn, tone, units_of, word
from fp8bench.kinds.run.rounds import Mark, Weight
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.sentences import as_json, sentences
from fp8bench.records.select import grouped
from fp8bench.schema.execution import executed
from fp8bench.schema.record import PROOF_VERSION
from fp8bench.stats.certainty import VerdictOn
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, table_of
from fp8bench.tables.written import change, counted, half_width, number, workers

MOST_NOTES = 3
"""Below a table, unless all are asked for."""

FEW_INSTANCES, FEW_ROWS = 2, 16
"""Up to which a table that answers shows every row: it fits a screen, or the question is which mode."""

CERTAIN = "*"
TWO_MACHINES = re.compile(r"(?<=[:,] )machine \(.+?, reference (?:[^()]|\([^)]*\))+\)")
"""In the reason of a row without a gain: what each is called, for programs."""

NOT_MEASURED = {
    "same-gpu": ("~", "steps of the same GPU on {}, interval wider by 4 %"),
    "predicted": ("≈", "predicted from {}, interval wider by the model's error"),
}


def document(*comparisons: Comparison, view: View = AS_IT_IS, every_row: bool = False) -> doc.Document:
    """Return one table for each of the comparisons, at least one. The data has every field of every `Row`. every_row:
    whether a table that answers shows those too that its answer does not need.
    """
    in_columns, letters = view.wide or bool(view.columns), doc.Letters()
    rows: list[Row] = []
    tables: list[list[doc.Part]] = []
    for one in comparisons:
        some = one.rows if in_columns or every_row else tuple(_told(one, view.notes or bool(view.gpus)))
        rows += some
        tables.append([*([doc.Heading(one.name)] if one.name else []), _table(some, letters, view)])
        if not in_columns:
            left = len(one.rows) - len(some)
            tables[-1] += map(doc.Note, _signs(some))
            if left:
                tables[-1].append(doc.Note(f"{counted(left, 'more row')}: --wide"))
    # The answer is of all rows.
    said = [doc.Sentence(text) for one in comparisons for text in sentences(one)]
    above = [doc.Heading("All of these rows")] if said and len(tables) > 1 else []
    of_all = [Mark(text, Weight.OF_ALL) for text in _of_all(rows, view)]
    below = [(mark, row) for row in rows for mark in _in_row_and_below(row)[1]]
    lines = [*letters.lines(), *of_all] if in_columns else notes(rows, below, of_all, view.notes)
    warnings = dict.fromkeys(warning for one in comparisons for warning in one.warnings)
    tables += [[*above, *said], [*map(doc.Note, lines), *map(doc.Warned, warnings)]]
    every, answers = tuple(row for one in comparisons for row in one.rows), [as_json(one) for one in comparisons]
    answer = answers if comparisons[0].name else answers[0]
    tables[0][:0] = [doc.Hint(one.hint) for one in comparisons if one.hint]
    return doc.Document(doc.blocks(*tables), data=every, answer=answer, lines=doc.CsvLines.of(Row, every))


def _told(comparison: Comparison, predicted: bool) -> Iterator[Row]:
    """Yield the rows of the table that answers: all, but of many rows of several instances those that the answer names,
    the best of each instance, the best of the reference's mode there, and those that failed. predicted: whether
    predicted ones are shown also where every instance has published ones.
    """
    rows, answer = comparison.rows, comparison.answer
    few = len({row.instance for row in rows}) <= FEW_INSTANCES or len(rows) <= FEW_ROWS
    published = {row.instance for row in rows if row.status == "ok" and not row.timed}
    answered = not predicted and published >= {row.instance for row in rows}
    pairs = [*answer.told, *answer.at_best, *(of.pair for of in answer.modes)]
    named = {row.run_id for pair in pairs for row in (pair.row, pair.reference)}
    base = {row.mode for row in rows if row.is_reference}
    seen: set[tuple[object, ...]] = set()
    for row in rows:
        if answered and row.source == "predicted" and row.run_id not in named:
            continue
        best = {(row.instance, row.timed), (row.instance, row.timed, row.mode in base)} - seen
        seen |= best
        if few or row.is_reference or row.status != "ok" or row.run_id in named or best:
            yield row


def _signs(rows: Sequence[Row]) -> Iterator[str]:
    if any(row.decided for row in rows):
        yield f"{CERTAIN} certain: the whole interval on one side, and 4 % more between machines"
    labels = {row.machine: row.machine_label for row in rows}
    for (key, machine), sign in further_machines(rows).items():
        called = " ".join(filter(None, (labels[machine], machine))) or "unknown"
        yield f"{sign} another machine of {key}: {called}"
    for source, (sign, words) in NOT_MEASURED.items():
        where = ", ".join(dict.fromkeys(row.measured_on for row in rows if row.source == source and row.measured_on))
        if where:
            yield f"{sign} not measured there: {words.format(where)}"


def _table(rows: Sequence[Row], letters: doc.Letters, view: View) -> doc.Table:
    def remark(row: Row) -> str:
        words, long = _in_row_and_below(row, in_row=True)
        return " ".join([", ".join(words), *(f"[{letters.of(text)}]" for text in long)]).strip()

    def emphasis(row: Row) -> doc.Emphasis:
        return "strong" if row.is_reference else "" if row.status == "ok" else "faint"

    if not view.wide and not view.columns:
        named = [*naming(rows)]
        return table_of([*named, *brief_columns(rows)], rows, len(named), emphasis, every=True, whole=True)
    every = {**EVERY, NOTES: RowColumn(NOTES, remark, kind="note")}
    if view.columns:
        columns: list[Column[Row]] = [every[name] for name in view.columns]
        if not {"instance", "mode"} & {*view.columns}:
            columns[:0] = [one for one in naming(rows) if one.heading.lower() not in view.columns]
        return table_of(columns, rows, 1, emphasis, every=True, whole=True)
    left_out = ("gpus", *(OF_A_JOB if rows[0].job_units is None else ()))
    # What matters most precedes all other numbers, because a narrow terminal divides it.
    wide = [every[name] for name in (*COLUMNS, NOTES) if name not in left_out]
    return table_of(wide, rows, 2, emphasis, numbered=True)


def naming(rows: Sequence[Row]) -> Iterator[Column[Row]]:
    """Yield the columns that tell each row from the others."""
    yield word("mode", lambda row: name_of(row, rows))
    instances, others = len({row.instance for row in rows}), further_machines(rows)
    if instances > 1 or others:
        sign = {of: f"{of[0]} {sign}" for of, sign in others.items()}
        yield replace(COLUMNS["instance"], cell=lambda row: sign.get((row.instance, row.machine), row.instance))
    workers = len({(row.instance, row.world_size) for row in rows}) > instances
    if len({row.batch_size for row in rows}) > 1:
        size = "{0.batch_size} x {0.world_size}" if workers else "{0.batch_size}"
        yield RowColumn("batch", size.format, str)
    elif workers:
        yield COLUMNS["gpus"]


def further_machines(rows: Sequence[Row]) -> dict[tuple[str, str | None], str]:
    """Return a sign of each machine of an instance, but of that with most rows, by instance and machine; none where
    mode, batch size and number of GPUs tell each row from the others.
    """
    alike = grouped(rows, lambda row: (name_of(row, rows), row.instance, row.batch_size, row.world_size))
    if all(len({row.machine for row in same}) == 1 for same in alike.values()):
        return {}
    machines = {key: Counter(row.machine for row in of) for key, of in grouped(rows, attrgetter("instance")).items()}
    return {
        (key, machine): f"#{place}"
        for key, of in machines.items()
        for place, (machine, _) in enumerate(of.most_common()[1:], 2)
    }


def brief_columns(rows: Sequence[Row]) -> Iterator[Column[Row]]:
    """Yield the columns of the table that answers, but those that name a row."""
    column = partial(RowColumn, format=str)
    priced = any(row.units_per_usd is not None for row in rows)
    faster = column("faster", lambda row: _faster(row, priced), tone=None if priced else tone)
    if rows[0].budget_usd is not None:
        first, takes, needed = OF_A_BUDGET.values()
        others = [takes, *([needed] if any(row.budget_instances for row in rows) else [])]
    elif rows[0].job_units is not None:
        first, *others = (*(COLUMNS[name] for name in OF_A_JOB), faster)
    else:
        first, *others = (column("step", _step), faster, *([_per_usd(rows)] if priced else []))
    yield replace(first, cell=lambda row: NOT_MEASURED.get(row.source, ("", ""))[0] + first.text(row))
    yield from others
    if priced:
        yield column("per USD", _gain, tone=tone)


def _faster(row: Row, priced: bool) -> str:
    if row.is_reference and not priced:
        return "reference"
    return number(row.speedup_vs_reference, ".2f", after="x") + _sign(row, "throughput")


def _per_usd(rows: Sequence[Row]) -> RowColumn:
    least = min((row.units_per_usd for row in rows if row.units_per_usd), default=0.0)
    scale, letter = (1e-6, " M") if least >= 1e7 else (1e-3, " k") if least >= 1e4 else (1.0, "")
    units = units_of(rows)
    short = {"images": "img", "tokens": "tok"}.get(units, units) if letter else units

    def value(row: Row) -> str:
        form = ".3g" if (row.units_per_usd or 0.0) * scale < 100 else ",.0f"
        return number(row.units_per_usd, form, scale, letter)

    return RowColumn(f"{short}/USD", value, str)


def name_of(row: Named, rows: Sequence[Named]) -> str:
    """Return what tells the row from the others, apart from instance and batch size."""
    words = [row.short_label]
    others = {one.execution for one in rows if one.mode_label == row.mode_label} - {row.execution, None}
    if row.execution is not None and others:
        # The first word that tells it from the mode's other executions, else what `--reference` calls it.
        alone = [part for part in row.execution.split("+") if all(part not in str(one).split("+") for one in others)]
        words.append(executed(alone[0]) if alone else row.execution)
    if row.grad_accumulation and len({one.grad_accumulation for one in rows if one.grad_accumulation}) > 1:
        words.append(counted(row.grad_accumulation, "micro-batch", "micro-batches"))
    if row.derived or (len({one.origin for one in rows}) > 1 and not row.timed):
        words.append(row.origin)
    words += ["emulated"] if row.emulated else []
    words += getattr(row, "apart", ())
    words += [] if row.fits else ["may not fit"]
    return ", ".join(words)


def _step(row: Row) -> str:
    """Write e.g. `346.3 ms ±0.2 %`, half the interval's width; or why there is none."""
    if row.step_time_s is None:
        return row.outcome if row.status != "ok" else doc.NOTHING
    ms, ends = row.step_time_s * 1e3, row.step_time_ci_s
    written = f"{ms:,.0f} ms" if ms >= 1000 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.3g} ms"
    return written + half_width(ends, row.step_time_s)


def _gain(row: Row) -> str:
    if row.is_reference:
        return "reference"
    if row.derived and row.gain_vs_reference is not None and abs(row.gain_vs_reference) <= ROUNDED:
        return "none"
    return change(row.gain_vs_reference, None) + _sign(row, "units_per_usd")


def _sign(row: Row, of: VerdictOn) -> str:
    return f" {CERTAIN}" if row.verdict_on == of and row.decided else ""


NamedT = TypeVar("NamedT", bound=Named)


def notes(
    rows: Sequence[NamedT], marks: Iterable[tuple[Mark, NamedT]], about_all: Sequence[Mark], every: bool
) -> list[str]:
    """Return lines of notes, those that weigh most first. marks: each with its row. about_all: on the table. every:
    whether all are wanted.
    """
    found = grouped(marks, lambda one: one[0])
    instances, sizes = len({row.instance for row in rows}), len({row.batch_size for row in rows}) > 1
    counts = len({(row.instance, row.world_size) for row in rows}) > instances

    def called(row: NamedT) -> str:
        of = [row.instance if instances > 1 else "", workers(row.world_size, row.device) if counts else ""]
        return " ".join(filter(None, (name_of(row, rows), *of, str(row.batch_size or "") if sizes else "")))

    def told(named: Sequence[NamedT]) -> str:
        if len(named) == len(rows) > 1:
            return "Every row"
        if len(named) > 2:
            return counted(len(named), "row")
        return " and ".join(map(called, named))

    ranked = [(mark.weight, f"{told([row for _, row in of])}: {mark}") for mark, of in found.items()]
    ranked += [(mark.weight, mark) for mark in about_all]
    ranked.sort(key=lambda one: one[0])
    if every:
        return [text for _, text in ranked]
    more = [f"{counted(len(ranked) - MOST_NOTES, 'more note')}: --notes"] if len(ranked) > MOST_NOTES else []
    lines = [(text, 80 if weight == Weight.ASIDE else 160) for weight, text in ranked[:MOST_NOTES]]
    return [shorten(text, most, placeholder=" ... (--notes)") for text, most in lines] + more


def _in_row_and_below(row: Row, in_row: bool = False) -> tuple[list[str], list[Mark]]:
    # in_row: whether short marks stand in the row.
    words = [] if row.status == "ok" else [row.outcome]
    below = [] if row.reason is None else [Mark(row.reason, Weight.NOT_RUN)]
    # A brief table names the row by what tells it from others.
    for full in row.marks if in_row else (mark for mark in row.marks if mark not in row.apart):
        mark = Mark(TWO_MACHINES.sub("another machine", full), full.weight)
        fits = in_row and len(mark) <= 24 and len(", ".join([*words, mark])) <= 48
        words += [mark] if fits else []
        below += [] if fits else [mark]
    if row.pareto:
        words.append("Pareto")
    if row.verdict == "inconclusive" and row.verdict_why:
        below.append(Mark(f"inconclusive: {row.verdict_why}", row.verdict_why.weight))
    return words, below


def _of_all(rows: Sequence[Row], view: View) -> Iterator[str]:
    proved = [row for row in rows if row.proof_version is not None]
    older = [row for row in proved if (row.proof_version or 0) < PROOF_VERSION]
    versions = ", ".join(map(str, sorted({row.proof_version or 1 for row in older})))
    some = ", ".join(dict.fromkeys(row.label for row in older)) if len(older) <= 3 else f"{len(older)} rows"
    which = "Every measured row was" if len(older) == len(proved) else f"{some}:"
    machines = dict.fromkeys((row.instance, row.machine) for row in rows if row.status == "ok" and row.machine)
    several = Counter(instance for instance, _ in machines)
    counts = ", ".join(f"{count} of {instance}" for instance, count in several.items() if count > 1)
    said: dict[str, object] = {
        "Pareto: no other row is faster without costing more, or cheaper without being slower.": (
            view.wide and any(row.pareto for row in rows)
        ),
        "What a budget trains is of training steps alone. Several instances are counted as if each trained by itself: "
        "what they lose together, fp8bench scaling says.": any(row.budget_hours is not None for row in rows),
        "A job's hours and USD are those of training steps alone: no start, evaluation, checkpoint or interruption, "
        "and no minimum billing period.": any(row.job_hours is not None for row in rows),
        f"{which} proved by older rules, which saw less (version {versions}, now {PROOF_VERSION}).": older,
        f"Machines differ ({counts}): each row is compared on its own; --group-by machine has a table for each.": (
            counts and view.group_by != "machine"
        ),
    }
    yield from (text for text, holds in said.items() if holds)
    if known := [row for row in rows if row.unseen_share is not None]:
        least = max(known, key=lambda row: row.unseen_share or 0)
        fewest = "a row" if {row.rounds for row in known} == {least.rounds} else "(the fewest of these rows)"
        yield (
            f"With {counted(least.rounds, 'process', 'processes')} {fewest}, a state that fewer than "
            f"{(least.unseen_share or 0) * 100:.0f} % of processes have (a slow start, another kernel) may be unseen; "
            "more --rounds show more."
        )
    # What is installed where a table is made may be newer than what was measured.
    libraries = ("torch", "transformer-engine", "torchao")
    of = {name: dict.fromkeys((row.software or {}).get(name) for row in rows) for name in libraries}
    if measured_with := [f"{name} {' and '.join(filter(None, found))}" for name, found in of.items() if any(found)]:
        yield f"Measured with {', '.join(measured_with)}."

"""A comparison of runs as a document: a table of 80 characters that answers, the wide table that has everything, or the
columns that were requested; then the answer in sentences, and notes.

The table that answers says which mode on which instance, how long a step is, how much faster that is than the
reference, and what a dollar buys; with a job, its time and cost instead. A name says what tells its row from others:
executions only where a mode has several, a recipe unless it is the default, options in which rows differ. Notes stand
below, those first that would change a decision. The wide table has short marks in its rows and letters for the rest.
"""

from collections.abc import Callable, Iterator, Sequence

from fp8bench import registry
from fp8bench.kinds.run.columns import COLUMNS, EVERY, NOTES, OF_A_JOB, tone, units_of
from fp8bench.kinds.run.marks import Mark, Weight
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.kinds.run.sentences import as_json, sentences
from fp8bench.kinds.view import AS_IT_IS, View
from fp8bench.schema.execution import Variant
from fp8bench.schema.record import PROOF_VERSION
from fp8bench.stats.certainty import VerdictOn
from fp8bench.tables import document as doc
from fp8bench.tables.written import change, counted, number

SHORT_MARK, SHORT_MARKS = 24, 48
"""The most characters of a mark, and of all marks of a row together, in the row of the wide table."""

NAMED_MARK = 9
"""The longest mark in a cell of notes among named columns: `published`, `emulated`, `what-if`."""

SCALES, LEAST = ((1e-6, " M"), (1e-3, " k")), 10
"""Larger units of what a dollar buys, and the least value that is shown in one."""

MOST_NOTES, NAMED, OTHERS = 3, 2, 3
"""The most notes below a table unless all are asked for, and the most rows that one of them names: of a row's marks,
and of those proved by older rules.
"""

PARETO = "Pareto"
CERTAIN = "*"
SHORT_UNITS = {"images": "img", "tokens": "tok"}
EXECUTED = {"graphed": "CUDA graph", "compiled": "compiled", "blocks": "compiled blocks", "eager": "eager"}


def document(*comparisons: Comparison, view: View = AS_IT_IS) -> doc.Document:
    """Return one table for each of the comparisons, at least one. The data has every field of every `Row`."""
    rows = tuple(row for one in comparisons for row in one.rows)
    letters = doc.Letters()
    in_columns = view.wide or bool(view.columns)
    tables: list[list[doc.Part]] = []
    for one in comparisons:
        certain = not in_columns and any(map(_decided, one.rows))
        sign = f"{CERTAIN} certain: the whole interval on one side, and 4 % more between machines"
        tables.append(
            [
                *([doc.Heading(one.name)] if one.name else []),
                _table(one.rows, letters, view),
                *([doc.Note(sign)] if certain else []),
                *map(doc.Sentence, sentences(one)),
            ]
        )
    of_all = [*_of_all(rows, view)]
    lines = [*letters.lines(), *of_all] if in_columns else notes(rows, of_all, view.notes)
    warnings = dict.fromkeys(warning for one in comparisons for warning in one.warnings)
    tables[-1] += [*map(doc.Note, lines), *map(doc.Warned, warnings)]
    data, answers = doc.CsvLines.of(Row, rows), [as_json(one) for one in comparisons]
    return doc.Document(doc.blocks(*tables), data=rows, answer=answers, lines=data)


def _table(rows: Sequence[Row], letters: doc.Letters, view: View) -> doc.Table:
    emphasis: tuple[doc.Emphasis, ...] = tuple(
        "strong" if row.is_reference else "" if row.status == "ok" else "faint" for row in rows
    )
    if view.wide:
        remarks = doc.Rows(rows).column(NOTES, lambda row: _in_wide(row, letters), "note")
        return doc.Table((*wide_columns(rows), remarks), naming=2, numbered=True, emphasis=emphasis)
    if not view.columns:
        return doc.Table(tuple(brief_columns(rows)), naming=2, whole=True, emphasis=emphasis)
    remarks = doc.Rows(rows).column(NOTES, lambda row: _in_named(row, letters), "note")
    named = tuple(remarks if name == NOTES else EVERY[name].cells(rows) for name in view.columns)
    return doc.Table(named, naming=1, whole=True, emphasis=emphasis)


def wide_columns(rows: Sequence[Row]) -> list[doc.Cells]:
    """Return the columns of the wide table, the two that name a row first, without those in which no row says anything.

    The columns that matter most precede all other numbers, because a narrow terminal divides a table.
    """
    names = [name for name in COLUMNS if name != "gpus" and (name not in OF_A_JOB or rows[0].job_units is not None)]
    shown = [(COLUMNS[name].optional, COLUMNS[name].cells(rows)) for name in names]
    return [cells for optional, cells in shown if cells.says_something or not optional]


def brief_columns(rows: Sequence[Row]) -> Iterator[doc.Cells]:
    """Yield the columns of the table that answers."""
    column = doc.Rows(rows).column
    yield column("mode", lambda row: name_of(row, rows), "word")
    if len({row.instance for row in rows}) > 1:
        yield column("instance", lambda row: row.instance, "word")
    batch = len({row.batch_size for row in rows}) > 1
    workers = len({(row.instance, row.world_size) for row in rows}) > len({row.instance for row in rows})
    if batch:
        yield column("batch", lambda row: f"{row.batch_size} x {row.world_size}" if workers else str(row.batch_size))
    elif workers:
        yield column("GPUs", lambda row: str(row.world_size))
    of_a_job = rows[0].job_units is not None
    if of_a_job:
        yield from (COLUMNS[name].cells(rows) for name in OF_A_JOB)
    else:
        yield column("step", _step, "interval")
    yield column("faster", lambda row: number(row.speedup_vs_reference, ".2f", after="x") + _sign(row, "throughput"))
    if not of_a_job:
        least = min((row.units_per_usd for row in rows if row.units_per_usd), default=0.0)
        scale, letter = next((size for size in SCALES if least * size[0] >= LEAST), (1.0, ""))
        units = SHORT_UNITS.get(units_of(rows), units_of(rows)) if letter else units_of(rows)

        def value(row: Row) -> str:
            form = ".3g" if (row.units_per_usd or 0.0) * scale < 100 else ",.0f"
            return number(row.units_per_usd, form, scale, letter)

        yield column(f"{units}/ USD", value)
    yield column("per USD", _gain, tone=tone)


def name_of(row: Row, rows: Sequence[Row]) -> str:
    """Return what tells the row from the others, apart from instance and batch size."""
    entry = next((one for one in registry.BUILTIN_MODES if one.name == row.mode), None)
    default = entry is not None and entry.recipes is not None and row.recipe in entry.recipes[:1]
    words = [row.mode if default else row.mode_label]
    if row.te_switches:
        words[0] += f"+{row.te_switches}"
    words += _executed(row.execution, [one.execution for one in rows if one.mode_label == row.mode_label])
    if len({one.grad_accumulation for one in rows if one.grad_accumulation}) > 1:
        words.append(counted(row.grad_accumulation or 1, "micro-batch", "micro-batches"))
    if len({one.source for one in rows}) > 1 and row.source != "measured":
        words.append(row.source)
    if row.emulated:
        words.append("emulated")
    return ", ".join(words)


def _executed(execution: Variant | None, among: Sequence[Variant | None]) -> list[str]:
    """Return how steps were executed, if a mode has rows of several executions: the first word that tells it apart."""
    others = {one for one in among if one is not None} - {execution}
    if execution is None or not others:
        return []
    words = execution.split("+")
    alone = [word for word in words if all(word not in one.split("+") for one in others)]
    return [EXECUTED[word] for word in alone[:1] or words]


def _step(row: Row) -> str:
    """Write e.g. `346.3 ms ±0.2 %`, half the interval's width; or why there is none."""
    if row.step_time_s is None:
        return row.outcome if row.status != "ok" else doc.NOTHING
    ms, ends = row.step_time_s * 1e3, row.step_time_ci_s
    written = f"{ms:,.1f} ms" if ms >= 1 else f"{ms:.3g} ms"
    if ends is None:
        return written
    half = (ends[1] - ends[0]) / 2 / row.step_time_s
    return f"{written} ±{half * 100:.1f} %" if half < 1 else f"{written} ±>100 %"


def _gain(row: Row) -> str:
    return "reference" if row.is_reference else change(row.gain_vs_reference, None) + _sign(row, "units_per_usd")


def _sign(row: Row, of: VerdictOn) -> str:
    return f" {CERTAIN}" if row.verdict_on == of and _decided(row) else ""


def _decided(row: Row) -> bool:
    return row.verdict not in (None, "inconclusive")


def notes(rows: Sequence[Row], about_all: Sequence[str], every: bool) -> list[str]:
    """Return lines of notes, those that weigh most first. about_all: notes on the table as a whole. every: whether all
    are wanted, and not only the first.
    """
    found: dict[Mark, list[Row]] = {}
    for row in rows:
        for mark in _in_row_and_below(row, lambda _mark, _words: False)[1]:
            found.setdefault(mark, []).append(row)
    ranked = sorted(found, key=lambda mark: mark.weight)
    told = {mark: f"{_told(found[mark], rows)}: {mark}" for mark in ranked}
    lines = [
        *(told[mark] for mark in ranked if mark.weight < Weight.ASIDE),
        *about_all,
        *(told[mark] for mark in ranked if mark.weight == Weight.ASIDE),
    ]
    if every or len(lines) <= MOST_NOTES:
        return lines
    return [*lines[:MOST_NOTES], f"{counted(len(lines) - MOST_NOTES, 'more note')}: --notes"]


def _told(named: Sequence[Row], rows: Sequence[Row]) -> str:
    if len(named) == len(rows) > 1:
        return "Every row"
    if len(named) > NAMED:
        return counted(len(named), "row")
    instances, sizes = len({row.instance for row in rows}) > 1, len({row.batch_size for row in rows}) > 1
    return " and ".join(
        name_of(row, rows) + f" {row.instance}" * instances + f" {row.batch_size}" * sizes for row in named
    )


def _in_row_and_below(row: Row, fits: Callable[[str, list[str]], bool]) -> tuple[list[str], list[Mark]]:
    """Return the texts in the row, and those below the table. fits: decides for a mark and the words before it."""
    words = [] if row.status == "ok" else [row.outcome]
    below = [] if row.reason is None else [Mark(row.reason, Weight.NOT_RUN)]
    for mark in row.marks:
        if fits(mark, words):
            words.append(mark)
        else:
            below.append(mark)
    if row.pareto:
        words.append(PARETO)
    if row.verdict == "inconclusive" and row.verdict_why:
        below.append(Mark(f"inconclusive: {row.verdict_why}", row.verdict_why.weight))
    return words, below


def _in_named(row: Row, letters: doc.Letters) -> str:
    """Return the notes of a row among named columns: status and cause if it is not ok, marks of one word, whether it is
    on the Pareto front, and letters for the rest.
    """
    words, long = _in_row_and_below(row, lambda mark, _words: len(mark) <= NAMED_MARK)
    given = sorted({letters.of(text) for text in long}, key=lambda letter: (len(letter), letter))
    return " ".join([*words, *([f"[{' '.join(given)}]"] if given else [])])


def _in_wide(row: Row, letters: doc.Letters) -> str:

    def fits(mark: str, words: list[str]) -> bool:
        return len(mark) <= SHORT_MARK and len(", ".join([*words, mark])) <= SHORT_MARKS

    words, long = _in_row_and_below(row, fits)
    return " ".join([", ".join(words), *(f"[{letters.of(text)}]" for text in long)]).strip()


def _of_all(rows: Sequence[Row], view: View) -> Iterator[str]:
    if any(row.pareto for row in rows) and view.wide:
        yield f"{PARETO}: no other row is faster without costing more, or cheaper without being slower."
    if any(row.job_hours is not None for row in rows):
        yield (
            "A job's hours and USD are those of training steps alone: no start, evaluation, checkpoint or "
            "interruption, and no minimum billing period."
        )
    measured = [row for row in rows if row.proof_version is not None]
    older = [row for row in measured if (row.proof_version or 0) < PROOF_VERSION]
    if older:
        some = ", ".join(dict.fromkeys(row.label for row in older)) if len(older) <= OTHERS else f"{len(older)} rows"
        which = "Every measured row was" if len(older) == len(measured) else f"{some}:"
        versions = ", ".join(map(str, sorted({row.proof_version or 1 for row in older})))
        yield f"{which} proved by older rules, which saw less (version {versions}, now {PROOF_VERSION})."
    machines: dict[str, set[str]] = {}
    for row in rows:
        if row.status == "ok" and row.machine is not None:
            machines.setdefault(row.instance, set()).add(row.machine)
    counts = ", ".join(f"{len(there)} of {instance}" for instance, there in machines.items() if len(there) > 1)
    if counts and view.group_by != "machine":
        yield f"Machines differ ({counts}): each row is compared on its own; --group-by machine has a table for each."
    known = [row for row in rows if row.unseen_share is not None]
    if known:
        least = max(known, key=lambda row: row.unseen_share or 0)
        fewest = "a row" if {row.rounds for row in known} == {least.rounds} else "(the fewest of these rows)"
        yield (
            f"With {counted(least.rounds, 'process', 'processes')} {fewest}, a state that fewer than "
            f"{(least.unseen_share or 0) * 100:.0f} % of processes have (a slow start, another kernel) may be unseen; "
            "more --rounds show more."
        )

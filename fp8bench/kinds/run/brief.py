"""The table that answers, 80 characters wide: which mode on which instance, how long a step is, how much faster that is
than the reference, and what a dollar buys. With a job, its time and cost instead.

A name says what tells its row from others: executions only where a mode has several, a recipe unless it is the default,
options in which rows differ. Notes stand below, those first that would change a decision.
"""

from collections.abc import Callable, Iterator, Sequence

from fp8bench import registry
from fp8bench.kinds.run.columns import COLUMNS, OF_A_JOB, tone, units_of
from fp8bench.kinds.run.row import Row
from fp8bench.schema.execution import Variant
from fp8bench.stats.certainty import VerdictOn
from fp8bench.tables.document import NOTHING, Cells, Letters, Rows
from fp8bench.tables.written import change, counted, number

SHORT_MARK = 9
"""The longest mark that is shown in a row's cell of notes: `published`, `emulated`, `what-if`."""

SCALES, LEAST = ((1e-6, " M"), (1e-3, " k")), 10
"""Larger units of what a dollar buys, and the least value that is shown in one."""

MOST_NOTES, NAMED = 3, 2
"""The most notes below a table unless all are asked for, and the most rows that one of them names."""

PARETO = "Pareto"
CERTAIN = "*"
SHORT_UNITS = {"images": "img", "tokens": "tok"}
EXECUTED = {"graphed": "CUDA graph", "compiled": "compiled", "blocks": "compiled blocks", "eager": "eager"}


def columns(rows: Sequence[Row]) -> list[Cells]:
    return list(_columns(rows))


def _columns(rows: Sequence[Row]) -> Iterator[Cells]:
    column = Rows(rows).column
    yield column("mode", lambda row: name_of(row, rows), "word")
    if len({row.instance for row in rows}) > 1:
        yield column("instance", lambda row: row.instance, "word")
    if sizes := _sizes(rows):
        yield column(*sizes)
    if rows[0].job_units is None:
        yield column("step", _step, "interval")
    else:
        yield from (COLUMNS[name].column(rows) for name in OF_A_JOB)
    yield column("faster", _faster)
    if rows[0].job_units is None:
        heading, scale, letter = _rates(rows)
        yield column(heading, lambda row: _digits(row.units_per_usd, scale, letter))
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


def _sizes(rows: Sequence[Row]) -> tuple[str, Callable[[Row], str]] | None:
    """Return the column of what differs: batch sizes, workers on one instance, or both; None if neither differs."""
    batch = len({row.batch_size for row in rows}) > 1
    workers = len({(row.instance, row.world_size) for row in rows}) > len({row.instance for row in rows})
    if batch and workers:
        return "batch", lambda row: f"{row.batch_size} x {row.world_size}"
    if batch:
        return "batch", lambda row: str(row.batch_size)
    return ("GPUs", lambda row: str(row.world_size)) if workers else None


def _step(row: Row) -> str:
    """Write e.g. `346.3 ms ±0.2 %`, half the interval's width; or why there is none."""
    if row.step_time_s is None:
        return row.outcome if row.status != "ok" else NOTHING
    ms, ends = row.step_time_s * 1e3, row.step_time_ci_s
    written = f"{ms:,.1f} ms" if ms >= 1 else f"{ms:.3g} ms"
    if ends is None:
        return written
    half = (ends[1] - ends[0]) / 2 / row.step_time_s
    return f"{written} ±{half * 100:.1f} %" if half < 1 else f"{written} ±>100 %"


def _faster(row: Row) -> str:
    return number(row.speedup_vs_reference, ".2f", after="x") + _sign(row, "throughput")


def _gain(row: Row) -> str:
    if row.is_reference:
        return "reference"
    return change(row.gain_vs_reference, None) + _sign(row, "units_per_usd")


def _sign(row: Row, of: VerdictOn) -> str:
    return f" {CERTAIN}" if row.verdict_on == of and _decided(row) else ""


def _decided(row: Row) -> bool:
    return row.verdict not in (None, "inconclusive")


def _rates(rows: Sequence[Row]) -> tuple[str, float, str]:
    """Return the heading for what a dollar buys, the factor for its values, and the letter after them."""
    least = min((row.units_per_usd for row in rows if row.units_per_usd), default=0.0)
    scale, letter = next((size for size in SCALES if least * size[0] >= LEAST), (1.0, ""))
    units = SHORT_UNITS.get(units_of(rows), units_of(rows)) if letter else units_of(rows)
    return f"{units}/ USD", scale, letter


def _digits(value: float | None, scale: float, after: str) -> str:
    """Write integers, or three digits of values below 100."""
    return number(value, ".3g" if (value or 0.0) * scale < 100 else ",.0f", scale, after)


def certain(rows: Sequence[Row]) -> list[str]:
    """Explain the sign of a decided row, if there is one."""
    if not any(map(_decided, rows)):
        return []
    return [f"{CERTAIN} certain: the whole interval on one side, and 4 % more between machines"]


def notes(rows: Sequence[Row], about_all: Sequence[str], every: bool) -> list[str]:
    """Return lines of notes, those that would change a decision first. about_all: notes on the table as a whole. every:
    whether all are wanted, and not only the first.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        _, below = in_row_and_below(row, lambda _mark, _words: False)
        for text in below:
            found.setdefault(text, []).append(row)
    ranked = sorted(found, key=lambda text: _rank(text, found[text]))
    urgent = [text for text in ranked if _rank(text, found[text]) < LAST]
    lines = [
        *(f"{_told(found[text], rows)}: {text}" for text in urgent),
        *about_all,
        *(f"{_told(found[text], rows)}: {text}" for text in ranked[len(urgent) :]),
    ]
    if every or len(lines) <= MOST_NOTES:
        return lines
    return [*lines[:MOST_NOTES], f"{counted(len(lines) - MOST_NOTES, 'more note')}: --notes"]


DECISIVE = (
    ("compare", "compared", "unlike the reference", "other work", "reference"),
    (
        "rounds failed",
        "by elapsed time",
        "price",
        "what-if",
        "processes differ",
        "uneven",
        "not replayed",
        "-bound",
        "busy",
    ),
)
"""Words of marks that change a decision: that a row is not compared, and that its figures are doubtful."""

LAST = len(DECISIVE) + 1


def _rank(text: str, rows: Sequence[Row]) -> int:
    if any(row.reason == text for row in rows):
        return 0
    return next((place for place, words in enumerate(DECISIVE, 1) if any(word in text for word in words)), LAST)


def _told(named: Sequence[Row], rows: Sequence[Row]) -> str:
    """Name the rows of a note."""
    if len(named) == len(rows) > 1:
        return "Every row"
    if len(named) > NAMED:
        return counted(len(named), "row")
    several = len({row.instance for row in rows}) > 1, len({row.batch_size for row in rows}) > 1
    return " and ".join(
        " ".join(
            [
                name_of(row, rows),
                *([row.instance] if several[0] else []),
                *([str(row.batch_size)] if several[1] else []),
            ]
        )
        for row in named
    )


def marks(row: Row, letters: Letters) -> str:
    """Return the notes of a row in a column of them: status and cause if it is not ok, marks of one word, whether it is
    on the Pareto front, and letters for the rest.
    """
    words, long = in_row_and_below(row, lambda mark, _words: len(mark) <= SHORT_MARK)
    given = sorted({letters.of(text) for text in long}, key=lambda letter: (len(letter), letter))
    return " ".join([*words, *([f"[{' '.join(given)}]"] if given else [])])


def in_row_and_below(row: Row, fits: Callable[[str, list[str]], bool]) -> tuple[list[str], list[str]]:
    """Return the texts in the row, and those below the table. fits: decides for a mark and the words before it."""
    words = [] if row.status == "ok" else [row.outcome]
    below = [] if row.reason is None else [row.reason]
    for mark in row.marks:
        (words if fits(mark, words) else below).append(mark)
    if row.pareto:
        words.append(PARETO)
    if row.verdict == "inconclusive" and row.verdict_why:
        below.append(f"inconclusive: {row.verdict_why}")
    return words, below

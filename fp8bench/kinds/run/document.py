"""A comparison of runs as a document.

Short marks stand in the row; longer ones, why a verdict is inconclusive, and the reason of a mode that did not run, are
footnotes under the table. Warnings about all rows follow them, and what so few processes cannot show.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fp8bench.kinds.run.row import Comparison, Row
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
    Table,
    Tone,
    Warned,
    blocks,
    telling,
)
from fp8bench.report.written import gain_bounds, number, rate, with_interval

SHORT_MARK = 24
SHORT_MARKS = 48
"""Characters of a mark, and of all marks of a row together, that stand in the row."""

NAMING_COLUMNS = 2


def document(comparison: Comparison) -> Document:
    """Machines get every field of every `Row`."""
    rows = comparison.rows
    letters = Letters()
    notes = Column("notes", tuple(_marks(row, letters) for row in rows), "note")
    table = Table(
        (*columns(rows), notes),
        naming=NAMING_COLUMNS,
        numbered=True,
        emphasis=tuple(map(_emphasis, rows)),
    )
    below: list[Part] = [*map(Note, letters.lines()), *map(Warned, comparison.warnings), *map(Note, unseen(rows))]
    dumped = tuple(tuple(row.model_dump(mode="json").values()) for row in rows)
    return Document(blocks([table, *below]), data=rows, lines=Lines(tuple(Row.model_fields), dumped))


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns for these rows, the two that name a row first; the unit (images, tokens) is taken from them.

    What a reader came for goes first of all numbers, since a narrow terminal divides a table.
    """
    units = {row.unit for row in rows if row.unit}
    unit = units.pop() if len(units) == 1 else "units"

    def column(heading: str, write: Callable[[Row], str], kind: CellKind = "quantity") -> Column:
        return Column(heading, tuple(map(write, rows)), kind)

    tones = tuple(map(_tone, rows))
    return [
        column("instance", lambda r: r.instance, "word"),
        column("mode", lambda r: r.mode_label, "word"),
        *telling(
            column("execution", lambda r: r.execution or NOTHING, "word"),
            column("attention", lambda r: r.attention or NOTHING, "word"),
        ),
        column("batch x GPUs", lambda r: f"{r.batch_size} x {r.world_size}"),
        *telling(column("rounds", lambda r: str(r.rounds) if r.status == "ok" and r.source == "measured" else NOTHING)),
        column(f"{unit}/USD", lambda r: rate(r.units_per_usd)),
        replace(column("gain (95 %)", _gain, "interval"), tones=tones),
        *telling(replace(column("verdict", lambda r: r.verdict or NOTHING, "verdict"), tones=tones)),
        column(
            "speed-up (95 %)",
            lambda r: with_interval(r.speedup_vs_reference, r.speedup_ci_vs_reference, ".2f", after="x"),
            "interval",
        ),
        column(
            "step, ms (95 % interval)",
            lambda r: with_interval(r.step_time_s, r.step_time_ci_s, ".1f", scale=1e3),
            "interval",
        ),
        column(f"{unit}/s", lambda r: rate(r.throughput_per_s)),
        column("USD/h", lambda r: number(r.usd_per_hour, ",.2f")),
        column("price as of", _price_date, "word"),
        column(f"USD/M {unit}", lambda r: number(r.usd_per_million_units, ",.3f")),
        column("break-even USD/h", lambda r: number(r.break_even_usd_per_hour, ",.2f")),
        *telling(
            column("peak GiB", lambda r: number(r.peak_memory_bytes, ".1f", scale=2**-30)),
            column("MFU bf16", lambda r: number(r.mfu_bf16, ".1f", scale=100, after=" %")),
            column("MFU fp8", lambda r: number(r.mfu_fp8, ".1f", scale=100, after=" %")),
            column(f"J/{unit.removesuffix('s')}", lambda r: number(r.joules_per_unit, ".3g")),
            column(f"{unit}/kWh", lambda r: rate(r.units_per_kwh)),
        ),
    ]


def unseen(rows: Sequence[Row]) -> list[str]:
    """A line of what the row with the fewest processes cannot show; none where nothing was measured."""
    known = [row for row in rows if row.unseen_share is not None]
    if not known:
        return []
    least = max(known, key=lambda row: row.unseen_share or 0)
    processes = "1 process" if least.rounds == 1 else f"{least.rounds} processes"
    fewest = "a row" if {row.rounds for row in known} == {least.rounds} else "(the fewest of a row here)"
    return [
        f"With {processes} {fewest}, a state that fewer than {(least.unseen_share or 0) * 100:.0f} % of processes have "
        "(a slow start, another kernel) may be unseen; more --rounds show more."
    ]


def _gain(row: Row) -> str:
    if row.is_reference:
        return "reference"
    gain = number(row.gain_vs_reference, "+.1f", scale=100, after=" %")
    if row.gain_ci_vs_reference is None:
        return gain
    return f"{gain} ({gain_bounds(*row.gain_ci_vs_reference, lambda end: f'{end * 100:+.1f}')})"


def _tone(row: Row) -> Tone:
    """Of a gain, and of the verdict on it; what is inconclusive has none."""
    if row.is_reference or row.gain_vs_reference is None:
        return ""
    if row.verdict is not None:
        return "good" if row.verdict == "better value" else "bad" if row.verdict == "worse value" else ""
    return "good" if row.gain_vs_reference > 0 else "bad"


def _price_date(row: Row) -> str:
    if row.usd_per_hour is None:
        return NOTHING
    return str(row.price_as_of) if row.price_as_of else "undated"


def _emphasis(row: Row) -> Emphasis:
    return "strong" if row.is_reference else "" if row.status == "ok" else "faint"


def _marks(row: Row, letters: Letters) -> str:
    """The notes of a row: its status and cause if it is not ok, its short marks, and letters for the rest."""
    words: list[str] = [] if row.status == "ok" else [row.outcome]
    long = [] if row.reason is None else [row.reason]
    for mark in row.marks:
        fits = len(mark) <= SHORT_MARK and len(", ".join([*words, mark])) <= SHORT_MARKS
        (words if fits else long).append(mark)
    if row.verdict == "inconclusive" and row.verdict_why:
        long.append(f"inconclusive: {row.verdict_why}")
    return " ".join([", ".join(words), *(f"[{letters.of(text)}]" for text in long)]).strip()

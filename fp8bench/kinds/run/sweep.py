"""A sweep as a document: the winner with its interval and its command line, the runner-up and whether the two can be
distinguished, everything that was tried, and what was not and why (`sweep_result` has the numbers).
"""

from collections.abc import Sequence

from fp8bench.kinds.run.sweep_result import SweepResult, SweepRow, result
from fp8bench.launch.forecast import duration as time_in_words
from fp8bench.launch.sweep.halving import INTERVAL_ROUNDS
from fp8bench.launch.sweep.search import Swept
from fp8bench.launch.sweep.space import Untried, in_words
from fp8bench.tables import document as doc
from fp8bench.tables.written import counted, low_to_high, number, rate, rate_with_interval, with_interval

MOST_UNTRIED = 12
"""The most configurations that are named for one reason why they were not tried; --json has all."""


def document(swept: Swept) -> doc.Document:
    """Return the document. Its data is a `SweepResult`."""
    found = result(swept)
    head = [*map(doc.Sentence, (*answer(found), *_spent(found, swept)))]
    shown: list[doc.Part] = [doc.Heading("What was tried"), _table(found.rows)] if found.rows else []
    shown_blocks = doc.blocks(head, shown, _failed(found), about_untried(swept.untried))
    return doc.Document(shown_blocks, data=found, lines=doc.CsvLines.of(SweepRow, found.rows))


def answer(found: SweepResult) -> list[str]:
    if found.winner is None:
        return ["No configuration is left: nothing was found."]
    winner = found.winner
    best = "Cheapest" if winner.units_per_usd is not None else "Fastest (no price is known)"
    lines = [f"{best} of {len(found.rows)} tried: {_named(winner)}, with {_worth(winner)} {_measured(winner)}."]
    if winner.rounds < INTERVAL_ROUNDS:
        lines.append("One process is not a measurement: resume with a larger budget for an interval over processes.")
    lines.append(f"Run it: {winner.command}")
    if found.runner_up is None:
        lines.append("There is no runner-up: the others were dropped, or failed.")
    else:
        lines.append(f"Runner-up: {_named(found.runner_up)}, with {_worth(found.runner_up)}; {_apart(found)}.")
        lines += _at_one_size(winner, found.runner_up, found.rows)
    better = next((row for row in found.rows if _looks_better(row, winner)), None)
    if better is not None:
        lines.append(
            f"Better, but of one process alone: {_named(better)}, with {_worth(better)} {_measured(better)}. Resume to "
            "measure it."
        )
    return lines


def _at_one_size(winner: SweepRow, other: SweepRow, rows: Sequence[SweepRow]) -> list[str]:
    """Compare the two at the largest size tried with both, to show which difference is not due to the batch."""
    if winner.batch_size == other.batch_size or _but_size(winner) == _but_size(other):
        return []
    sizes = [{row.batch_size: row for row in rows if _but_size(row) == _but_size(one)} for one in (winner, other)]
    shared = [size for size in sizes[0].keys() & sizes[1].keys() if all(of[size].status == "ok" for of in sizes)]
    if not shared:
        return []
    first, second = (of[max(shared)] for of in sizes)
    said = " and ".join(f"{row.mode} with {_worth(row)} {_measured(row)}" for row in (first, second))
    return [f"Both at batch {max(shared)}: {said}."]


def _but_size(row: SweepRow) -> tuple[str, str, str, str]:
    return row.mode, row.compile, row.cuda_graphs, row.te_attention


def _looks_better(row: SweepRow, winner: SweepRow) -> bool:
    """Return whether a remaining row has no interval, unlike the winner, and would win by its figure."""
    alone = row.place is not None and row.rounds < INTERVAL_ROUNDS <= winner.rounds
    return alone and (row.throughput_per_s or 0.0) > (winner.throughput_per_s or 0.0)


def _measured(row: SweepRow) -> str:
    return f"in {counted(row.rounds, 'round')}" if row.rounds else "in a short look only"


def _apart(found: SweepResult) -> str:
    if found.told_apart is None or found.runner_up_time is None:
        return "whether the two differ is unknown, since one of them has less than two rounds"
    over = with_interval(found.runner_up_time, found.runner_up_time_ci, ".3f", after="x")
    if found.told_apart:
        return f"the two differ: it takes {over} the winner's time a unit"
    return f"the two cannot be distinguished: it takes {over} the winner's time a unit; more --rounds may decide"


def _named(row: SweepRow) -> str:
    ran = f", {row.execution}" if row.execution else ""
    return f"{row.mode} at batch {row.batch_size}{ran}"


def _worth(row: SweepRow) -> str:
    """Return e.g. `512,000 images/USD (508,000 to 516,000)`."""
    unit = row.unit or "units"
    value, ends, per = row.units_per_usd, row.units_per_usd_ci, "USD"
    if value is None:
        value, ends, per = row.throughput_per_s, row.throughput_ci_per_s, "s"
    said = f"{rate(value)} {unit}/{per}"
    return f"{said} ({low_to_high(*ends, rate)})" if ends else said


def _spent(found: SweepResult, swept: Swept) -> list[str]:
    usd = "" if found.usd_per_hour is None else f", {found.spent_s / 3600 * found.usd_per_hour:.2f} USD"
    lines = [f"Spent in this call: {time_in_words(found.spent_s)}{usd}, {found.turns} starts of processes."]
    if found.modes_not_tried:
        said = ", ".join(found.modes_not_tried)
        lines.append(f"Not tried in any settings: {said}. A larger budget, or --mode, makes room for a look.")
    if swept.ended:
        lines.append(
            f"Ended by {found.ended}: `fp8bench sweep --session {found.session}` with the same options goes on, and "
            "repeats nothing."
        )
    return lines


def _table(rows: Sequence[SweepRow]) -> doc.Table:
    unit = next((row.unit for row in rows if row.unit), "units")
    priced = any(row.units_per_usd is not None for row in rows)
    column = doc.Rows(rows).column
    return doc.Table(
        (
            column("place", lambda row: number(row.place, "d")),
            column("mode", lambda row: row.mode, "word"),
            column("batch", lambda row: str(row.batch_size)),
            column("execution", lambda row: row.execution or doc.NOTHING, "word"),
            *doc.telling(column("attention", lambda row: row.attention or doc.NOTHING, "word")),
            column("rounds", lambda row: str(row.rounds) if row.rounds else "look", "word"),
            column(f"{unit}/{'USD' if priced else 's'} (95 %)", lambda row: _value(row, priced), "interval"),
            *doc.telling(
                column("peak GiB", lambda row: number(row.peak_memory_bytes, ".1f", scale=2**-30)),
                column("dropped", _short, "note"),
            ),
        ),
        naming=3,
        emphasis=tuple("strong" if row.place == 1 else "" if row.place else "faint" for row in rows),
    )


def _value(row: SweepRow, priced: bool) -> str:
    if priced:
        return rate_with_interval(row.units_per_usd, row.units_per_usd_ci)
    return rate_with_interval(row.throughput_per_s, row.throughput_ci_per_s)


def _short(row: SweepRow) -> str:
    """Return why a row was dropped. Failures are explained below the table."""
    if row.status != "ok":
        return f"{row.status}: {row.cause}" if row.cause else row.status
    return row.dropped or ""


def _failed(found: SweepResult) -> list[doc.Heading | doc.Note]:
    """Return each reason with its configurations."""
    failed = [row for row in found.rows if row.status != "ok"]
    lines: list[doc.Heading | doc.Note] = [doc.Note(f"{_named(row)}: {row.dropped}") for row in failed]
    return [doc.Heading("What failed"), *lines] if lines else []


def about_untried(untried: Sequence[Untried]) -> list[doc.Heading | doc.Note]:
    """List reasons, the most frequent first. What cannot differ from another was tried as that, and is in --json."""
    by_reason: dict[str, list[str]] = {}
    for one in untried:
        why = "cannot differ from one that was tried" if one.why.startswith("cannot differ") else one.why
        by_reason.setdefault(why, []).append(in_words(one.config))
    lines: list[doc.Heading | doc.Note] = []
    for why, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        if why.startswith("cannot differ"):
            lines.append(doc.Note(f"{len(names)}: {why}"))
            continue
        more = f"; and {len(names) - MOST_UNTRIED} more (--json)" if len(names) > MOST_UNTRIED else ""
        lines.append(doc.Note(f"{len(names)}: {why}: {'; '.join(names[:MOST_UNTRIED])}{more}"))
    return [doc.Heading("What was not tried"), *lines] if lines else []

"""A sweep as a document: the winner with its interval and its command line, the runner-up and whether the two can be
distinguished, everything that was tried, and what was not and why.

On one machine an hour costs the same for all configurations, so that the ranking by units per USD is that by
throughput; where no price is known it is shown as such.
"""

import shlex
from collections.abc import Sequence
from typing import Literal

from fp8bench.config.request import OBEYED_BY_WORKERS
from fp8bench.launch.forecast import duration as time_in_words
from fp8bench.launch.sweep.halving import look_s, seconds_a_unit
from fp8bench.launch.sweep.search import Swept
from fp8bench.launch.sweep.space import Untried, in_words
from fp8bench.pricing.cost import units_per_usd
from fp8bench.registry import find_workload
from fp8bench.report import document as doc
from fp8bench.report.written import Interval, bounds, counted, number, rate, rate_with_interval, with_interval
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Status
from fp8bench.schema.execution import CompileChoice, GraphChoice, Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.option import ByDevice, flag_of
from fp8bench.schema.record import Record
from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import Ratio, ratio

MOST_UNTRIED = 12
"""Of configurations that were not tried for one reason: so many are named, and all are in --json."""


class SweepRow(Frozen):
    """One configuration. Null is unknown. place: from 1, of those that were left at the end. rounds: full ones, 0 where
    it had a look only, whose figures then are. execution: as its steps came out.
    """

    place: int | None
    mode: str
    batch_size: int
    compile: CompileChoice
    cuda_graphs: GraphChoice
    te_attention: str
    execution: Variant | None
    attention: str | None
    status: Status
    cause: Cause | None
    rounds: int
    unit: str | None
    throughput_per_s: float | None
    throughput_ci_per_s: Interval | None
    units_per_usd: float | None
    units_per_usd_ci: Interval | None
    peak_memory_bytes: int | None
    dropped: str | None
    command: str


class NotTried(Frozen):
    """A configuration that was not run."""

    configuration: str
    why: str


class SweepResult(Frozen):
    """What `sweep --json` prints. winner and runner_up: places in rows; null: there is none. told_apart: whether the
    interval of the two lies beyond the noise; null: one of them has no two rounds. runner_up_time: its time a unit over
    the winner's, with its interval.
    """

    session: str
    instance: str
    usd_per_hour: float | None
    spent_s: float
    turns: int
    ended: str | None
    winner: SweepRow | None
    runner_up: SweepRow | None
    told_apart: bool | None
    runner_up_time: float | None
    runner_up_time_ci: Interval | None
    rows: tuple[SweepRow, ...]
    not_tried: tuple[NotTried, ...]


def result(swept: Swept) -> SweepResult:
    """The numbers. Those that are left first, best first; then those that were dropped, by their figures."""
    usd_per_hour, leaders = swept.sweep.budget.usd_per_hour, swept.standings.leaders
    others = [config for config in swept.seen.looks if config not in leaders]
    places = {config: place for place, config in enumerate(leaders, start=1)}
    rows = [_row(config, swept, places.get(config), usd_per_hour) for config in (*leaders, *others)]
    rest = sorted(rows[len(leaders) :], key=lambda row: -(row.throughput_per_s or 0.0))
    versus = _runner_up_against_winner(swept)
    return SweepResult(
        session=swept.sweep.name,
        instance=swept.sweep.prepared.instance.key,
        usd_per_hour=usd_per_hour,
        spent_s=swept.spent_s,
        turns=swept.turns,
        ended=swept.ended,
        winner=rows[0] if leaders else None,
        runner_up=rows[1] if len(leaders) > 1 else None,
        told_apart=None if versus is None else versus.verdict == "slower",
        runner_up_time=versus.value if versus else None,
        runner_up_time_ci=(versus.low, versus.high) if versus and versus.low and versus.high else None,
        rows=(*rows[: len(leaders)], *rest),
        not_tried=tuple(NotTried(configuration=in_words(one.config), why=one.why) for one in swept.untried),
    )


def document(swept: Swept) -> doc.Document:
    """Machines get a `SweepResult`."""
    found = result(swept)
    head = [*map(doc.Sentence, (*answer(found), *_spent(found, swept)))]
    shown: list[doc.Part] = [doc.Heading("What was tried"), _table(found.rows)] if found.rows else []
    shown_blocks = doc.blocks(head, shown, _failed(found), about_untried(swept.untried))
    return doc.Document(shown_blocks, data=found, lines=doc.CsvLines.of(SweepRow, found.rows))


def answer(found: SweepResult) -> list[str]:
    if found.winner is None:
        return ["No configuration is left: nothing was found."]
    winner = found.winner
    measured = f"in {counted(winner.rounds, 'round')}" if winner.rounds else "in a look alone"
    best = "Cheapest" if winner.units_per_usd is not None else "Fastest (no price is known)"
    lines = [f"{best} of {len(found.rows)} tried: {_named(winner)}, with {_worth(winner)} {measured}."]
    if winner.rounds < 2:
        lines.append("One process is not a measurement: resume with a larger budget for an interval over processes.")
    lines.append(f"Run it: {winner.command}")
    if found.runner_up is None:
        lines.append("There is no runner-up: the others were dropped, or failed.")
    else:
        lines.append(f"Runner-up: {_named(found.runner_up)}, with {_worth(found.runner_up)}; {_apart(found)}.")
    return lines


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
    """`512,000 images/USD (508,000 to 516,000)`."""
    unit = row.unit or "units"
    value, ends, per = row.units_per_usd, row.units_per_usd_ci, "USD"
    if value is None:
        value, ends, per = row.throughput_per_s, row.throughput_ci_per_s, "s"
    said = f"{rate(value)} {unit}/{per}"
    return f"{said} ({bounds(*ends, rate)})" if ends else said


def _spent(found: SweepResult, swept: Swept) -> list[str]:
    usd = "" if found.usd_per_hour is None else f", {found.spent_s / 3600 * found.usd_per_hour:.2f} USD"
    lines = [f"Spent in this call: {time_in_words(found.spent_s)}{usd}, {found.turns} starts of processes."]
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
    """What failed is explained below the table."""
    if row.status != "ok":
        return f"{row.status}: {row.cause}" if row.cause else row.status
    return row.dropped or ""


def _failed(found: SweepResult) -> list[doc.Heading | doc.Note]:
    """Each reason with its configurations."""
    failed = [row for row in found.rows if row.status != "ok"]
    lines: list[doc.Heading | doc.Note] = [doc.Note(f"{_named(row)}: {row.dropped}") for row in failed]
    return [doc.Heading("What failed"), *lines] if lines else []


def about_untried(untried: Sequence[Untried]) -> list[doc.Heading | doc.Note]:
    """By reason, the most frequent first. What cannot differ from another was tried as that, and is in --json."""
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


def _row(config: RunConfig, swept: Swept, place: int | None, usd_per_hour: float | None) -> SweepRow:
    look, rounds = swept.seen.looks[config], swept.seen.rounds.get(config, [])
    last: Record = rounds[-1] if rounds else look
    throughput, ends = _throughput(seconds_a_unit(rounds), look_s(look))
    measured = next((record for record in reversed([look, *rounds]) if record.summary is not None), None)
    return made_of(
        SweepRow,
        last,
        config,
        place=place,
        mode=config.mode_label,
        execution=last.execution if last.status == "ok" else None,
        rounds=sum(record.status == "ok" for record in rounds),
        unit=measured.summary.unit if measured and measured.summary else None,
        throughput_per_s=throughput,
        throughput_ci_per_s=ends,
        units_per_usd=units_per_usd(throughput, usd_per_hour) if throughput and usd_per_hour else None,
        units_per_usd_ci=_priced(ends, usd_per_hour),
        peak_memory_bytes=_peak(last),
        dropped=swept.standings.dropped.get(config),
        command=command_line(config),
    )


def _throughput(found: Estimate | None, by_look_s: float | None) -> tuple[float | None, Interval | None]:
    """Of the rounds, else of the look. A single process has no interval: the next one may differ."""
    if found is None:
        return (None if by_look_s is None else 1 / by_look_s), None
    if found.low is None or found.high is None or found.processes < 2:
        return 1 / found.value, None
    return 1 / found.value, (1 / found.high, 1 / found.low)


def _priced(ends: Interval | None, usd_per_hour: float | None) -> Interval | None:
    if ends is None or usd_per_hour is None:
        return None
    return units_per_usd(ends[0], usd_per_hour), units_per_usd(ends[1], usd_per_hour)


def _peak(record: Record) -> int | None:
    """As in the table of `compare`: what torch allocated of the fullest GPU; null on a CPU."""
    return max((rank.peak_allocated_bytes for rank in record.memory if rank.peak_allocated_bytes), default=None)


def _runner_up_against_winner(swept: Swept) -> Ratio | None:
    first_two = swept.standings.leaders[:2]
    found = [seconds_a_unit(swept.seen.rounds.get(config, ())) for config in first_two]
    if len(found) < 2 or found[0] is None or found[1] is None or min(found[0].processes, found[1].processes) < 2:
        return None
    return ratio(found[1], found[0])


def command_line(config: RunConfig, program: Literal["fp8bench run"] = "fp8bench run") -> str:
    """What measures this configuration again: what has no default, and what is not the default."""
    words = ["--mode", config.mode_label, "--workload", config.workload, "--gpus", str(config.world_size)]
    of_workload = find_workload(config.workload).usual
    for name, option in OBEYED_BY_WORKERS.items():
        value, default = getattr(config, name), of_workload.get(name, option.default)
        usual = default.on(config.device) if isinstance(default, ByDevice) else default
        if name == "batch_size" or (value != usual and name != "workers"):
            words += [flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)]
    return f"{program} {shlex.join(words)}"

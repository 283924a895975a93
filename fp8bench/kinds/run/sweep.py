"""What a sweep found: the winner with its interval and its command line, the runner-up and whether the two can be
distinguished, everything that was tried, and what was not and why.

On one machine an hour costs the same for all configurations, so the ranking by units per USD is the ranking by
throughput; without a price it is shown as such.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from fp8bench.config.request import OBEYED_BY_WORKERS
from fp8bench.launch.forecast import duration as time_in_words
from fp8bench.launch.sweep.halving import INTERVAL_ROUNDS, family, look_s, seconds_a_unit
from fp8bench.launch.sweep.search import Swept
from fp8bench.launch.sweep.space import Untried, in_words
from fp8bench.pricing.cost import units_per_usd
from fp8bench.registry import find_workload
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Status
from fp8bench.schema.execution import CompileChoice, GraphChoice, Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.option import ByDevice, flag_of
from fp8bench.stats.ratio import ratio
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import Interval, counted, low_to_high, rate, rate_with_interval, with_interval

MOST_UNTRIED = 12
"""The most configurations that are named for one reason why they were not tried; --json has all."""


class SweepRow(Frozen):
    """One configuration. Null means unknown. place: from 1, among those left at the end. rounds: complete ones; 0 if it
    only had a look, whose figures are then shown. execution: how its steps were executed.
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
    """What `sweep --json` prints. A runner-up may have been dropped by its rounds, as slower. told_apart: whether the
    interval of the two lies beyond the noise; null if one of them has fewer than two rounds. runner_up_time: its time
    for a unit over the winner's. modes_not_tried: modes that could run here, and had no look in any settings.
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
    modes_not_tried: tuple[str, ...]
    not_tried: tuple[NotTried, ...]


def result(swept: Swept) -> SweepResult:
    """Return the numbers, with the remaining rows first, the best first, then dropped rows sorted by their figures."""
    usd_per_hour, leaders = swept.sweep.budget.usd_per_hour, swept.standings.leaders
    others = [config for config in swept.seen.looks if config not in leaders]
    places = {config: place for place, config in enumerate(leaders, start=1)}
    rows = {config: _row(config, swept, places.get(config), usd_per_hour) for config in (*leaders, *others)}
    rest = sorted((rows[config] for config in others), key=lambda row: -(row.throughput_per_s or 0.0))
    second, versus = _second(swept, rows), None
    if second is not None:
        first, other = (seconds_a_unit(swept.seen.rounds.get(one, ())) for one in (leaders[0], second))
        if first and other and min(first.processes, other.processes) >= INTERVAL_ROUNDS:
            versus = ratio(other, first)
    tried = {config.mode for config in swept.seen.looks}
    return SweepResult(
        session=swept.sweep.name,
        instance=swept.sweep.prepared.instance.key,
        usd_per_hour=usd_per_hour,
        spent_s=swept.spent_s,
        turns=swept.turns,
        ended=swept.ended,
        winner=rows[leaders[0]] if leaders else None,
        runner_up=rows[second] if second else None,
        told_apart=None if versus is None else versus.verdict == "slower",
        runner_up_time=versus.value if versus else None,
        runner_up_time_ci=versus.interval if versus else None,
        rows=(*(rows[config] for config in leaders), *rest),
        modes_not_tried=tuple(dict.fromkeys(one.mode for one in swept.left if one.mode not in tried)),
        not_tried=not_tried(swept.untried),
    )


def not_tried(untried: Sequence[Untried]) -> tuple[NotTried, ...]:
    return tuple(NotTried(configuration=in_words(one.config), why=one.why) for one in untried)


def _row(config: RunConfig, swept: Swept, place: int | None, usd_per_hour: float | None) -> SweepRow:
    look, rounds = swept.seen.looks[config], swept.seen.rounds.get(config, [])
    last = rounds[-1] if rounds else look
    # The throughput of the rounds, else of the look. A single process has no interval: the next may differ.
    found, by_look_s = seconds_a_unit(rounds), look_s(look)
    throughput = 1 / found.value if found else 1 / by_look_s if by_look_s is not None else None
    ends = (1 / found.interval[1], 1 / found.interval[0]) if found and found.interval else None
    units = [record.summary.unit for record in (look, *rounds) if record.summary is not None]
    peaks = [rank.peak_allocated_bytes for rank in last.memory if rank.peak_allocated_bytes]
    return made_of(
        SweepRow,
        last,
        config,
        place=place,
        mode=config.switched_label,
        execution=last.execution if last.status == "ok" else None,
        rounds=sum(record.status == "ok" for record in rounds),
        unit=units[-1] if units else None,
        throughput_per_s=throughput,
        throughput_ci_per_s=ends,
        units_per_usd=units_per_usd(throughput, usd_per_hour) if throughput and usd_per_hour else None,
        units_per_usd_ci=tuple(units_per_usd(end, usd_per_hour) for end in ends) if ends and usd_per_hour else None,
        # As in the table of `compare`: what torch allocated on the fullest GPU; None on a CPU.
        peak_memory_bytes=max(peaks, default=None),
        dropped=swept.standings.dropped.get(config),
        command=command_line(config),
    )


def _second(swept: Swept, rows: Mapping[RunConfig, SweepRow]) -> RunConfig | None:
    """Return the runner-up: the best with an interval, even if dropped as slower, else the next leader."""
    leaders = swept.standings.leaders
    # With --batch-size auto a configuration continues at one size, and its other sizes are no rivals.
    auto = swept.sweep.rule.blank is not None
    of_winner = family(leaders[0], swept.seen) if auto and leaders else list(leaders[:1])
    others = [config for config in rows if config not in of_winner]
    measured = [one for one in others if rows[one].status == "ok" and rows[one].rounds >= INTERVAL_ROUNDS]
    if measured and leaders:
        return max(measured, key=lambda config: rows[config].throughput_per_s or 0.0)
    return next((config for config in leaders if config not in of_winner), None)


def command_line(config: RunConfig) -> str:
    """Return the command that measures this configuration again."""
    words = ["--mode", config.mode_label, "--workload", config.workload, "--gpus", str(config.world_size)]
    of_workload = find_workload(config.workload).usual
    for name, option in OBEYED_BY_WORKERS.items():
        value, default = getattr(config, name), of_workload.get(name, option.default)
        usual = default.on(config.device) if isinstance(default, ByDevice) else default
        if name == "batch_size" or (value != usual and name != "workers"):
            words += [flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)]
    if config.te_switches:
        words += ["--te-switch", config.te_switches]
    return f"fp8bench run {shlex.join(words)}"


def document(swept: Swept) -> doc.Document:
    """Return the document. Its data is a `SweepResult`."""
    found = result(swept)
    usd = "" if found.usd_per_hour is None else f", {found.spent_s / 3600 * found.usd_per_hour:.2f} USD"
    said = [
        *answer(found),
        f"Spent in this call: {time_in_words(found.spent_s)}{usd}, {found.turns} starts of processes.",
    ]
    if found.modes_not_tried:
        modes = ", ".join(found.modes_not_tried)
        said.append(f"Not tried in any settings: {modes}. A larger budget, or --mode, makes room for a look.")
    if found.ended:
        again = f"`fp8bench sweep --session {found.session}` with the same options goes on, and repeats nothing."
        said.append(f"Ended by {found.ended}: {again}")
    shown: list[doc.Part] = [doc.Heading("What was tried"), _table(found.rows)] if found.rows else []
    failed = [doc.Note(f"{_named(row)}: {row.dropped}") for row in found.rows if row.status != "ok"]
    blocks = doc.blocks(
        [*map(doc.Sentence, said)],
        shown,
        [doc.Heading("What failed"), *failed] if failed else [],
        about_untried(found.not_tried),
    )
    return doc.Document(blocks, data=found, lines=doc.CsvLines.of(SweepRow, found.rows))


def answer(found: SweepResult) -> Iterator[str]:
    """Yield the winner and the runner-up in sentences."""
    winner, second = found.winner, found.runner_up
    if winner is None:
        yield "No configuration is left: nothing was found."
        return
    best = "Cheapest" if winner.units_per_usd is not None else "Fastest (no price is known)"
    yield f"{best} of {len(found.rows)} tried: {_named(winner)}, with {_worth(winner)} {_measured(winner)}."
    if winner.rounds < INTERVAL_ROUNDS:
        yield "One process is not a measurement: resume with a larger budget for an interval over processes."
    yield f"Run it: {winner.command}"
    if second is None:
        yield "There is no runner-up: the others were dropped, or failed."
    else:
        yield f"Runner-up: {_named(second)}, with {_worth(second)}; {_apart(found)}."


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
    unit = row.unit or "units"
    value, ends, per = row.units_per_usd, row.units_per_usd_ci, "USD"
    if value is None:
        value, ends, per = row.throughput_per_s, row.throughput_ci_per_s, "s"
    said = f"{rate(value)} {unit}/{per}"
    return f"{said} ({low_to_high(*ends, rate)})" if ends else said


def _table(rows: Sequence[SweepRow]) -> doc.Table:
    unit = next((row.unit for row in rows if row.unit), "units")
    priced = any(row.units_per_usd is not None for row in rows)

    def value(row: SweepRow) -> str:
        if priced:
            return rate_with_interval(row.units_per_usd, row.units_per_usd_ci)
        return rate_with_interval(row.throughput_per_s, row.throughput_ci_per_s)

    def dropped(row: SweepRow) -> str | None:
        stopped = f"{row.status}: {row.cause}" if row.cause else row.status
        return row.dropped if row.status == "ok" else stopped

    columns: tuple[Column[SweepRow], ...] = (
        Column("place", lambda row: row.place, "d"),
        word("mode", lambda row: row.mode),
        Column("batch", lambda row: row.batch_size, "d"),
        word("execution", lambda row: row.execution),
        word("attention", lambda row: row.attention),
        word("rounds", lambda row: str(row.rounds) if row.rounds else "look"),
        Column(f"{unit}/{'USD' if priced else 's'} (95 %)", value, str, "interval"),
        Column("peak GiB", lambda row: row.peak_memory_bytes, ".1f", scale=2**-30),
        Column("dropped", dropped, kind="note"),
    )
    shown = [(column.heading in ("attention", "peak GiB", "dropped"), column.cells(rows)) for column in columns]
    return doc.Table(
        tuple(cells for optional, cells in shown if cells.says_something or not optional),
        naming=3,
        emphasis=tuple("strong" if row.place == 1 else "" if row.place else "faint" for row in rows),
    )


def about_untried(untried: Sequence[NotTried]) -> list[doc.Heading | doc.Note]:
    """List reasons, the most frequent first. What cannot differ from another was tried as that, and is in --json."""
    by_reason: dict[str, list[str]] = {}
    for one in untried:
        why = "cannot differ from one that was tried" if one.why.startswith("cannot differ") else one.why
        by_reason.setdefault(why, []).append(one.configuration)
    lines = []
    for why, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        more = f"; and {len(names) - MOST_UNTRIED} more (--json)" if len(names) > MOST_UNTRIED else ""
        listed = "" if why.startswith("cannot differ") else f": {'; '.join(names[:MOST_UNTRIED])}{more}"
        lines.append(doc.Note(f"{len(names)}: {why}{listed}"))
    return [doc.Heading("What was not tried"), *lines] if lines else []

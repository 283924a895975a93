"""What a sweep found: the winner with its command line, the runner-up and whether the two differ, what was tried, and
what was not and why; and what `sweep --dry-run` plans. On one machine units per USD rank as throughput does.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import inf
from statistics import fmean
from typing import Any

from fp8bench.config.request import RunRequest
from fp8bench.launch.forecast import duration
from fp8bench.launch.halving import INTERVAL_ROUNDS, Halving, Standings, Untried, in_words
from fp8bench.launch.session import Sweep, begun
from fp8bench.pricing.cost import units_per_usd
from fp8bench.records.select import grouped
from fp8bench.registry import find_workload
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Status
from fp8bench.schema.execution import CompileChoice, GraphChoice, Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.option import flag_of
from fp8bench.stats.ratio import Ratio, ratio
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import Interval, counted, low_to_high, rate, with_interval

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


def document(sweep: Sweep, found: Halving, spent_s: float, turns: int) -> doc.Document:
    """Return the document of a search that ended with a leader. spent_s, turns: of this call. In its data, told_apart:
    whether the interval of the two lies beyond the noise; null if one of them has fewer than two rounds.
    """
    now, wanted, budget = found.standings(), found.wanted(), sweep.budget
    untried = [*found.not_looked_at(budget.text), *sweep.untried]
    every = {one: _row(one, found, now, budget.usd_per_hour) for one in dict.fromkeys((*now.leaders, *found.looks))}
    order = sorted(every, key=lambda one: (not every[one].place, every[one].place or found.unit_s(one)))
    rows = [every[config] for config in order]
    second, versus = _runner_up(found, every, order)
    left = list(dict.fromkeys(one.mode for one in wanted if one.mode not in {config.mode for config in found.looks}))
    ended = f"the budget of {budget.text}" if wanted or now.turn else None
    cost = f", {budget.usd(spent_s):.2f} USD" if budget.usd_per_hour else ""
    said = [
        *answer(len(rows), rows[0], second, versus),
        f"Spent in this call: {duration(spent_s)}{cost}, {turns} starts of processes.",
    ]
    if left:
        said.append(f"Not tried in any settings: {', '.join(left)}. A larger budget, or --mode, makes room for a look.")
    if ended:
        again = f"`fp8bench sweep --session {sweep.name}` with the same options goes on, and repeats nothing."
        said.append(f"Ended by {ended}: {again}")
    blocks = doc.blocks(
        [*map(doc.Sentence, said)],
        [doc.Heading("What was tried"), _table(rows)],
        _about_untried(untried),
    )
    data = {
        "session": sweep.name,
        "instance": sweep.prepared.instance.key,
        "usd_per_hour": budget.usd_per_hour,
        "spent_s": spent_s,
        "turns": turns,
        "ended": ended,
        "winner": rows[0],
        "runner_up": second,
        "told_apart": versus.verdict == "slower" if versus else None,
        "runner_up_time": versus.value if versus else None,
        "runner_up_time_ci": versus.interval if versus else None,
        "rows": rows,
        "modes_not_tried": left,
        "not_tried": _as_json(untried),
    }
    return doc.Document(blocks, data=data, lines=doc.CsvLines.of(SweepRow, rows))


def _runner_up(
    found: Halving, rows: Mapping[RunConfig, SweepRow], order: Sequence[RunConfig]
) -> tuple[SweepRow | None, Ratio | None]:
    """Return the best with an interval, even if dropped, else the next leader; and its time over the winner's."""
    # With --batch-size auto a configuration continues at one size, and its other sizes are no rivals.
    of_winner = found.sizes(order[0]) if found.blank is not None else order[:1]
    rivals = [config for config in order if config not in of_winner and rows[config].status == "ok"]
    measured = [config for config in rivals if rows[config].rounds >= INTERVAL_ROUNDS]
    second = next(iter(measured or (config for config in rivals if rows[config].place)), None)
    if second is None:
        return None, None
    first, other = found.measured(order[0]), found.measured(second)
    versus = ratio(other, first) if first and other else None
    return rows[second], versus if versus and versus.interval else None


def _row(config: RunConfig, halving: Halving, now: Standings, usd_per_hour: float | None) -> SweepRow:
    every = [halving.looks[config], *halving.rounds.get(config, [])]
    # The throughput of the rounds, else of the look. A single process has no interval: the next may differ.
    found, unit_s, last = halving.measured(config), halving.unit_s(config), every[-1]
    throughput = 1 / unit_s if unit_s < inf else None
    ends = (1 / found.interval[1], 1 / found.interval[0]) if found and found.interval else None
    units = [record.summary.unit for record in every if record.summary is not None]
    return made_of(
        SweepRow,
        last,
        config,
        place=now.leaders.index(config) + 1 if config in now.leaders else None,
        mode=config.switched_label,
        execution=last.execution if last.status == "ok" else None,
        rounds=sum(record.status == "ok" for record in every[1:]),
        unit=units[-1] if units else None,
        throughput_per_s=throughput,
        throughput_ci_per_s=ends,
        units_per_usd=units_per_usd(throughput, usd_per_hour) if throughput and usd_per_hour else None,
        units_per_usd_ci=tuple(units_per_usd(end, usd_per_hour) for end in ends) if ends and usd_per_hour else None,
        # As in the table of `compare`: what torch allocated on the fullest GPU; None on a CPU.
        peak_memory_bytes=max((rank.peak_allocated_bytes or 0 for rank in last.memory), default=0) or None,
        dropped=now.dropped.get(config),
        command=command_line(config),
    )


def command_line(config: RunConfig) -> str:
    words = ["--mode", config.mode_label, "--workload", config.workload, "--gpus", str(config.world_size)]
    for name, usual in RunRequest().of_workers(config.device, find_workload(config.workload).usual).items():
        value = getattr(config, name)
        if name == "batch_size" or (value != usual and name != "workers"):
            words += [flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)]
    if config.te_switches:
        words += ["--te-switch", config.te_switches]
    return f"fp8bench run {shlex.join(words)}"


def answer(tried: int, winner: SweepRow, second: SweepRow | None, versus: Ratio | None) -> Iterator[str]:
    """Yield the winner and the runner-up in sentences. versus: the time of the second over the winner's."""
    best = "Cheapest" if winner.units_per_usd is not None else "Fastest (no price is known)"
    measured = f"in {counted(winner.rounds, 'round')}" if winner.rounds else "in a short look only"
    yield f"{best} of {tried} tried: {_told(winner)} {measured}."
    if winner.rounds < INTERVAL_ROUNDS:
        yield "One process is not a measurement: resume with a larger budget for an interval over processes."
    yield f"Run it: {winner.command}"
    if second is None:
        yield "There is no runner-up: the others were dropped, or failed."
        return
    apart = "whether the two differ is unknown, since one of them has less than two rounds"
    if versus is not None:
        over = f"it takes {with_interval(versus.value, versus.interval, '.3f', after='x')} the winner's time a unit"
        apart = f"the two cannot be distinguished: {over}; more --rounds may decide"
        if versus.verdict == "slower":
            apart = f"the two differ: {over}"
    yield f"Runner-up: {_told(second)}; {apart}."


def _value(row: SweepRow) -> tuple[float | None, Interval | None]:
    priced = row.units_per_usd is not None
    return (row.units_per_usd, row.units_per_usd_ci) if priced else (row.throughput_per_s, row.throughput_ci_per_s)


def _told(row: SweepRow) -> str:
    """Write e.g. `te-fp8:delayed at batch 64, graphed, with 633 images/s (630-636)`."""
    (value, ends), ran = _value(row), f", {row.execution}" if row.execution else ""
    interval = f" ({low_to_high(*ends, rate)})" if ends else ""
    worth = f"{rate(value)} {row.unit or 'units'}/{'USD' if row.units_per_usd is not None else 's'}{interval}"
    return f"{row.mode} at batch {row.batch_size}{ran}, with {worth}"


def _table(rows: Sequence[SweepRow]) -> doc.Table:
    # The winner's, which has both: a configuration that failed has neither.
    unit, per = rows[0].unit or "units", "USD" if rows[0].units_per_usd is not None else "s"
    columns: tuple[Column[SweepRow], ...] = (
        Column("place", lambda row: row.place, "d"),
        word("mode", lambda row: row.mode),
        Column("batch", lambda row: row.batch_size, "d"),
        word("execution", lambda row: row.execution),
        word("attention", lambda row: row.attention),
        word("rounds", lambda row: str(row.rounds) if row.rounds else "look"),
        Column(f"{unit}/{per} (95 %)", lambda row: with_interval(*_value(row), rate), str),
        Column("peak GiB", lambda row: row.peak_memory_bytes, ".1f", scale=2**-30),
        Column("dropped", lambda row: row.dropped, kind="note"),
    )
    return table_of(columns, rows, 3, lambda row: "strong" if row.place == 1 else "" if row.place else "faint")


def _as_json(untried: Untried) -> list[dict[str, str]]:
    return [{"configuration": in_words(config), "why": why} for config, why in untried]


def _about_untried(untried: Untried) -> list[doc.Heading | doc.Note]:
    """List reasons, the most frequent first. What cannot differ from another was tried as that, and is in --json."""
    alike = "cannot differ from one that was tried"
    by_reason = grouped(untried, lambda one: alike if one[1].startswith("cannot differ") else one[1])
    lines = []
    for why, configs in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        names = [in_words(config) for config, _ in configs[:MOST_UNTRIED]]
        if len(configs) > MOST_UNTRIED:
            names.append(f"and {len(configs) - MOST_UNTRIED} more (--json)")
        lines.append(doc.Note(f"{len(configs)}: {why}{'' if why == alike else ': ' + '; '.join(names)}"))
    return [doc.Heading("What was not tried"), *lines] if lines else []


OF_LOOK = ("mode", "batch_size", "compile", "cuda_graphs", "te_attention", "when", "seconds", "within_budget")
"""Fields of a planned look. seconds: its expected time. within_budget: whether it fits together with rounds."""

LOOKS: tuple[Column[tuple[int, RunConfig, dict[str, Any]]], ...] = (
    Column("look", lambda row: row[0], "d"),
    word("configuration", lambda row: in_words(row[1])),
    word("comes", lambda row: row[2]["when"]),
    word("in budget", lambda row: "yes" if row[2]["within_budget"] else "no"),
    Column("expected", lambda row: row[2]["seconds"], ".0f", unit="s"),
)


def plan_document(sweep: Sweep) -> doc.Document:
    """Return the document of a dry run, which writes nothing. In its data, looks_done: by earlier calls of this sweep.
    round_turns, rounds_seconds: at most. known: whether all times are from records of the same work; else they are
    lower bounds. batch_sizes: whether sizes are looked at until the largest that fits. Raises UsageError as `begun`.
    """
    budget, halving, looks, fit, spent_s = sweep.budget, begun(sweep), list[dict[str, Any]](), 0, 0.0
    rounds, done, candidates, wanted = halving.most_rounds, len(halving.looks), halving.candidates, halving.wanted()
    for config, when in wanted.items():
        seconds = halving.look_s(config)
        fits = halving.looks_first(spent_s) and halving.fits(config, spent_s, done + fit)
        settings = (config.mode_label, *(getattr(config, name) for name in OF_LOOK[1:5]))
        looks.append(dict(zip(OF_LOOK, (*settings, when, seconds, fits), strict=True)))
        fit, spent_s = fit + fits, spent_s + seconds * fits
    looks_s = sum((look["seconds"] for look in looks), 0.0)
    turns = max(0, halving.most_round_turns(len(looks) + done) - sum(map(len, halving.rounds.values())))
    rounds_s = turns * fmean(map(halving.round_s, candidates)) if candidates else 0.0
    known, auto = all(map(halving.forecaster.is_known, candidates)), halving.blank is not None
    so_far = f", and {done} are done" if done else ""
    sizes = ", and after the usual settings at larger batch sizes of the leaders" if auto else ""
    most = budget.usd(min(looks_s + rounds_s, budget.seconds))
    at = f"about {most:,.2f} USD at {budget.usd_per_hour:,.2f} USD an hour" if most is not None else ""
    said = [
        f"Would look at {len(looks)} configurations of {sweep.prepared.instance.key}{so_far}{sizes}; then {rounds} "
        f"rounds of the best, at most {turns} turns.",
        f"Time: {'about' if known else 'at least'} {duration(looks_s)} for the looks, and {duration(rounds_s)} for the "
        "rounds if none is dropped early.",
        f"The budget of {budget.text} ends it earlier. At most {fit} looks fit beside the rounds."
        if looks_s + rounds_s > budget.seconds
        else "",
        f"Cost: {at or 'unknown, since no price of this machine is known; --price gives one'}.",
        "" if known else "Of work without a record, only what a start and torch.compile take is counted.",
    ]
    data = {
        "session": sweep.name,
        "instance": sweep.prepared.instance.key,
        "looks": looks,
        "looks_done": done,
        "looks_seconds": looks_s,
        "rounds": rounds,
        "round_turns": turns,
        "rounds_seconds": rounds_s,
        "known": known,
        "batch_sizes": auto,
        "usd_per_hour": budget.usd_per_hour,
        "usd": budget.usd(looks_s + rounds_s),
        "budget_seconds": budget.seconds,
        "not_tried": _as_json(sweep.untried),
    }
    tables = [table_of(LOOKS, [*zip(count(done + 1), wanted, looks, strict=False)], 2)] if looks else []
    shown = doc.blocks([*map(doc.Sentence, filter(None, said))], tables, _about_untried(sweep.untried))
    lines = doc.CsvLines(OF_LOOK, tuple(tuple(look.values()) for look in looks))
    return doc.Document(shown, data=data, lines=lines)

"""What a sweep found: the winner with its interval and its command line, the runner-up and whether the two can be
distinguished, everything that was tried, and what was not and why; and what `sweep --dry-run` plans.

On one machine an hour costs the same for all configurations, so the ranking by units per USD is the ranking by
throughput; without a price it is shown as such.
"""

import shlex
from collections.abc import Iterator, Sequence
from statistics import fmean

from fp8bench.config.request import OBEYED_BY_WORKERS
from fp8bench.launch.forecast import duration
from fp8bench.launch.sweep.halving import INTERVAL_ROUNDS, Standings, When
from fp8bench.launch.sweep.search import Sweep, Swept, begun
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


class PlannedLook(Frozen):
    """One configuration that would be looked at. seconds: its expected time. when: its turn. within_budget: whether it
    fits together with the rounds, as far as forecasts tell.
    """

    mode: str
    batch_size: int
    compile: CompileChoice
    cuda_graphs: GraphChoice
    te_attention: str
    when: When
    seconds: float
    within_budget: bool


class SweepPlan(Frozen):
    """What `sweep --dry-run --json` prints. looks_done: by earlier calls of this sweep. round_turns, rounds_seconds: of
    all rounds, at most. known: whether all times are from records of the same work; else they are lower bounds.
    batch_sizes: whether more sizes are looked at, until the largest that fits is known.
    """

    session: str
    instance: str
    looks: tuple[PlannedLook, ...]
    looks_done: int
    looks_seconds: float
    rounds: int
    round_turns: int
    rounds_seconds: float
    known: bool
    batch_sizes: bool
    usd_per_hour: float | None
    usd: float | None
    budget_seconds: float | None
    not_tried: tuple[NotTried, ...]


def result(swept: Swept) -> SweepResult:
    """Return the numbers, with the remaining rows first, the best first, then dropped rows sorted by their figures."""
    sweep, spending = swept.sweep, swept.spending
    seen, now, left = spending.seen, spending.standings, spending.wanted()
    rows = {config: _row(config, swept, now) for config in dict.fromkeys((*now.leaders, *seen.looks))}
    # With --batch-size auto a configuration continues at one size, and its other sizes are no rivals.
    first = next(iter(now.leaders), None)
    of_winner = [] if first is None else seen.sizes(first) if sweep.rule.blank is not None else [first]
    rivals = [config for config in rows if config not in of_winner]
    # The runner-up is the best with an interval, even if dropped as slower, else the next leader.
    measured = [one for one in rivals if rows[one].status == "ok" and rows[one].rounds >= INTERVAL_ROUNDS]
    second = next((config for config in rivals if config in now.leaders), None)
    versus = None
    if measured and first:
        second = max(measured, key=lambda config: rows[config].throughput_per_s or 0.0)
    if first and second and (ours := seen.measured(first)) and (theirs := seen.measured(second)):
        versus = ratio(theirs, ours) if min(ours.processes, theirs.processes) >= INTERVAL_ROUNDS else None
    tried = {config.mode for config in seen.looks}
    return SweepResult(
        session=sweep.name,
        instance=sweep.prepared.instance.key,
        usd_per_hour=sweep.budget.usd_per_hour,
        spent_s=swept.spent_s,
        turns=swept.turns,
        ended=None if now.turn is None and not left else f"the budget of {sweep.budget.text}",
        winner=rows[first] if first else None,
        runner_up=rows[second] if second else None,
        told_apart=versus and versus.verdict == "slower",
        runner_up_time=versus and versus.value,
        runner_up_time_ci=versus and versus.interval,
        rows=tuple(sorted(rows.values(), key=lambda row: (not row.place, row.place or -(row.throughput_per_s or 0.0)))),
        modes_not_tried=tuple(dict.fromkeys(one.mode for one in left if one.mode not in tried)),
        not_tried=_not_tried(swept.untried),
    )


def _not_tried(untried: Untried) -> tuple[NotTried, ...]:
    return tuple(NotTried(configuration=in_words(config), why=why) for config, why in untried)


def _row(config: RunConfig, swept: Swept, now: Standings) -> SweepRow:
    seen, usd_per_hour = swept.spending.seen, swept.sweep.budget.usd_per_hour
    every = [seen.looks[config], *seen.rounds.get(config, [])]
    # The throughput of the rounds, else of the look. A single process has no interval: the next may differ.
    found, unit_s = seen.measured(config), seen.unit_s(config)
    throughput = 1 / unit_s if unit_s is not None else None
    ends = (1 / found.interval[1], 1 / found.interval[0]) if found and found.interval else None
    units = [record.summary.unit for record in every if record.summary is not None]
    last = every[-1]
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
    found, usd = result(swept), swept.sweep.budget.usd(swept.spent_s)
    cost = "" if usd is None else f", {usd:.2f} USD"
    said = [*answer(found), f"Spent in this call: {duration(found.spent_s)}{cost}, {found.turns} starts of processes."]
    if found.modes_not_tried:
        modes = ", ".join(found.modes_not_tried)
        said.append(f"Not tried in any settings: {modes}. A larger budget, or --mode, makes room for a look.")
    if found.ended:
        again = f"`fp8bench sweep --session {found.session}` with the same options goes on, and repeats nothing."
        said.append(f"Ended by {found.ended}: {again}")
    failed = [doc.Note(f"{_named(row)}: {row.dropped}") for row in found.rows if row.status != "ok"]
    blocks = doc.blocks(
        [*map(doc.Sentence, said)],
        [doc.Heading("What was tried"), _table(found.rows)] if found.rows else [],
        [doc.Heading("What failed"), *failed] if failed else [],
        _about_untried(found.not_tried),
    )
    return doc.Document(blocks, data=found, lines=doc.CsvLines.of(SweepRow, found.rows))


def answer(found: SweepResult) -> Iterator[str]:
    """Yield the winner and the runner-up in sentences."""
    winner, second = found.winner, found.runner_up
    if winner is None:
        yield "No configuration is left: nothing was found."
        return
    best = "Cheapest" if winner.units_per_usd is not None else "Fastest (no price is known)"
    measured = f"in {counted(winner.rounds, 'round')}" if winner.rounds else "in a short look only"
    yield f"{best} of {len(found.rows)} tried: {_named(winner)}, with {_worth(winner)} {measured}."
    if winner.rounds < INTERVAL_ROUNDS:
        yield "One process is not a measurement: resume with a larger budget for an interval over processes."
    yield f"Run it: {winner.command}"
    if second is None:
        yield "There is no runner-up: the others were dropped, or failed."
        return
    takes = with_interval(found.runner_up_time, found.runner_up_time_ci, ".3f", after="x")
    apart = f"the two differ: it takes {takes} the winner's time a unit"
    if found.told_apart is None:
        apart = "whether the two differ is unknown, since one of them has less than two rounds"
    elif not found.told_apart:
        apart = f"the two cannot be distinguished: it takes {takes} the winner's time a unit; more --rounds may decide"
    yield f"Runner-up: {_named(second)}, with {_worth(second)}; {apart}."


def _named(row: SweepRow) -> str:
    ran = f", {row.execution}" if row.execution else ""
    return f"{row.mode} at batch {row.batch_size}{ran}"


def _worth(row: SweepRow) -> str:
    value, ends, per = row.units_per_usd, row.units_per_usd_ci, "USD"
    if value is None:
        value, ends, per = row.throughput_per_s, row.throughput_ci_per_s, "s"
    interval = f" ({low_to_high(*ends, rate)})" if ends else ""
    return f"{rate(value)} {row.unit or 'units'}/{per}{interval}"


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
    cells = [column.cells(rows) for column in columns]
    return doc.Table(
        tuple(one for one in cells if one.says_something or one.heading not in ("attention", "peak GiB", "dropped")),
        naming=3,
        emphasis=tuple("strong" if row.place == 1 else "" if row.place else "faint" for row in rows),
    )


def _about_untried(untried: Sequence[NotTried]) -> list[doc.Heading | doc.Note]:
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


def plan_of(sweep: Sweep) -> SweepPlan:
    """Return the plan. Runs and writes nothing. Raises UsageError as `begun` does."""
    budget, spending, candidates = sweep.budget, begun(sweep), sweep.candidates
    looks, before, spent_s = list[PlannedLook](), spending.best_first(), 0.0
    for config, when in spending.wanted().items():
        seconds = spending.look_s(config)
        within = spending.looks_come(spent_s) and spending.fits(config, before, spent_s)
        label = config.mode_label
        looks.append(made_of(PlannedLook, config, mode=label, when=when, seconds=seconds, within_budget=within))
        if within:
            before, spent_s = [*before, config], spent_s + seconds
    looks_s, seen = sum(look.seconds for look in looks), spending.seen
    turns = sweep.rule.most_round_turns(len(looks) + len(seen.looks)) - sum(map(len, seen.rounds.values()))
    rounds_s = max(0, turns) * fmean(map(spending.round_s, candidates)) if candidates else 0.0
    return SweepPlan(
        session=sweep.name,
        instance=sweep.prepared.instance.key,
        looks=tuple(looks),
        looks_done=len(seen.looks),
        looks_seconds=looks_s,
        rounds=sweep.rule.rounds,
        round_turns=max(0, turns),
        rounds_seconds=rounds_s,
        known=all(map(spending.forecaster.is_known, candidates)),
        batch_sizes=sweep.rule.blank is not None,
        usd_per_hour=budget.usd_per_hour,
        usd=budget.usd(looks_s + rounds_s),
        budget_seconds=budget.seconds,
        not_tried=_not_tried(sweep.untried),
    )


PLANNED: tuple[Column[PlannedLook], ...] = (
    word("mode", lambda look: look.mode),
    Column("batch", lambda look: look.batch_size, "d"),
    word("compile", lambda look: look.compile),
    word("graphs", lambda look: look.cuda_graphs),
    word("attention", lambda look: look.te_attention),
    word("comes", lambda look: look.when),
    word("in budget", lambda look: "yes" if look.within_budget else "no"),
    Column("expected", lambda look: look.seconds, ".0f", unit="s"),
)


def plan_document(sweep: Sweep) -> doc.Document:
    """Return the document of a dry run. Its data is a `SweepPlan`."""
    plan, budget = plan_of(sweep), sweep.budget
    done = f", and {plan.looks_done} are done" if plan.looks_done else ""
    sizes = ", and after the usual settings at larger batch sizes of the leaders" if plan.batch_sizes else ""
    said = [
        f"Would look at {len(plan.looks)} configurations of {plan.instance}{done}{sizes}; then {plan.rounds} rounds of "
        f"the best, at most {plan.round_turns} turns.",
        f"Time: {'about' if plan.known else 'at least'} {duration(plan.looks_seconds)} for the looks, and "
        f"{duration(plan.rounds_seconds)} for the rounds if none is dropped early.",
    ]
    if plan.looks_seconds + plan.rounds_seconds > budget.seconds:
        fit = sum(look.within_budget for look in plan.looks)
        said.append(f"The budget of {budget.text} ends it earlier. At most {fit} looks fit beside the rounds.")
    most = budget.usd(min(plan.looks_seconds + plan.rounds_seconds, budget.seconds))
    if most is None:
        said.append("Cost: unknown, since no price of this machine is known; --price gives one.")
    else:
        said.append(f"Cost: about {most:,.2f} USD at {plan.usd_per_hour:,.2f} USD an hour.")
    if not plan.known:
        said.append("Where there is no record of the same work, only what a start and torch.compile take is counted.")
    numbers = doc.Cells("look", tuple(str(plan.looks_done + place) for place in range(1, len(plan.looks) + 1)))
    table = doc.Table((numbers, *(column.cells(plan.looks) for column in PLANNED)), naming=2)
    shown = doc.blocks([*map(doc.Sentence, said)], [table] if plan.looks else [], _about_untried(plan.not_tried))
    return doc.Document(shown, data=plan, lines=doc.CsvLines.of(PlannedLook, plan.looks))

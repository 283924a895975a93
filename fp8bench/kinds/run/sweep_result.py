"""What a sweep found, as numbers: the winner, the runner-up and whether the two can be distinguished, everything that
was tried, and what was not and why.

On one machine an hour costs the same for all configurations, so the ranking by units per USD is the ranking by
throughput; without a price it is shown as such.
"""

import shlex
from collections.abc import Mapping
from typing import Literal

from fp8bench.config.request import OBEYED_BY_WORKERS
from fp8bench.launch.sweep.halving import INTERVAL_ROUNDS, family, look_s, seconds_a_unit
from fp8bench.launch.sweep.search import Swept
from fp8bench.launch.sweep.space import in_words
from fp8bench.pricing.cost import units_per_usd
from fp8bench.registry import find_workload
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Status
from fp8bench.schema.execution import CompileChoice, GraphChoice, Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.option import ByDevice, flag_of
from fp8bench.schema.record import Record
from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import Ratio, ratio
from fp8bench.tables.written import Interval


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
    """What `sweep --json` prints. winner, runner_up: from rows; null if there is none. A runner-up may have been
    dropped by its rounds, as slower. told_apart: whether the interval of the two lies beyond the noise; null if one of
    them has fewer than two rounds. runner_up_time: its time for a unit over the winner's, with its interval.
    modes_not_tried: modes that could run here, and had no look in any settings.
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
    second = _second(swept, rows)
    versus = _against_winner(second, swept)
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
        modes_not_tried=_modes_not_tried(swept),
        not_tried=tuple(NotTried(configuration=in_words(one.config), why=one.why) for one in swept.untried),
    )


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
        mode=config.switched_label,
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
    """Return the throughput of the rounds, else of the look. A single process has no interval: the next may differ."""
    if found is None:
        return (None if by_look_s is None else 1 / by_look_s), None
    return 1 / found.value, found.interval and (1 / found.interval[1], 1 / found.interval[0])


def _priced(ends: Interval | None, usd_per_hour: float | None) -> Interval | None:
    if ends is None or usd_per_hour is None:
        return None
    return units_per_usd(ends[0], usd_per_hour), units_per_usd(ends[1], usd_per_hour)


def _peak(record: Record) -> int | None:
    """Return what torch allocated on the fullest GPU, as in the table of `compare`; None on a CPU."""
    return max((rank.peak_allocated_bytes for rank in record.memory if rank.peak_allocated_bytes), default=None)


def _modes_not_tried(swept: Swept) -> tuple[str, ...]:
    tried = {config.mode for config in swept.seen.looks}
    return tuple(dict.fromkeys(one.mode for one in swept.left if one.mode not in tried))


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


def _against_winner(second: RunConfig | None, swept: Swept) -> Ratio | None:
    """Return the second's time for a unit over the winner's; None if one of the two has no interval."""
    if second is None:
        return None
    first, other = (seconds_a_unit(swept.seen.rounds.get(one, ())) for one in (swept.standings.leaders[0], second))
    if first is None or other is None or min(first.processes, other.processes) < INTERVAL_ROUNDS:
        return None
    return ratio(other, first)


def command_line(config: RunConfig, program: Literal["fp8bench run"] = "fp8bench run") -> str:
    """Return the command that measures this configuration again, without options that have their default value."""
    words = ["--mode", config.mode_label, "--workload", config.workload, "--gpus", str(config.world_size)]
    of_workload = find_workload(config.workload).usual
    for name, option in OBEYED_BY_WORKERS.items():
        value, default = getattr(config, name), of_workload.get(name, option.default)
        usual = default.on(config.device) if isinstance(default, ByDevice) else default
        if name == "batch_size" or (value != usual and name != "workers"):
            words += [flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)]
    if config.te_switches:
        words += ["--te-switch", config.te_switches]
    return f"{program} {shlex.join(words)}"

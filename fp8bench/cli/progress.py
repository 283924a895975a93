"""The progress of a session and of a sweep on standard error: a bar on a terminal, plain lines elsewhere, or none."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fp8bench.cli.output import log, warn
from fp8bench.launch.forecast import duration
from fp8bench.launch.halving import Halving, Turn, in_words
from fp8bench.launch.plan import Entry, Schedule
from fp8bench.launch.processes.blame import compiles
from fp8bench.launch.processes.watch import Watch
from fp8bench.pricing.cost import units_per_usd
from fp8bench.schema.record import Record, Session
from fp8bench.tables.render import progress_bars
from fp8bench.tables.written import rate, with_interval, workers
from fp8bench.worker.progress import Progress

LINE_EVERY_S = 15.0
"""Seconds between two plain lines of the same stage. A log file needs signs of life, not every step."""


class Quiet:
    """Shows nothing of what goes well. compiles: whether the first step may take long."""

    def begins(self, what: str, work: str, compiles: bool = False) -> Watch:
        return lambda _progress: None

    def ended(self, what: str, outcome: str) -> None:
        pass


class Lines(Quiet):
    """Prints a line for the beginning, each stage and the end, and occasional lines between."""

    def begins(self, what: str, work: str, compiles: bool = False) -> Watch:
        log(f"{what}: {work}")
        began = told_at = time.monotonic()
        stage = "starting"

        def watch(progress: Progress) -> None:
            nonlocal stage, told_at
            now, same = time.monotonic(), progress.stage == stage
            if same and now - told_at < LINE_EVERY_S:
                return
            first_step = same and progress.stage == "warming up" and progress.step <= 1
            stage, told_at = progress.stage, now
            doing = f"{stage}{' (compiling)' if first_step and compiles else ''}"
            # The number of steps is agreed on after warm-up.
            step = f"step {progress.step}" if progress.steps is None else f"step {progress.step} of {progress.steps}"
            log(f"  after {now - began:.0f} s: {', '.join(filter(None, (doing, step, _median(progress))))}")

        return watch

    def ended(self, what: str, outcome: str) -> None:
        log(f"  {outcome}")


class Bars(Quiet):
    """Shows a bar for what runs, and a line for each that has ended."""

    def __init__(self, bars: Any) -> None:
        self.bars = bars

    def begins(self, what: str, work: str, compiles: bool = False) -> Watch:
        task = self.bars.add_task("starting", total=None, what=what, median="")

        def watch(progress: Progress) -> None:
            shown = {"description": progress.stage, "completed": progress.step, "total": progress.steps}
            self.bars.update(task, **shown, median=_median(progress))

        return watch

    def ended(self, what: str, outcome: str) -> None:
        for task in self.bars.task_ids:
            self.bars.remove_task(task)
        # Or the line is drawn once more, below the outcome.
        self.bars.refresh()
        self.bars.console.print(f"{what}: {outcome}", markup=False, highlight=False)


def _median(progress: Progress) -> str:
    return f"median {progress.median_s * 1e3:.1f} ms" if progress.median_s else ""


@contextmanager
def shown(quiet: bool) -> Iterator[Quiet]:
    if quiet or not sys.stderr.isatty():
        yield Quiet() if quiet else Lines()
        return
    with progress_bars() as bars:
        yield Bars(bars)


class OfSession:
    """Listens to a session (see `launch.session.measure`)."""

    def __init__(self, schedule: Schedule, on: Quiet) -> None:
        self._schedule, self._on = schedule, on

    def begins(self, entry: Entry, place: Session) -> Watch:
        stop, config = self._schedule.stop, entry.config
        of = f" of {stop.rounds}" if stop.most == stop.rounds else f" (at most {stop.most})"
        trained_by = workers(config.world_size, config.device).replace("process", "CPU process")
        work = f"{config.workload}, batch {config.batch_size} x {trained_by}"
        steps = f"{config.warmup} + at least {config.steps} steps"
        return self._on.begins(f"{entry.label}, round {place.round}{of}", f"{work}, {steps}", compiles(config) is True)

    def ended(self, entry: Entry, record: Record, path: Path) -> None:
        outcome, so_far = _status(record), self._schedule.estimate(entry)
        if record.summary is not None and so_far is not None:
            executed = f", {record.execution}" if record.execution else ""
            outcome = f"{record.status}{executed}, {record.summary.step_time_s * 1e3:.1f} ms a step"
            if so_far.interval is not None:
                over = with_interval(so_far.value, so_far.interval, ".1f", 1e3)
                outcome += f"; over {so_far.processes} processes {over}"
        number = record.session.round if record.session is not None else 1
        self._on.ended(f"{entry.label}, round {number}", f"{outcome}: {path}")
        _log_reason(entry.label, record)
        for warning in record.evidence.warnings if record.evidence else ():
            warn(f"{entry.label}: {warning}")


class OfSweep:
    """Listens to a sweep (`launch.session.run_sweep`): after each turn it says which configuration leads."""

    def __init__(self, usd_per_hour: float | None, on: Quiet) -> None:
        self._usd_per_hour, self._on = usd_per_hour, on

    def begins(self, turn: Turn, expected_s: float) -> Watch:
        return self._on.begins(_called(turn), f"about {duration(expected_s)}")

    def ended(self, turn: Turn, record: Record, halving: Halving) -> None:
        outcome, price = _status(record), self._usd_per_hour
        if record.status == "ok":
            leaders = halving.standings().leaders
            led = f"leads: {in_words(leaders[0])}" if leaders else "none is left"
            led = "it leads" if leaders[:1] == (turn.config,) else led
            # Of its rounds, or of its look if it has none.
            per_s = 1 / halving.unit_s(turn.config)
            worth = f"{rate(per_s)} units/s" if price is None else f"{rate(units_per_usd(per_s, price))} units/USD"
            outcome = f"{record.execution}, {worth if per_s else '-'}; {led}"
        self._on.ended(_called(turn), outcome)
        _log_reason(in_words(turn.config), record)


def _called(turn: Turn) -> str:
    return f"{turn.stage} {turn.number}: {in_words(turn.config)}"


def _status(record: Record) -> str:
    return f"{record.status} ({record.cause})" if record.cause else record.status


def _log_reason(label: str, record: Record) -> None:
    if record.reason:
        log(f"{label}: {record.reason}. {record.remedy}.")

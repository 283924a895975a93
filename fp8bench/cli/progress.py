"""The progress of a session on standard error: live on a terminal, in plain lines elsewhere, or not at all."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.cli.output import log, warn
from fp8bench.report.written import with_interval, workers

if TYPE_CHECKING:
    from fp8bench.launch.processes import Watch
    from fp8bench.launch.rounds import Entry, Schedule
    from fp8bench.launch.session import Listener
    from fp8bench.schema.record import Record, Session
    from fp8bench.stats.estimate import Estimate
    from fp8bench.worker.progress import Progress

LINE_EVERY_S = 15.0
"""Between two plain lines of one stage: a log file wants signs of life, not every step."""


@contextmanager
def listener(schedule: "Schedule", quiet: bool) -> "Iterator[Listener]":
    """By the terminal; a quiet one reports only what went wrong."""
    if quiet:
        yield Quiet()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.fields[what]}"),
            TextColumn("{task.description}", style="dim"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[median]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            yield Live(schedule, bars)
    else:
        yield Lines(schedule)


class Quiet:
    """Reports only a turn that stopped, and warnings."""

    def begins(self, entry: "Entry", place: "Session") -> "Watch":
        return lambda _progress: None

    def ended(self, entry: "Entry", place: "Session", record: "Record", path: Path) -> None:
        """Why it stopped, and what the record warns of."""
        if record.reason:
            log(f"{entry.label}: {record.reason}. {record.remedy}.")
        for warning in record.evidence.warnings if record.evidence else ():
            warn(f"{entry.label}: {warning}")


class Lines(Quiet):
    """A line for each turn's begin, stage and end, and now and then one between."""

    def __init__(self, schedule: "Schedule") -> None:
        self._schedule = schedule

    def begins(self, entry: "Entry", place: "Session") -> "Watch":
        """Say what runs; its progress follows, stage by stage."""
        log(f"{entry.label}, round {place.round}{_of(self._schedule)}: {_work(entry)}")
        began = time.monotonic()
        last: dict[str, Any] = {"stage": "starting", "at": began}

        def watch(progress: "Progress") -> None:
            now = time.monotonic()
            if progress.stage == last["stage"] and now - last["at"] < LINE_EVERY_S:
                return
            last.update(stage=progress.stage, at=now)
            median = f", median {progress.median_s * 1e3:.1f} ms" if progress.median_s else ""
            # How many there will be is agreed after warm-up.
            steps = "" if progress.steps is None else f" of {progress.steps}"
            log(f"  after {now - began:.0f} s: {progress.stage}, step {progress.step}{steps}{median}")

        return watch

    def ended(self, entry: "Entry", place: "Session", record: "Record", path: Path) -> None:
        log(f"  {_outcome(record, self._schedule.estimate(entry))}: {path}")
        super().ended(entry, place, record, path)


class Live(Quiet):
    """A bar for the turn that runs, and a line for each that has ended."""

    def __init__(self, schedule: "Schedule", bars: Any) -> None:
        self._schedule = schedule
        self._bars = bars
        self._task: Any = None

    def begins(self, entry: "Entry", place: "Session") -> "Watch":
        what = f"{entry.label}, round {place.round}{_of(self._schedule)}"
        task = self._bars.add_task("starting", total=None, what=what, median="")
        self._task = task

        def watch(progress: "Progress") -> None:
            median = f"median {progress.median_s * 1e3:.1f} ms" if progress.median_s else ""
            self._bars.update(
                task, description=progress.stage, completed=progress.step, total=progress.steps, median=median
            )

        return watch

    def ended(self, entry: "Entry", place: "Session", record: "Record", path: Path) -> None:
        self._bars.remove_task(self._task)
        line = f"{entry.label}, round {place.round}: {_outcome(record, self._schedule.estimate(entry))}"
        self._bars.console.print(line, markup=False, highlight=False)
        super().ended(entry, place, record, path)


def _of(schedule: "Schedule") -> str:
    stop = schedule.stop
    return f" of {stop.rounds}" if stop.precision is None else f" (at most {stop.max_rounds})"


def _work(entry: "Entry") -> str:
    config = entry.config
    trained_by = workers(config.world_size, config.device).replace("process", "CPU process")
    return (
        f"{config.workload}, batch {config.batch_size} x {trained_by}, {config.warmup} + at least {config.steps} steps"
    )


def _outcome(record: "Record", so_far: "Estimate | None") -> str:
    if record.summary is None or so_far is None:
        return f"{record.status} ({record.cause})" if record.cause else record.status
    executed = f", {record.execution}" if record.execution else ""
    text = f"{record.status}{executed}, {record.summary.step_time_s * 1e3:.1f} ms a step"
    if so_far.processes > 1 and so_far.low is not None and so_far.high is not None:
        over = with_interval(so_far.value, (so_far.low, so_far.high), ".1f", 1e3)
        text += f"; over {so_far.processes} processes {over}"
    return text

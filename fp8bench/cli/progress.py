"""The progress of a session on standard error: live on a terminal, as plain lines elsewhere, or none. It includes what
`cli.sweep_progress` also needs.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
"""Seconds between two plain lines of the same stage. A log file needs signs of life, not every step."""


AnyListener = TypeVar("AnyListener")


@contextmanager
def by_terminal(
    quiet: AnyListener | None, plain: AnyListener, live: Callable[[], AbstractContextManager[AnyListener]]
) -> Iterator[AnyListener]:
    """Yield the quiet listener if there is one, the live one on a terminal, otherwise the plain one."""
    if quiet is not None:
        yield quiet
    elif sys.stderr.isatty():
        with live() as listening:
            yield listening
    else:
        yield plain


def ignore(_progress: "Progress | None") -> None:
    """Watch a turn and show nothing while it runs."""


def say_why_it_stopped(label: str, record: "Record") -> None:
    """Print a line with reason and remedy, if there is a reason."""
    if record.reason:
        log(f"{label}: {record.reason}. {record.remedy}.")


def listener(schedule: "Schedule", quiet: bool) -> "AbstractContextManager[Listener]":
    """Return the listener for this terminal; a quiet one reports only failures and warnings."""
    least: Listener | None = Quiet() if quiet else None
    return by_terminal(least, PlainProgress(schedule), lambda: _live(schedule))


@contextmanager
def _live(schedule: "Schedule") -> "Iterator[Listener]":
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
        yield LiveProgress(schedule, bars)


class Quiet:
    """Reports only turns that stopped, and warnings."""

    def begins(self, entry: "Entry", place: "Session") -> "Watch":
        return ignore

    def ended(self, entry: "Entry", place: "Session", record: "Record", path: Path) -> None:
        """Report why the turn stopped, and the record's warnings."""
        say_why_it_stopped(entry.label, record)
        for warning in record.evidence.warnings if record.evidence else ():
            warn(f"{entry.label}: {warning}")


class PlainProgress(Quiet):
    """Prints a line for the beginning, each stage and the end of a turn, and occasional lines between."""

    def __init__(self, schedule: "Schedule") -> None:
        self._schedule = schedule

    def begins(self, entry: "Entry", place: "Session") -> "Watch":
        """Print what runs, and return a function that prints its progress, stage by stage."""
        log(f"{entry.label}, round {place.round}{_of(self._schedule)}: {_work(entry)}")
        began = time.monotonic()
        last: dict[str, Any] = {"stage": "starting", "at": began}

        def watch(progress: "Progress") -> None:
            now = time.monotonic()
            same = progress.stage == last["stage"]
            if same and now - last["at"] < LINE_EVERY_S:
                return
            doing = " (compiling)" if same and _compiles(entry, progress) else ""
            last.update(stage=progress.stage, at=now)
            median = f", median {progress.median_s * 1e3:.1f} ms" if progress.median_s else ""
            # The number of steps is agreed on after warm-up.
            steps = "" if progress.steps is None else f" of {progress.steps}"
            log(f"  after {now - began:.0f} s: {progress.stage}{doing}, step {progress.step}{steps}{median}")

        return watch

    def ended(self, entry: "Entry", place: "Session", record: "Record", path: Path) -> None:
        log(f"  {_outcome(record, self._schedule.estimate(entry))}: {path}")
        super().ended(entry, place, record, path)


def _compiles(entry: "Entry", progress: "Progress") -> bool:
    """Return whether a turn that stays at its first step is compiling."""
    from fp8bench.launch.processes.blame import compiles

    return progress.stage == "warming up" and progress.step <= 1 and compiles(entry.config) is True


class LiveProgress(Quiet):
    """Shows a bar for the running turn, and a line for each that has ended."""

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


def status_of(record: "Record") -> str:
    """Return the status with its cause, e.g. `failed (oom)`."""
    return f"{record.status} ({record.cause})" if record.cause else record.status


def _outcome(record: "Record", so_far: "Estimate | None") -> str:
    if record.summary is None or so_far is None:
        return status_of(record)
    executed = f", {record.execution}" if record.execution else ""
    text = f"{record.status}{executed}, {record.summary.step_time_s * 1e3:.1f} ms a step"
    if so_far.interval is not None:
        over = with_interval(so_far.value, so_far.interval, ".1f", 1e3)
        text += f"; over {so_far.processes} processes {over}"
    return text

"""The process of one rank, from its start to its end; `launch.spawn` ties it to its parent first.

It leaves its stack in a file whenever the launcher asks for it
with SIGUSR1 (or when it crashes), also while a native call never returns. It always leaves by os._exit: after a failure
siblings may be waiting in a collective, and the launcher is to end them; after a success nothing is left to do but to
tear native libraries down, of which several complain or abort.
"""

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from fp8bench.launch.last_words import Confession, write_whole
from fp8bench.schema.config import RunConfig
from fp8bench.schema.files import Frozen

ASK = signal.SIGUSR1
"""Asks a rank for its stack."""

FAILED = 1


class Task(Frozen):
    """What all ranks of a run are to do. trace: where rank 0 keeps its Chrome trace."""

    config: RunConfig
    trace: Path | None = None


def task_path(folder: Path) -> Path:
    """Where the task is."""
    return folder / "task.json"


def progress_path(folder: Path, rank: int) -> Path:
    """Where a rank tells how far it has come."""
    return folder / f"rank-{rank}-progress"


def report_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves its report."""
    return folder / f"rank-{rank}.json"


def stack_path(folder: Path, rank: int) -> Path:
    """Where a rank's Python stack goes."""
    return folder / f"rank-{rank}-stack"


def main(folder: Path, rank: int) -> None:
    """Measure, and leave a report or last words. Does not return."""
    stack = stack_path(folder, rank).open("w")
    faulthandler.enable(stack)
    faulthandler.register(ASK, stack)
    with Confession(folder, rank, _leave_failed):
        # The run's own folder takes what multiprocessing leaves lying about when it is killed (a loader's sockets).
        _keep_sockets_in(folder)
        task = Task.model_validate_json(task_path(folder).read_bytes())
        _measure(task, folder, rank)
    os._exit(0)


def _measure(task: Task, folder: Path, rank: int) -> None:
    # Brings torch.
    from fp8bench.schema.errors import ModeUnavailable
    from fp8bench.worker.main import Aside, measure, rank_group, stopped

    aside = Aside(progress_path(folder, rank), task.trace if rank == 0 else None)
    try:
        with rank_group(task.config, rank, local_rank=rank, init_method=f"file://{folder}/rendezvous") as device:
            # Inside the group: to leave it is what makes the others fail.
            with Confession(folder, rank, _leave_failed):
                report = measure(task.config, rank, device, aside)
            write_whole(report_path(folder, rank), report.model_dump_json())
    except ModeUnavailable as refusal:
        # Before it joined: nobody else knows.
        write_whole(report_path(folder, rank), stopped(refusal, {"rank": rank}).model_dump_json())


def _leave_failed() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(FAILED)


def _keep_sockets_in(folder: Path) -> None:
    from multiprocessing import process

    # What multiprocessing itself looks up (`util.get_temp_dir`); it removes it only at an orderly exit.
    vars(process.current_process())["_config"]["tempdir"] = str(folder)

"""A group of ranks for a kind that is not `run`: fresh processes, each of which calls one function, and none of them
left behind.

What a rank does is named by a `module:function` that takes a payload, its rank and where the ranks meet, and returns
its result; payload and result are text. This module knows no torch: the function's module brings it, in the rank.
Signals, orphans and stacks are treated as those of a run (`spawn`): ranks have a session of their own, a rank that
failed or a deadline ends all of them, and the rendezvous is a file.
"""

import faulthandler
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fp8bench.launch.processes import blame
from fp8bench.launch.processes.blame import End
from fp8bench.launch.processes.rank import (
    REQUEST,
    ask_for_stacks,
    ended_by_errors,
    rank_path,
    read_error,
    write_whole,
)
from fp8bench.launch.signals import held_back, process_tree
from fp8bench.schema.errors import RunFailed

GRACE_S = 3.0
"""For the siblings of a rank that failed: most fail too, and write where they were."""

POLL_S = 0.05

_BOOT = """
import json, pathlib, sys
folder, rank, parent = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.path[:] = json.loads((folder / "path.json").read_text())
from fp8bench.lifeline import leave_with
leave_with(parent)
from fp8bench.launch.processes.group import main
main(folder, rank)
"""


@dataclass(frozen=True)
class Job:
    """What every rank calls. target: `module:function`. limit_s: for all of it, from start to end."""

    target: str
    payload: str
    ranks: int
    limit_s: float


def run(job: Job) -> list[str]:
    """Each rank's result, by rank.

    Raises RunFailed for a rank that failed or a job that took too long, and Interrupt once all ranks are ended.
    """
    with (
        held_back() as interrupted,
        tempfile.TemporaryDirectory(prefix="fp8bench-", ignore_cleanup_errors=True) as name,
        process_tree(),
    ):
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps({"target": job.target, "payload": job.payload}))
        (folder / "path.json").write_text(json.dumps(sys.path))
        group = _Group(folder, [_start(folder, rank) for rank in range(job.ranks)])
        in_time = group.wait(job.limit_s, interrupted)
        if interrupted():
            # It is raised where the block ends; nobody takes the results.
            return []
        return group.results(in_time, job.limit_s)


def _start(folder: Path, rank: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _BOOT, str(folder), str(rank), str(os.getpid())]
    errors = (sys.__stderr__ or sys.stderr).fileno()
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True)


class _Group:
    """The ranks' processes, by rank, and how those ended that ended by themselves."""

    def __init__(self, folder: Path, processes: "list[subprocess.Popen[bytes]]") -> None:
        self._folder, self._processes = folder, processes
        self._ends: dict[int, End] = {}
        self._seen_s = time.monotonic()

    def wait(self, limit_s: float, interrupted: Callable[[], bool]) -> bool:
        """Until all ranks have ended, or one failed and its siblings had their grace, or an interrupt. False: the limit
        passed first.
        """
        deadline, grace = time.monotonic() + limit_s, None
        while len(self._ends) < len(self._processes) and not interrupted():
            self._look()
            now = time.monotonic()
            if grace is None and any(self._result(rank) is None for rank in self._ends):
                grace = now + GRACE_S
            if grace is not None and now > grace:
                return True
            if now > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def results(self, in_time: bool, limit_s: float) -> list[str]:
        """Raises RunFailed where a rank has none: ranks that still live are asked where they are, and to be ended."""
        found = [self._result(rank) for rank in range(len(self._processes))]
        missing = [rank for rank, result in enumerate(found) if result is None]
        if not missing:
            return [result for result in found if result is not None]
        errors = {rank: error for rank in missing if (error := read_error(self._folder, rank))}
        alive = {rank: one.pid for rank, one in enumerate(self._processes) if rank not in self._ends}
        stacks = ask_for_stacks(self._folder, alive)
        why = blame.of_deaths([end for rank, end in self._ends.items() if rank in missing], errors)
        if why is None or not in_time:
            # One that is in no collective is what the others wait for there.
            rank = next((one for one in missing if one not in stacks.waiting), missing[0])
            raise RunFailed(
                f"rank {rank} was not done after {limit_s:.0f} s: {stacks.where(rank)}",
                "Find out what it waits for there, or measure less: fewer of --size, --rounds or --seconds",
                "timeout",
            )
        raise RunFailed(why.reason, why.remedy, why.cause)

    def _look(self) -> None:
        before, self._seen_s = self._seen_s, time.monotonic()
        for rank, process in enumerate(self._processes):
            if rank not in self._ends and (code := process.poll()) is not None:
                self._ends[rank] = End(rank, code, before)

    def _result(self, rank: int) -> str | None:
        path = rank_path(self._folder, rank, "report")
        return path.read_text() if path.exists() else None


def main(folder: Path, rank: int) -> NoReturn:
    """A rank's process: call the job's function, and leave its result or the error."""
    stack = rank_path(folder, rank, "stack").open("w")
    faulthandler.enable(stack)
    faulthandler.register(REQUEST, stack)
    with ended_by_errors(folder, rank):
        job = json.loads((folder / "job.json").read_text())
        module, _, function = job["target"].partition(":")
        called = getattr(importlib.import_module(module), function)
        result = called(job["payload"], rank, f"file://{folder}/rendezvous")
        write_whole(rank_path(folder, rank, "report"), result)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # Native libraries are left to tear down.
    os._exit(0)

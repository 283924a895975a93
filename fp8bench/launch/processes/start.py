"""Starts fresh processes, one per rank, and the folder that they share, and leaves none of them behind.

However the block that uses them ends (their end, a failure, a deadline, a signal to this process), their folder is
removed and no process that they started outlives it. If this process is killed, the kernel ends the ranks (see
`lifeline`).

Ranks run in a separate session, so that Ctrl-C on the terminal reaches this process alone, which ends them in order.
Their rendezvous is a file, not a port: looking for a free port and binding it later is a race.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fp8bench.launch.processes.blame import End
from fp8bench.launch.processes.circumstances import remedy_of
from fp8bench.launch.processes.rank import RankError, Stacks, ask_for_stacks, task_path
from fp8bench.launch.processes.telling import Inbox
from fp8bench.launch.signals import process_tree
from fp8bench.machine import temporary
from fp8bench.schema.errors import RunFailed

POLL_S = 0.1

_BOOT = """
import json, pathlib, sys
folder, rank, parent, pipe, entry = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
sys.path[:] = json.loads((folder / "path.json").read_text())
from fp8bench.lifeline import leave_with
leave_with(parent)
from fp8bench.launch.processes.rank import main
main(folder, rank, pipe, entry)
"""
"""What a rank's interpreter runs. It finds modules where the launcher finds them, and is tied to the launcher before
anything heavy is imported.
"""


class Ranks:
    """The ranks' processes by rank, what they tell, and how those that ended by themselves ended."""

    def __init__(
        self, folder: Path, processes: "Mapping[int, subprocess.Popen[bytes]]", inboxes: Mapping[int, Inbox]
    ) -> None:
        self.folder = folder
        self.processes = processes
        self.ends: dict[int, End] = {}
        self._inboxes = inboxes
        self._seen_s = time.monotonic()

    def looks(self, interrupted: Callable[[], bool]) -> Iterator[float]:
        """Look at the ranks and yield the monotonic time, until all ranks have ended or an interrupt came."""
        while len(self.ends) < len(self.processes) and not interrupted():
            self.look()
            yield time.monotonic()
            self._pause()

    def look(self) -> None:
        """Note which ranks have ended since the last look, and read what they say."""
        before, self._seen_s = self._seen_s, time.monotonic()
        for rank, process in self.processes.items():
            if rank not in self.ends and (code := process.poll()) is not None:
                self.ends[rank] = End(rank, code, before, remedy_of(code))
            # Read after the poll: what a rank said before it ended is in the pipe.
            self._inboxes[rank].read()

    def report(self, rank: int) -> str | None:
        """Return the report as the rank told it, or None if it has not."""
        return self._inboxes[rank].said.get("report")

    def kept(self, rank: int) -> str | None:
        """Return what a rank without a report had found."""
        return self._inboxes[rank].said.get("kept")

    def enough(self, rank: int) -> bool:
        """Return whether what is kept of the rank is a measurement. It stays one if the rank fails afterwards."""
        return "enough" in self._inboxes[rank].said

    def error(self, rank: int) -> RankError | None:
        """Return the error that the rank told, or None if it told none."""
        text = self._inboxes[rank].said.get("error")
        return None if text is None else RankError.model_validate_json(text)

    def stacks(self) -> Stacks:
        """Return the stacks of the ranks that live; they must then be ended."""
        living = {rank: process.pid for rank, process in self.processes.items() if rank not in self.ends}
        return ask_for_stacks(self.folder, living)

    def _pause(self) -> None:
        """Wait for a moment, or until a rank says something, because the rank may wait until it is read."""
        poll = select.poll()
        for inbox in self._inboxes.values():
            if inbox.descriptor is not None:
                poll.register(inbox.descriptor, select.POLLIN)
        poll.poll(POLL_S * 1000)


@dataclass(frozen=True)
class Begun:
    """Ranks' processes and inboxes, by rank, and the folder that they share. stack: closes the inboxes and removes the
    folder; the owner of this object ends the processes.
    """

    folder: Path
    processes: "dict[int, subprocess.Popen[bytes]]"
    inboxes: dict[int, Inbox]
    stack: ExitStack


class Waiting(Protocol):
    """Ranks that were started before there was a task for them (see `ahead`)."""

    def take(self, ranks: range) -> Begun | None:
        """Return these ranks if they wait, or None; the caller ends them."""

    def identities(self) -> frozenset[tuple[int, int]]:
        """Return the identities of processes that wait for a later run."""


@contextmanager
def started(task: str, ranks: range, entry: str, waiting: Waiting | None = None) -> Iterator[Ranks]:
    """Start these ranks, which call `entry` (`module:function`, see `rank.main`) with the task. Raises RunFailed if
    there is no room for what they need to begin. waiting: may have started them already.
    """
    begun = waiting.take(ranks) if waiting else None
    apart = waiting.identities if waiting else frozenset
    with ExitStack() as stack:
        if begun is not None:
            stack.push(begun.stack)
            own = [one.pid for one in begun.processes.values()]
            stack.enter_context(process_tree(own, apart))
            give(begun.folder, task)
            for process in begun.processes.values():
                release(process, entry)
        else:
            begun = Begun(folder(stack), {}, {}, stack)
            give(begun.folder, task)
            stack.enter_context(process_tree(apart=apart))
            begin(begun, ranks, entry)
        stack.callback(close, begun.inboxes)
        yield Ranks(begun.folder, begun.processes, begun.inboxes)


def release(process: "subprocess.Popen[bytes]", entry: str) -> None:
    """Tell a waiting rank what to call; a rank that has already ended is noticed at the next look."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.write(f"{entry}\n".encode())
            process.stdin.close()


def begin(begun: Begun, ranks: Iterable[int], entry: str, waits: bool = False) -> None:
    """Start the ranks' processes. waits: whether they wait on standard input until it says what to call."""
    for rank in ranks:
        ours, its = os.pipe()
        begun.inboxes[rank] = Inbox(ours)
        try:
            begun.processes[rank] = start_rank(begun.folder, rank, its, entry, waits)
        finally:
            os.close(its)


def close(inboxes: Mapping[int, Inbox]) -> None:
    """Close the inboxes of ranks to which nobody listens any more."""
    for inbox in inboxes.values():
        inbox.close()


def folder(stack: ExitStack) -> Path:
    """Return a folder for ranks to share, removed with the stack. Raises RunFailed if there is no room for it."""
    with _made_room():
        path = stack.enter_context(temporary.folder(temporary.RANKS))
        (path / "path.json").write_text(json.dumps(sys.path))
    return path


def give(to: Path, task: str) -> None:
    """Put the task into the ranks' folder. Raises RunFailed if there is no room for it."""
    with _made_room():
        task_path(to).write_text(task)


@contextmanager
def _made_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write to the folder for temporary files: {error.strerror}",
            "Make room there, or name another folder with TMPDIR",
        ) from error


def start_rank(folder: Path, rank: int, pipe: int, entry: str, waits: bool = False) -> "subprocess.Popen[bytes]":
    """Start a rank's process. pipe: the end to which the rank writes. waits: whether it reads standard input.

    Standard output is for results alone. NCCL writes there if NCCL_DEBUG is set, and so may a plug-in, so both streams
    of a rank go to standard error.
    """
    command = [sys.executable, "-c", _BOOT, str(folder), str(rank), str(os.getpid()), str(pipe), entry]
    errors = (sys.__stderr__ or sys.stderr).fileno()
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        start_new_session=True,
        pass_fds=(pipe,),
    )

"""Fresh processes, one a rank, and the folder that they share; and none of them left behind.

However the block ends that uses them (their end, a failure, a deadline, a signal to this process), their folder is
removed and no process that they started outlives it. When this process is killed the kernel ends the ranks (see
`lifeline`).

Ranks have a session of their own, so that Ctrl-C on the terminal reaches this process alone, which ends them in order.
Their rendezvous is a file, not a port: looking for a free port and binding it later is a race.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fp8bench.launch.processes.blame import End
from fp8bench.launch.processes.rank import RankError, Stacks, ask_for_stacks, task_path
from fp8bench.launch.processes.telling import Inbox
from fp8bench.launch.signals import process_tree
from fp8bench.schema.errors import RunFailed

PREFIX = "fp8bench-ranks-"
"""Begins the name of a folder that ranks share."""

LEFT_S = 60.0
"""A folder that was changed later than this ago may be just being made."""

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
"""What a rank's interpreter runs: modules are found where the launcher finds them, and it is tied to that before
anything heavy is imported.
"""


class Ranks:
    """The ranks' processes, by rank, what they tell, and how those ended that ended by themselves."""

    def __init__(
        self, folder: Path, processes: "Mapping[int, subprocess.Popen[bytes]]", inboxes: Mapping[int, Inbox]
    ) -> None:
        self.folder = folder
        self.processes = processes
        self.ends: dict[int, End] = {}
        self._inboxes = inboxes
        self._seen_s = time.monotonic()

    def looks(self, interrupted: Callable[[], bool]) -> Iterator[float]:
        """Until all have ended, or an interrupt: look at them, and yield when, by the monotonic clock."""
        while len(self.ends) < len(self.processes) and not interrupted():
            self.look()
            yield time.monotonic()
            self._pause()

    def look(self) -> None:
        """Note who has ended since the last look, and hear what they say."""
        before, self._seen_s = self._seen_s, time.monotonic()
        for rank, process in self.processes.items():
            if rank not in self.ends and (code := process.poll()) is not None:
                self.ends[rank] = End(rank, code, before)
            # After that: what it said before it ended is in the pipe.
            self._inboxes[rank].read()

    def report(self, rank: int) -> str | None:
        """As the rank told it; None where it has not."""
        return self._inboxes[rank].said.get("report")

    def kept(self, rank: int) -> str | None:
        """What a rank without a report had found."""
        return self._inboxes[rank].said.get("kept")

    def error(self, rank: int) -> RankError | None:
        """None of a rank that told none."""
        text = self._inboxes[rank].said.get("error")
        return None if text is None else RankError.model_validate_json(text)

    def stacks(self) -> Stacks:
        """Of those that live, which are to be ended."""
        living = {rank: process.pid for rank, process in self.processes.items() if rank not in self.ends}
        return ask_for_stacks(self.folder, living)

    def _pause(self) -> None:
        """For a moment, or until a rank says something, which may have to wait until it is heard."""
        poll = select.poll()
        for inbox in self._inboxes.values():
            if inbox.descriptor is not None:
                poll.register(inbox.descriptor, select.POLLIN)
        poll.poll(POLL_S * 1000)


@dataclass(frozen=True)
class Begun:
    """Ranks' processes and what they tell, by rank, and the folder that they share. stack: what closes the one and
    removes the other; the processes are ended by whoever has it.
    """

    folder: Path
    processes: "dict[int, subprocess.Popen[bytes]]"
    inboxes: dict[int, Inbox]
    stack: ExitStack


class Waiting(Protocol):
    """Ranks that were started before there was a task for them (see `ahead`)."""

    def take(self, ranks: range) -> Begun | None:
        """These, if they wait; the caller ends them."""

    def identities(self) -> frozenset[tuple[int, int]]:
        """Of processes that wait for a later run."""


@contextmanager
def started(task: str, ranks: range, entry: str, waiting: Waiting | None = None) -> Iterator[Ranks]:
    """These ranks, which call `entry` (`module:function`, see `rank.main`) with the task. Raises RunFailed where there
    is no room for what they need to begin. waiting: may have them already.
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
    """Tell a rank that waits what to call; one that has ended is seen to have when it is looked at."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.write(f"{entry}\n".encode())
            process.stdin.close()


def begin(begun: Begun, ranks: Iterable[int], entry: str, waits: bool = False) -> None:
    """Start the ranks' processes. waits: on their standard input, until it says that their task is there."""
    for rank in ranks:
        ours, its = os.pipe()
        begun.inboxes[rank] = Inbox(ours)
        try:
            begun.processes[rank] = start_rank(begun.folder, rank, its, entry, waits)
        finally:
            os.close(its)


def sweep(temporary: Path) -> None:
    """Remove the folders of launchers that were killed: nobody holds the lock on them. One that cannot be removed, or
    locked, stays.
    """
    with os.scandir(temporary) as entries:
        found = [Path(entry) for entry in entries if entry.name.startswith(PREFIX)]
    for folder in found:
        with suppress(OSError), ExitStack() as stack:
            if time.time() - folder.stat(follow_symlinks=False).st_mtime > LEFT_S:
                stack.callback(os.close, _locked(folder))
                shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> int:
    """The open folder, which is in use for as long as it is open. Raises OSError where another process uses it, or the
    file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def close(inboxes: Mapping[int, Inbox]) -> None:
    """Of ranks to which nobody listens any more."""
    for inbox in inboxes.values():
        inbox.close()


def folder(stack: ExitStack) -> Path:
    """For ranks to share; it is removed with the stack. Raises RunFailed where there is no room for it."""
    with _made_room():
        sweep(Path(tempfile.gettempdir()))
        made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        path = Path(stack.enter_context(made))
        with suppress(OSError):
            # A file system without locks: nobody removes the folder if this process is killed.
            stack.callback(os.close, _locked(path))
        (path / "path.json").write_text(json.dumps(sys.path))
    return path


def give(to: Path, task: str) -> None:
    """Put the task into the ranks' folder. Raises RunFailed where there is no room for it."""
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
    """A rank's process. pipe: the end of it in which it tells. waits: it reads from its standard input.

    Standard output is for results alone, and NCCL writes there when NCCL_DEBUG is set, as may a plug-in; so both
    streams of a rank go to standard error.
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

"""Starts fresh processes, one per rank, and the folder that they share, and leaves none of them behind; also those of
the next run, while this one's are still busy with work that is not timed (`Ahead`).

However the block that uses them ends (their end, a failure, a deadline, a signal to this process), their folder is
removed and no process that they started outlives it. If this process is killed, the kernel ends the ranks (see
`lifeline`).

Ranks run in a separate session, so that Ctrl-C on the terminal reaches this process alone, which ends them in order.
Their rendezvous is a file, not a port: looking for a free port and binding it later is a race.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fp8bench.launch.processes.blame import End, Stacks, ask_for_stacks
from fp8bench.launch.processes.rank import MODULES_AT, Inbox, RankError, What, rank_path, task_path
from fp8bench.launch.signals import process, process_tree, send
from fp8bench.machine import temporary
from fp8bench.schema.errors import RunFailed
from fp8bench.worker.progress import Stage

POLL_S = 0.1

WAITS = "fp8bench.launch.processes.rank:wait"
"""What ranks that are started ahead call."""

WORKER = "fp8bench.worker.main"
"""The module that imports torch."""

TORCH_DEBUG = "TORCH_DISTRIBUTED_DEBUG"

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
    """Ranks' processes by rank, the folder that they share, what they tell, and how those that ended by themselves
    ended. Whoever makes this ends the processes, and then closes it.
    """

    def __init__(self) -> None:
        """Make the folder. Raises RunFailed if there is no room for it."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.ends: dict[int, End] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._seen_s = time.monotonic()
        with _made_room(), ExitStack() as stack:
            self.folder: Path = stack.enter_context(temporary.folder(temporary.RANKS))
            (self.folder / "path.json").write_text(json.dumps(sys.path))
            self._made = stack.pop_all()

    def close(self) -> None:
        """Remove the folder, and listen to nobody any more."""
        self.close_inboxes()
        self._made.close()

    def close_inboxes(self) -> None:
        """Listen to nobody any more."""
        for inbox in self._inboxes.values():
            inbox.close()

    def give(self, task: str) -> None:
        """Put the task into the ranks' folder. Raises RunFailed if there is no room for it."""
        with _made_room():
            task_path(self.folder).write_text(task)

    def begin(self, ranks: Iterable[int], entry: str, waits: bool = False) -> None:
        """Start the ranks' processes. waits: whether they wait on standard input until it says what to call."""
        for rank in ranks:
            ours, its = os.pipe()
            self._inboxes[rank] = Inbox(ours)
            try:
                self.processes[rank] = start_rank(self.folder, rank, its, entry, waits)
            finally:
                os.close(its)

    def release(self, entry: str) -> None:
        """Tell waiting ranks what to call; one that has already ended is noticed at the next look."""
        for one in self.processes.values():
            if one.stdin is not None:
                with suppress(OSError):
                    one.stdin.write(f"{entry}\n".encode())
                    one.stdin.close()

    def looks(self, interrupted: Callable[[], bool]) -> Iterator[float]:
        """Look at the ranks and yield the monotonic time, until all ranks have ended or an interrupt came."""
        while len(self.ends) < len(self.processes) and not interrupted():
            self.look()
            yield time.monotonic()
            # A moment, or until a rank says something, because the rank may wait until it is read.
            poll = select.poll()
            for inbox in self._inboxes.values():
                if inbox.descriptor is not None:
                    poll.register(inbox.descriptor, select.POLLIN)
            poll.poll(POLL_S * 1000)

    def look(self) -> None:
        """Note which ranks have ended since the last look, and read what they say."""
        before, self._seen_s = self._seen_s, time.monotonic()
        for rank, one in self.processes.items():
            if rank not in self.ends and (code := one.poll()) is not None:
                self.ends[rank] = End(rank, code, before, remedy_of(code))
            # Read after the poll: what a rank said before it ended is in the pipe.
            self._inboxes[rank].read()

    def all_live(self) -> bool:
        """Return whether none has ended."""
        return all(one.poll() is None for one in self.processes.values())

    def said(self, rank: int, what: What) -> str | None:
        """Return the rank's message of this kind, or None if there is none."""
        return self._inboxes[rank].said.get(what)

    def error(self, rank: int) -> RankError | None:
        """Return the error that the rank told, or None if it told none."""
        text = self.said(rank, "error")
        return None if text is None else RankError.model_validate_json(text)

    def stacks(self) -> Stacks:
        """Return the stacks of the ranks that live; they must then be ended."""
        living = {rank: one.pid for rank, one in self.processes.items() if rank not in self.ends}
        return ask_for_stacks(self.folder, living)


@contextmanager
def started(task: str, numbers: range, entry: str, waiting: "Ahead | None" = None) -> Iterator[Ranks]:
    """Start these ranks, which call `entry` (`module:function`, see `rank.main`) with the task. Raises RunFailed if
    there is no room for what they need to begin. waiting: may have started them already.
    """
    ahead = waiting.take(numbers) if waiting else None
    own = [one.pid for one in ahead.processes.values()] if ahead else []
    with ExitStack() as stack:
        ranks = ahead or Ranks()
        stack.callback(ranks.close)
        stack.enter_context(process_tree(own, waiting.identities if waiting else frozenset))
        stack.callback(ranks.close_inboxes)
        ranks.give(task)
        if ahead:
            ranks.release(entry)
        else:
            ranks.begin(numbers, entry)
        yield ranks


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


def remedy_of(exit_code: int | None) -> str | None:
    """Return what this host knows to do about a child that ended with this code (negative for a signal): a limit that
    it reached, or a variable that makes torch crash; None if nothing is known.
    """
    if exit_code in (-signal.SIGKILL, -signal.SIGXCPU):
        limit_s, _ = resource.getrlimit(resource.RLIMIT_CPU)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        # What the kernel compares with the limit is counted more coarsely.
        if limit_s != resource.RLIM_INFINITY and used.ru_utime + used.ru_stime > 0.9 * limit_s:
            return f"Raise the limit on CPU time (`ulimit -t`), by which a process is ended after {limit_s} s of it"
    if exit_code == -signal.SIGSEGV and os.environ.get(TORCH_DEBUG, "").upper() == "DETAIL":
        return f"Unset {TORCH_DEBUG}: with DETAIL some versions of torch crash in DDP"
    return None


class Ahead:
    """The ranks of the next run, which wait for their task. They exist only while a run is expected to follow.

    Importing torch and the model's library takes a fresh process about 10 s, out of 45 to 50 s for ViT-Huge on one
    H100. So the next run's processes begin once this run's have imported theirs; they import the same libraries and
    then wait. They touch no GPU, and while steps are timed they are stopped (SIGSTOP), whether or not they are done:
    nothing of them runs during a timed step. What only a mode needs (Transformer Engine, torchao) is left for later,
    because its import may touch the GPU.

    They are as fresh as others: each has its own interpreter, memory and imports. If they cannot be used, because no
    run follows, it has another number of ranks, or one of them ended, they are ended, and others are started if needed.
    """

    def __init__(self) -> None:
        self._expected: tuple[range, tuple[str, ...]] | None = None
        self._waiting: Ranks | None = None
        self._stopped: set[int] = set()

    def expect(self, ranks: range | None, modules: Sequence[str] = ()) -> None:
        """Announce that a run of these ranks follows the one that begins next; None if none follows. modules: what the
        ranks import in addition to torch.
        """
        self._expected = None if ranks is None else (ranks, (WORKER, *modules))

    def look(self, stage: Stage) -> None:
        """Note the stage of the present run. Called a few times a second."""
        if self._expected is None or stage == "starting":
            return
        if self._waiting is None and stage != "timing":
            ranks, modules = self._expected
            try:
                self._stopped.clear()
                self._waiting = Ranks()
                (self._waiting.folder / MODULES_AT).write_text("\n".join(modules))
                self._waiting.begin(ranks, WAITS, waits=True)
            except (OSError, RunFailed):
                # Without room for them, the next run starts its own, and says what is missing.
                self._expected = None
                self.close()
        self._stop(stage == "timing")

    def take(self, ranks: range) -> Ranks | None:
        """Return the waiting ranks if they are exactly these and all live; otherwise end them and return None."""
        found = self._waiting
        if found is None or tuple(found.processes) != tuple(ranks) or not found.all_live():
            self.close()
            return None
        self._stop(False)
        self._waiting = None
        return found

    def identities(self) -> frozenset[tuple[int, int]]:
        """Return the identities of the processes that wait."""
        found = (process(one.pid) for one in self._waiting.processes.values()) if self._waiting else ()
        return frozenset(one.identity for one in found if one is not None)

    def close(self) -> None:
        """End the ranks that wait."""
        if self._waiting is None:
            return
        ranks, self._waiting = self._waiting, None
        for one in ranks.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        ranks.release("")
        ranks.close()

    def _stop(self, wanted: bool) -> None:
        """Stop the waiting ranks, or let them continue."""
        if self._waiting is None:
            return
        for rank, one in self._waiting.processes.items():
            # A rank is tied to the launcher once it has this file; if stopped earlier, it would outlive the launcher.
            if wanted and rank not in self._stopped and rank_path(self._waiting.folder, rank, "stack").exists():
                self._stopped.add(rank)
                send(one.pid, signal.SIGSTOP)
            elif not wanted and rank in self._stopped:
                self._stopped.remove(rank)
                send(one.pid, signal.SIGCONT)

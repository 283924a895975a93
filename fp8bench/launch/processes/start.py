"""Has one process a rank started (see `server`), in a folder that they share, and leaves none of them behind.

However the block that uses them ends (their end, a failure, a deadline, a signal to this process), their folder is
removed and no process that they started outlives it. If this process or the server is killed, the kernel ends the ranks
(see `lifeline`).

Ranks run in sessions of their own, so that Ctrl-C on the terminal reaches this process alone, which ends them in order.
Their rendezvous is a file, not a port: looking for a free port and binding it later is a race.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fp8bench.launch.processes.blame import End, Stacks, ask_for_stacks
from fp8bench.launch.processes.rank import Inbox, RankError, What, rank_path, task_path
from fp8bench.launch.processes.server import POLL_S, Server, Wanted
from fp8bench.launch.signals import process_tree
from fp8bench.machine import temporary
from fp8bench.schema.errors import RunFailed

SERVER_ENDED = (
    "The process that ranks are forked from was ended: see by whom, and look at `dmesg`: the host may have run out of "
    "memory"
)


class Ranks:
    """Ranks' processes by rank, the folder that they share, what they tell, and how those that ended by themselves
    ended. processes: their ids; the server's for a rank that it has not started yet.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self.processes: dict[int, int] = {}
        self.ends: dict[int, End] = {}
        self.folder = folder
        self._server = server
        self._inboxes: dict[int, Inbox] = {}
        self._begun: set[int] = set()
        self._seen_s = time.monotonic()

    def begin(self, ranks: Sequence[int], entry: str, modules: tuple[str, ...]) -> None:
        """Have the ranks started, without waiting for them."""
        for rank in ranks:
            ours, its = os.pipe()
            self._inboxes[rank] = Inbox(ours)
            self.processes[rank] = self._server.pid or 0
            try:
                self._server.want(Wanted(folder=self.folder, rank=rank, entry=entry, modules=modules), its)
            finally:
                os.close(its)

    def close(self) -> None:
        """Listen to nobody any more, and end a server that still has ranks to start."""
        for inbox in self._inboxes.values():
            inbox.close()
        if len(self._begun) < len(self.processes):
            self._server.close()

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
        alive = self._server.alive
        for answer in self._server.answers():
            if answer.exit_code is None:
                self._begun.add(answer.rank)
                self.processes[answer.rank] = answer.pid
            elif self.processes.get(answer.rank) == answer.pid:
                # Otherwise it is of an earlier run, which ended it.
                self.ends[answer.rank] = End(answer.rank, answer.exit_code, answer.alive_s, answer.remedy)
        if not alive:
            for rank in self.processes.keys() - self.ends.keys():
                self.ends[rank] = End(rank, -signal.SIGKILL, before, SERVER_ENDED)
        for inbox in self._inboxes.values():
            # Read after the ends: what a rank said before it ended is in the pipe.
            inbox.read()

    def said(self, rank: int, what: What) -> str | None:
        """Return the rank's message of this kind, or None if there is none."""
        return self._inboxes[rank].said.get(what)

    def error(self, rank: int) -> RankError | None:
        """Return the error that the rank told, or None if it told none."""
        text = self.said(rank, "error")
        return None if text is None else RankError.model_validate_json(text)

    def stacks(self) -> Stacks:
        """Return the stacks of the ranks that live; they must then be ended."""
        return ask_for_stacks(self.folder, {rank: pid for rank, pid in self.processes.items() if rank not in self.ends})


@contextmanager
def started(task: str, numbers: range, entry: str, server: Server, modules: tuple[str, ...] = ()) -> Iterator[Ranks]:
    """Start these ranks, which call `entry` (`module:function`, see `rank.main`) with the task. modules: what they will
    import. Raises RunFailed if there is no room for what they need to begin.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary.folder(temporary.RANKS))
            task_path(folder).write_text(task)
            for rank in numbers:
                # Room for what the rank will write here, its progress above all: without it, nothing runs.
                rank_path(folder, rank, "stack").write_text("\n")
        except OSError as error:
            raise RunFailed(
                f"cannot write to the folder for temporary files: {error.strerror}",
                "Make room there, or name another folder with TMPDIR",
            ) from error
        server.ready()
        stack.enter_context(process_tree(lambda: server.pid))
        ranks = Ranks(server, folder)
        stack.callback(ranks.close)
        ranks.begin(numbers, entry, modules)
        yield ranks

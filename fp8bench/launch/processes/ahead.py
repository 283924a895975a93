"""Starts the next run's ranks while this run's are still busy with work that is not timed.

Importing torch and the model's library takes a fresh process about 10 s, out of 45 to 50 s for ViT-Huge on one H100. So
the next run's processes begin once this run's have imported theirs; they import the same libraries and then wait for
their task. They touch no GPU, and while steps are timed they are stopped (SIGSTOP), whether or not they are done:
nothing of them runs during a timed step. What only a mode needs (Transformer Engine, torchao) is left for later,
because its import may touch the GPU.

These ranks are as fresh as others: each has its own interpreter, memory and imports. If they cannot be used, because no
run follows, it has another number of ranks, or one of them ended, they are ended, and others are started if needed.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path

from fp8bench.launch.processes.rank import called, rank_path
from fp8bench.launch.processes.start import Begun, begin, close, folder, release
from fp8bench.launch.processes.telling import Teller
from fp8bench.launch.signals import process, send
from fp8bench.schema.errors import RunFailed
from fp8bench.worker.progress import Stage

ENTRY = "fp8bench.launch.processes.ahead:wait"

WORKER = "fp8bench.worker.main"
"""The module that imports torch."""

MODULES_AT = "modules.txt"
"""A file in the ranks' folder: what they import, one module per line."""


class Ahead:
    """Ranks that wait for their task. They exist only while a run is expected to follow the present one."""

    def __init__(self) -> None:
        self._expected: tuple[range, tuple[str, ...]] | None = None
        self._begun: Begun | None = None
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
        if self._begun is None and stage != "timing":
            self._start(*self._expected)
        self._stop(stage == "timing")

    def take(self, ranks: range) -> Begun | None:
        """Return the waiting ranks if they are exactly these and all live; otherwise end them and return None."""
        begun = self._begun
        if begun is None or tuple(begun.processes) != tuple(ranks) or not _live(begun):
            self.close()
            return None
        self._stop(False)
        self._begun = None
        return begun

    def identities(self) -> frozenset[tuple[int, int]]:
        """Return the identities of the processes that wait."""
        found = (process(one.pid) for one in self._begun.processes.values()) if self._begun else ()
        return frozenset(one.identity for one in found if one is not None)

    def close(self) -> None:
        """End the ranks that wait."""
        if self._begun is None:
            return
        begun, self._begun = self._begun, None
        for one in begun.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
            release(one, "")
        close(begun.inboxes)
        begun.stack.close()

    def _start(self, ranks: range, modules: Sequence[str]) -> None:
        """Start the ranks. If there is no room for them or their processes, the next run starts its own and says so."""
        try:
            with ExitStack() as stack:
                self._begun = Begun(folder(stack), {}, {}, stack.pop_all())
            self._stopped.clear()
            (self._begun.folder / MODULES_AT).write_text("\n".join(modules))
            begin(self._begun, ranks, ENTRY, waits=True)
        except (OSError, RunFailed):
            self._expected = None
            self.close()

    def _stop(self, wanted: bool) -> None:
        """Stop the waiting ranks, or let them continue."""
        if self._begun is None:
            return
        for rank, one in self._begun.processes.items():
            # A rank is tied to the launcher once it has this file; if stopped earlier, it would outlive the launcher.
            if wanted and rank not in self._stopped and rank_path(self._begun.folder, rank, "stack").exists():
                self._stopped.add(rank)
                send(one.pid, signal.SIGSTOP)
            elif not wanted and rank in self._stopped:
                self._stopped.remove(rank)
                send(one.pid, signal.SIGCONT)


def _live(begun: Begun) -> bool:
    return all(one.poll() is None for one in begun.processes.values())


def wait(folder: Path, rank: int, teller: Teller) -> None:
    """Run as a rank that was started ahead: import, wait to be told what to call, and call it."""
    for module in (folder / MODULES_AT).read_text().split():
        # The run itself finds what is missing, and says so.
        with suppress(ImportError):
            import_module(module)
    entry = sys.stdin.readline().strip()
    if not entry:
        # The launcher has ended.
        return
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    called(entry)(folder, rank, teller)

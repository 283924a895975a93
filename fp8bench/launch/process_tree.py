"""Every process that a run brings about, whoever forked it, and their end.

Descendants are found in /proc by their parents. A process whose own parent has ended would be lost to that search, so
the launcher takes orphans in while the tree stands (`lifeline.adopt_orphans`). No pipe is waited for: a process that a
plug-in forked, and that holds the rank's pipes open, keeps nobody.
"""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fp8bench.lifeline import adopt_orphans

TERM_S = 3.0
"""How long processes may take to end themselves after SIGTERM."""

KILL_S = 3.0
"""How long the kernel may take after SIGKILL. A process that hangs inside a driver stays, and is not waited for."""

POLL_S = 0.05
STOPPED = "T"
ZOMBIE = "Z"


@dataclass(frozen=True)
class Process:
    """As the kernel sees it. state: one letter, of proc(5). began: in clock ticks since boot; a number that was given
    to another process since has another.
    """

    pid: int
    parent: int
    state: str
    began: int


def process(pid: int) -> Process | None:
    """None where there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[19]))


def processes() -> list[Process]:
    """All that can be seen from here."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [found for found in map(process, numbers) if found is not None]


def descendants(of: int, among: list[Process], without: frozenset[tuple[int, int]] = frozenset()) -> list[Process]:
    """Children, their children and so on. without: (pid, began) of those whose branches do not count."""
    children: dict[int, list[Process]] = {}
    for one in among:
        if (one.pid, one.began) not in without:
            children.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    parents = [of]
    while parents:
        of_one = children.get(parents.pop(), [])
        found += of_one
        parents += [one.pid for one in of_one]
    return found


class ProcessTree:
    """What this process brings about while the context stands; at its end none of it is left. Outside the context:
    whatever descends from this process.
    """

    def __init__(self) -> None:
        self._before: frozenset[tuple[int, int]] = frozenset()
        self._adopted_before = False

    def __enter__(self) -> "ProcessTree":
        self._before = frozenset((one.pid, one.began) for one in descendants(os.getpid(), processes()))
        self._adopted_before = adopt_orphans(True)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end()
        adopt_orphans(self._adopted_before)

    def living(self) -> list[Process]:
        """Of it, those that run or are stopped."""
        found = descendants(os.getpid(), processes(), self._before)
        return [one for one in found if one.state not in (ZOMBIE, "X")]

    def end(self) -> None:
        """End every one, by SIGTERM and then by SIGKILL, within TERM_S + KILL_S. Those that begin meanwhile, too."""
        self._signal_until_gone(signal.SIGTERM, TERM_S)
        self._signal_until_gone(signal.SIGKILL, KILL_S)

    def _signal_until_gone(self, number: signal.Signals, patience_s: float) -> None:
        told: set[tuple[int, int]] = set()
        deadline = time.monotonic() + patience_s
        while living := self.living():
            for one in living:
                if (one.pid, one.began) not in told:
                    send(one.pid, number)
                    # A stopped process takes no signal but SIGKILL until it goes on.
                    send(one.pid, signal.SIGCONT)
                    told.add((one.pid, one.began))
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        self._bury()

    def _bury(self) -> None:
        """What has ended waits for its parent, or the one that adopted it, to ask how it ended."""
        for one in descendants(os.getpid(), processes(), self._before):
            if one.state == ZOMBIE and one.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)


def send(pid: int, number: signal.Signals) -> None:
    """The signal, to a process that may have ended meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)

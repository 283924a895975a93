"""Signals that end this program in order, and the signals by which it ends every process that it started.

SIGINT, SIGTERM and SIGHUP end the program with the exit code that a shell expects (128 + signal). Outside a run each
raises `Interrupt` where the program happens to be. While worker processes exist they are only noted (`held_back`):
whoever watches the workers checks for a note several times a second and ends them, and nothing that is being made or
removed meanwhile is cut in two. A signal that was ignored when the program began (nohup) stays ignored.

Descendants are found in /proc by their parents. A process whose own parent has ended would be lost to that search, so
the launcher adopts orphans while a `process_tree` stands. No pipe is waited for: a process that a plug-in forked, and
that holds the rank's pipes open, delays nobody.

The program imports this module before any other, to handle signals from then on; so it imports little.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

_Handler = Callable[[int, FrameType | None], Any] | int | None
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_SHELLS = 128

TERM_S = 3.0
"""How long processes may take to end themselves after SIGTERM."""

KILL_S = 3.0
"""How long the kernel may take after SIGKILL. A process that hangs inside a driver stays, and is not waited for."""

POLL_S = 0.05
STOPPED = "T"
ZOMBIE = "Z"


class Interrupt(KeyboardInterrupt):
    """A signal to end this program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return _OF_SHELLS + (interrupt.number if isinstance(interrupt, Interrupt) else signal.SIGINT)


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt during which the error arose: a terminal that is gone refuses the last line, too."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen


def raise_on_signals() -> None:
    """From now on each of the signals raises Interrupt in the main thread."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupt(number)

    _handle(interrupt)


def ignore_signals() -> None:
    """From now on none of them changes anything: the program is ending. A handler of Python's would not do, since the
    interpreter restores the default while it ends.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Note the signals instead of being interrupted by them; the first is raised as Interrupt at the end.

    Yields whether one has come. In a thread other than the main one, where none arrives, it does nothing. Within
    another one it hands over to that what it has noted.
    """
    noted = _Noted()
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = _handle(noted)
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            around = before.get(signal.Signals(noted[0]))
            if not isinstance(around, _Noted):
                raise Interrupt(noted[0])
            around.extend(noted)


class _Noted(list[int]):
    """A handler that notes the signals that come."""

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.append(number)


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, _Handler]:
    """Returns the handlers that were in force; those of ignored signals stay."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken: dict[signal.Signals, _Handler] = {
        number: held for number, held in before.items() if held not in (signal.SIG_IGN, None)
    }
    for number in taken:
        signal.signal(number, handler)
    return taken


class Process(NamedTuple):
    """As the kernel sees it. state: one letter, of proc(5). began: in clock ticks since boot."""

    pid: int
    parent: int
    state: str
    began: int

    @property
    def identity(self) -> tuple[int, int]:
        """Another process that is given the same number later began later."""
        return self.pid, self.began


def process(pid: int) -> Process | None:
    """None where there is none of that number."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[19]))


def processes() -> list[Process]:
    """All that can be seen from here."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [found for found in map(process, numbers) if found is not None]


def descendants(of: int, among: list[Process], without: frozenset[tuple[int, int]] = frozenset()) -> list[Process]:
    """Children, their children and so on. without: identities of those whose branches do not count."""
    children: dict[int, list[Process]] = {}
    for one in among:
        if one.identity not in without:
            children.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    parents = [of]
    while parents:
        of_one = children.get(parents.pop(), [])
        found += of_one
        parents += [one.pid for one in of_one]
    return found


@contextmanager
def process_tree(
    own: Collection[int] = (), apart: Callable[[], frozenset[tuple[int, int]]] = frozenset
) -> Iterator["ProcessTree"]:
    """What this process starts while the context stands, whoever forked it; at its end none of it is left.

    own: numbers of processes that it started before, which count likewise. apart: gives the identities of those that
    it starts meanwhile and that do not.
    """
    # Imported here: it brings ctypes.
    from fp8bench.lifeline import adopt_orphans

    among = [one for one in processes() if one.pid not in own]
    tree = ProcessTree(frozenset(one.identity for one in descendants(os.getpid(), among)), apart)
    adopted_before = adopt_orphans(True)
    try:
        yield tree
    finally:
        tree.end()
        adopt_orphans(adopted_before)


class ProcessTree(NamedTuple):
    """What descends from this process. before: identities of descendants whose branches do not count; apart: gives
    more of them.
    """

    before: frozenset[tuple[int, int]] = frozenset()
    apart: Callable[[], frozenset[tuple[int, int]]] = frozenset

    def living(self) -> list[Process]:
        """Of it, those that run or are stopped."""
        found = descendants(os.getpid(), processes(), self.before | self.apart())
        return [one for one in found if one.state not in (ZOMBIE, "X")]

    def end(self) -> None:
        """End every one, by SIGTERM and then by SIGKILL, within TERM_S + KILL_S. Those that begin meanwhile, too."""
        self._signal_until_gone(signal.SIGTERM, TERM_S)
        self._signal_until_gone(signal.SIGKILL, KILL_S)

    def _signal_until_gone(self, number: signal.Signals, patience_s: float) -> None:
        signalled: set[tuple[int, int]] = set()
        deadline = time.monotonic() + patience_s
        while living := self.living():
            for one in living:
                if one.identity not in signalled:
                    send(one.pid, number)
                    # A stopped process takes no signal but SIGKILL until it goes on.
                    send(one.pid, signal.SIGCONT)
                    signalled.add(one.identity)
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        self._reap()

    def _reap(self) -> None:
        """What has ended stays a zombie until its parent, or the one that adopted it, collects its exit status."""
        for one in descendants(os.getpid(), processes(), self.before | self.apart()):
            if one.state == ZOMBIE and one.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)


def send(pid: int, number: signal.Signals) -> None:
    """The signal, to a process that may have ended meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)

"""Handles the signals that end this program in order, and ends every process that it started.

SIGINT, SIGTERM and SIGHUP end the program with the exit code that a shell expects (128 + signal). Outside a run each
raises `Interrupt` wherever the program is. While worker processes exist, signals are only noted (`held_back`): whoever
watches the workers looks several times a second and ends them, and nothing is left half done. A signal that was ignored
when the program began (nohup) stays ignored.

Descendants are found in /proc by their parents. A process whose own parent has ended would be lost to that search, so
the launcher adopts orphans while a `process_tree` is open.

The program imports this module before any other, to handle signals from then on, so it imports little.
"""

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    import subprocess

    from fp8bench.schema.rank import RankReport

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TERM_S = 3.0  # for processes to end themselves after SIGTERM
KILL_S = 3.0  # for the kernel after SIGKILL, between two runs; a process that hangs inside a driver stays
GONE_S = 10.0  # for the kernel at the end: what a process holds on a GPU is its own until the driver has let go
POLL_S = 0.05
STOPPED, ZOMBIE = "T", "Z"


class Interrupt(KeyboardInterrupt):
    """Raised for a signal that ends this program. reports: of ranks that it ended, if they had timed their steps."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.reports: Sequence[RankReport] = ()


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + (interrupt.number if isinstance(interrupt, Interrupt) else signal.SIGINT)


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt during which the error arose, if any: e.g. a closed terminal also refuses the last line."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen


def raise_on_signals() -> None:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupt(number)

    _handle(interrupt)


def ignore_signals() -> None:
    """Ignore the signals from now on. A Python handler would not do: an ending interpreter restores the default."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Note the signals, and raise the first as Interrupt at the end, or pass them on to a `held_back` around this one.
    Yields a function that returns whether one has come. Does nothing outside the main thread.
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
    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.append(number)


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Install the handler and return those it replaced; the handlers of ignored signals stay."""
    heeded = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    return {number: signal.signal(number, handler) for number in heeded}


class Process(NamedTuple):
    """A process as the kernel sees it. state: of its main thread, as in proc(5). began: in clock ticks since boot."""

    pid: int
    parent: int
    state: str
    began: int
    threads: int = 1

    @property
    def identity(self) -> tuple[int, int]:
        """Number and start: another process that is later given the same number has a later start."""
        return self.pid, self.began

    @property
    def living(self) -> bool:
        """Whether any of its threads runs or is stopped: a driver may hold one longer than the main thread."""
        return self.state not in (ZOMBIE, "X") or self.threads > 1


def process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[19]), int(fields[17]))


def process_began_s() -> float:
    """Return when this process began, by the monotonic clock, to a hundredth of a second; now, if that is unknown."""
    this = process(os.getpid())
    if this is None:
        return time.monotonic()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - this.began / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def processes() -> list[Process]:
    """Return all processes that can be seen from here."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [found for found in map(process, numbers) if found is not None]


def descendants(of: int, among: list[Process], without: frozenset[tuple[int, int]] = frozenset()) -> list[Process]:
    """Return children, their children and so on. without: identities of processes whose branches do not count."""
    children: dict[int, list[Process]] = {}
    for one in among:
        if one.identity not in without:
            children.setdefault(one.parent, []).append(one)
    found = list(children.get(of, ()))
    for one in found:
        found += children.get(one.pid, ())
    return found


@contextmanager
def process_tree(server: Callable[[], int | None] = lambda: None) -> Iterator[Callable[[], list[Process]]]:
    """Yield a function that returns what this process and the server have started meanwhile and still lives. At the end
    all of it is ended, and what begins meanwhile, by SIGTERM and then SIGKILL, within TERM_S + KILL_S.
    """
    # Imported here because it imports ctypes.
    from fp8bench.lifeline import adopting_orphans

    before = frozenset(one.identity for one in descendants(os.getpid(), processes()))

    def living() -> list[Process]:
        among, pid = processes(), server()
        found = descendants(os.getpid(), among, before) + ([] if pid is None else descendants(pid, among))
        collect(found)
        return [one for one in found if one.living]

    with adopting_orphans():
        try:
            yield living
        finally:
            for number, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
                _send_until_gone(living, number, patience_s)


def _send_until_gone(left: Callable[[], list[Process]], number: signal.Signals, patience_s: float) -> None:
    signalled: set[tuple[int, int]] = set()
    deadline = time.monotonic() + patience_s
    while (those := left()) and time.monotonic() < deadline:
        for one in those:
            if one.identity not in signalled:
                send(one.pid, number)
                # A stopped process takes no signal but SIGKILL until it is continued.
                send(one.pid, signal.SIGCONT)
                signalled.add(one.identity)
        collect(those)
        time.sleep(POLL_S)


def collect(those: Sequence[Process]) -> None:
    """Collect the exit status of children that have ended, adopted ones included: they stay zombies until then."""
    for one in those:
        if one.state == ZOMBIE and one.parent == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)


def kill_with_descendants(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child and all its descendants, and return when the kernel knows none of them, after GONE_S at most."""
    # Imported here because it imports ctypes.
    from fp8bench.lifeline import adopting_orphans

    deadline = time.monotonic() + GONE_S
    with adopting_orphans():
        branch = {one.identity for one in descendants(child.pid, processes())}
        child.kill()
        _send_until_gone(lambda: [one for one in processes() if one.identity in branch], signal.SIGKILL, GONE_S)
        waited_for(lambda: child.poll() is not None, deadline - time.monotonic())


def waited_for(found: Callable[[], bool], patience_s: float, poll_s: float = POLL_S) -> bool:
    deadline = time.monotonic() + patience_s
    while not (answer := found()) and time.monotonic() < deadline:
        time.sleep(poll_s)
    return answer


def send(pid: int, number: signal.Signals) -> None:
    """Send the signal to a process that may have ended meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class _NeverFailing(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def never_failing(descriptor: int, encoding: str = "utf-8") -> TextIO:
    """Return a text stream whose writes never fail: a closed terminal or a full disk must end no measurement."""
    raw = _NeverFailing(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True)

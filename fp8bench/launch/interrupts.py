"""SIGINT, SIGTERM and SIGHUP: what ends this program in order, with the exit code that a shell expects (128 + signal).

Outside a run each raises `Interrupt` where the program happens to be. While worker processes exist they are noted only
(`held_back`): whoever watches the workers looks for a note several times a second, ends them, and nothing that is being
made or removed meanwhile is cut in two. A signal that was ignored when the program began (nohup) stays ignored.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_SHELLS = 128


class Interrupt(KeyboardInterrupt):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return _OF_SHELLS + (interrupt.number if isinstance(interrupt, Interrupt) else signal.SIGINT)


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt while which the error arose: a terminal that is gone refuses the last words, too."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen


def raise_on_signals() -> None:
    """From now on each of the signals raises Interrupt in the main thread."""
    _handle(_raise)


def ignore_signals() -> None:
    """From now on none of them changes anything: the program is ending. A handler of Python's would not do, since the
    interpreter takes it back while it ends.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Note the signals instead of being interrupted by them; the first is raised as Interrupt at the end.

    Yields whether one has come. In a thread other than the main one, where none arrives, it does nothing.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    before = _handle(note)
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            raise Interrupt(noted[0])


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Interrupt(number)


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, _Handler]:
    """Returns the handlers that were in force; those of ignored signals stay."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken: dict[signal.Signals, _Handler] = {
        number: held for number, held in before.items() if held not in (signal.SIG_IGN, None)
    }
    for number in taken:
        signal.signal(number, handler)
    return taken

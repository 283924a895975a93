"""What tests of processes wait for."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cli.calling import environment

from fp8bench.launch.signals import ZOMBIE, process


def until(found, patience_s=120):
    """What `found` returns, once that is true."""
    deadline = time.monotonic() + patience_s
    while not (answer := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def in_background(what: Callable[[], Any]) -> Future[Any]:
    """A function's result, or what it raises, once it is there. A daemon's thread holds no failed test up."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(what())
        except BaseException as error:  # noqa: BLE001
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def fresh(folder, variables, *words, **popen):
    """The program in an interpreter of its own, in the background."""
    command = [sys.executable, "-m", "fp8bench", *words]
    return subprocess.Popen(command, cwd=folder, env=environment(**variables), text=True, **popen)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ended(pids):
    """Whether none of them runs."""
    return all((one := process(pid)) is None or one.state == ZOMBIE for pid in pids)

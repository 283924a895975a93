"""The server of `fork_server`: it imports, and forks a process for each connection. That becomes a program as if Python
had just started it, whose ranks are forked too.

It is two processes, one with torch and one without: to fork the one with torch takes three times as long, and few calls
train.
"""

import atexit
import fcntl
import gc
import importlib
import importlib.abc
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import popen_fork
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from fork_server import LOOKING, TRAINING, trains

HEAVY = (
    "torch",
    "timm",
    "torchao",
    "torchao.float8",
    "torch.distributed.launcher.api",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
    "fp8bench.worker.main",
)

_LARGEST = 1 << 16

STALE = 100
"""Files of numbers below may have been closed after a fork."""

HIGH = 500
"""Files of which number no process here has otherwise."""


def main(place: str) -> None:
    """Serve at this socket, and at the one for what trains."""
    # The threads of libraries of numbers wait for work that no test gives them before it forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    call = serve(place)
    become(call)
    end_as(call.program)


def serve(place: str) -> SimpleNamespace:
    """Fork until standard input ends. Returns in each forked process, with what that is to be."""
    light, training = _listening(place), _listening(place + TRAINING)
    _import_what_is_light()
    _freeze()
    with_torch = os.fork()
    listener, other = (light, training) if with_torch else (training, light)
    other.close()
    with listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    if with_torch:
                        os.waitpid(with_torch, 0)
                    os._exit(0)
                if key.fileobj is not listener:
                    selector.unregister(key.fileobj)
                    _tell_the_end(key.fd, *key.data)
                    continue
                connection, _ = listener.accept()
                call = _received(connection)
                if not with_torch:
                    _import_what_is_heavy()
                pid = os.fork()
                if pid == 0:
                    return call
                for descriptor in call.streams:
                    os.close(descriptor)
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(f"{pid}\n".encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _listening(place: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    return listener


def _received(connection: socket.socket) -> SimpleNamespace:
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    words = b"".join(iter(lambda: connection.recv(_LARGEST), b""))
    return SimpleNamespace(**json.loads(words), streams=streams)


def _tell_the_end(descriptor: int, pid: int, connection: socket.socket) -> None:
    os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    # Who asked for it may be gone: a test that ended before its program did.
    with connection, suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


class _Trap(importlib.abc.MetaPathFinder):
    """Makes the import of what is heavy fail."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in HEAVY:
            raise ImportError(f"{name} is heavy")


def _import_what_is_light() -> None:
    """All of the package that does without torch and its kin, with its models' validators and the catalogue made."""
    from pydantic import BaseModel

    import fp8bench

    trap = _Trap()
    sys.meta_path.insert(0, trap)
    for module in pkgutil.walk_packages(fp8bench.__path__, "fp8bench.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    sys.meta_path.remove(trap)
    from fp8bench.launch.prepare import examined
    from fp8bench.pricing.catalog import load

    load()
    examined.__defaults__ = (LOOKING, False)
    models = [BaseModel]
    while models:
        models += (model := models.pop()).__subclasses__()
        if model.__module__.startswith("fp8bench."):
            model.model_rebuild()


def _import_what_is_heavy() -> None:
    if HEAVY[-1] not in sys.modules:
        for name in HEAVY:
            importlib.import_module(name)
        # What the server has made is not for its forked processes to put away.
        for each in list(weakref.finalize._registry):
            each.atexit = False
        _freeze()


def _freeze() -> None:
    """What is imported stays: to look whether it is garbage would copy its pages into every process."""
    gc.collect()
    gc.freeze()


def become(call: SimpleNamespace) -> None:
    """Make this forked process what `python PROGRAM ARGUMENTS` would be. What was imported stays frozen. call: what
    `fork_server.begin` asks for, and `streams`, the descriptors of its standard streams.
    """
    os.setpgid(0, 0)
    for target, descriptor in enumerate(call.streams):
        os.dup2(descriptor, target)
    os.closerange(3, 4096)
    _open_streams()
    os.chdir(call.folder)
    os.environ.clear()
    os.environ.update(call.environ)
    extra = call.environ.get("PYTHONPATH")
    sys.path[:0] = [call.folder, *(extra.split(os.pathsep) if extra else [])]
    sys.argv = [call.program[-1], *call.arguments]
    importlib.invalidate_caches()
    # Found by the variables of the server.
    tempfile.tempdir = None
    if trains(call.program, call.arguments):
        _fork_instead_of_spawning()


def _fork_instead_of_spawning() -> None:
    """Ranks of the launcher, of torchrun, and of `torch.multiprocessing`."""
    from torch import multiprocessing
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    from fp8bench.launch.processes import server

    server.start_server = _fork_server
    SubprocessHandler._popen = _fork_of_torchrun
    start_processes = multiprocessing.start_processes
    multiprocessing.start_processes = lambda *what, **how: start_processes(*what, **{**how, "start_method": "fork"})


def _open_streams() -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=number == 2)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _Forked(popen_fork.Popen):
    """As much of subprocess's Popen as the launcher and torchrun use."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode, self.sentinel = pid, None, os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended. Raises TimeoutExpired."""
        if super().wait(timeout) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return self.returncode


def _fork_server(control: socket.socket) -> _Forked:
    """In place of `server.start_server`: one whose imports are done."""
    from fp8bench.launch.processes.server import PACKET_BYTES
    from fp8bench.launch.processes.server import serve as serve_ranks

    parent = os.getpid()
    its = os.dup(control.fileno())
    pid = _fork()
    if pid:
        os.close(its)
        return _Forked(pid)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        # What is below it is closed.
        its = fcntl.fcntl(its, fcntl.F_DUPFD_CLOEXEC, HIGH)
        _renew(but=its)
        control = socket.socket(fileno=its)
        control.recv(PACKET_BYTES)
        serve_ranks(control, parent)
    finally:
        os._exit(1)


def _fork_of_torchrun(handler: Any, command: Sequence[str], environ: Mapping[str, str]) -> _Forked:
    """In place of `SubprocessHandler._popen`: command is that of `python -u -m MODULE ...`."""
    pid = _fork()
    if pid:
        return _Forked(pid)
    place = command.index("-m")
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = list(command[place + 1 :])
    end_as(command[place : place + 2], _renew)


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
    return pid


def _renew(but: int = 4096) -> None:
    """Streams and signal handlers are those of a process that has just started. but: a descriptor that it has."""
    from fp8bench.launch import signals

    os.closerange(3, but)
    os.closerange(but + 1, 4096)
    # Whoever held one of the files that are closed may close its number again.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(nothing + 1, STALE):
        os.dup2(nothing, number, inheritable=False)
    _open_streams()
    for number in signals.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def end_as(program: Sequence[str], before: Callable[[], None] = lambda: None) -> NoReturn:
    """Run it in this process, which ends with it: an interpreter takes as long to clear torch away as it took to
    import it. before: what is to be done first.
    """
    code: Any = 1
    try:
        before()
        if program[0] == "-m":
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program[0]).parent))
            runpy.run_path(program[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except Exception:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)

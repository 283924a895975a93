"""A server that has imported what the program imports, and forks a process of it for each call: to import torch anew
takes longer than most tests do.

A forked process has what a fresh one has: arguments, folder, variables, standard streams, signal handlers and a path of
its own; and the ranks that it starts are forked from it, each a process with its own session. Tests whose subject is
the start of a process (what is imported, signals, faults of ranks) start fresh ones.

The server is two processes, one with torch and one without: to fork the one with torch takes three times as long, and
few calls train.

Run as a script this is the server; `begin` and `called` are for its clients. One connection is one process: what it
runs and file descriptors go in, the exit code comes out. The server ends when its standard input does, hence with
whoever started it.

What is run is fp8bench, or any module or script that trains: torchrun, whose ranks are forked too, or a benchmark.
"""

import atexit
import fcntl
import gc
import importlib
import importlib.abc
import io
import json
import math
import os
import pkgutil
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

PLACE = "TESTS_FORK_SERVER"
"""The variable that names the server's socket; `TRAINING` after it is that of the process with torch."""
TRAINING = "-training"

FP8BENCH = ("-m", "fp8bench")
TORCHRUN = ("-m", "torch.distributed.run")
HEAVY = ("torch", "timm", "torchao", "torchao.float8", "torch.distributed.launcher.api", "fp8bench.worker.main")
TRAINS = frozenset({"run", "sweep", "gemm", "numerics"})
"""Commands that need what is heavy, which is imported when the first of them is called."""
WITHOUT_TORCH = frozenset({"--dry-run", "--record"})
"""Options with which they do not."""
READ_AT_IMPORT = re.compile("FP8BENCH_|NO_COLOR|FORCE_COLOR|COLUMNS|TTY_|PYDANTIC_")
"""Variables that what is imported must not have seen; whoever gives one starts a fresh process."""

_LARGEST = 1 << 16
_HIGH = 500


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """Start a server with its socket in this folder; children of this process find it. End it by closing its stdin."""
    os.environ[PLACE] = str(folder / "socket")
    environ = {
        **{name: value for name, value in os.environ.items() if not READ_AT_IMPORT.match(name)},
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "KINETO_LOG_LEVEL": "99",
        "TORCH_LOGS": "-all",
    }
    return subprocess.Popen(
        [sys.executable, "-P", __file__, os.environ[PLACE]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environ,
        start_new_session=True,
    )


class Running:
    """A forked process, from the client's side. Killed where a `with` ends before it does."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile()
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def wait(self, timeout_s: float) -> int:
        """Its exit code as `subprocess` has it. Raises TimeoutError."""
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            self.returncode = int(self._answers.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To it alone."""
        os.kill(self.pid, number)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                self.send_signal(signal.SIGKILL)
        self._answers.close()
        self._connection.close()


def begin(
    arguments: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    streams: Sequence[int],
    program: Sequence[str] = FP8BENCH,
) -> Running:
    """Start a program. streams: descriptors of its stdin, stdout and stderr. program: what Python is given before the
    arguments, `-m MODULE` or a script's path.
    """
    asked = {
        "program": list(program),
        "arguments": list(arguments),
        "folder": str(folder),
        "environ": dict(environ),
    }
    connection = _connected(os.environ[PLACE] + TRAINING * trains(program, arguments))
    socket.send_fds(connection, [b"\n"], list(streams))
    connection.sendall(json.dumps(asked).encode())
    connection.shutdown(socket.SHUT_WR)
    return Running(connection)


def called(
    arguments: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    timeout_s: float,
    program: Sequence[str] = FP8BENCH,
    stdin: str = "",
) -> tuple[int, str, str]:
    """Run a program to its end (see `begin`); returns its exit code, and what it wrote to stdout and to stderr. Raises
    TimeoutError once it is killed.
    """
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        streams = [file.fileno() for file in (given, out, err)]
        with begin(arguments, folder, environ, streams, program) as running:
            code = running.wait(timeout_s)
        return code, _text(out), _text(err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def _connected(place: str) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(place)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@dataclass(frozen=True)
class Call:
    """What a process is to be."""

    program: list[str]
    arguments: list[str]
    folder: str
    environ: dict[str, str]
    streams: list[int]


def trains(program: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether it may come to import torch."""
    if tuple(program) == FP8BENCH:
        return bool(TRAINS & set(arguments[:1])) and not WITHOUT_TORCH & set(arguments)
    return True


def serve(place: str) -> Call:
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
                connection.sendall(f"{pid}\n".encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _listening(place: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    return listener


def _received(connection: socket.socket) -> Call:
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    words = b"".join(iter(lambda: connection.recv(_LARGEST), b""))
    return Call(**json.loads(words), streams=streams)


def _tell_the_end(descriptor: int, pid: int, connection: socket.socket) -> None:
    os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    with connection:
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


class _Trap(importlib.abc.MetaPathFinder):
    """Makes the import of what is heavy fail."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in HEAVY:
            raise ImportError(f"{name} is heavy")


def _import_what_is_light() -> None:
    """All of the package that does without torch and its kin, with its models' validators made."""
    from pydantic import BaseModel

    import fp8bench

    importlib.import_module("tabulate")
    trap = _Trap()
    sys.meta_path.insert(0, trap)
    for module in pkgutil.walk_packages(fp8bench.__path__, "fp8bench.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    sys.meta_path.remove(trap)
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


def become(call: Call) -> None:
    """Make this forked process what `python PROGRAM ARGUMENTS` would be. What was imported stays frozen."""
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
    if trains(call.program, call.arguments):
        _fork_instead_of_spawning()


def _fork_instead_of_spawning() -> None:
    """Ranks of the launcher, of torchrun, and of `torch.multiprocessing`; and the process with a group's store."""
    from torch import multiprocessing
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    from fp8bench.launch.nodes import store
    from fp8bench.launch.processes import spawn

    spawn._start = _fork_rank
    store._start = _fork_store
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


class _Forked:
    """As much of a Popen as the launcher and torchrun use."""

    def __init__(self, pid: int, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def kill(self) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """None while it runs."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Until it has ended. Raises TimeoutExpired."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            time.sleep(0.01)
        return self.returncode


def _fork_rank(folder: Path, rank: int) -> _Forked:
    """In place of `spawn._start`: a rank whose imports are done."""
    from fp8bench.launch.processes.rank import main
    from fp8bench.lifeline import leave_with

    parent = os.getpid()
    pid = _fork()
    if pid:
        return _Forked(pid)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        _renew()
        leave_with(parent)
        main(folder, rank)
    finally:
        os._exit(1)


def _fork_store(errors: IO[bytes]) -> _Forked:
    """In place of `nodes.store._start`."""
    from fp8bench.launch.nodes.store_process import main
    from fp8bench.lifeline import leave_with

    parent = os.getpid()
    # Far from the numbers of files that were closed after a fork, which those who held them may close again.
    asked, ask, answered, answer = (_high(end) for pipe in (os.pipe(), os.pipe()) for end in pipe)
    pid = _fork()
    if pid:
        os.close(asked)
        os.close(answer)
        return _Forked(pid, open(ask, "wb", buffering=0), open(answered, "rb", buffering=0))
    try:
        os.dup2(asked, 0)
        os.dup2(answer, 1)
        os.dup2(errors.fileno(), 2)
        _renew()
        leave_with(parent)
        main()
    finally:
        os._exit(1)


def _high(descriptor: int) -> int:
    found = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(descriptor)
    return found


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


def _renew() -> None:
    """Streams and signal handlers are those of a process that has just started."""
    from fp8bench.launch import signals

    os.closerange(3, 4096)
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


if __name__ == "__main__":
    # The threads of libraries of numbers wait for work that no test gives them before it forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    called_for = serve(sys.argv[1])
    become(called_for)
    end_as(called_for.program)

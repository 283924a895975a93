"""A server that has imported what the program imports, and forks a process of it for each call: to import torch anew
takes longer than most tests do.

A forked process has what a fresh one has: arguments, folder, variables, standard streams, signal handlers and a path of
its own; and the ranks that it starts are forked from it, each a process with its own session. Tests whose subject is
the start of a process (what is imported, signals, faults of ranks) start fresh ones.

Run as a script this is the server; `run` is what its clients call. One connection is one process: arguments and file
descriptors go in, the exit code comes out. The server ends when its standard input does, hence with whoever started it.
"""

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PLACE = "TESTS_FORK_SERVER"
"""The variable that names the server's socket."""

LIGHT = ("numpy", "pydantic", "yaml", "fp8bench.records.results", "fp8bench.launch.processes.spawn")
HEAVY = ("torch", "timm", "torchao", "torchao.float8", "fp8bench.worker.main")
TRAINS = frozenset({"run", "gemm", "numerics"})
"""Commands that need what is heavy, which is imported when the first of them is called."""

_LARGEST = 1 << 16


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """Start a server with its socket in this folder; children of this process find it. End it by closing its stdin."""
    os.environ[PLACE] = str(folder / "socket")
    environ = {
        **os.environ,
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


def run(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str], streams: Sequence[int], timeout_s: float
) -> int:
    """Run the program to its end; returns its exit code as `subprocess` has it. streams: descriptors of its stdin,
    stdout and stderr. Raises TimeoutError once the process is killed.
    """
    asked = {"arguments": list(arguments), "folder": str(folder), "environ": dict(environ)}
    with _connected() as connection:
        connection.settimeout(timeout_s)
        socket.send_fds(connection, [b"\n"], list(streams))
        connection.sendall(json.dumps(asked).encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answers:
            pid = int(answers.readline())
            try:
                return int(answers.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise


def _connected() -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(os.environ[PLACE])
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@dataclass(frozen=True)
class Call:
    """What a process is to be."""

    arguments: list[str]
    folder: str
    environ: dict[str, str]
    streams: list[int]

    @property
    def trains(self) -> bool:
        """Whether it may come to import torch."""
        return self.arguments[0] in TRAINS and "--dry-run" not in self.arguments


def serve(place: str) -> Call:
    """Fork until standard input ends. Returns in each forked process, with what that is to be."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(place)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        _import(LIGHT)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    os._exit(0)
                if key.fileobj is not listener:
                    selector.unregister(key.fileobj)
                    _tell_the_end(key.fd, *key.data)
                    continue
                connection, _ = listener.accept()
                call = _received(connection)
                if call.trains:
                    _import(HEAVY)
                pid = os.fork()
                if pid == 0:
                    return call
                for descriptor in call.streams:
                    os.close(descriptor)
                connection.sendall(f"{pid}\n".encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _received(connection: socket.socket) -> Call:
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    words = b"".join(iter(lambda: connection.recv(_LARGEST), b""))
    return Call(**json.loads(words), streams=streams)


def _tell_the_end(descriptor: int, pid: int, connection: socket.socket) -> None:
    os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    with connection:
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _import(modules: Sequence[str]) -> None:
    """What is imported is frozen: collecting it would copy its pages into every process."""
    if modules[-1] not in sys.modules:
        for name in modules:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()


def become(call: Call) -> None:
    """Make this forked process what `python -m fp8bench` would be."""
    gc.unfreeze()
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
    sys.argv = ["fp8bench", *call.arguments]
    importlib.invalidate_caches()
    if call.trains:
        from fp8bench.launch.processes import spawn

        spawn._start = _fork_rank


def _open_streams() -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=number == 2)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _Forked:
    """As much of a Popen as the launcher uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """None while it runs."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode


def _fork_rank(folder: Path, rank: int) -> _Forked:
    """In place of `spawn._start`: a rank whose imports are done."""
    from fp8bench.launch import signals
    from fp8bench.launch.processes.rank import main
    from fp8bench.lifeline import leave_with

    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return _Forked(pid)
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.closerange(3, 4096)
        _open_streams()
        for number in signals.SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        leave_with(parent)
        main(folder, rank)
    finally:
        os._exit(1)


if __name__ == "__main__":
    # The threads of libraries of numbers wait for work that no test gives them before it forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    become(serve(sys.argv[1]))
    try:
        runpy.run_module("fp8bench", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        # An interpreter takes as long to clear torch away as it took to import it.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))

"""A server that has imported what the program imports, and forks a process of it for each call: to import torch anew
takes longer than most tests do.

A forked process has what a fresh one has: arguments, folder, variables, standard streams, signal handlers and a path of
its own; and the ranks that it starts are forked from it, each a process with its own session. Tests whose subject is
the start of a process (what is imported, signals, faults of ranks) start fresh ones.

What is run is fp8bench, or any module or script that trains: torchrun, whose ranks are forked too, or a benchmark.

Here is the clients' side. One connection is one process: what it runs and file descriptors go in, the exit code comes
out. The server (`forking`) ends when its standard input does, hence with whoever started it.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

PLACE = "TESTS_FORK_SERVER"
"""The variable that names the server's socket; `TRAINING` after it is that of the process with torch."""
TRAINING = "-training"

FP8BENCH = ("-m", "fp8bench")
TORCHRUN = ("-m", "torch.distributed.run")
TRAINS = frozenset({"run", "sweep", "gemm", "numerics", "converge", "collectives"})
"""Commands that need what is heavy, which is imported when the first of them is called."""
WITHOUT_TORCH = frozenset({"--dry-run", "--help", "--no-such-option", "--record"})
"""Options with which they do not."""
READ_AT_IMPORT = re.compile("FP8BENCH_|NO_COLOR|FORCE_COLOR|COLUMNS|TTY_|PYDANTIC_")
"""Variables that what is imported must not have seen; whoever gives one starts a fresh process."""

LOOKING = (sys.executable, "-ISs", __file__, "-m", "fp8bench.numerics.model_facts")
"""What stands for the program that looks at a model, and is given the question on standard input as that is."""

SERVER = "import sys; sys.path.insert(0, sys.argv[1]); import forking; del sys.path[0]; forking.main(sys.argv[2])"
"""The folder of tests is on the path while the server itself is imported, and on none of a forked process."""


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
        [sys.executable, "-P", "-c", SERVER, str(Path(__file__).parent), os.environ[PLACE]],
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


def trains(program: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether it may come to import torch."""
    if tuple(program) == FP8BENCH:
        return bool(TRAINS & set(arguments[:1])) and not WITHOUT_TORCH & set(arguments)
    return True


def _remembered(program: Sequence[str], asked: str) -> tuple[int, str, str]:
    """What `called` says of a question. Its answer is kept beside the socket: one question has one answer, unless code
    in the folder has a part in it.
    """
    folder = Path.cwd()
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    whole = json.dumps([program, asked, variables], sort_keys=True)
    kept = Path(os.environ[PLACE]).with_name(f"{sha256(whole.encode()).hexdigest()}.json")
    own_code = any(next(folder.glob(code), None) for code in ("*.py", "*/*.py"))
    if kept.exists() and not own_code:
        return tuple(json.loads(kept.read_text()))
    outcome = called((), folder, os.environ, 300, program, asked)
    if outcome[0] == 0 and not own_code:
        being_written = kept.with_suffix(f".{os.getpid()}")
        being_written.write_text(json.dumps(outcome))
        being_written.rename(kept)
    return outcome


if __name__ == "__main__":
    code, answer, errors = _remembered(sys.argv[1:], sys.stdin.read())
    sys.stdout.write(answer)
    sys.stderr.write(errors)
    sys.exit(code)

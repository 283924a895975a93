"""The process of one rank, from its start to its end, and what its launcher learns of it.

A rank writes its progress to the run's folder, and its stack whenever the launcher requests it with SIGUSR1 (or when it
crashes): faulthandler writes from a signal handler in C, even if a native call never returns. It always exits by
os._exit: after a failure siblings may be waiting in a collective, and the launcher must end them; after a success all
that remains is to tear down native libraries, several of which complain or abort.

Its report, or the error that ends it, goes through a pipe, which needs no room on any disk. The launcher reads each
time it looks at its ranks; nobody waits for the pipe's end, which a child of the rank may hold open. A message is a
line of JSON; one that is cut off, because its rank was killed, does not count.
"""

import faulthandler
import fcntl
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NoReturn

from pydantic import Field

from fp8bench.launch.signals import never_failing
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Fp8benchError, ModeUnavailable, in_words, inert
from fp8bench.schema.files import Frozen
from fp8bench.schema.private import fit
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Session

REQUEST = signal.SIGUSR1  # requests a rank's stack
FAILED = 1  # a rank's exit code
TASK = "task.json"  # in the run's folder
PIPE_BYTES = 1 << 20  # if the kernel grants it: takes a report of the usual size at once
TRACEBACK_CHARACTERS = 100_000
SHOWN = 2  # the trailing parts of a file's path that are shown
SOCKET_PATH_BYTES = 107  # the limit of unix(7), without the final zero; a loader over it never hands over a batch

CONNECTION_LOST = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL error",
    "DistBackendError",
)
"""Words in the errors that a rank gets because another rank ended: the connection to it broke."""


class Task(Frozen):
    """What all ranks of a run are to do: to call `target` as `worker.main.measure` is, with `given` as keywords, plain
    values as JSON has them. place: of the record in the session; None if it is not kept. timeout_s: of each phase.
    meet: the URL at which ranks of several nodes meet; those of one machine meet by a file.
    """

    config: RunConfig
    target: str = Field(default="fp8bench.worker.main:measure", pattern=r"^[\w.]+:\w+$")
    given: dict[str, Any] = Field(default_factory=dict)
    trace: Path | None = None
    place: Session | None = None
    timeout_s: float | None = None
    node: int = 0
    meet: str | None = None

    @property
    def ranks_here(self) -> range:
        """The ranks on this node; all nodes have the same number."""
        a_node = self.config.world_size // self.config.nodes if self.meet else self.config.world_size
        return range(self.node * a_node, (self.node + 1) * a_node)


class Teller:
    """The rank's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def say(self, what: Literal["kept", "enough", "report", "error"], text: str) -> None:
        """Send a message. kept: a report of what was found so far, which counts if no other report comes. enough: that
        what was kept is a measurement, if a signal ends the run now. error: see `RankError`.
        """
        with open(self._descriptor, "w", closefd=False) as pipe:
            pipe.write(json.dumps([what, text]) + "\n")


class Inbox:
    """The launcher's end. said: the last complete message of each kind; of errors the first: others follow from it."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.said: dict[str, str] = {}
        self.descriptor: int | None = descriptor
        self._unread = bytearray()

    def read(self) -> None:
        while self.descriptor is not None:
            try:
                part = os.read(self.descriptor, PIPE_BYTES)
            except BlockingIOError:
                break
            if not part:
                self.close()
            self._unread += part
        *lines, self._unread = self._unread.split(b"\n")
        for what, text in map(json.loads, lines):
            self.said[what] = self.said.get(what, text) if what == "error" else text

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def rank_path(folder: Path, rank: int, what: Literal["progress", "stack"]) -> Path:
    """Return the path to which a rank writes its progress or its stack."""
    return folder / f"rank-{rank}-{what}"


def main(folder: Path, rank: int, pipe: int, entry: str) -> NoReturn:
    """Call `entry` (`module:function`) with the run's folder, the rank and the `Teller` that reaches the launcher."""
    stack = rank_path(folder, rank, "stack").open("w")
    faulthandler.enable(stack)
    faulthandler.register(REQUEST, stack)
    # torch's profiler writes to standard error, amid the progress, unless this is set before its first use.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    hide_harmless()
    sys.stdout, sys.stderr = never_failing(1), never_failing(2)
    teller = Teller(pipe)
    with ended_by_errors(teller):
        # The run's own folder takes what a rank leaves behind when it or its loader is killed.
        keep_files_in(folder)
        resolve_name(entry)(folder, rank, teller)
    _leave(0)


def measure(folder: Path, rank: int, teller: Teller) -> None:
    """Do the work of the task as one of a run's ranks, and send its report."""
    # This imports torch.
    from fp8bench.worker.parallel import rank_group
    from fp8bench.worker.rank_report import Aside, stopped

    task = Task.model_validate_json((folder / TASK).read_bytes())
    work = resolve_name(task.target)

    def keep(report: RankReport) -> None:
        # What cannot be written as JSON is noticed when it is reported, and must not hide an earlier error.
        with suppress(ValueError):
            teller.say("kept", fit(report).model_dump_json())

    trace = task.trace if rank == 0 else None
    aside = Aside(rank_path(folder, rank, "progress"), trace, keep, lambda: teller.say("enough", ""))
    local_rank = rank - task.ranks_here.start
    for name, value in (("RANK", rank), ("LOCAL_RANK", local_rank)):
        # Variables of torchrun, which a rank inherits from the agent, because libraries read them.
        if name in os.environ:
            os.environ[name] = str(value)
    meet = task.meet or f"file://{folder}/rendezvous"
    try:
        # Errors are told inside the group, because leaving it makes the others fail.
        with rank_group(task.config, rank, local_rank, meet) as device, ended_by_errors(teller):
            report = work(task.config, rank, device, aside, **task.given)
            teller.say("report", fit(report).model_dump_json())
    except ModeUnavailable as refusal:
        # Refused before this rank joined: no other rank knows.
        teller.say("report", fit(stopped(refusal, {"rank": rank})).model_dump_json())


@contextmanager
def ended_by_errors(teller: Teller) -> Iterator[None]:
    """Send the first error that leaves the body to the launcher, and end the process."""
    try:
        yield
    except BaseException as error:
        # The launcher that would receive it may be gone.
        with suppress(OSError):
            teller.say("error", fit(rank_error(error)).model_dump_json())
        _leave(FAILED)
        raise


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def keep_files_in(folder: Path) -> None:
    """Let multiprocessing's sockets and named temporary files lie in the folder: torch's DataLoader may leave some
    behind. All of `tempfile` cannot go there, because later runs use torch's compile cache in its folder.
    """
    from multiprocessing import process

    where = str(folder)
    if len(os.fsencode(where)) + len("/listener-12345678") > SOCKET_PATH_BYTES:
        # The same folder under a short name, valid in every process of the loader while this process lives.
        where = f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"
    # multiprocessing looks this up (`util.get_temp_dir`); it removes the folder only at an orderly exit.
    vars(process.current_process())["_config"]["tempdir"] = where
    tempfile.__dict__["NamedTemporaryFile"] = partial(tempfile.NamedTemporaryFile, dir=folder)


class End(Frozen):
    """How a rank ended by itself. alive_s: when it was last seen alive. remedy: what its host knows to do about it."""

    exit_code: int
    alive_s: float
    remedy: str | None = None


class RankError(Frozen):
    """The error that ended a rank, told before it leaves its group: that makes the others fail too. at_s: monotonic."""

    at_s: float
    what: str
    cause: Cause
    remedy: str | None = None
    connection_lost: bool = False
    traceback: str


def rank_error(error: BaseException) -> RankError:
    """Return the error that ends a rank, dated now. Its message can always be sent, and is short enough to read."""
    now = time.monotonic()
    trace = "\n".join(map(inert, "".join(traceback.format_exception(error)).split("\n")))
    if len(trace) > TRACEBACK_CHARACTERS:
        half = TRACEBACK_CHARACTERS // 2
        trace = f"{trace[:half]}\n... {len(trace) - 2 * half} characters ...\n{trace[-half:]}"
    if isinstance(error, Fp8benchError):
        what, remedy = in_words(error.what), in_words(error.remedy)
        return RankError(at_s=now, what=what, cause=error.cause or "crash", remedy=remedy, traceback=trace)
    # Made without the error's own code, which may fail.
    message = str(traceback.TracebackException.from_exception(error, limit=0, lookup_lines=False))
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    what = in_words(": ".join([type(error).__name__, *lines[:1]]))
    # The last place that is neither a library's nor this package's.
    ours = (f"{Path(__file__).parents[2]}{os.sep}", f"{Path(os.__file__).parent}{os.sep}", "<")
    frames = [(one.filename, one.lineno) for one in traceback.extract_tb(error.__traceback__)]
    if own := [one for one in frames if not one[0].startswith(ours) and "-packages" not in one[0]]:
        what += f", at {'/'.join(own[-1][0].split('/')[-SHOWN:])}:{own[-1][1]}"
    lost = any(words in f"{what} {message}" for words in CONNECTION_LOST)
    return RankError(at_s=now, what=what, cause="crash", connection_lost=lost, traceback=trace)


HARMLESS = (
    # torch 2.15 warns about how torchao registers its enums.
    "torch.utils._pytree",
    # Weights that FSDP2 shards beside tensor parallel are gathered in two operations.
    "torch.distributed.tensor._redistribute",
    # torch.compile looks for a compiler of CUDA on a CPU too.
    "torch.utils.cpp_extension",
)
"""Loggers of torch whose warnings mean nothing here, and which every rank would write amid the progress."""


def hide_harmless() -> None:
    for name in HARMLESS:
        logging.getLogger(name).setLevel(logging.ERROR)

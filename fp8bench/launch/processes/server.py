"""The process that a session's ranks are forked from: it has imported torch and its kin, and has not touched CUDA.

Importing them takes a process about 10 s on a GPU host, and a forked one nothing. `torch.multiprocessing` starts the
ranks, as fresh as those of an own interpreter: no step has run here, no thread, no context on a GPU. An import that
makes this untrue (see `unfit`) is named, and ranks are spawned: each imports everything itself.

The server is started when ranks are first needed, and again if it has ended, or if the launcher's variables are others:
libraries read them while they are imported. It has a session of its own, which Ctrl-C on the terminal does not reach,
and the kernel ends it with the launcher, and its ranks with it. Launcher and server exchange packets through a socket;
neither waits for the other: a library that never finishes its import holds up a phase as any rank does.
"""

import ctypes
import faulthandler
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from fp8bench.launch.processes.rank import FAILED, REQUEST, End, hide_harmless, main, rank_path
from fp8bench.launch.signals import kill_with_descendants, never_failing
from fp8bench.lifeline import leave_with
from fp8bench.machine.identity import settings_given
from fp8bench.schema.errors import inert
from fp8bench.schema.files import Frozen

POLL_S = 0.1
PACKET_BYTES = 1 << 17

STARTS_RANKS = "torch.multiprocessing"
DRIVER = "libcuda.so.1"
WHILE_IMPORTING = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
"""Variables: torchao asks torch whether there is a GPU, and without the first torch asks the driver, which is then
initialised for every child. OpenBLAS starts its threads when it is loaded. The last is a rank's too (see `rank.main`).
"""

_BOOT = f"""
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
sys.path[:] = json.loads(control.recv({PACKET_BYTES}))
from fp8bench.launch.processes.server import serve
serve(control, int(sys.argv[2]))
"""


class Wanted(Frozen):
    """A rank to be started. modules: what it will import, if installed. entry: what it calls, see `rank.main`."""

    folder: Path
    rank: int
    entry: str
    modules: tuple[str, ...] = ()


class Answer(Frozen):
    """What became of a rank. pid: its process. end: None while it lives. spawned: why it is not forked."""

    rank: int
    pid: int
    end: End | None = None
    spawned: str | None = None


class Server:
    """The launcher's side. No process exists before the first rank is wanted, nor after `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environ: dict[str, str] = {}
        self._named: set[str] = set()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ready(self) -> None:
        """Start the server unless it runs with the variables of this process."""
        if self.alive and self._environ == os.environ:
            return
        self.close()
        self._environ = dict(os.environ)
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = start_server(its)
        self._control.send(json.dumps(sys.path).encode())

    def want(self, wanted: Wanted, pipe: int) -> None:
        """Have a rank started. pipe: the end to which it writes. A server that is gone is noticed by `alive`."""
        assert self._control is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [wanted.model_dump_json().encode()], [pipe])

    def answers(self) -> Iterator[Answer]:
        """Yield what the server has said, and write to standard error why ranks are spawned, once."""
        while self._control is not None:
            data = b""
            with suppress(BlockingIOError, ConnectionResetError):
                data = self._control.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
            if not data:
                return
            answer = Answer.model_validate_json(data)
            if answer.spawned is not None and answer.spawned not in self._named:
                self._named.add(answer.spawned)
                print(f"fp8bench: ranks are spawned, which takes longer: {answer.spawned}", file=sys.stderr)
            yield answer

    def close(self) -> None:
        """End the server and ranks that it still has, and wait until they are gone (see `kill_with_descendants`)."""
        if self._process is not None and self.alive:
            kill_with_descendants(self._process)
        if self._control is not None:
            self._control.close()
        self._process = self._control = None


def start_server(control: socket.socket) -> "subprocess.Popen[bytes]":
    """Start it. Both streams of its ranks, where NCCL may write, go to standard error: the other is for results."""
    its, errors = control.fileno(), (sys.__stderr__ or sys.stderr).fileno()
    command = [sys.executable, "-c", _BOOT, str(its), str(os.getpid())]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True, pass_fds=(its,)
    )


def serve(control: socket.socket, launcher: int) -> NoReturn:
    """Start the ranks that the launcher wants, and tell it how they end, as long as both live."""
    leave_with(launcher)
    os.set_inheritable(control.fileno(), False)
    sys.stdout, sys.stderr = never_failing(1), never_failing(2)
    hide_harmless()
    # Spawning starts one, which shares nothing here and is ended with the ranks of its run.
    warnings.filterwarnings("ignore", "resource_tracker: process died unexpectedly")
    settings_given()
    given = frozenset(os.environ)
    while_importing = {name: value for name, value in WHILE_IMPORTING.items() if name not in given}
    living: dict[int, Any] = {}
    spoilt: list[str] = []
    while True:
        seen_s = time.monotonic()
        if select.select([control], [], [], POLL_S if living else None)[0]:
            data, descriptors, _, _ = socket.recv_fds(control, PACKET_BYTES, 1)
            if not data:
                os._exit(0)
            wanted = Wanted.model_validate_json(data)
            os.environ.update(while_importing)
            why = unfit(wanted, spoilt)
            for name in while_importing:
                os.environ.pop(name, None)
            # What imports have set, the imports of a spawned process set themselves.
            hidden = {name: os.environ.pop(name) for name in os.environ.keys() - given} if why else {}
            # Without torch the rank, which the same classes spawn then, says itself what is wrong.
            multiprocessing: Any = import_module(STARTS_RANKS if "torch" in sys.modules else "multiprocessing")
            pipe, its = Connection(descriptors[0], readable=False), None if why else control
            given_to_rank = wanted, pipe, os.getpid(), its
            process = multiprocessing.get_context("spawn" if why else "fork").Process(target=_begin, args=given_to_rank)
            process.start()
            pipe.close()
            os.environ.update(hidden)
            living[process.pid] = wanted.rank, process
            control.send(Answer(rank=wanted.rank, pid=process.pid, spawned=why).model_dump_json().encode())
        for pid, (rank, process) in [*living.items()]:
            if (code := process.exitcode) is not None:
                del living[pid]
                end = End(exit_code=code, alive_s=seen_s, remedy=remedy_of(code))
                control.send(Answer(rank=rank, pid=pid, end=end).model_dump_json().encode())


def unfit(wanted: Wanted, spoilt: list[str]) -> str | None:
    """Import what the rank will import; return what a process forked afterwards would lack of a fresh one, with the
    module to blame, or None. spoilt: takes what no later rank can be rid of, the first alone.
    """
    with suppress(OSError):
        faulthandler.register(REQUEST, rank_path(wanted.folder, wanted.rank, "stack").open("w"))
    for name in (*wanted.modules, STARTS_RANKS):
        if name not in sys.modules and find_spec(name.partition(".")[0]) is None:
            continue
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001 - of any library; the rank raises it again
            return f"{name} cannot be imported: {inert(f'{type(error).__name__}: {error}'.splitlines()[0])}"
        if not spoilt and driver_initialised():
            spoilt.append(f"{name} initialises CUDA when it is imported")
        elif not spoilt and (threads := threads_lost_by_a_fork()):
            spoilt.append(f"{name} leaves {threads} threads running when it is imported")
    return spoilt[0] if spoilt else None


def threads_lost_by_a_fork() -> int:
    """Return how many threads run beside this one, without NVML's, which no child misses."""
    lost = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):
            # The driver's own threads have such names too: see `driver_initialised`.
            lost += not name.read_text().startswith("cuda")
    return lost - 1


def driver_initialised() -> bool:
    """Return whether this process has initialised the CUDA driver, which no child that it forks can use then."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return False
    # CUDA_ERROR_NOT_INITIALIZED of cuda.h.
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != 3)


def _begin(wanted: Wanted, pipe: Connection, server: int, control: socket.socket | None) -> NoReturn:
    """Run as a rank: in its own session, tied to the server."""
    try:
        leave_with(server)
        os.setsid()
        faulthandler.unregister(REQUEST)
        if control is not None:
            control.close()
        if numpy := sys.modules.get("numpy"):
            # Python does the same with its own generator.
            numpy.random.seed()
        main(wanted.folder, wanted.rank, pipe.fileno(), wanted.entry)
    finally:
        os._exit(FAILED)


def remedy_of(exit_code: int) -> str | None:
    """Return what to do about a child's end by a limit of this host, or by a variable of torch; None if unknown."""
    if exit_code in (-signal.SIGKILL, -signal.SIGXCPU):
        limit_s, _ = resource.getrlimit(resource.RLIMIT_CPU)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        # What the kernel compares with the limit is counted more coarsely.
        if limit_s != resource.RLIM_INFINITY and used.ru_utime + used.ru_stime > 0.9 * limit_s:
            return f"Raise the limit on CPU time (`ulimit -t`), by which a process is ended after {limit_s} s of it"
    if exit_code == -signal.SIGSEGV and os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        return "Unset TORCH_DISTRIBUTED_DEBUG: with DETAIL some versions of torch crash in DDP"
    return None

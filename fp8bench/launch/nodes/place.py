"""Where torchrun has put this process, by the variables that torchrun sets; and the local ranks other than a node's
agent, which only wait for it and leave with its exit code.

They meet at a socket in Linux's abstract namespace, which needs no folder, and disappears with the agent, however that
ends. No connection is accepted before: the kernel hangs up on a waiting rank when the agent is gone.
"""

import hashlib
import os
import re
import select
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from fp8bench.launch import signals
from fp8bench.lifeline import signal_with_parent
from fp8bench.schema.errors import RunFailed, UsageError

RANKS = ("RANK", "LOCAL_RANK")
"""Only these variables mark a process as one of a group: the others are set on many machines for other reasons."""

NUMBERS = (*RANKS, "WORLD_SIZE", "LOCAL_WORLD_SIZE")
TORCHRUN = (*NUMBERS, "MASTER_ADDR", "MASTER_PORT")
OF_NODES = ("GROUP_RANK", "GROUP_WORLD_SIZE")
NUMBER = re.compile("[0-9]{1,9}")
REMEDY = "Start with torchrun, or unset its variables to let fp8bench make its own processes"

BEGIN_S = 30.0  # until the agent must be there: torchrun starts all local ranks at once, on a host that may be busy
PARTING_S = 25.0  # after a signal that the agent also got, for it to end its ranks; torchrun kills after 30 s
LEAVE_S = 5.0  # for the agent to end once it has told its exit code


@dataclass(frozen=True)
class Elastic:
    """This process's place in a group that torchrun has made. address, port: of the store by which the processes find
    each other. hosted: whether torchrun holds that store, instead of node 0. attempt: torchrun may start all again with
    the same store. run_id: of torchrun, which is then this process's parent; empty under other launchers.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int = 0
    nodes: int = 1
    address: str = "localhost"
    port: int = 29500
    hosted: bool = False
    attempt: str = "0"
    run_id: str = ""

    @property
    def peers(self) -> tuple[int, ...]:
        """The nodes that this one depends on and listens to: node 0 on all others, and every other node on node 0."""
        return (0,) if self.node else tuple(range(1, self.nodes))


def elastic_from(environ: Mapping[str, str]) -> Elastic | None:
    """Return the group in torchrun's variables, or None without one. Raises UsageError for impossible values."""
    given = [name for name in RANKS if environ.get(name)]
    if not given:
        return None
    if missing := [name for name in TORCHRUN if not environ.get(name)]:
        are = "is" if len(missing) == 1 else "are"
        raise UsageError(f"{given[0]} is set in the environment, and {', '.join(missing)} {are} not", REMEDY)
    counted = environ.keys() >= set(OF_NODES)
    values: dict[str, int] = {}
    for name in (*NUMBERS, *(OF_NODES if counted else ())):
        text = environ[name]
        if not NUMBER.fullmatch(text) or int(text) < int(name.endswith("SIZE")):
            raise UsageError(f"{name}={text!r} in the environment is not a value that torchrun sets", REMEDY)
        values[name] = int(text)
    for name, relation, of in (
        ("LOCAL_RANK", "not below", "LOCAL_WORLD_SIZE"),
        ("RANK", "not below", "WORLD_SIZE"),
        ("LOCAL_WORLD_SIZE", "above", "WORLD_SIZE"),
        ("LOCAL_RANK", "above", "RANK"),
        ("GROUP_RANK", "not below", "GROUP_WORLD_SIZE"),
    ):
        if of in values and values[name] > values[of] - (relation == "not below"):
            raise UsageError(f"{name}={values[name]} in the environment is {relation} {of}={values[of]}", REMEDY)
    rank, local_rank, world_size, local_world_size = map(values.__getitem__, NUMBERS)
    if not counted and (world_size % local_world_size or (rank - local_rank) % local_world_size):
        what = f"LOCAL_WORLD_SIZE={local_world_size} does not divide WORLD_SIZE={world_size} into equal nodes"
        raise UsageError(what, "Start as many processes on each node, one a GPU")
    # Other launchers than torchrun do not count nodes.
    node = values.get("GROUP_RANK", (rank - local_rank) // local_world_size)
    nodes = values.get("GROUP_WORLD_SIZE", world_size // local_world_size)
    if nodes == 1 and local_world_size != world_size:
        sizes = f"LOCAL_WORLD_SIZE={local_world_size} is not WORLD_SIZE={world_size}"
        raise UsageError(f"GROUP_WORLD_SIZE=1 in the environment is one node, and {sizes}", REMEDY)
    port = environ["MASTER_PORT"]
    if not NUMBER.fullmatch(port) or not 0 < int(port) < 2**16:
        remedy = f"Give a number from 1 to {2**16 - 1} (torchrun --master-port, or --rdzv-endpoint HOST:PORT)"
        raise UsageError(f"MASTER_PORT={port!r} in the environment is not a port", remedy)
    return Elastic(
        *(rank, local_rank, world_size, local_world_size, node, nodes, environ["MASTER_ADDR"], int(port)),
        hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True),
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        run_id=environ.get("TORCHELASTIC_RUN_ID", ""),
    )


def follow(place: Elastic) -> int:
    """Wait for the agent, and return its exit code. If it ends without one, the first waiting rank raises RunFailed."""
    here, code = False, None
    with _socket(place) as (connection, name):
        try:
            if here := signals.waited_for(lambda: connection.connect_ex(name) == 0, BEGIN_S):
                code = _code(connection)
        except KeyboardInterrupt as interrupt:
            signals.ignore_signals()
            if select.select([connection], [], [], PARTING_S)[0]:
                code = _code(connection)
            return signals.exit_code(interrupt) if code is None else code
    if code is not None:
        return code
    was = "was killed" if here else f"was not there within {BEGIN_S:.0f} s"
    failed = RunFailed(
        f"the process of local rank 0, which runs this node, {was}",
        "See what it says, in what torchrun prints, or what ended it: `dmesg`, or the scheduler's log",
        "host-death" if here else None,
    )
    if place.local_rank == 1:
        raise failed
    return failed.exit_code


@contextmanager
def awaited(place: Elastic) -> Iterator[list[int]]:
    """Serve the waiting ranks as the agent: they leave with the last item of the yielded list as exit code."""
    with _socket(place) as (listener, name):
        try:
            listener.bind(name)
        except OSError as error:
            what = f"another process is node {place.node} of the group at {place.address}:{place.port} already"
            remedy = "Give each process a LOCAL_RANK of its own, or use another MASTER_PORT"
            raise UsageError(what, remedy) from error
        listener.listen(place.local_world_size)
        listener.setblocking(False)
        codes = [1]
        try:
            yield codes
        finally:
            with suppress(BlockingIOError):
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError):
                        connection.sendall(bytes([codes[-1] & 0xFF]))
                    # The kernel closes it with this process: if a rank leaves earlier, torchrun ends this process.
                    connection.detach()


@contextmanager
def _socket(place: Elastic) -> Iterator[tuple[socket.socket, bytes]]:
    """Yield a socket, and the name of this node's agent, which no other node on the machine has."""
    if place.run_id:
        # A torchrun that is killed ends no process.
        signal_with_parent(signal.SIGTERM)
    words = (place.address, place.port, place.run_id, place.attempt, place.rank - place.local_rank, os.getuid())
    name = hashlib.sha256("\n".join(map(str, words)).encode()).hexdigest()[:32]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        yield made, f"\0fp8bench-{name}".encode()


def _code(connection: socket.socket) -> int | None:
    said = b""
    with suppress(OSError):
        said = connection.recv(1)
        connection.settimeout(LEAVE_S)
        connection.recv(1)
    return said[0] if said else None

"""The local ranks other than a node's agent, which only wait for it and leave with its exit code.

They meet at a socket in Linux's abstract namespace, which needs no folder, and disappears with the agent, however that
ends. No connection is accepted before: the kernel hangs up on a waiting rank when the agent is gone.
"""

import hashlib
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fp8bench.launch import signals
from fp8bench.launch.nodes.place import Elastic
from fp8bench.lifeline import signal_with_parent
from fp8bench.schema.errors import RunFailed, UsageError

BEGIN_S = 30.0  # until the agent must be there: torchrun starts all local ranks at once, on a host that may be busy
PARTING_S = 25.0  # after a signal that the agent also got, for it to end its ranks; torchrun kills after 30 s
LEAVE_S = 5.0  # for the agent to end once it has told its exit code


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

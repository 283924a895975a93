"""The store through which agents talk: torch's TCPStore, which torchrun (or node 0) holds. Values are JSON under keys
that every node can read; each node gives a sign of life every second.

A thread does what needs the store: an operation waits in C++ as long as the node that holds the store is out of reach,
and the agent waits for no answer longer than `ANSWER_S`.
"""

import json
import os
import socket
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from threading import Event, Thread, Timer
from typing import Any, TypeVar

from pydantic import TypeAdapter

from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.processes.blame import NodeGone
from fp8bench.launch.signals import held_back
from fp8bench.schema.errors import UsageError
from fp8bench.worker.progress import Stage

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")

REACH_S = 20.0  # until something must listen where the store is
ANSWER_S = 20.0  # without an answer for so long, the node that holds the store is gone
BEAT_S = 1.0
PIECE_BYTES = 1 << 20  # the store accepts 8 MiB at most, and the reports of eight ranks may take more

QUIET = "TORCH_CPP_LOG_LEVEL"  # with the value ERROR, torch writes no C++ stack when a connection ends
OF_STORES = (RuntimeError, ValueError, OSError)  # errors of torch's stores are RuntimeErrors


class StoreLost(NodeGone):
    """The store no longer answers. node: the one that is out of reach together with it."""

    def __init__(self, why: str, node: int) -> None:
        what = f"the store of the group no longer answers: {why.partition('. ')[0].rstrip('.?')}"
        super().__init__(node, f"node {node}", f"died or is out of reach: {what}", time.time())
        self.what = what
        self.remedy = "See what ended the node that holds it (MASTER_ADDR), and start all nodes again"


@dataclass
class Heard:
    """What was heard of another node: its latest sign of life, and for how long no other has come."""

    sign: bytes = b""
    stage: Stage | None = None
    silent_s: float = 0.0


class GroupStore:
    """This node's connection to the store. stage: of its rank furthest behind, which goes with its signs of life."""

    def __init__(self, place: Elastic, store: Any) -> None:
        self.store = store
        self.stage: Stage | None = None
        self.heard = {node: Heard() for node in place.peers}
        self._node = place.node
        self._beats = count()
        self._beat_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1)

    def put(self, key: str, value: Any) -> None:
        """Store a value for every node. Raises StoreLost."""
        data = zlib.compress(TypeAdapter(type(value)).dump_json(value))
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]

        def stored() -> None:
            # The number of pieces is written last, because whoever finds it reads the pieces.
            for number, piece in enumerate(pieces):
                self.store.set(f"{key}#{number}", piece)
            self.store.set(key, str(len(pieces)))

        self._answered(stored)

    def get(self, key: str, kind: type[ValueT]) -> ValueT | None:
        """Return the value under the key, or None if there is nothing yet. Raises StoreLost."""

        def taken() -> bytes:
            number = int(self.store.get(key)) if self.store.check([key]) else 0
            return b"".join(self.store.get(f"{key}#{piece}") for piece in range(number))

        data = self._answered(taken)
        return TypeAdapter(kind).validate_json(zlib.decompress(data)) if data else None

    def beat(self, now: float) -> None:
        """Give a sign of life, and look for those of others. Time in which this process was stopped does not count."""
        passed_s, self._beat_at = min(now - self._beat_at, 2 * BEAT_S), now
        self.store.set(f"beat/{self._node}", json.dumps([next(self._beats), self.stage]))
        for node, heard in self.heard.items():
            sign = self.store.get(f"beat/{node}") if self.store.check([f"beat/{node}"]) else b""
            # Before its first sign, an agent may still be starting.
            if sign == heard.sign:
                heard.silent_s += passed_s if sign else 0.0
            else:
                self.heard[node] = Heard(sign, json.loads(sign)[1])

    def beat_until(self, ended: Event) -> None:
        """Give signs of life. A store that is gone is noticed by the agent's next question."""
        while True:
            with suppress(*OF_STORES):
                self._thread.submit(lambda: self.beat(time.monotonic())).result()
            if ended.wait(BEAT_S):
                return

    def _answered(self, do: Callable[[], ResultT]) -> ResultT:
        """Return what `do` returns in the thread. It is done completely, whatever signal arrives meanwhile."""
        with held_back():
            try:
                return self._thread.submit(do).result(ANSWER_S)
            except TimeoutError as error:
                raise StoreLost(f"no answer within {ANSWER_S:.0f} s", int(self._node == 0)) from error
            except OF_STORES as error:
                raise StoreLost(str(error).partition("\n")[0], int(self._node == 0)) from error

    def close(self, port: int) -> None:
        """End the thread. An interpreter that ends aborts if it comes back from C++ meanwhile, so it comes back now."""
        try:
            self._thread.submit(lambda: None).result(BEAT_S)
        except TimeoutError:
            _hang_up(port)
        self._thread.shutdown()
        self.store = None


@contextmanager
def joined(place: Elastic, log: Callable[[str], None] = lambda _line: None) -> Iterator[GroupStore]:
    """Yield this node's connection, and give signs of life meanwhile. Raises UsageError without a store."""
    found, ended = GroupStore(place, _connected(place, log)), Event()
    beating = Thread(target=found.beat_until, args=(ended,), daemon=True)
    beating.start()
    try:
        yield found
    finally:
        ended.set()
        found.close(place.port)
        beating.join()


def _connected(place: Elastic, log: Callable[[str], None]) -> Any:
    holds, where = place.node == 0 and not place.hosted, f"{place.address}:{place.port} (MASTER_ADDR, MASTER_PORT)"
    late = Timer(5.0, log, [f"waiting for the store of the group at {where}"])
    late.daemon = True
    late.start()
    try:
        deadline = time.monotonic() + REACH_S
        reached = holds
        while not reached:
            # Before torch is imported, which takes seconds.
            try:
                left_s = max(BEAT_S, deadline - time.monotonic())
                socket.create_connection((place.address, place.port), left_s).close()
                reached = True
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(BEAT_S)
        # torch reads this when it is imported. Ranks do not inherit it.
        given = QUIET in os.environ
        os.environ.setdefault(QUIET, "ERROR")
        from torch.distributed import PrefixStore, TCPStore

        if not given:
            del os.environ[QUIET]
        # For the first answer torch waits twice, and for as long between.
        first = timedelta(seconds=5)
        store = TCPStore(place.address, place.port, is_master=holds, wait_for_workers=False, timeout=first)
        # For keys that are known to exist.
        store.set_timeout(timedelta(seconds=60))
    except OF_STORES as error:
        # The lines after the first are C++.
        why = str(error).partition("\n")[0]
        if holds:
            remedy = "Choose a free port of this machine (torchrun --master-port, or --rdzv-endpoint HOST:PORT)"
            raise UsageError(f"cannot hold the group's store at {where}: {why}", remedy) from error
        remedy = "Give every node the same address and port, reachable from all of them, where nothing else listens"
        raise UsageError(f"no store of this group answers at {where}: {why}", remedy) from error
    finally:
        late.cancel()
    return PrefixStore(f"fp8bench/{place.attempt}", store)


def _hang_up(port: int) -> None:
    """End this process's connections to the port."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            # A duplicate of anything else would stay open: no socket is made of it that could close it.
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.family != socket.AF_UNIX and connection.getpeername()[1] == port:
                        connection.shutdown(socket.SHUT_RDWR)

"""The store through which agents talk: keys and texts that every node can read, and signs of life of each node.

It is torch's TCPStore, which torchrun holds for the processes that it starts. Using it needs torch, which an agent does
not import. So a small separate process imports torch (`main`), answers lines of JSON, and ends with the agent.
Texts are compressed and cut into pieces that the store accepts (the reports of eight ranks take megabytes).
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.signals import held_back
from fp8bench.schema.errors import RunFailed, UsageError

JOIN_S = 120.0
"""Seconds that the process may take to import torch, on a busy host, and to reach the store."""

LATE_S = 5.0
"""After this many seconds it says that it still waits."""

ANSWER_S = 20.0
"""After this many seconds without an answer, the node that holds the store is gone."""

BEAT_S = 1.0
PIECE_BYTES = 1 << 20
REACH_S = 20
"""Seconds until something must listen where the store is."""

FIRST_S = 5
"""Seconds for the store's first answer; torch waits for it twice, and for as long between."""

TIMEOUT = timedelta(seconds=60)
"""Timeout for keys that are known to exist."""

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from fp8bench.lifeline import leave_with
leave_with(int(sys.argv[1]))
from fp8bench.launch.nodes.store import main
main()
"""


class StoreLost(RunFailed):
    """Raised when the store no longer answers: the node that holds it is gone."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the store of the group no longer answers: {why.partition('. ')[0].rstrip('.?')}",
            "See what ended the node that holds it (MASTER_ADDR), and start all nodes again",
            "host-death",
        )


class Store(Protocol):
    """What an agent needs of the store. All methods raise StoreLost."""

    def put(self, key: str, text: str) -> None:
        """Store a text for every node."""

    def get(self, key: str) -> str | None:
        """Return the text under the key, or None if there is nothing yet."""

    def drop(self, key: str) -> None:
        """Remove a text that nobody will read again."""

    def say(self, status: str) -> None:
        """Set what the others read with this node's signs of life."""

    def heard(self, node: int) -> tuple[float, str]:
        """Return the seconds since the node's last sign of life, and what it said with it."""


class StoreProcess:
    """The agent's side of the small process. Close it, or use it as a context manager."""

    def __init__(self, place: Elastic) -> None:
        """Start the process; `join` waits until it has reached the store."""
        self._place = place
        self._errors: IO[bytes] = TemporaryFile()
        self._process = _start(self._errors)
        self._joined = False

    def __enter__(self) -> "StoreProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and the store too if this process holds it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()

    def join(self, log: Callable[[str], None] = lambda _line: None) -> None:
        """Wait for the store. log: takes a line if that takes long. Raises UsageError if there is none at the address,
        or if the port is taken.
        """
        if self._joined:
            return
        place = self._place
        settings = {
            "address": place.address,
            "port": place.port,
            "host": place.node == 0 and not place.hosted,
            "prefix": f"fp8bench/{place.attempt}",
            "node": place.node,
            "watch": [node for node in range(place.nodes) if node != place.node and 0 in (node, place.node)],
        }
        try:
            waits = f"waiting for the store of the group at {place.address}:{place.port} (MASTER_ADDR, MASTER_PORT)"
            answer = self._ask(settings, JOIN_S, lambda: log(waits))
        except StoreLost as error:
            raise _refused(place, error.what) from error
        if "lost" in answer:
            raise _refused(place, str(answer["lost"]))
        self._joined = True

    def put(self, key: str, text: str) -> None:
        self._ask_joined({"put": key, "text": text})

    def get(self, key: str) -> str | None:
        text = self._ask_joined({"get": key})["text"]
        return None if text is None else str(text)

    def drop(self, key: str) -> None:
        self._ask_joined({"drop": key})

    def say(self, status: str) -> None:
        self._ask_joined({"say": status})

    def heard(self, node: int) -> tuple[float, str]:
        answer = self._ask_joined({"heard": node})
        return float(answer["silent_s"]), str(answer["status"])

    def _ask_joined(self, question: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._ask(question, ANSWER_S)
        if "lost" in answer:
            raise StoreLost(str(answer["lost"]))
        return answer

    def _ask(
        self, question: Mapping[str, Any], limit_s: float, late: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Return the answer. late: called if there is none after LATE_S."""
        # Questions and answers stay complete, whatever signal arrives meanwhile.
        with held_back():
            asked, answers = self._process.stdin, self._process.stdout
            if asked is None or answers is None:
                raise StoreLost("its process has no pipes")
            try:
                _write(asked, json.dumps(question).encode() + b"\n")
            except OSError as error:
                raise StoreLost(self._last_words()) from error
            line = _line(answers, LATE_S) if late else None
            if late and line is None:
                late()
            line = _line(answers, limit_s) if line is None else line
            if line is None:
                raise StoreLost(f"no answer within {limit_s:.0f} s")
            if not line:
                raise StoreLost(self._last_words())
            answer: dict[str, Any] = json.loads(line)
            return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        # Skip the lines of a C++ stack.
        said = [line for line in lines if not line.startswith(("frame #", "<"))]
        return said[-1] if said else "its process was killed"


def _write(pipe: IO[bytes], data: bytes) -> None:
    """Write all of the data: a signal may cut a write short."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe.fileno(), rest) :]


def _line(pipe: IO[bytes], limit_s: float) -> bytes | None:
    """Return the next line, empty at the end of the pipe, None if none came in time. The pipe has no buffer."""
    deadline, found = time.monotonic() + limit_s, b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(pipe.fileno(), 1 << 20)
        if not part:
            return b""
        found += part
    return found


def _refused(place: Elastic, why: str) -> UsageError:
    where = f"{place.address}:{place.port}"
    if place.node == 0 and not place.hosted:
        return UsageError(
            f"cannot hold the group's store at {where} (MASTER_ADDR, MASTER_PORT): {why}",
            "Choose a free port of this machine (torchrun --master-port, or --rdzv-endpoint HOST:PORT)",
        )
    return UsageError(
        f"no store of this group answers at {where} (MASTER_ADDR, MASTER_PORT): {why}",
        "Give every node the same address and port, reachable from all of them, where nothing else listens",
    )


def _start(errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start the small process in its own session, so Ctrl-C reaches only the agent, which ends the process last."""
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, str(os.getpid()), json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        bufsize=0,
    )


@dataclass
class Heard:
    """What was heard of another node: its latest sign of life, and for how long no other has come."""

    sign: bytes = b""
    status: str = ""
    silent_s: float = 0.0


@dataclass
class Answerer:
    """Answers an agent, in a process with torch. store: a torch Store with the group's prefix. node: this one. heard:
    by watched node.
    """

    store: Any
    node: int
    heard: dict[int, Heard]
    status: str = ""
    _beats: Any = field(default_factory=count)
    _beat_at: float = 0.0

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer one question of the agent's, told apart by its only or first key."""
        match asked:
            case {"put": key, "text": text}:
                put(self.store, key, text)
            case {"get": key}:
                return {"text": get(self.store, key)}
            case {"drop": key}:
                drop(self.store, key)
            case {"say": status} if status != self.status:
                self.status = status
                self.beat(time.monotonic())
            case {"heard": node}:
                return {"silent_s": self.heard[node].silent_s, "status": self.heard[node].status}
        return {}

    def beat(self, now: float) -> None:
        """Give a sign of life, and look for those of the other nodes. now: of the monotonic clock. Time in which this
        process was stopped does not count.
        """
        passed_s, self._beat_at = min(now - self._beat_at, 2 * BEAT_S), now
        self.store.set(f"beat/{self.node}", json.dumps([next(self._beats), self.status]))
        for node, heard in self.heard.items():
            sign = self.store.get(f"beat/{node}") if self.store.check([f"beat/{node}"]) else b""
            # Before its first sign, an agent may still be starting.
            if sign == heard.sign:
                heard.silent_s += passed_s if sign else 0.0
            else:
                self.heard[node] = Heard(sign, json.loads(sign)[1])


def put(store: Any, key: str, text: str) -> None:
    """Store a text. The number of pieces is written last, because whoever finds it reads the pieces."""
    data = zlib.compress(text.encode())
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}#{number}", piece)
    store.set(key, str(len(pieces)))


def get(store: Any, key: str) -> str | None:
    """Return the text of that name, or None if there is none."""
    if not store.check([key]):
        return None
    pieces = (store.get(f"{key}#{number}") for number in range(int(store.get(key))))
    return zlib.decompress(b"".join(pieces)).decode()


def drop(store: Any, key: str) -> None:
    """Remove the text of that name, if there is one."""
    if store.check([key]):
        pieces = int(store.get(key))
        for name in (key, *(f"{key}#{number}" for number in range(pieces))):
            store.delete_key(name)


def main() -> None:
    """Answer until standard input ends. An error of the store is the last answer."""
    # Imported while the agent looks at its machine; where nobody listens is told before that.
    settings = json.loads(sys.stdin.readline())
    try:
        if not settings["host"]:
            reach(settings["address"], settings["port"])
        from torch.distributed import PrefixStore, TCPStore

        agent = _joined(TCPStore, PrefixStore, **settings)
        _say({})
        _serve(agent)
    except (RuntimeError, ValueError, OSError) as error:
        # torch's errors of a store are RuntimeErrors; the lines after the first are C++.
        _say({"lost": str(error).partition("\n")[0]})


def reach(address: str, port: int, limit_s: float = REACH_S) -> None:
    """Wait until somebody listens there. Raises OSError if the name is unknown, or nobody does, for that long."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((address, port), max(BEAT_S, deadline - time.monotonic())).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(BEAT_S)


def _joined(
    connect: Any, below: Any, address: str, port: int, host: bool, prefix: str, node: int, watch: Sequence[int]
) -> Answerer:
    """Return the agent, connected to the store. connect, below: torch's TCPStore and PrefixStore."""
    store = connect(address, port, is_master=host, wait_for_workers=False, timeout=timedelta(seconds=FIRST_S))
    store.set_timeout(TIMEOUT)
    return Answerer(below(prefix, store), node, {other: Heard() for other in watch}, _beat_at=time.monotonic())


def _serve(agent: Answerer) -> None:
    due = time.monotonic()
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            _say(agent.answer(json.loads(line)))
        if time.monotonic() >= due:
            agent.beat(time.monotonic())
            due = time.monotonic() + BEAT_S


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

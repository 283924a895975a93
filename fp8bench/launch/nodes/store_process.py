"""The process that talks to the store for an agent: it answers lines of JSON and gives a sign of life every second.

Texts are compressed and cut into pieces that the store accepts (the reports of eight ranks take megabytes).
"""

import json
import select
import socket
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

BEAT_S = 1.0
PIECE_BYTES = 1 << 20
REACH_S = 20
"""Seconds until something must listen where the store is."""

FIRST_S = 5
"""Seconds for the store's first answer; torch waits for it twice, and for as long between."""

TIMEOUT = timedelta(seconds=60)
"""Timeout for keys that are known to exist."""


@dataclass
class Heard:
    """What was heard of another node: its latest sign of life, and for how long no other has come."""

    sign: bytes = b""
    status: str = ""
    silent_s: float = 0.0


@dataclass
class Agent:
    """Answers an agent. store: a torch Store with the group's prefix. node: this one. heard: by watched node."""

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
) -> Agent:
    """Return the agent, connected to the store. connect, below: torch's TCPStore and PrefixStore."""
    store = connect(address, port, is_master=host, wait_for_workers=False, timeout=timedelta(seconds=FIRST_S))
    store.set_timeout(TIMEOUT)
    return Agent(below(prefix, store), node, {other: Heard() for other in watch}, _beat_at=time.monotonic())


def _serve(agent: Agent) -> None:
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

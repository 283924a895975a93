"""The thin process: what it makes of an agent's questions, signs of life, and real ones that meet at a port."""

import os
import random
import signal
import socket
from dataclasses import dataclass, field

import fork_server
import pytest
from cli.calling import environment

from fp8bench.launch.nodes import store as store_module
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import Answerer, Heard, StoreLost, StoreProcess


@dataclass
class TorchStore:
    """As much of a torch Store as is used."""

    held: dict = field(default_factory=dict)

    def set(self, key, value):
        self.held[key] = value.encode() if isinstance(value, str) else value

    def get(self, key):
        return self.held[key]

    def check(self, keys):
        return all(key in self.held for key in keys)

    def delete_key(self, key):
        del self.held[key]


def agent(store, node=0, watch=(1,)):
    return Answerer(store, node, {other: Heard() for other in watch})


@pytest.mark.slow
def test_a_text_of_megabytes_is_put_in_pieces_that_the_store_takes_and_dropped_whole():
    store = TorchStore()
    text = random.Random(0).randbytes(3 << 20).hex()
    one = agent(store)

    assert one.answer({"get": "view"}) == {"text": None}
    one.answer({"put": "view", "text": text})
    assert one.answer({"get": "view"}) == {"text": text}
    assert len(store.held) > 3
    assert max(map(len, store.held.values())) <= store_module.PIECE_BYTES
    one.answer({"drop": "view"})
    assert store.held == {}
    assert one.answer({"drop": "view"}) == {}


def test_signs_of_life_carry_what_a_node_says_and_silence_counts_from_the_last_one():
    store = TorchStore()
    first, second = agent(store), agent(store, 1, (0,))
    for now in (0.0, 1.0, 2.0):
        first.beat(now)
    assert first.answer({"heard": 1}) == {"silent_s": 0.0, "status": ""}

    second.answer({"say": "timing"})
    first.beat(3.0)
    assert first.answer({"heard": 1}) == {"silent_s": 0.0, "status": "timing"}
    for now in (4.0, 5.0, 6.0):
        first.beat(now)
    assert first.answer({"heard": 1}) == {"silent_s": 3.0, "status": "timing"}


def test_time_in_which_a_node_was_stopped_itself_is_not_anothers_silence():
    store = TorchStore()
    first = agent(store)
    agent(store, 1, (0,)).beat(0.0)
    first.beat(1.0)
    first.beat(600.0)

    assert first.heard[1].silent_s == 2 * store_module.BEAT_S


class Forked:
    """As much of a Popen as is used, of a process whose imports are done."""

    def __init__(self, errors, folder):
        (asked, ask), (answered, answer) = os.pipe(), os.pipe()
        program = ("-m", "fp8bench.launch.nodes.store")
        self.running = fork_server.begin([], folder, environment(), [asked, answer, errors.fileno()], program)
        os.close(asked)
        os.close(answer)
        self.stdin, self.stdout = open(ask, "wb", buffering=0), open(answered, "rb", buffering=0)

    def kill(self):
        if self.running.returncode is None:
            self.running.send_signal(signal.SIGKILL)

    def wait(self):
        return self.running.wait(60)


@pytest.mark.slow
def test_two_processes_meet_at_a_port_and_know_when_the_other_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_start", lambda errors: Forked(errors, tmp_path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [
        Elastic(rank, 0, 2, 1, node=rank, nodes=2, address="127.0.0.1", port=port, hosted=False) for rank in (0, 1)
    ]
    with StoreProcess(places[0]) as first, StoreProcess(places[1]) as second:
        first.join()
        second.join()
        first.put("turn/0", "ü" * 500_000)
        assert second.get("turn/0") == "ü" * 500_000
        assert second.get("turn/1") is None
        first.close()
        with pytest.raises(StoreLost, match="the store of the group no longer answers") as lost:
            second.get("turn/1")
    assert (lost.value.exit_code, lost.value.cause) == (5, "host-death")

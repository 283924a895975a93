"""A node's connection to the store: what it makes of values, signs of life, and real ones that meet at a port."""

import random
import socket
import time
from dataclasses import dataclass, field

import pytest

from fp8bench.launch.nodes import store as store_module
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import GroupStore, StoreLost


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


def connected(store, node=0):
    found = GroupStore(Elastic(node, 0, 2, 1, node=node, nodes=2))
    found.store, found._beat_at = store, 0.0
    return found


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def at(port, node):
    return GroupStore(Elastic(node, 0, 2, 1, node=node, nodes=2, address="127.0.0.1", port=port))


def test_signs_of_life_carry_the_phase_and_silence_counts_from_the_last_one():
    store = TorchStore()
    first, second = connected(store), connected(store, 1)
    for now in (0.0, 1.0, 2.0):
        first.beat(now)
    assert first.heard(1) == (0.0, None)

    second._stage = "timing"
    second.beat(2.5)
    first.beat(3.0)
    assert first.heard(1) == (0.0, "timing")
    for now in (4.0, 5.0, 6.0):
        first.beat(now)
    assert first.heard(1) == (3.0, "timing")


def test_time_in_which_a_node_was_stopped_itself_is_not_anothers_silence():
    store = TorchStore()
    first = connected(store)
    connected(store, 1).beat(0.0)
    first.beat(1.0)
    first.beat(600.0)

    assert first.heard(1)[0] == 2 * store_module.BEAT_S


def until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_two_nodes_meet_at_a_port_and_know_when_the_other_is_gone(port):
    megabytes = random.Random(0).randbytes(3 << 20).hex()
    with at(port, 0) as first, at(port, 1) as second:
        first.join()
        second.join()
        assert second.get("turn/0", str) is None
        first.put("turn/0", megabytes)
        until(lambda: second.get("turn/0", str) == megabytes)
        second.drop("turn/0")
        until(lambda: first.get("turn/0", str) is None)
        first.close()
        with pytest.raises(StoreLost, match="the store of the group no longer answers") as lost:
            second.get("turn/1", str)
    assert (lost.value.exit_code, lost.value.cause, lost.value.node) == (5, "host-death", 0)


def test_a_store_that_gives_no_answer_is_lost(monkeypatch, port):
    monkeypatch.setattr(store_module, "ANSWER_S", 0.05)
    with at(port, 0) as alone, pytest.raises(StoreLost, match="no answer within 0 s"):
        alone.get("turn/0", str)

"""A node's connection to the store: what it makes of values, signs of life, and real ones that meet at a port."""

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from launch.seen import free_port, until

from fp8bench.launch.nodes import store as store_module
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import GroupStore, StoreLost, joined


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


def connected(store, node=0):
    found = GroupStore(Elastic(node, 0, 2, 1, node=node, nodes=2), store)
    found._beat_at = 0.0
    return found


def at(port, node):
    return joined(Elastic(node, 0, 2, 1, node=node, nodes=2, address="127.0.0.1", port=port))


def test_signs_of_life_carry_the_phase_and_silence_counts_from_the_last_one_but_not_a_nodes_own():
    store = TorchStore()
    first, second = connected(store), connected(store, 1)
    for now in (0.0, 1.0, 2.0):
        first.beat(now)
    assert (first.heard[1].silent_s, first.heard[1].stage) == (0.0, None)

    second.stage = "timing"
    second.beat(2.5)
    first.beat(3.0)
    assert (first.heard[1].silent_s, first.heard[1].stage) == (0.0, "timing")
    for now in (4.0, 5.0, 6.0):
        first.beat(now)
    assert (first.heard[1].silent_s, first.heard[1].stage) == (3.0, "timing")
    # Time in which a node was stopped itself is not another's silence.
    first.beat(600.0)
    assert first.heard[1].silent_s == 3.0 + 2 * store_module.BEAT_S


@pytest.mark.slow
def test_two_nodes_meet_at_a_port_and_know_when_the_other_is_gone():
    port = free_port()
    megabytes = random.Random(0).randbytes(3 << 20).hex()
    with ExitStack() as holds, ExitStack() as other:
        first = holds.enter_context(at(port, 0))
        second = other.enter_context(at(port, 1))
        assert second.get("turn/0", str) is None
        first.put("turn/0", megabytes)
        until(lambda: second.get("turn/0", str) == megabytes)
        holds.close()
        with pytest.raises(StoreLost, match="the store of the group no longer answers") as lost:
            second.get("turn/1", str)
    assert (lost.value.exit_code, lost.value.cause, lost.value.node) == (5, "host-death", 0)


HOLDER = """
import sys, time
from torch.distributed import TCPStore
held = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print(flush=True)
time.sleep(600)
"""


@pytest.mark.thorough
def test_a_store_whose_process_is_stopped_is_lost_and_holds_nobody_up(monkeypatch):
    port, before = free_port(), threading.active_count()
    monkeypatch.setattr(store_module, "ANSWER_S", 0.5)
    with (
        subprocess.Popen([sys.executable, "-c", HOLDER, str(port)], stdout=subprocess.PIPE) as holder,
        ExitStack() as ends,
    ):
        # Leaving Popen waits for it, also where the test fails.
        ends.callback(holder.kill)
        holder.stdout.readline()
        with at(port, 1) as other:
            other.put("turn/0", 1)
            until(lambda: other.get("turn/0", int) == 1)
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(StoreLost, match="no answer within 0 s"):
                other.get("turn/0", int)
    assert threading.active_count() == before


def test_to_hang_up_leaves_no_duplicate_of_what_this_process_has_open():
    before = set(os.listdir("/proc/self/fd"))
    store_module._hang_up(free_port())
    assert set(os.listdir("/proc/self/fd")) <= before

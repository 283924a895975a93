"""Node 0 leads and the others follow, through a store in this process, each agent in a thread, with ranks that are made
up: what becomes of a run on two nodes of two ranks each. Real torchruns, of which one is killed or a rank fails, are in
tests/launch/test_nodes_runs.py and tests/faults/test_torchrun.py. A node's connection to the store: what it makes of
values, signs of life, and real ones that meet at a port.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest
from builders import config, machine_called, rank_report
from launch.seen import free_port, in_background, until

from fp8bench.launch import signals
from fp8bench.launch.nodes import agent as agent_module
from fp8bench.launch.nodes import executor as executor_module
from fp8bench.launch.nodes import store as store_module
from fp8bench.launch.nodes.agent import Agent, Hello, Left
from fp8bench.launch.nodes.executor import Elsewhere, NodesExecutor
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import GroupStore, StoreLost, joined
from fp8bench.launch.processes.blame import NodeGone, Overdue, RankView
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Outcome
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.model import Refusal
from fp8bench.worker.progress import Progress

TURN_S = 0.1
"""How long made-up ranks run."""


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


RUN = config(world_size=4, nodes=2, device="cpu")
HELLOS = [Hello(node=node, host=f"host-{name}", machine=machine_called(name)) for node, name in enumerate("ab")]


def agents(shared, log=lambda _line: None):
    """Of two nodes with two ranks each, which have met."""
    places = [Elastic(2 * node, 0, world_size=4, local_world_size=2, node=node, nodes=2) for node in (0, 1)]
    return [Agent(place, GroupStore(place, shared), log, hellos=HELLOS) for place in places]


def all_well(task, watch, interrupted, others):
    """Ranks that measure."""
    deadline = time.monotonic() + TURN_S
    while time.monotonic() < deadline and not interrupted():
        others([Progress("timing", 1, None)] * len(task.ranks_here), None)
        time.sleep(0.01)
    return Outcome(tuple(RankView(rank=rank, report=rank_report(rank), stage="done") for rank in task.ranks_here))


def waiting_in(stage):
    """Ranks that wait for those elsewhere, and end when told."""

    def run(task, watch, interrupted, others):
        deadline = time.monotonic() + 20
        while others([Progress(stage, 3, None)] * 2, None) is None and not interrupted():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if interrupted():
            return None
        return Outcome(tuple(RankView(rank=rank, stage=stage, stack="") for rank in task.ranks_here))

    return run


def reasons(reports):
    """Of the ranks that are to blame."""
    return {report.rank: report.reason for report in reports if report.status != "ok" and not report.collateral}


@pytest.fixture(autouse=True)
def made_up_ranks(monkeypatch):
    monkeypatch.setattr(agent_module, "POLL_S", 0.01)
    monkeypatch.setattr(executor_module, "run_ranks", lambda task, *given, server: Pair.ranks[task.node](task, *given))


class Pair:
    """A leader here and a follower in a thread; their ranks are made up."""

    def __init__(self, mine, theirs, marks=lambda _config: ()):
        self.shared = TorchStore()
        Pair.ranks = mine, theirs
        self.said = []
        first, second = agents(self.shared, self.said.append)
        self.leader = NodesExecutor(first)
        self.following = in_background(lambda: NodesExecutor(second).follow(marks))

    def run(self):
        return self.leader.run(Task(config=RUN))

    def end(self, code=0, why=""):
        self.leader.agent.end(code, why)
        return self.following.result(20)


def test_all_ranks_of_all_nodes_report_turn_after_turn_and_all_leave_with_one_exit_code():
    pair = Pair(all_well, all_well, marks=lambda _config: ("busy GPU: 1 other process",))

    for _ in range(2):
        reports = pair.run()
        assert [(report.rank, report.status) for report in reports] == [(rank, "ok") for rank in range(4)]
        assert [report.machine for report in reports] == [machine_called(name) for name in "aabb"]
        assert [report.marks for report in reports] == [(), (), ("busy GPU: 1 other process",), ()]
    assert pair.leader.agent.store.stage is None
    assert pair.end(4, "the parity gate said no") == 4
    assert pair.said == ["node 0 (host-a): the parity gate said no"]


@pytest.mark.parametrize(
    ("stage", "culprits", "said"),
    [
        ("timing", [2, 3], ("ranks 2 and 3 held up the phase 'proving' for more than 120 s", ", on node 1")),
        ("proving", [0, 1, 2, 3], ("ranks 0, 1, 2 and 3 held up the phase 'proving'", ", on nodes 0 and 1")),
    ],
)
def test_the_ranks_that_are_behind_are_blamed_wherever_their_lateness_is_seen_first(stage, culprits, said):
    def late(task, watch, interrupted, others):
        others([None, None], 0.0)
        views = tuple(RankView(rank=rank, stage=stage, stack="") for rank in task.ranks_here)
        return Outcome(views, Overdue((0, 1), stage, 120.0))

    pair = Pair(late, waiting_in("proving"))

    found = reasons(pair.run())
    assert list(found) == culprits
    assert found[2].startswith(said[0])
    assert found[2].endswith(said[1])
    assert pair.end(5) == 5


def test_a_node_whose_torchrun_was_killed_says_so():
    pair = Pair(waiting_in("timing"), waiting_in("timing"))
    left = Left(what="lost its torchrun, which was killed", at_s=time.time())
    running = in_background(pair.run)
    agents(pair.shared)[1].say("left", left)

    assert set(reasons(running.result(20)).values()) == {"node 1 with ranks 2 to 3 lost its torchrun, which was killed"}


def test_a_node_that_leaves_says_the_phase_that_it_is_in_and_torchruns_end_is_no_wish_of_a_users():
    """The phase is not the one in which it last gave a sign of life."""
    first, second = agents(TorchStore())
    second = replace(second, parent=-1)
    ranks = Elsewhere(second, 0)
    ranks([Progress("warming up", 2, None)] * 2, None)
    ranks([Progress("comparing", 3, None), Progress("timing", 3, None)], None)
    second.leave(signals.Interrupt(15))
    first.store.heard[1].stage = "warming up"

    with pytest.raises(NodeGone, match="lost its torchrun") as gone:
        first.require_alive(1)
    assert gone.value.stage == "comparing"
    left = first.store.get("left/1", Left)
    assert (left.what, left.interrupted) == ("lost its torchrun, which was killed", None)


def measured(task, watch, interrupted, others):
    """Ranks that have timed their steps, and then wait until a signal ends them."""
    while not interrupted():
        others([Progress("profiling", 6, None)] * 2, None)
        time.sleep(TURN_S)
    return Outcome(tuple(RankView(rank=rank, report=rank_report(rank=rank)) for rank in task.ranks_here))


def measured_alone(task, watch, interrupted, others):
    """Ranks that have timed their steps, and fail because those of another node are gone."""
    kept = [rank_report(rank=rank) for rank in task.ranks_here]
    return Outcome(tuple(RankView(rank=one.rank, kept=one, measured=True, stage="profiling") for one in kept))


@pytest.mark.slow
@pytest.mark.parametrize(("theirs", "reported"), [(measured_alone, range(4)), (waiting_in("timing"), ())])
def test_when_a_signal_ended_a_node_it_is_reported_what_was_measured_if_all_ranks_had(theirs, reported):
    pair = Pair(measured, theirs)
    running = in_background(pair.run)
    # A node tells of its ranks before it leaves.
    while reported and not pair.shared.check(["view/0/1"]):
        time.sleep(TURN_S)
    agents(pair.shared)[1].leave(signals.Interrupt(15))

    with pytest.raises(signals.Interrupt) as interrupt:
        running.result(20)
    assert [(one.rank, one.status) for one in interrupt.value.reports] == [(rank, "ok") for rank in reported]
    assert [one.machine for one in interrupt.value.reports] == [machine_called("aabb"[rank]) for rank in reported]
    assert (signals.exit_code(interrupt.value), {*pair.said}) == (143, {"node 1 (host-b) was ended by SIGTERM"})


def test_a_node_with_a_busy_gpu_refuses_for_all_before_any_rank_begins():
    def busy(_config):
        raise ModeUnavailable("GPU 3 is busy: 1 other process holds 2.0 GiB", "End them")

    pair = Pair(None, None, marks=busy)

    with pytest.raises(ModeUnavailable, match=r"node 1 \(host-b\): GPU 3 is busy") as refusal:
        pair.run()
    assert refusal.value.exit_code == 3
    assert pair.end(3) == 3


class TestMeeting:
    def hello(self, node, **changes):
        return Hello(node=node, host=f"host-{node}", machine=machine_called("ab"[node]), **changes)

    def test_nodes_that_are_alike_know_each_other_and_unlike_ones_are_refused_on_each_of_them(self):
        first, second = agents(TorchStore())
        other = in_background(lambda: second.meet(self.hello(1)))
        first.meet(self.hello(0))
        other.result(20)
        assert first.hellos == second.hellos == [self.hello(0), self.hello(1)]
        assert second.called(0) == "node 0 (host-0)"

        first, second = agents(TorchStore())
        other = in_background(lambda: second.meet(self.hello(1, settings={"steps": 8})))

        for meeting in (lambda: first.meet(self.hello(0, settings={"steps": 4})), other.result):
            with pytest.raises(UsageError, match=r"steps is 4 on node 0 \(host-0\), 8 on node 1 \(host-1\)"):
                meeting()

    def test_a_node_that_is_gone_at_the_end_is_not_waited_for(self):
        began = time.monotonic()
        first, _ = agents(TorchStore())
        first.store.heard[1].silent_s = 30.0
        first.end(5, "")
        assert time.monotonic() - began < 1

    def test_a_node_that_is_ended_before_its_first_word_ends_the_others(self):
        first, second = agents(TorchStore())
        second.leave(signals.Interrupt(2))

        with pytest.raises(signals.Interrupt) as interrupt:
            first.meet(self.hello(0))
        assert signals.exit_code(interrupt.value) == 130


def test_a_refusal_keeps_its_words_and_its_exit_code_on_the_way():
    for error in (UsageError("a", "b"), ModeUnavailable("a", "b"), NodeGone(1, "node 1", "was killed", 0.0)):
        again = Refusal.model_validate_json(Refusal.of(error).model_dump_json()).error("node 1: ")
        assert (again.what, again.remedy, again.exit_code) == (f"node 1: {error.what}", error.remedy, error.exit_code)


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
            # A signal takes effect later than it is sent: until then it would answer.
            os.waitpid(holder.pid, os.WUNTRACED)
            with pytest.raises(StoreLost, match="no answer within 0 s"):
                other.get("turn/0", int)
    assert threading.active_count() == before


def test_to_hang_up_leaves_no_duplicate_of_what_this_process_has_open():
    before = set(os.listdir("/proc/self/fd"))
    store_module._hang_up(free_port())
    assert set(os.listdir("/proc/self/fd")) <= before

"""Under torchrun: a `failed` record of node 0 and one line, and the node that survives ends within a minute."""

import os
import signal
import time

import pytest
from cli.calling import environment
from faults.faulty_runs import LIMIT_S, TINY, at_work_in, until
from launch.test_nodes_runs import Node, ended, free_port

from fp8bench.config.request import RunRequest
from fp8bench.launch.nodes.alike import EACH_ITS_OWN, hello, judge
from fp8bench.launch.nodes.messages import Hello
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.signals import process
from fp8bench.machine.gpus import Machine

MINUTE_S = 60


class TestAlike:
    def hello(self, node, settings):
        return Hello(node=node, host=f"host-{node}", processes=1, settings=settings, hardware={}, software={})

    @pytest.mark.parametrize("name", sorted(set(RunRequest.model_fields) - EACH_ITS_OWN))
    def test_nodes_that_were_asked_for_something_else_are_refused_whatever_it_is(self, name):
        refusal = judge([self.hello(0, {name: "this"}), self.hello(1, {name: "that"})]).refusal

        assert refusal.what == f"the nodes differ: {name} is this on node 0 (host-0), that on node 1 (host-1)"

    def test_every_node_tells_of_every_setting(self):
        told = hello(Elastic(0, 0, 2, 1), RunRequest(), Machine((), None, 2), {}).settings

        assert set(told) == set(RunRequest.model_fields) - EACH_ITS_OWN

    def test_what_each_node_may_have_of_its_own_changes_nothing_of_what_ranks_do(self):
        assert set(RunRequest.model_fields) >= EACH_ITS_OWN
        assert EACH_ITS_OWN == {"results_dir", "name", "price", "price_per_gpu", "allow_busy"}


@pytest.fixture
def started(tmp_path, variables, torch_imported):
    """Nodes of two ranks each, in torchruns of their own; flags: a sequence for each; fault: of all."""
    nodes = []

    def start(fault, *flags):
        port = free_port()
        environ = environment(**variables, FAULT=fault)
        for number, own in enumerate(flags):
            folder = tmp_path / f"node-{number}"
            nodes.append(Node(folder, number, len(flags), port, (*TINY, *own), environ, 2))
        return nodes

    yield start
    for node in nodes:
        node.close()


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.serial
class TestFaults:
    ROUNDS = ("--rounds", "1")

    @pytest.mark.parametrize(("kind", "cause"), [("killed", "host-death"), ("exits", "crash"), ("oom", "oom")])
    @pytest.mark.parametrize("phase", ["proving", "timing"])
    def test_a_rank_that_fails_on_another_node_is_in_node_0s_record(self, started, tmp_path, kind, cause, phase):
        first, second = started(f"{kind} {phase} 3", self.ROUNDS, self.ROUNDS)
        codes = [node.torchrun.wait(LIMIT_S) for node in (first, second)]
        [record] = first.records()

        assert codes == [1, 1]
        assert (record["status"], record["cause"]) == ("failed", cause)
        assert record["reason"].startswith("rank 3 ")
        assert record["reason"].endswith(f", on node 1, in the phase {phase!r}")
        assert second.records() == []
        assert at_work_in(tmp_path) == []

    def test_a_rank_that_fails_on_a_node_alone(self, started):
        [node] = started("killed timing 1", self.ROUNDS)

        assert node.torchrun.wait(LIMIT_S) == 1
        assert [record["reason"] for record in node.records()] == [
            "rank 1 died: ended by SIGKILL, in the phase 'timing'"
        ]
        assert "exitcode  : 5" in node.errors()

    @pytest.mark.parametrize("nodes", [1, 2])
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_to_torchrun_ends_all_in_a_minute(self, started, tmp_path, number, nodes):
        all_nodes = started("waits timing 0", *[self.ROUNDS] * nodes)
        until(lambda: "timing" in all_nodes[0].errors())
        below = [pid for node in all_nodes for pid in node.below()]
        began = time.monotonic()
        all_nodes[-1].torchrun.send_signal(number)
        for node in all_nodes:
            node.torchrun.wait(MINUTE_S)

        assert time.monotonic() - began < MINUTE_S
        until(lambda: ended(below), 10)
        assert at_work_in(tmp_path) == []

    @pytest.mark.parametrize("local_rank", [0, 1])
    def test_a_process_of_torchruns_that_is_killed_ends_the_node(self, started, tmp_path, local_rank):
        """Local rank 0 runs the node, and the others wait for it."""
        [node] = started("waits timing 0", self.ROUNDS)
        until(lambda: "timing" in node.errors())
        below = node.below()
        # torchrun starts its processes by local rank.
        children = sorted(pid for pid in below if (one := process(pid)) and one.parent == node.torchrun.pid)
        victim = children[local_rank]
        os.kill(victim, signal.SIGKILL)

        assert node.torchrun.wait(MINUTE_S) != 0
        until(lambda: ended(below), 20)

"""Under torchrun: a `failed` record of node 0 and one line, and the node that survives ends within a minute."""

import os
import signal
import subprocess
import time

import pytest
from faults.faulty_runs import LIMIT_S, TINY, at_work_in
from launch.seen import ended, free_port, fresh, until
from launch.test_nodes_runs import nodes_in

from fp8bench.launch.signals import process

MINUTE_S = 60
SETTLED_S = 2.0
"""Seconds until the other ranks have done what one of them has done that waits in the phase after timing."""

NODE_OF_TWO = {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}


@pytest.fixture
def started(tmp_path, variables, torch_imported):
    """Nodes of two ranks each, in torchruns of their own; flags: a sequence for each; fault: of all."""
    with nodes_in(tmp_path, variables) as start:
        yield lambda fault, *flags, **more: start(
            *((*TINY, *own) for own in flags), processes_a_node=2, FAULT=fault, **more
        )


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.serial
class TestMeeting:
    """Nodes that never meet: nobody waits in silence, nor for long."""

    def test_a_misspelt_flag_on_another_node_ends_node_0_with_its_words(self, started, tmp_path):
        began = time.monotonic()
        first, second = started("none none 0", ("--rounds", "1"), ("--nonsense",))
        codes = [node.torchrun.wait(LIMIT_S) for node in (first, second)]

        assert time.monotonic() - began < 30
        assert codes == [1, 1]
        assert "node 1 (" in first.errors()
        assert "No such option: --nonsense" in first.errors()
        assert second.errors().count("fp8bench: No such option: --nonsense") == 1
        assert "exitcode  : 2" in first.errors()
        assert first.records() == []
        assert at_work_in(tmp_path) == []

    def node(self, folder, rank, **variables):
        """A process as another launcher than torchrun starts it."""
        return fresh(folder, {"RANK": rank, **NODE_OF_TWO, **variables}, "run", *TINY, stderr=subprocess.PIPE)

    def test_a_node_that_never_starts_is_named_while_it_is_waited_for_and_at_the_end(self, tmp_path, variables):
        began = time.monotonic()
        alone = self.node(tmp_path, "0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **variables)
        lines = [(time.monotonic() - began, line) for line in alone.stderr]

        assert alone.wait(LIMIT_S) == 5
        [said_s] = [at for at, line in lines if "waiting for node 1" in line]
        assert said_s < 20
        assert lines[-1][0] < 45
        assert "node 1 said nothing for 30 s" in lines[-1][1]

    @pytest.mark.parametrize("address", ["node0.invalid", "127.0.0.1"])
    def test_an_address_that_is_unknown_or_where_nobody_listens_is_told_and_ends_the_wait(
        self, tmp_path, variables, address
    ):
        began = time.monotonic()
        port = str(free_port())
        lost = self.node(tmp_path, "1", MASTER_ADDR=address, MASTER_PORT=port, **variables)
        lines = [(time.monotonic() - began, line) for line in lost.stderr]

        assert lost.wait(LIMIT_S) == 2
        assert lines[0][0] < 15
        assert f"waiting for the store of the group at {address}:{port}" in lines[0][1]
        assert lines[-1][0] < 30
        assert f"no store of this group answers at {address}:{port} (MASTER_ADDR, MASTER_PORT)" in lines[-1][1]


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

    @pytest.mark.parametrize(("nodes", "signalled"), [(1, [0]), (2, [0]), (2, [1]), (2, [0, 1])])
    def test_a_signal_after_the_last_timed_step_keeps_the_record(self, started, tmp_path, nodes, signalled):
        waits = tmp_path / "waits"
        all_nodes = started("waits profiling 1", *[self.ROUNDS] * nodes, WAITING=str(waits))
        until(waits.exists)
        time.sleep(SETTLED_S)
        for number in signalled:
            all_nodes[number].torchrun.send_signal(signal.SIGTERM)
        for node in all_nodes:
            node.torchrun.wait(MINUTE_S)
        [record] = all_nodes[0].records()

        assert record["status"] == "ok"
        assert [len(rank["step_s"]) for rank in record["samples"]] == [6] * 2 * nodes

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

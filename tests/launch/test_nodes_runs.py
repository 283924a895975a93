"""Under torchrun with real processes: two torchruns on loopback are two nodes, and gloo joins their ranks; and a node
by itself.
"""

import json
import os
import signal
import socket
import time
from contextlib import contextmanager
from tempfile import TemporaryFile

import fork_server
import pytest
from cli.calling import LIMIT_S, call, environment, one_line
from kept import documents
from launch.seen import ended, free_port, until

from fp8bench.launch.signals import descendants, process, processes

pytestmark = pytest.mark.thorough

TINY = ("--workload", "outside-linear", "--batch-size", "8", "--warmup", "1", "--min-time", "0")

PLACE = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}
DRY = ("run", "--workload", "vit-micro", "--dry-run")


class Node:
    """A torchrun in the background, in a folder of its own, and what it said."""

    def __init__(self, folder, number, nodes, port, command, variables, processes_a_node):
        folder.mkdir()
        self.folder = folder
        self.out, self.err = TemporaryFile(), TemporaryFile()
        words = ["--nnodes", str(nodes), "--node-rank", str(number), "--nproc-per-node", str(processes_a_node)]
        words += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        words += ["--log-dir", str(folder / "logs"), "-m", "fp8bench", *command]
        given = open(os.devnull)
        streams = [given.fileno(), self.out.fileno(), self.err.fileno()]
        self.torchrun = fork_server.begin(words, folder, variables, streams, fork_server.TORCHRUN)
        given.close()

    def below(self):
        return [one.pid for one in descendants(self.torchrun.pid, processes())]

    def stdout(self):
        return os.pread(self.out.fileno(), 1 << 22, 0).decode()

    def errors(self):
        return os.pread(self.err.fileno(), 1 << 22, 0).decode()

    def kill(self):
        """It and all below it; returns whom."""
        killed = [self.torchrun.pid, *self.below()]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        return killed[1:]

    def records(self):
        found = documents(self.folder, "results/cpu/*.json")
        return sorted(found, key=lambda record: record["created_utc"])

    def close(self):
        below = self.below() if self.torchrun.returncode is None else []
        self.torchrun.__exit__()
        for pid in below:
            if process(pid) is not None:
                os.kill(pid, signal.SIGKILL)
        self.out.close()
        self.err.close()


@contextmanager
def nodes_in(folder, variables):
    """Starts the nodes; flags may differ: one sequence a node."""
    nodes = []

    def start(*flags, processes_a_node=1, command=("run", *TINY), **more):
        port, environ = free_port(), environment(**variables, **more)
        for number, own in enumerate(flags):
            words = (*command, *own)
            nodes.append(Node(folder / f"node-{number}", number, len(flags), port, words, environ, processes_a_node))
        return nodes

    yield start
    for node in nodes:
        node.close()


@pytest.fixture
def started(tmp_path, outside_site):
    with nodes_in(tmp_path, {"PYTHONPATH": str(outside_site)}) as start:
        yield start


def test_two_nodes_measure_all_modes_and_rounds_in_one_call_and_node_0_keeps_the_records(started):
    flags = "--mode baseline-bf16 --mode baseline-fp32 --rounds 2 --steps 3 --session monday".split()
    first, second = started((*flags, "--json"), flags)

    codes = [node.torchrun.wait(LIMIT_S) for node in (first, second)]
    assert codes == [0, 0], first.errors() + second.errors()
    records = first.records()
    assert json.loads(first.stdout()) == records
    assert (second.records(), second.stdout()) == ([], "")
    where = [(r["config"]["mode"], r["session"]["session_id"], r["session"]["round"]) for r in records]
    assert where == [
        ("baseline-bf16", "monday", 1),
        ("baseline-fp32", "monday", 1),
        ("baseline-fp32", "monday", 2),
        ("baseline-bf16", "monday", 2),
    ]
    for record in records:
        assert (record["status"], record["config"]["world_size"], record["config"]["nodes"]) == ("ok", 2, 2)
        assert [samples["rank"] for samples in record["samples"]] == [0, 1]
        assert [node["ranks"] for node in record["environment"]["nodes"]] == [[0, 0], [1, 1]]
    assert records[0]["samples"][0]["loss"][0] != records[0]["samples"][1]["loss"][0]
    assert "follows node 0" in second.errors()


@pytest.mark.serial
def test_a_node_that_is_killed_ends_the_other_within_a_minute_with_a_record_and_without_orphans(started, slowness):
    flags = ("--mode", "baseline-bf16", "--rounds", "2", "--steps", "100000")
    first, second = started(flags, flags, processes_a_node=2)
    until(lambda: ": timing," in first.errors())
    # Until node 0 has heard of it.
    time.sleep(2 * slowness)
    ours, began = first.below(), time.monotonic()
    theirs = second.kill()
    assert first.torchrun.wait(60 * slowness) == 1
    assert time.monotonic() - began < 60 * slowness
    until(lambda: ended([*ours, *theirs]), 10)
    [record] = first.records()
    assert (record["status"], record["cause"]) == ("failed", "host-death")
    assert record["reason"].startswith("node 1 with ranks 2 to 3 gave no sign of life for 1")
    assert record["reason"].endswith("in the phase 'timing'")
    log = (first.folder / f"results/cpu/{record['run_id']}.log").read_text()
    assert [f"rank {rank}: " in log for rank in range(4)] == [True, True, False, False]
    assert f"fp8bench: baseline-bf16: {record['reason']}. {record['remedy']}." in first.errors()
    # torchrun itself ends with 1, and tells its processes' codes.
    assert "exitcode  : 5" in first.errors()


@pytest.mark.serial
def test_where_node_0_is_killed_node_1_keeps_the_record_its_log_and_the_instance(started, slowness):
    flags = ("--mode", "baseline-bf16", "--rounds", "2", "--steps", "100000")
    first, second = started(flags, (*flags, "--price", "3"), processes_a_node=2)
    until(lambda: ": timing," in first.errors())
    ours, theirs = second.below(), first.kill()
    assert second.torchrun.wait(60 * slowness) == 1
    until(lambda: ended([*ours, *theirs]), 10)
    [record] = second.records()
    assert (record["status"], record["cause"]) == ("failed", "host-death")
    assert record["reason"].startswith("node 0 with ranks 0 to 1 ")
    folder = second.folder / "results/cpu"
    assert record["remedy"].endswith(f"tracebacks and stacks are in results/cpu/{record['run_id']}.log")
    log = (folder / f"{record['run_id']}.log").read_text()
    assert "rank 2: " in log
    assert "rank 3: " in log
    assert "usd_per_hour: 3" in (folder / "instance.yaml").read_text()


def test_a_node_alone_measures_all_rounds_and_its_other_ranks_wait(started):
    [node] = started("--mode baseline-bf16 --rounds 2 --steps 3 --name box-7".split(), processes_a_node=2)

    assert node.torchrun.wait(LIMIT_S) == 0, node.errors()
    found = [(r["status"], r["session"]["round"], r["config"]["world_size"]) for r in node.records()]
    assert found == [("ok", 1, 2), ("ok", 2, 2)]
    assert node.errors().count("baseline-bf16, round 1 of 2: outside-linear") == 1


class TestRefusals:
    """As torchrun would start one process; no group is needed to refuse."""

    def test_another_command_is_one_line(self, tmp_path):
        done = call(tmp_path, "sweep", "--budget", "1min", **PLACE)

        assert (done.code, list(tmp_path.iterdir())) == (2, [])
        assert "measures with processes of its own" in one_line(done)

    def test_a_port_that_is_taken_is_one_line(self, tmp_path):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = call(tmp_path, "run", "--workload", "vit-micro", **{**PLACE, "MASTER_PORT": str(port)})

        assert (done.code, list(tmp_path.iterdir())) == (2, [])
        said = one_line(done)
        assert f"cannot hold the group's store at 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT)" in said
        assert "Choose a free port" in said

    def test_a_dry_run_needs_no_other_node(self, tmp_path):
        done, beside = (call(tmp_path, *DRY, **{**PLACE, "RANK": rank}) for rank in "01")

        assert (done.code, beside.code, beside.stdout) == (0, 0, "")
        assert "baseline-bf16" in done.stdout


COLLECTIVES = ("--size", "64K", "--dtype", "fp32", "--rounds", "1", "--seconds", "0.001")


def test_all_ranks_of_two_nodes_take_part_in_collectives_and_node_0_keeps_the_record(started):
    first, second = started(COLLECTIVES, COLLECTIVES, processes_a_node=2, command=("collectives",))

    assert [node.torchrun.wait(LIMIT_S) for node in (first, second)] == [0, 0], first.errors()
    [record] = first.records()
    assert (record["kind"], record["status"]) == ("collectives", "ok")
    assert (record["config"]["world_size"], record["config"]["nodes"]) == (4, 2)
    assert [one["ranks"] for one in record["environment"]["nodes"]] == [[0, 1], [2, 3]]
    assert "Collectives of 4 ranks on 2 nodes by gloo, on cpu" in first.stdout()
    assert (second.records(), second.stdout()) == ([], "")


def test_unlike_nodes_are_refused_on_both_before_any_rank_begins(started):
    """Of `run` in tests/faults/test_torchrun.py."""
    nodes = started(COLLECTIVES, (*COLLECTIVES, "--size", "1M"), command=("collectives",))

    assert [node.torchrun.wait(LIMIT_S) for node in nodes] == [1, 1]
    for node in nodes:
        assert "the nodes differ: sizes is 64K on node 0" in node.errors()
        assert node.records() == []


class TestConverge:
    MODES = ("--mode", "baseline-bf16", "--mode", "baseline-fp32")
    SMALL = ("--workload", "outside-language", "--batch-size", "2", "--sequence-length", "16", "--seeds", "2")

    def test_both_nodes_train_every_mode_and_seed_and_node_0_keeps_the_record(self, started):
        words = (*self.MODES, *self.SMALL, "--steps", "2", "--text", __file__)
        first, second = started(words, words, command=("converge",))

        assert [node.torchrun.wait(LIMIT_S) for node in (first, second)] == [0, 0], first.errors() + second.errors()
        [record] = first.records()
        assert (record["kind"], record["status"], len(record["trainings"])) == ("converge", "ok", 4)
        assert (record["config"]["world_size"], record["config"]["nodes"]) == (2, 2)
        assert [one["ranks"] for one in record["environment"]["nodes"]] == [[0, 0], [1, 1]]
        assert [one["rank"] for one in record["trainings"][0]["memory"]] == [0, 1]
        assert record["work"]["tokens_per_step"] == 2 * 2 * 16
        assert "on 2 nodes of cpu (CPU)" in first.stdout()
        assert (second.records(), second.stdout()) == ([], "")

    @pytest.mark.serial
    def test_a_node_that_is_killed_ends_the_other_and_what_was_trained_is_kept(self, started, tmp_path, slowness):
        words = (*self.MODES, *self.SMALL, "--steps", "60")
        first, second = started(words, words, command=("converge",))
        until(lambda: "2 of 4: " in first.errors())
        ranks = [*first.below(), *second.kill()]

        assert first.torchrun.wait(60 * slowness) == 1
        until(lambda: ended(ranks), 10)
        assert "exitcode  : 5" in first.errors()
        assert "node 1 (" in first.errors()
        assert first.records() == []
        [kept] = (tmp_path / "node-0" / "results" / "cpu").glob(".converge-*.jsonl")
        done = [json.loads(line) for line in kept.read_text().splitlines() if line]
        assert [one["trained"]["status"] for one in done] in (["ok"], ["ok"] * 2)

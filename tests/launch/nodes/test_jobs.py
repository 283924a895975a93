"""A job on two nodes of two ranks each: node 0 gets all results, and a failure anywhere ends it everywhere."""

import time

import pytest
from launch.nodes.groups import InBackground, Shared, agents

from fp8bench.launch.nodes import follower
from fp8bench.launch.nodes.follower import follow_job, lead_job
from fp8bench.launch.nodes.store import NodeGone
from fp8bench.launch.processes.group import ConnectionLost, Job
from fp8bench.schema.errors import RunFailed

JOB = Job("module:function", "given", 4, 60.0)
KILLED = RunFailed("rank 3 died: ended by SIGKILL", "See dmesg")
LOST = ConnectionLost("rank 0 died: Connection closed by peer", "Look elsewhere")


def well(job, look):
    look()
    return [f"{job.payload} {rank}" for rank in range(job.first, job.first + job.ranks)]


def raising(error):
    def run(_job, _look):
        raise error

    return run


def waits(_job, look):
    """Ranks that wait for those elsewhere."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        look()
        time.sleep(0.01)
    pytest.fail("nothing ended it")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(follower, "LOOK_S", 0.0)


@pytest.fixture
def nodes():
    """Both agents, and what node 1 logged."""
    said = []
    return *agents(Shared(), said.append), said


def following(agent, run):
    """As the command does: the others hear of an error."""

    def follows():
        try:
            return follow_job(agent, JOB, run)
        except RunFailed as error:
            agent.leave(error)
            raise

    return InBackground(follows)


def test_node_0_gets_what_every_rank_found_and_the_other_leaves_with_its_exit_code(nodes):
    first, second, said = nodes
    other = following(second, well)

    assert lead_job(first, JOB, well) == ["given 0", "given 1", "given 2", "given 3"]
    first.end(4, "a result was wrong")
    assert other.done() == 4
    assert said == ["node 0 (host-a): a result was wrong"]


def test_ranks_of_both_nodes_meet_at_one_place_of_torchruns_store(nodes):
    first, second, _ = nodes
    seen = []

    def run(job, look):
        seen.append((job.first, job.ranks, job.meet))
        return well(job, look)

    other = following(second, run)
    lead_job(first, JOB, run)
    first.end(0, "")
    other.done()
    assert sorted(seen) == [(node * 2, 2, "store://localhost:29500/fp8bench/0/job") for node in (0, 1)]


@pytest.mark.parametrize("here", [waits, raising(LOST)])
def test_a_rank_that_fails_on_the_other_node_is_named_whatever_broke_here(nodes, here):
    first, second, _ = nodes
    other = following(second, raising(KILLED))

    with pytest.raises(NodeGone, match=r"node 1 \(host-b\) was ended by an error: rank 3 died: ended by SIGKILL"):
        lead_job(first, JOB, here)
    with pytest.raises(RunFailed, match="rank 3 died"):
        other.done()


@pytest.mark.parametrize("there", [waits, raising(LOST)])
def test_a_failure_of_node_0_ends_the_other_which_says_why(nodes, there):
    first, second, said = nodes
    other = following(second, there)
    with pytest.raises(RunFailed, match="rank 0 died"):
        lead_job(first, JOB, raising(RunFailed("rank 0 died: enough", "See its log")))
    first.end(5, "rank 0 died: enough")

    assert other.done() == 5
    assert said == ["node 0 (host-a): rank 0 died: enough"]


def test_a_connection_that_broke_for_no_known_reason_is_told_as_that(nodes, monkeypatch):
    first, _, _ = nodes
    monkeypatch.setattr(follower, "HEAR_S", 0.05)
    with pytest.raises(ConnectionLost):
        lead_job(first, JOB, raising(LOST))

"""The local ranks beside an agent leave with its exit code, and know when it was killed."""

import threading
from dataclasses import replace

import pytest

from fp8bench.launch.nodes import waiting
from fp8bench.launch.nodes.place import Elastic
from fp8bench.schema.errors import RunFailed, UsageError


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Of a group of the test's own."""
    monkeypatch.setattr(waiting, "LEAVE_S", 0.1)
    return Elastic(rank=0, local_rank=0, world_size=2, local_world_size=2, address=str(tmp_path))


@pytest.fixture
def beside(agent):
    return replace(agent, rank=1, local_rank=1)


@pytest.fixture
def followed(beside):
    """Starts a rank beside the agent; what comes of it is in the list once it is joined."""
    threads = []

    def start():
        found = []

        def wait():
            try:
                found.append(waiting.follow(beside))
            except RunFailed as failed:
                found.append(failed)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        threads.append(thread)
        return thread, found

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 5, 143])
def test_the_others_leave_with_the_agents_exit_code_whoever_comes_first(agent, followed, code):
    early, first = followed()
    with waiting.awaited(agent) as codes:
        late, second = followed()
        early.join(0.3)
        late.join(0.3)
        assert (first, second) == ([], [])
        codes.append(code)
    early.join()
    late.join()

    assert (first, second) == ([code], [code])


@pytest.mark.slow
def test_an_agent_that_ends_without_a_word_was_killed(agent, followed, monkeypatch):
    def nobody(_listener):
        raise BlockingIOError

    monkeypatch.setattr(waiting.socket.socket, "accept", nobody)
    with waiting.awaited(agent):
        thread, found = followed()
        thread.join(0.3)
    thread.join()

    assert "the process of local rank 0, which ran this node, was killed" in str(found[0])
    assert found[0].exit_code == 5


def test_an_agent_that_never_comes_is_not_waited_for_for_ever(beside, monkeypatch):
    monkeypatch.setattr(waiting, "BEGIN_S", 0.2)

    with pytest.raises(RunFailed, match="local rank 0, which runs this node, was not there within 0 s"):
        waiting.follow(beside)


def test_a_second_agent_of_the_same_place_is_refused(agent):
    with (
        waiting.awaited(agent),
        pytest.raises(UsageError, match="another process is node 0 of the group"),
        waiting.awaited(agent),
    ):
        pass


def test_two_nodes_on_one_machine_do_not_meet(agent):
    other = replace(agent, rank=2, world_size=4, node=1, nodes=2)
    with waiting.awaited(agent), waiting.awaited(other):
        pass

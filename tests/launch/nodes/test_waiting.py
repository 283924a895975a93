"""The local ranks beside an agent leave with its exit code, and know when it was killed."""

import time
from dataclasses import replace

import pytest
from launch.seen import in_background

from fp8bench.launch.nodes import place
from fp8bench.launch.nodes.place import Elastic
from fp8bench.schema.errors import RunFailed, UsageError


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Of a group of the test's own."""
    monkeypatch.setattr(place, "LEAVE_S", 0.1)
    return Elastic(rank=0, local_rank=0, world_size=2, local_world_size=2, address=str(tmp_path))


@pytest.fixture
def beside(agent):
    return replace(agent, rank=1, local_rank=1)


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 5, 143])
def test_the_others_leave_with_the_agents_exit_code_whoever_comes_first(agent, beside, code):
    early = in_background(lambda: place.follow(beside))
    with place.awaited(agent) as codes:
        late = in_background(lambda: place.follow(beside))
        time.sleep(0.6)
        assert (early.done(), late.done()) == (False, False)
        codes.append(code)

    assert (early.result(20), late.result(20)) == (code, code)


@pytest.mark.slow
def test_an_agent_that_ends_without_a_word_was_killed(agent, beside, monkeypatch):
    def nobody(_listener):
        raise BlockingIOError

    monkeypatch.setattr(place.socket.socket, "accept", nobody)
    with place.awaited(agent):
        found = in_background(lambda: place.follow(beside))
        time.sleep(0.3)

    with pytest.raises(RunFailed, match="the process of local rank 0, which runs this node, was killed") as failed:
        found.result(20)
    assert failed.value.exit_code == 5


def test_an_agent_that_never_comes_is_not_waited_for_for_ever(beside, monkeypatch):
    monkeypatch.setattr(place, "BEGIN_S", 0.2)

    with pytest.raises(RunFailed, match="local rank 0, which runs this node, was not there within 0 s"):
        place.follow(beside)


def test_a_second_agent_of_the_same_place_is_refused_and_two_nodes_on_one_machine_do_not_meet(agent):
    other = replace(agent, rank=2, world_size=4, node=1, nodes=2)
    with place.awaited(agent), place.awaited(other):
        with pytest.raises(UsageError, match="another process is node 0 of the group"), place.awaited(agent):
            pass

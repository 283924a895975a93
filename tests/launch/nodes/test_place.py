"""Where torchrun has put a process, and variables that cannot be true; what may differ between nodes: each refusal says
what and where; and the local ranks beside an agent, which leave with its exit code.
"""

import time
from dataclasses import replace

import pytest
from launch.seen import in_background

from fp8bench.config.request import RunRequest
from fp8bench.launch.nodes import agent as agents
from fp8bench.launch.nodes import place
from fp8bench.launch.nodes.agent import EACH_ITS_OWN, Hello, judge
from fp8bench.launch.nodes.place import TORCHRUN, Elastic, elastic_from
from fp8bench.machine.gpus import Machine
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.model import Refusal


def variables(rank=9, local_rank=1, world_size=16, local_world_size=8, **more):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    numbers = dict(zip(names, map(str, (rank, local_rank, world_size, local_world_size)), strict=True))
    return {**numbers, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", **more}


def refused(environ):
    with pytest.raises(UsageError) as refusal:
        elastic_from(environ)
    assert refusal.value.exit_code == 2
    return str(refusal.value)


def test_the_place_is_read_from_the_variables_and_the_node_counted_by_torchrun_or_follows_from_equal_nodes():
    second = {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
    more = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "3", "TORCHELASTIC_RUN_ID": "x"}
    where = {"node": 1, "nodes": 2, "address": "10.0.0.1", "port": 29500}
    expected = Elastic(9, 1, 16, 8, **where, hosted=True, attempt="3", run_id="x")
    assert elastic_from(variables(**second, **more)) == expected
    # Without torchrun's own count the node follows from equal nodes; where it counts, all of them name unequal ones.
    for environ in (variables(), variables(world_size=12, **second)):
        found = elastic_from(environ)
        assert (found.node, found.nodes, found.hosted) == (1, 2, False)


def test_what_is_set_on_many_machines_is_no_group():
    assert elastic_from({}) is None
    assert elastic_from({"WORLD_SIZE": "8", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}) is None
    # Empty ones are not set.
    assert elastic_from(dict.fromkeys(TORCHRUN, "")) is None
    assert elastic_from({"RANK": "", "LOCAL_RANK": "", "WORLD_SIZE": "8"}) is None
    assert "LOCAL_RANK is set in the environment, and RANK is not" in refused({**variables(), "RANK": ""})


@pytest.mark.parametrize("missing", TORCHRUN)
def test_a_part_of_the_variables_is_refused_and_what_is_missing_named(missing):
    environ = variables()
    del environ[missing]

    assert f"{missing} is not. Start with torchrun, or unset" in refused(environ)
    assert "RANK is set in the environment, and LOCAL_RANK, WORLD_SIZE" in refused({"RANK": "0"})


@pytest.mark.parametrize("name", TORCHRUN[:4])
@pytest.mark.parametrize("text", ["x", "-1", "1.5", "٣", "9" * 5000])
def test_a_variable_that_is_no_number_is_refused(name, text):
    assert f"{name}={text!r} in the environment is not a value" in refused({**variables(), name: text})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' in the environment"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE='0' in the environment"),
        ({"rank": 16}, "RANK=16 in the environment is not below WORLD_SIZE=16"),
        ({"local_rank": 8}, "LOCAL_RANK=8 in the environment is not below LOCAL_WORLD_SIZE=8"),
        ({"world_size": 4, "rank": 1}, "LOCAL_WORLD_SIZE=8 in the environment is above WORLD_SIZE=4"),
        ({"rank": 0}, "LOCAL_RANK=1 in the environment is above RANK=0"),
        ({"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "2"}, "GROUP_RANK=2 in the environment is not below GROUP_WORLD_SIZE"),
        ({"world_size": 12}, "does not divide WORLD_SIZE=12 into equal nodes"),
        ({"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}, "GROUP_WORLD_SIZE=1 in the environment is one node"),
        *[
            ({"MASTER_PORT": port}, f"MASTER_PORT={port!r} in the environment is not a port. Give a number from 1")
            for port in ("0", "65536", "http", "-1")
        ],
    ],
)
def test_numbers_that_cannot_be_or_contradict_each_other_are_refused(changes, said):
    assert said in refused({**variables(**changes)})


H100S = ("NVIDIA H100 80GB HBM3",) * 8
P5 = Machine(gpus=H100S, product_name="p5.48xlarge", cpu_count=192)


def hello(node=0, machine=P5, processes=8, environ=None, **asked):
    place = Elastic(rank=8 * node, local_rank=0, world_size=16, local_world_size=processes, node=node, nodes=2)
    said = agents.hello(place, RunRequest.model_validate(asked), machine, environ or {})
    return said.model_copy(update={"host": f"host-{node}"})


def refusal(*hellos):
    with pytest.raises(UsageError) as found:
        judge(hellos)
    return str(found.value)


def test_like_nodes_are_taken_and_what_hardly_matters_is_marked():
    assert judge([hello(0), hello(1)]) == ()
    fewer = Machine(gpus=P5.gpus, product_name=None, cpu_count=96)
    second = hello(1, machine=fewer, environ={"NCCL_SECRET": "canary"})
    assert judge([hello(0), second]) == ("unlike nodes: CPU cores", "unlike nodes: NCCL_SECRET")
    assert "canary" not in second.model_dump_json(), "values of variables do not travel"


NEW = {"fp8bench": "0.0.9", "torch": "2.10.0"}


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([hello(1), hello(2)], ["batch_size is 4 on node 0 (host-0), not given on nodes 1 and 2.", "the same command"]),
        ([hello(1, batch_size=4, processes=4)], ["processes is 8 on node 0 (host-0), 4 on", "--nproc-per-node"]),
        *(
            ([hello(1, batch_size=4, machine=Machine(gpus, None, 192))], [f"GPU is 8 x {H100S[0]} on node 0", said])
            for gpus, said in ((("NVIDIA L4",) * 8, "8 x NVIDIA L4"), (H100S[:4], f"4 x {H100S[0]}"), ((), "none on"))
        ),
        (
            [hello(1, batch_size=4).model_copy(update={"software": NEW})],
            ["0.0.9 on node 1 (host-1)", "2.10.0 on node 1 (host-1)", "Install the same versions"],
        ),
    ],
)
def test_nodes_that_differ_in_what_counts_are_refused_with_what_each_has_and_a_remedy(others, told):
    said = refusal(hello(0, batch_size=4), *others)
    assert [words for words in told if words not in said] == []


@pytest.mark.parametrize("name", sorted(set(RunRequest.model_fields) - EACH_ITS_OWN))
def test_any_setting_of_another_kind_than_each_may_have_of_its_own_is_refused(name):
    asked = [Hello(node=node, host=f"host-{node}", settings={name: said}) for node, said in enumerate(("a", "b"))]
    assert refusal(*asked).startswith(f"the nodes differ: {name} is a on node 0 (host-0), b on node 1 (host-1)")


def test_every_node_tells_its_versions_and_settings_but_those_that_change_nothing_of_what_ranks_do(monkeypatch):
    monkeypatch.setattr(agents, "software_here", lambda on_gpu: {"torch": "2.10.0", "torchao": None})
    monkeypatch.setattr(agents, "__version__", "0.0.9")
    assert hello(0).software == {"fp8bench": "0.0.9", "torch": "2.10.0", "torchao": "absent"}
    assert set(hello(0).settings) == set(RunRequest.model_fields) - EACH_ITS_OWN
    assert EACH_ITS_OWN == {"results_dir", "name", "price", "allow_busy"} <= set(RunRequest.model_fields)


def test_a_node_that_cannot_run_refuses_for_all_by_its_name_and_with_its_exit_code():
    cannot = Hello(node=1, host="b", refusal=Refusal.of(ModeUnavailable("no GPU is visible", "Look at nvidia-smi")))
    with pytest.raises(ModeUnavailable) as error:
        judge([hello(0), cannot])

    assert str(error.value) == "node 1 (b): no GPU is visible. Look at nvidia-smi."
    assert error.value.exit_code == 3


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

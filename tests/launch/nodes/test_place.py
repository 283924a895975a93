"""Where torchrun has put a process, and variables that cannot be true."""

import pytest

from fp8bench.launch.nodes.place import TORCHRUN, Elastic, elastic_from
from fp8bench.schema.errors import UsageError


def variables(rank=9, local_rank=1, world_size=16, local_world_size=8, **more):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    numbers = dict(zip(names, map(str, (rank, local_rank, world_size, local_world_size)), strict=True))
    return {**numbers, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", **more}


def refused(environ):
    with pytest.raises(UsageError) as refusal:
        elastic_from(environ)
    assert refusal.value.exit_code == 2
    return str(refusal.value)


def test_the_place_is_read_from_the_variables():
    more = {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}

    found = elastic_from(variables(**more, TORCHELASTIC_RESTART_COUNT="3", TORCHELASTIC_RUN_ID="x"))

    assert found == Elastic(
        9, 1, 16, 8, node=1, nodes=2, address="10.0.0.1", port=29500, hosted=True, attempt="3", run_id="x"
    )


@pytest.mark.parametrize(
    "environ",
    # Without torchrun's own count the node follows from equal nodes; where it counts, all of them name unequal ones.
    [variables(), variables(world_size=12, GROUP_RANK="1", GROUP_WORLD_SIZE="2")],
)
def test_the_node_is_counted_by_torchrun_or_follows_from_equal_nodes(environ):
    found = elastic_from(environ)
    assert (found.node, found.nodes, found.hosted) == (1, 2, False)


def test_what_is_set_on_many_machines_is_no_group():
    assert elastic_from({}) is None
    assert elastic_from({"WORLD_SIZE": "8", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}) is None


def test_empty_variables_are_not_set():
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

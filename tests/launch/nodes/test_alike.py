"""What may differ between nodes: each refusal names what, and which node has which."""

import pytest
from builders import machine_called

from fp8bench.config.request import RunRequest
from fp8bench.launch.nodes import messages
from fp8bench.launch.nodes.messages import Hello, judge
from fp8bench.launch.nodes.place import Elastic
from fp8bench.machine.gpus import Machine
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.model import Refusal

P5 = Machine(gpus=("NVIDIA H100 80GB HBM3",) * 8, product_name="p5.48xlarge", cpu_count=192)


def hello(node=0, machine=P5, processes=8, environ=None, **asked):
    place = Elastic(rank=8 * node, local_rank=0, world_size=16, local_world_size=processes, node=node, nodes=2)
    said = messages.hello(place, RunRequest.model_validate(asked), machine, environ or {})
    return said.model_copy(update={"host": f"host-{node}", "machine": machine_called(f"box-{node}")})


def refusal(*hellos):
    found = judge(hellos).refusal
    assert found is not None
    return str(found.error())


def test_like_nodes_are_taken_with_their_machines():
    verdict = judge([hello(0), hello(1)])

    assert (verdict.refusal, verdict.marks, verdict.hosts) == (None, (), ("host-0", "host-1"))
    assert verdict.machines == (machine_called("box-0"), machine_called("box-1"))


def test_a_setting_that_one_node_was_not_given_is_said_so_and_many_nodes_are_listed():
    said = refusal(hello(0, batch_size=4), hello(1), hello(2))

    assert "batch_size is 4 on node 0 (host-0), not given on nodes 1 and 2." in said
    assert "Give every node the same command" in said


def test_another_version_is_refused(monkeypatch):
    first = hello(0)
    monkeypatch.setattr(messages, "software_here", lambda on_gpu: {"torch": "2.10.0", "torchao": None})
    monkeypatch.setattr(messages, "__version__", "0.0.9")

    said = refusal(first, hello(1))

    assert "fp8bench is " in said
    for version in ("0.0.9", "2.10.0", "absent"):
        assert f"{version} on node 1 (host-1)" in said
    assert "Install the same versions" in said


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (("NVIDIA A100-SXM4-40GB",) * 8, "8 x NVIDIA A100-SXM4-40GB on node 1"),
        (("NVIDIA H100 80GB HBM3",) * 4, "4 x NVIDIA H100 80GB HBM3 on node 1"),
        ((), "none on node 1"),
    ],
)
def test_other_gpus_are_refused(gpus, said):
    other = Machine(gpus=gpus, product_name=None, cpu_count=192)

    assert f"GPU is 8 x NVIDIA H100 80GB HBM3 on node 0 (host-0), {said} (host-1)" in refusal(
        hello(0), hello(1, machine=other)
    )


def test_unequal_numbers_of_processes_are_refused():
    assert refusal(hello(0), hello(1, processes=4)) == (
        "the nodes have unequal numbers of processes: 8 on node 0 (host-0), 4 on node 1 (host-1). Start as many on "
        "each, one a GPU (--nproc-per-node)."
    )


def test_what_hardly_matters_is_marked_and_values_of_variables_do_not_travel():
    fewer = Machine(gpus=P5.gpus, product_name=None, cpu_count=96)
    second = hello(1, machine=fewer, environ={"NCCL_SECRET": "canary"})

    assert judge([hello(0), second]).marks == ("unlike nodes: CPU cores", "unlike nodes: NCCL_SECRET")
    assert "canary" not in second.model_dump_json()


def test_a_node_that_cannot_run_refuses_for_all_by_its_name_and_with_its_exit_code():
    cannot = Hello(
        node=1, host="b", processes=8, refusal=Refusal.of(ModeUnavailable("no GPU is visible", "Look at nvidia-smi"))
    )
    error = judge([hello(0), cannot]).refusal.error()

    assert str(error) == "node 1 (b): no GPU is visible. Look at nvidia-smi."
    assert (type(error), error.exit_code) == (ModeUnavailable, 3)

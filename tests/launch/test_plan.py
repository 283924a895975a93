"""A request and a machine become configurations and a number of rounds: defaults by device, and refusals."""

import pytest

from fp8bench.config.request import RunRequest
from fp8bench.launch.nodes.place import Elastic, elastic_from
from fp8bench.launch.plan import entries, hourly_price, plan, stop
from fp8bench.launch.rounds import Entry, Stop
from fp8bench.machine.gpus import Machine
from fp8bench.registry import find_workload
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Instance

EIGHT_GPUS = Machine(gpus=("NVIDIA H200",) * 8, product_name=None, cpu_count=64)
NO_GPU = Machine(gpus=(), product_name=None, cpu_count=4)


def planned(machine: Machine = EIGHT_GPUS, elastic: Elastic | None = None, **asked: object) -> list[RunConfig]:
    return plan(RunRequest.model_validate(asked), machine, elastic)


def stopped(machine: Machine = EIGHT_GPUS, **asked: object) -> Stop:
    return stop(RunRequest.model_validate(asked), machine)


def variables(rank: int = 0, local_rank: int = 0, world_size: int = 8, local_world_size: int = 8) -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    numbers = dict(zip(names, map(str, (rank, local_rank, world_size, local_world_size)), strict=True))
    return {**numbers, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_a_gpu_machine_runs_its_default_modes_on_all_gpus():
    configs = planned()

    assert [config.mode_label for config in configs] == [
        "baseline-bf16",
        "te-bf16",
        "te-fp8:delayed",
        "torchao-float8:tensorwise",
    ]
    assert {(c.device, c.workload, c.world_size, c.nodes, c.batch_size) for c in configs} == {
        ("cuda", "vit-huge", 8, 1, 64)
    }
    assert {(c.warmup, c.steps, c.min_time_s, c.compile, c.data, c.seed, c.te_attention) for c in configs} == {
        (11, 100, 10.0, "auto", "loader", 0, "te")
    }


def test_a_cpu_machine_runs_the_modes_that_a_cpu_can_on_two_processes():
    configs = planned(NO_GPU)

    assert [config.mode_label for config in configs] == ["baseline-bf16", "torchao-float8:tensorwise"]
    assert {(c.device, c.workload, c.world_size, c.nodes, c.batch_size, c.workers) for c in configs} == {
        ("cpu", "vit-micro", 2, 1, 16, 0)
    }
    assert {(c.steps, c.min_time_s) for c in configs} == {(100, 3.0)}


@pytest.mark.parametrize("machine", [EIGHT_GPUS, NO_GPU])
def test_no_least_time_is_not_the_default_one(machine):
    assert {config.min_time_s for config in planned(machine, min_time_s=0)} == {0.0}


def test_what_was_asked_for_goes_before_the_defaults():
    (config,) = planned(
        mode=["te-fp8:current"],
        workload="vit-huge-256",
        gpus=2,
        batch_size=256,
        warmup=1,
        steps=5,
        min_time_s=2.5,
        compile="off",
        cuda_graphs="on",
        data="device",
        seed=7,
        te_attention="sdpa",
    )

    defaults = RunRequest().of_workers("cuda", find_workload("vit-huge").usual)
    asked = {
        "mode": "te-fp8",
        "recipe": "current",
        "workload": "vit-huge-256",
        "device": "cuda",
        "world_size": 2,
        "batch_size": 256,
        "warmup": 1,
        "steps": 5,
        "min_time_s": 2.5,
        "compile": "off",
        "cuda_graphs": "on",
        "data": "device",
        "workers": 0,
        "seed": 7,
        "te_attention": "sdpa",
    }
    assert config == RunConfig(**{**defaults, **asked})


def test_modes_run_in_the_order_asked_for():
    configs = planned(mode=["torchao-float8:rowwise", "baseline-fp32", "te-bf16"])

    assert [config.mode_label for config in configs] == ["torchao-float8:rowwise", "baseline-fp32", "te-bf16"]


def test_a_mode_asked_for_twice_runs_once_also_where_its_default_recipe_is_spelled_out():
    configs = planned(mode=["te-fp8", "baseline-bf16", "te-fp8:delayed", "baseline-bf16", "te-fp8:current"])

    assert [config.mode_label for config in configs] == ["te-fp8:delayed", "baseline-bf16", "te-fp8:current"]


def test_more_gpus_than_there_are_is_refused():
    with pytest.raises(ModeUnavailable, match=r"--gpus 9 is requested, and this machine shows 8 GPUs"):
        planned(gpus=9)


def test_a_cpu_machine_takes_any_number_of_processes():
    assert {config.world_size for config in planned(NO_GPU, gpus=6)} == {6}


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [({"mode": ["te-fp9"]}, "te-fp8"), ({"mode": ["te-fp8:curent"]}, "current"), ({"workload": "vit-hug"}, "vit-huge")],
    ids=["mode", "recipe", "workload"],
)
def test_an_unknown_name_is_refused_with_the_nearest(asked, nearest):
    with pytest.raises(UsageError, match=f"Did you mean '{nearest}'"):
        planned(**asked)


@pytest.mark.parametrize(
    ("cpu_count", "gpus", "workers"),
    [(64, 8, 6), (64, 2, 16), (64, 1, 16), (8, 8, 0), (24, 8, 1), (1, 8, 0)],
)
def test_the_cores_that_the_ranks_leave_over_are_shared_among_them(cpu_count, gpus, workers):
    machine = Machine(gpus=("NVIDIA H200",) * 8, product_name=None, cpu_count=cpu_count)

    assert {config.workers for config in planned(machine, gpus=gpus)} == {workers}


def test_a_number_of_loader_workers_that_was_asked_for_is_kept_even_if_it_is_none():
    assert {config.workers for config in planned(workers=0)} == {0}
    assert {config.workers for config in planned(NO_GPU, workers=3)} == {3}


def test_a_batch_on_the_device_needs_no_loader_workers():
    assert {config.workers for config in planned(data="device")} == {0}


def test_under_torchrun_the_group_gives_world_size_and_nodes():
    (config,) = planned(elastic=elastic_from(variables(world_size=16)), mode=["te-fp8"])

    assert (config.world_size, config.nodes) == (16, 2)


def test_under_torchrun_the_loader_workers_are_shared_among_the_ranks_of_one_node():
    (config,) = planned(elastic=elastic_from(variables(world_size=32)), mode=["baseline-bf16"])

    assert config.workers == 6


def test_more_ranks_on_a_node_than_it_has_gpus_are_refused_under_torchrun_too():
    group = elastic_from(variables(world_size=32, local_world_size=16))

    with pytest.raises(ModeUnavailable, match="torchrun made 16 processes here, and this machine shows 8 GPUs"):
        planned(elastic=group, mode=["baseline-bf16"])


@pytest.mark.parametrize("gpus", [8, 17])
def test_a_number_of_gpus_that_torchrun_did_not_make_is_refused(gpus):
    group = elastic_from(variables(world_size=16))

    with pytest.raises(UsageError, match=f"--gpus {gpus} disagrees with torchrun, which made 16 processes"):
        planned(elastic=group, mode=["baseline-bf16"], gpus=gpus)


def test_a_number_of_gpus_that_agrees_with_torchrun_is_taken():
    (config,) = planned(elastic=elastic_from(variables(world_size=16)), mode=["baseline-bf16"], gpus=16)

    assert (config.world_size, config.nodes) == (16, 2)


def test_under_torchrun_all_modes_run_in_one_call():
    configs = planned(elastic=elastic_from(variables(world_size=16)), mode=["baseline-bf16", "te-fp8"])

    assert [(config.mode_label, config.nodes) for config in configs] == [("baseline-bf16", 2), ("te-fp8:delayed", 2)]


@pytest.mark.parametrize(("machine", "rounds"), [(EIGHT_GPUS, 4), (NO_GPU, 2)], ids=["GPU", "CPU"])
def test_rounds_go_there_and_back_by_default(machine, rounds):
    assert stopped(machine) == Stop(rounds=rounds, precision=None)
    assert rounds % 2 == 0


def test_rounds_and_precision_are_as_asked_for():
    assert stopped(rounds=5) == Stop(rounds=5, precision=None)
    assert stopped(NO_GPU, rounds=2, precision="1%", max_rounds=17) == Stop(rounds=2, precision=0.01, max_rounds=17)


def test_fewer_rounds_at_most_than_at_least_are_refused_but_only_where_a_precision_makes_use_of_them():
    with pytest.raises(UsageError, match="--max-rounds 20 is less than --rounds 30"):
        stopped(rounds=30, precision="1%", max_rounds=20)
    assert stopped(rounds=3, max_rounds=2).rounds == 3


def test_too_few_rounds_at_most_to_judge_a_precision_are_refused():
    assert stopped(precision="1%", max_rounds=14) == Stop(rounds=4, precision=0.01, max_rounds=14)
    with pytest.raises(UsageError, match="--max-rounds 13 ends before --precision can be judged") as refusal:
        stopped(precision="1%", max_rounds=13)
    assert "--max-rounds 14 or more" in refusal.value.remedy


def test_a_mode_is_held_against_itself_in_two_arms_of_at_least_four_rounds():
    request = RunRequest(aa=True, mode=("baseline-bf16",))
    configs = plan(request, NO_GPU)

    assert entries(request, configs) == [Entry(configs[0], "A"), Entry(configs[0], "B")]
    assert stopped(NO_GPU, aa=True).rounds == stopped(EIGHT_GPUS, aa=True).rounds == 4
    assert stopped(NO_GPU, aa=True, rounds=5).rounds == 5


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_too_few_rounds_to_hold_a_mode_against_itself_are_refused(rounds):
    with pytest.raises(UsageError, match=f"--rounds {rounds} cannot tell") as refusal:
        stopped(aa=True, rounds=rounds)

    assert "4 or more" in refusal.value.remedy


def test_several_modes_are_each_held_against_themselves():
    request = RunRequest(aa=True)
    configs = plan(request, EIGHT_GPUS)

    assert entries(request, configs) == [Entry(config, arm) for config in configs for arm in ("A", "B")]


def test_without_that_every_mode_is_an_entry_of_its_own():
    configs = planned()

    assert entries(RunRequest(), configs) == [Entry(config) for config in configs]


def test_more_processes_than_the_cores_can_take_are_refused_before_any_starts():
    assert planned(NO_GPU, gpus=16)[0].world_size == 16
    with pytest.raises(
        UsageError, match=r"--gpus 17 would start as many processes on 4 CPU cores. Give at most 16 here"
    ):
        planned(NO_GPU, gpus=17)


@pytest.mark.parametrize(
    ("asked", "usd_per_hour"), [({}, None), ({"price": 98.32}, 98.32), ({"price_per_gpu": 2.5}, 20.0)]
)
def test_a_price_is_of_the_whole_machine_and_one_per_gpu_is_multiplied(asked, usd_per_hour):
    p5 = Instance(key="p5", gpu="H100-SXM5-80GB", gpu_count=8)

    assert hourly_price(RunRequest.model_validate(asked), p5) == usd_per_hour


def test_a_price_per_gpu_of_a_machine_without_one_is_refused():
    with pytest.raises(UsageError, match=r"--price-per-gpu 2.5 was given, and 'cpu' has no GPU. Give the price of the"):
        hourly_price(RunRequest(price_per_gpu=2.5), Instance(key="cpu", gpu=None, gpu_count=0))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"tensor_parallel": 3}, "--tensor-parallel 3 does not divide the 8 ranks of this host"),
        ({"tensor_parallel": 2, "parallel": "ddp"}, "--parallel ddp wants whole weights on every GPU"),
        ({"grad_accumulation": 3}, "--grad-accumulation 3 does not divide the 64 samples of a step"),
        (
            {"grad_accumulation": 3, "batch_size": "auto"},
            "does not divide the 64 samples --batch-size auto starts with",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_before_anything_runs(asked: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        planned(**asked)


def test_how_a_step_is_divided_is_what_was_requested():
    [config] = planned(mode=["baseline-bf16"], parallel="fsdp", tensor_parallel=4, grad_accumulation=8)
    assert (config.parallel, config.tensor_parallel, config.grad_accumulation) == ("fsdp", 4, 8)


def test_ranks_that_share_layers_are_of_one_host():
    two_nodes = Elastic(rank=0, local_rank=0, world_size=16, local_world_size=8)
    with pytest.raises(UsageError, match="does not divide the 8 ranks of this host"):
        planned(elastic=two_nodes, mode=["baseline-bf16"], tensor_parallel=16)

"""A request, a machine and a workload become configurations and a number of rounds: defaults, and refusals."""

import pytest
from builders import config

from fp8bench import registry
from fp8bench.config.request import RunRequest, resolve
from fp8bench.launch import plan as planning
from fp8bench.launch.nodes.place import Elastic, elastic_from
from fp8bench.launch.plan import apart, entries, plan, stop, variant_notes
from fp8bench.launch.rounds import Entry, Stop
from fp8bench.machine.gpus import Machine
from fp8bench.registry import BUILTIN_WORKLOADS, find_workload
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.stats.certainty import OUTSIDE

EIGHT_GPUS = Machine(gpus=("NVIDIA H200",) * 8, product_name=None, cpu_count=64)
NO_GPU = Machine(gpus=(), product_name=None, cpu_count=4)
ONE_MODE = {"mode": ["baseline-bf16"]}
SMALL = {"mode": "baseline-bf16", "batch_size": 4, "compile": "off"}
LARGE = {**SMALL, "batch_size": 8}
SOUGHT = {**SMALL, "batch_size": "auto"}


def planned(machine: Machine = EIGHT_GPUS, elastic: Elastic | None = None, **asked: object) -> list[RunConfig]:
    return plan(RunRequest.model_validate(asked), machine, elastic)


def requested(*variants: dict, **settings: object) -> RunRequest:
    return resolve({"workload": "vit-micro", **settings}, {}, {"variants": [*variants]}, "a.yaml").request


def of_variants(*variants: dict, **settings: object) -> list[Entry]:
    asked = requested(*variants, **settings)
    return entries(asked, plan(asked, NO_GPU))


def torchrun(world_size: int, local_world_size: int = 8) -> Elastic | None:
    sizes = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local_world_size)}
    return elastic_from({"RANK": "0", "LOCAL_RANK": "0", **sizes, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"})


@pytest.mark.parametrize(
    ("machine", "labels", "where", "min_time_s"),
    [
        (EIGHT_GPUS, "baseline-bf16 te-bf16 te-fp8:delayed", ("cuda", "vit-huge", 8, 1, 64, 6), 10.0),
        (NO_GPU, "baseline-bf16", ("cpu", "vit-micro", 2, 1, 16, 0), 3.0),
    ],
)
def test_a_machine_runs_the_modes_that_it_can_on_all_gpus_or_two_processes(machine, labels, where, min_time_s):
    configs = planned(machine)

    assert [one.mode_label for one in configs] == [*labels.split(), "torchao-float8:tensorwise"]
    assert {(c.device, c.workload, c.world_size, c.nodes, c.batch_size, c.workers) for c in configs} == {where}
    assert {(c.warmup, c.steps, c.min_time_s, c.compile, c.data, c.seed, c.te_attention) for c in configs} == {
        (11, 100, min_time_s, "auto", "loader", 0, "te")
    }


def test_what_was_asked_for_goes_before_the_defaults():
    asked = {"workload": "vit-huge-256", "batch_size": 256, "warmup": 1, "steps": 5, "min_time_s": 0.0, "seed": 7}
    asked |= {"compile": "off", "cuda_graphs": "on", "data": "device", "te_attention": "sdpa"}
    asked |= {"parallel": "fsdp", "tensor_parallel": 2, "grad_accumulation": 8}
    (config,) = planned(mode=["te-fp8:current"], gpus=2, **asked)

    defaults = RunRequest().of_workers("cuda", find_workload("vit-huge").usual)
    found = {"mode": "te-fp8", "recipe": "current", "device": "cuda", "world_size": 2, "workers": 0}
    assert config == RunConfig(**{**defaults, **asked, **found})


def test_modes_run_once_each_in_the_order_asked_for():
    configs = planned(mode=["te-fp8", "baseline-bf16", "te-fp8:delayed", "te-fp8:current"])
    assert [one.mode_label for one in configs] == ["te-fp8:delayed", "baseline-bf16", "te-fp8:current"]


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"gpus": 9}, ModeUnavailable, "--gpus 9 is requested, and this machine shows 8 GPUs"),
        ({"machine": NO_GPU, "gpus": 17}, UsageError, r"--gpus 17 would .* on 4 CPU cores. Give at most 16 here"),
        ({"elastic": torchrun(32, 16)}, ModeUnavailable, "torchrun made 16 processes here, and this machine shows 8"),
        ({"elastic": torchrun(16), "gpus": 8}, UsageError, "--gpus 8 disagrees with torchrun, which made 16"),
        ({"elastic": torchrun(16), "gpus": 17}, UsageError, "--gpus 17 disagrees with torchrun"),
        ({"elastic": torchrun(16), "tensor_parallel": 16}, UsageError, "does not divide the 8 ranks of this host"),
        ({"tensor_parallel": 2, "parallel": "ddp"}, UsageError, "--parallel ddp wants whole weights on every GPU"),
        ({"grad_accumulation": 3, "batch_size": "auto"}, UsageError, "does not divide the 64 samples of a step"),
        (
            {"workload": "llm-1b", "image_size": 384},
            UsageError,
            "--image-size 384 does not apply .* --workload tim",
        ),
        ({"workload": "llm-1b", "weight_dtype": "float16"}, UsageError, "--weight-dtype float16 does not .*gpt-layer"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_option_and_a_remedy(asked, error, told):
    with pytest.raises(error, match=told):
        planned(**{**ONE_MODE, **asked})


@pytest.mark.parametrize(
    ("cpu_count", "asked", "workers"),
    [
        # The cores that the ranks leave over are shared among them.
        *((64, {"gpus": 8}, 6), (64, {"gpus": 2}, 16), (64, {"gpus": 1}, 16)),
        *((8, {"gpus": 8}, 0), (24, {"gpus": 8}, 1), (1, {"gpus": 8}, 0)),
        (64, {"workers": 0}, 0),
        (64, {"workers": 3}, 3),
    ],
)
def test_loader_workers_are_as_asked_for_or_a_share_of_the_cores(cpu_count, asked, workers):
    machine = Machine(gpus=("NVIDIA H200",) * 8, product_name=None, cpu_count=cpu_count)

    assert {config.workers for config in planned(machine, **asked)} == {workers}
    # A CPU takes any number of processes that its cores can.
    assert {config.world_size for config in planned(NO_GPU, gpus=16)} == {16}


@pytest.mark.parametrize("gpus", [None, 16])
def test_under_torchrun_the_group_gives_world_size_and_nodes_to_all_modes(gpus):
    configs = planned(elastic=torchrun(16), mode=["baseline-bf16", "te-fp8"], gpus=gpus)

    assert [(config.world_size, config.nodes, config.workers) for config in configs] == [(16, 2, 6)] * 2


@pytest.mark.parametrize(
    ("machine", "asked", "expected"),
    [
        (EIGHT_GPUS, {}, Stop(rounds=3, looks=True, outside=OUTSIDE)),
        (EIGHT_GPUS, {"max_rounds": 2}, Stop(rounds=2, max_rounds=2, looks=True, outside=OUTSIDE)),
        (NO_GPU, {}, Stop(rounds=2)),
        (EIGHT_GPUS, {"rounds": 5}, Stop(rounds=5)),
        (NO_GPU, {"rounds": 2, "precision": "1%", "max_rounds": 17}, Stop(2, 0.01, 17)),
        (EIGHT_GPUS, {"precision": "1%", "max_rounds": 14}, Stop(3, 0.01, 14)),
        (EIGHT_GPUS, {"rounds": 3, "max_rounds": 2}, Stop(3, None, 2)),
        (NO_GPU, {"aa": True}, Stop(rounds=4)),
        (NO_GPU, {"aa": True, "rounds": 5}, Stop(rounds=5)),
    ],
)
def test_rounds_and_precision_are_as_asked_for(machine, asked, expected):
    assert stop(RunRequest.model_validate(asked), machine) == expected


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("vit-huge", ("sgd", 64, None, "loader", "float32")),
        ("llm-1b", ("adamw", 4, 2048, "loader", "float32")),
        ("llm-7b", ("adamw", 1, 2048, "loader", "float32")),
        ("llm-8b", ("adamw", 1, 8192, "loader", "float32")),
        ("llm-micro", ("adamw", 8, 64, "loader", "float32")),
        ("gpt-layer", ("none", 4, 2048, "device", "bfloat16")),
        ("gpt-layer-micro", ("none", 8, 64, "device", "bfloat16")),
    ],
)
def test_a_workload_has_defaults_of_its_own(workload, expected):
    [config] = planned(**ONE_MODE, workload=workload)
    assert (config.optimizer, config.batch_size, config.sequence_length, config.data, config.weight_dtype) == expected
    # The search for a batch size begins there.
    assert planned(**ONE_MODE, workload=workload, batch_size="auto") == [config]


def test_an_outside_workload_is_asked_when_it_runs(outside_plugins):
    [config] = planned(NO_GPU, **ONE_MODE, workload="outside-linear", sequence_length=512)
    assert (config.sequence_length, config.optimizer, config.batch_size) == (512, "sgd", 16)


def test_a_missing_package_is_told_before_anything_starts_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(planning, "find_spec", lambda module: None if module == "transformers" else object())
    with pytest.raises(ModeUnavailable, match="'llm-1b' needs the Python package transformers") as refused:
        planned(workload="llm-1b")
    assert refused.value.remedy == "Install it with `pip install 'fp8bench[llm]'`"
    assert planned(workload="vit-huge")


@pytest.mark.slow
def test_the_sizes_in_the_listing_are_those_of_the_models():
    for entry in BUILTIN_WORKLOADS:
        if entry.name in ("llm-1b", "llm-7b", "llm-8b"):
            assert f"{registry.load(entry)().parameters() / 1e9:.2f} G parameters" in entry.summary


def test_variants_that_are_the_same_on_this_machine_are_refused_and_what_is_left_to_it_is_called_that():
    left = {**SMALL, "batch_size": None}
    assert variant_notes((left, LARGE)) == ["batch by default", "batch 8"]
    with pytest.raises(UsageError, match=r"variants 1 and 2 are the same here: baseline-bf16 at batch size 16"):
        of_variants({**SMALL, "batch_size": 16}, left)


def test_a_size_to_be_found_begins_at_none_of_another_variants_and_found_to_be_that_it_is_measured_once():
    variants = (SOUGHT, {**SMALL, "batch_size": 16}, {**SMALL, "batch_size": 32})
    configs = [config("baseline-bf16", batch_size=size) for size in (16, 16, 32)]

    assert [one.batch_size for one in apart(configs, variants)] == [64, 16, 32]
    assert len(entries(requested(*variants[:2]), configs[:2])) == 1

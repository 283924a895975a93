"""A request, a machine and a workload become configurations and a number of rounds: defaults, and refusals. Which mode
runs when: balanced order, no second try of what stopped, and rounds until the interval is narrow.
"""

from dataclasses import replace
from statistics import fmean

import pytest
from builders import config, evidence, invalid, measured, place, rank_samples, replayed, steps_about, unsupported

from fp8bench import registry
from fp8bench.config.request import RunRequest, resolve
from fp8bench.launch import plan as planning
from fp8bench.launch.nodes.place import Elastic, elastic_from
from fp8bench.launch.plan import Entry, Schedule, Stop, apart, entries, plan, stop, variant_notes
from fp8bench.machine.gpus import Machine
from fp8bench.registry import BUILTIN_WORKLOADS, find_workload
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import FEWEST_ROUNDS, OUTSIDE
from fp8bench.stats.estimate import t_quantile
from fp8bench.stats.steps import longest_rank

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
        (
            {"learning_rate": 0.1, "optimizer": "none"},
            UsageError,
            "--learning-rate 0.1 does not apply to --optimizer none",
        ),
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


A, B, C, D = (Entry(config(mode)) for mode in ("baseline-bf16", "te-bf16", "te-fp8", "torchao-float8"))
EARLY = Stop(3, looks=True, outside=OUTSIDE)
LETTERS = {A: "A", B: "B", C: "C", D: "D"}


def schedule(*entries: Entry, rounds: int = 3, precision: float | None = None, max_rounds: int = 30) -> Schedule:
    return Schedule(entries or (A, B, C, D), Stop(rounds, precision, max_rounds), "a-session")


def order(scheduled: Schedule, number: int) -> str:
    return " ".join(LETTERS.get(entry, "?") for entry, _ in scheduled.round(number))


def steady(step_time_s: float = 0.1) -> Record:
    """A round whose steps differ by a thousandth."""
    return measured(samples=(rank_samples(step_s=steps_about(step_time_s, spread=0.001)),))


def run(scheduled: Schedule, outcomes: dict[Entry, list[Record]]) -> list[str]:
    """Run to the end, each entry with its outcomes in turn (the last for ever). Returns the order of each round."""
    orders, number = [], 1
    while turns := scheduled.round(number):
        orders.append(order(scheduled, number))
        for entry, _ in turns:
            records = outcomes[entry]
            scheduled.take(entry, records.pop(0) if len(records) > 1 else records[0])
        number += 1
    return orders


@pytest.mark.parametrize("outcome", [unsupported(), invalid(), unsupported(status="failed")], ids=lambda r: r.status)
def test_a_mode_that_stopped_is_not_run_again_and_the_others_keep_their_balance(outcome):
    outcomes = {A: [steady()], B: [outcome], C: [steady()], D: [steady(), outcome]}

    assert run(schedule(rounds=3), outcomes) == ["A B C D", "D C A", "A C"]


def apart_by(step_time_s: float, by: float) -> list[Record]:
    """Rounds whose processes differ by about this share."""
    return [steady(step_time_s * (1 + by * (place % 3 - 1))) for place in range(40)]


def test_whole_pairs_of_rounds_are_run_until_every_interval_is_narrow_and_no_longer():
    scheduled = schedule(A, rounds=2, precision=0.01, max_rounds=40)
    orders = run(scheduled, {A: apart_by(0.1, 0.03)})

    assert FEWEST_ROUNDS < len(orders) < 40
    assert len(orders) % 2 == 0
    assert scheduled.estimate(A).half_width_share <= 0.01
    assert scheduled.precise()


@pytest.mark.parametrize(
    ("outcomes", "rounds"),
    [
        ({A: [steady(0.1)], B: [steady(0.1)], C: [steady(0.08)]}, (3, 3, 3)),
        ({A: apart_by(0.1, 0.02), B: apart_by(0.1, 0.02), C: apart_by(0.07, 0.02)}, (20, 20, 3)),
        ({A: apart_by(0.1, 0.2), B: apart_by(0.1, 0.2), C: [invalid()]}, (30, 30, 0)),
        ({A: [invalid()], B: [steady(0.1)], C: apart_by(0.08, 0.008)}, (0, 3, 10)),
        ({A: [*apart_by(0.1, 0.02)[:4], invalid()], B: [steady(0.08)], C: apart_by(0.1, 0.008)}, (4, 3, 10)),
    ],
    ids=["told apart", "one is not", "none ever is", "without a baseline", "the baseline stopped"],
)
def test_a_mode_ends_at_the_look_that_tells_it_from_the_baseline_or_knows_it_to_a_percent(outcomes, rounds):
    scheduled = Schedule((A, B, C), EARLY, "a-session")
    run(scheduled, outcomes)
    found = [scheduled.estimate(entry) for entry in (A, B, C)]
    assert tuple(one.processes if one else 0 for one in found) == rounds


def test_a_baseline_of_other_work_settles_nothing():
    other = Entry(config("te-fp8", batch_size=256))
    scheduled = Schedule((A, other), replace(EARLY, max_rounds=6), "a-session")
    run(scheduled, {A: [steady(0.1)], other: apart_by(0.3, 0.02)})
    assert [scheduled.estimate(entry).processes for entry in (A, other)] == [3, 6]


def test_a_session_that_is_asked_for_more_goes_on_to_the_next_look_and_where_it_may_end_early_intervals_are_wider():
    scheduled = schedule(A, rounds=3)
    run(scheduled, {A: [steady()]})
    assert scheduled.one_more(4)
    assert scheduled.stop.rounds == 6
    widths = []
    for ends in (EARLY, Stop(3)):
        scheduled = Schedule((A,), ends, "a-session")
        for record in apart_by(0.1, 0.004)[:3]:
            scheduled.take(A, record)
        widths.append(scheduled.estimate(A).half_width_share)
    assert widths[0] / widths[1] == pytest.approx(t_quantile(2, OUTSIDE) / t_quantile(2), rel=0.01)


FEW = measured(samples=(rank_samples(step_s=(0.1, 0.1, 0.1)),))


@pytest.mark.parametrize(
    ("outcomes", "rounds", "most", "run_in_all", "precise"),
    [
        ({A: [steady()], B: [steady(), invalid()]}, 2, 30, FEWEST_ROUNDS, True),
        ({A: [steady()]}, 17, 30, 18, True),
        ({A: [FEW]}, 1, 4, 4, False),
    ],
    ids=["a mode that stopped holds up none", "as many as asked for at least", "too few steps never reach it"],
)
def test_how_many_rounds_reach_a_precision(outcomes, rounds, most, run_in_all, precise):
    scheduled = schedule(*outcomes, rounds=rounds, precision=0.5, max_rounds=most)

    assert (len(run(scheduled, outcomes)), scheduled.precise()) == (run_in_all, precise)


def test_the_estimate_is_over_the_steps_of_each_rounds_longest_rank():
    ranks = [steps_about(0.1), steps_about(0.2)]
    one = measured(samples=tuple(rank_samples(rank, steps) for rank, steps in enumerate(ranks)))
    scheduled = schedule(A, B)
    scheduled.take(A, one)
    scheduled.take(A, steady(0.3))

    assert scheduled.estimate(A).times == (fmean(longest_rank(ranks)), fmean(steady(0.3).samples[0].step_s))
    assert scheduled.estimate(B) is None


def against_itself(*step_times_s: float) -> Schedule:
    """Two arms of A, with a round of either a step time."""
    arms = Entry(A.config, "A"), Entry(A.config, "B")
    scheduled = schedule(*arms, rounds=len(step_times_s) // 2)
    for turn, step_time_s in enumerate(step_times_s):
        scheduled.take(arms[turn % 2], steady(step_time_s))
    return scheduled


def test_arms_that_were_executed_in_two_ways_are_told_and_with_too_few_processes_they_are_not_judged():
    """`auto` may have replayed one process's steps and not another's: that is no comparison of a mode with itself."""
    scheduled = against_itself(*(0.1, 0.1) * 4)
    assert [label for label, _ in scheduled.arms_compared()] == ["baseline-bf16/eager"]

    scheduled.take(Entry(A.config, "B"), steady().model_copy(update={"evidence": evidence(graph=replayed())}))
    assert [label for label, _ in scheduled.arms_compared()] == ["baseline-bf16/eager and baseline-bf16/graphed"]
    assert against_itself(0.1, 0.1).self_check() is None
    assert against_itself().self_check() is None


@pytest.mark.parametrize(
    ("kept", "first_round"),
    [
        (measured(config=A.config, session=place(1), samples=(rank_samples(step_s=steps_about(0.1)),)), 2),
        (measured(config=config(batch_size=256), session=place(1)), 1),
        (measured(config=A.config, session=place(1, arm="A")), 1),
        (unsupported(config=A.config, session=place(1)), 1),
    ],
    ids=["the same", "another batch", "an arm", "one that stopped"],
)
def test_only_what_is_ok_and_of_the_same_configuration_counts_in_a_resumed_session(kept: Record, first_round: int):
    scheduled = schedule(A)
    scheduled.restore([kept])
    assert scheduled.first_round == first_round

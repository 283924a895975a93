"""What a dry run tells: what cannot run here, and time and cost from records of the same work; and what a turn of a
sweep is expected to take: cold and warm compiles, records of the same mode, how busy a host is.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from builders import config, instance, measured_on_cpu, place, price
from launch.test_halving import ran

from fp8bench import registry
from fp8bench.launch.forecast import (
    START_UP_S,
    WARM,
    Forecaster,
    PriceToday,
    cold_s,
    forecast,
    obstacle,
    price_today,
)
from fp8bench.launch.place import Place
from fp8bench.launch.plan import Entry, Stop
from fp8bench.machine.gpus import Machine
from fp8bench.pricing import catalog as catalogs
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import FEWEST_ROUNDS

CPU = Machine(gpus=(), product_name=None, cpu_count=4)
AROUND = 5 + 2 * 3 + 1 + 5 + 3
"""Steps that find the pace and prove the step, and those of the lead-in and the profile. The loader
makes 8 batches ahead, and timed steps are whole queues of them.
"""

BASELINE, TE_FP8 = config("baseline-bf16", None), config("te-fp8", "delayed")


def turn_s(config: RunConfig, kept: list[Record]) -> float | None:
    """Of a round of one mode."""
    [turn] = forecast([Entry(config)], Stop(3), [None], kept, PriceToday(None)).turns
    return turn.seconds


@pytest.fixture(scope="module")
def catalog():
    return catalogs.load()


def gpu(name):
    return Machine(gpus=(name,), product_name=None, cpu_count=16)


def test_the_latest_session_of_the_same_work_tells():
    older, *later = (
        ran(BASELINE, step_s, minutes=minutes).model_copy(update={"session": place(1, name)})
        for minutes, step_s, name in ((0, 9.0, "older"), (1, 0.1, "later"), (2, 0.3, "later"))
    )
    expected = START_UP_S["cuda"] + (BASELINE.warmup + 8 + AROUND) * 0.2
    assert turn_s(BASELINE, [older, *later]) == pytest.approx(expected, abs=1.2)
    # Records of a CPU are its own; it has nothing to replay, whatever was asked for.
    of_cpu = measured_on_cpu()
    assert turn_s(BASELINE, [of_cpu]) is None
    for own in (of_cpu.config, of_cpu.config.model_copy(update={"cuda_graphs": "auto"})):
        assert turn_s(own, [of_cpu]) is not None


@pytest.mark.parametrize(
    "settings",
    [
        *({"batch_size": 7}, {"world_size": 2}, {"compile": "off"}, {"workload": "vit-micro"}, {"data": "device"}),
        # A step that was launched from Python does not tell how long a replayed one takes.
        {"cuda_graphs": "on"},
    ],
)
def test_other_work_tells_nothing(settings):
    assert turn_s(BASELINE.model_copy(update=settings), [ran(BASELINE)]) is None


def test_with_a_precision_there_is_a_least_and_a_most_and_what_no_record_tells_is_unknown_and_not_left_out():
    stop, told = Stop(4, precision=0.01, max_rounds=30), [ran(BASELINE)]
    found = forecast([Entry(BASELINE)], stop, [None], told, PriceToday(None))

    assert found.seconds is not None
    assert found.seconds[1] == pytest.approx(found.seconds[0] / FEWEST_ROUNDS * 30)
    assert found.usd is None
    found = forecast([Entry(BASELINE), Entry(TE_FP8)], Stop(3), [None, None], told, PriceToday(36.0))
    assert (found.seconds, found.usd, found.unknown) == (None, None, ("te-fp8:delayed",))


ON_H200 = gpu("NVIDIA H200")
A100 = gpu("NVIDIA A100-SXM4-40GB")
WHOLE, REPLAYED = {"compile": "on"}, {"cuda_graphs": "on", "world_size": 8}


@pytest.mark.parametrize(
    ("machine", "mode", "settings", "said"),
    [
        (CPU, "te-fp8:delayed", {}, "needs an NVIDIA GPU, and this machine shows none"),
        (CPU, "torchao-float8:rowwise_with_gw_hp", {}, "needs an NVIDIA GPU"),
        (CPU, "torchao-float8:rowwise", {}, None),
        (A100, "torchao-float8:tensorwise", {}, "needs a GPU of compute capability 8.9 or more"),
        (A100, "baseline-tf32", {}, None),
        (ON_H200, "torchao-float8:tensorwise", {}, None),
        (gpu("NVIDIA Unheard Of"), "torchao-float8:tensorwise", {}, None),
        *(
            (CPU, mode, {"device": "cpu", "cuda_graphs": "on"}, "this machine shows no NVIDIA GPU")
            for mode in ("baseline-bf16", "te-fp8:delayed")
        ),
        (ON_H200, "baseline-bf16", {"cuda_graphs": "on"}, None),
        (ON_H200, "baseline-bf16", WHOLE, None),
        *(
            (ON_H200, "baseline-bf16", {**WHOLE, **settings}, "cannot be compiled as a whole (--compile on) with --")
            for settings in (
                {"parallel": "fsdp"},
                {"tensor_parallel": 2},
                {"tensor_parallel": 2, "parallel": "fsdp"},
                {"activation_checkpointing": "full"},
            )
        ),
        (ON_H200, "baseline-bf16", {"compile": "blocks", "parallel": "fsdp"}, None),
        (ON_H200, "baseline-bf16", {**REPLAYED, "parallel": "fsdp"}, "under FSDP2"),
        (ON_H200, "baseline-bf16", {**REPLAYED, "tensor_parallel": 2}, "under FSDP2"),
        (ON_H200, "baseline-bf16", {**REPLAYED, "tensor_parallel": 8}, None),
    ],
)
def test_what_cannot_run_is_told_as_far_as_it_is_known(machine, mode, settings, said, catalog):
    name, _, recipe = mode.partition(":")
    found = obstacle(config(name, recipe or None, **settings), machine, catalog)
    assert found is None if said is None else said in str(found)


def test_a_package_that_is_not_installed_is_named(monkeypatch, catalog):
    monkeypatch.setattr("fp8bench.launch.forecast.find_spec", lambda _name: None)
    found = obstacle(TE_FP8, ON_H200, catalog)
    assert found == "needs the Python package transformer_engine, which is not installed"


@pytest.mark.slow
@pytest.mark.parametrize("entry", [*registry.BUILTIN_MODES], ids=lambda entry: entry.name)
def test_it_says_of_a_cpu_what_the_modes_own_check_says(entry, catalog):
    import torch

    for recipe in entry.recipes or (None,):
        refused = obstacle(config(entry.name, recipe), CPU, catalog) is not None
        with pytest.raises(ModeUnavailable) if refused else nullcontext():
            registry.load(entry)(recipe).check(torch.device("cpu"))


def test_a_machine_without_a_price_costs_what_as_many_gpus_of_a_listed_instance_do(tmp_path, catalog):
    """As `compare` has it, so that a dry run and a table of its records agree."""
    mine = instance("custom-2x-nvidia-b200", gpu="B200", gpu_count=2)
    rented = instance("rented", gpu="B200", gpu_count=8, provider="a cloud", prices=(price(80.0),))
    catalog = catalog.model_copy(update={"instances": {"rented": rented}})
    here = Place(instance=mine, results_dir=tmp_path)
    found = price_today(here, catalog)

    assert (str(found.share), found.usd_per_hour) == ("2 of 8 GPUs of rented", 20.0)
    assert price_today(here, catalog, given=7.0) == PriceToday(7.0)
    kept = mine.model_copy(update={"prices": (price(9.0),)})
    assert price_today(here, catalog.model_copy(update={"instances": {mine.key: kept}})) == PriceToday(9.0)
    cpu = Place(instance=instance("cpu", gpu=None, gpu_count=0), results_dir=tmp_path)
    assert price_today(cpu, catalog) == PriceToday(None)


START_S = START_UP_S["cuda"]
STEPS_S = (5 + 24 + 5 + 5 + 2 * 3 + 1 + 10 + 3) * 0.1
"""Of warm-up, timing (three queues of 8 batches), pace, lead-in, proof, the step after timing, split and profile."""
STEPS: dict[str, Any] = {"world_size": 1, "warmup": 5, "steps": 20, "min_time_s": 0.0, "cuda_graphs": "auto"}
PLAIN = config("baseline-bf16", **STEPS)
TORCHAO = config("torchao-float8", "tensorwise", **STEPS)
TE = config("te-fp8", "delayed", **STEPS)
turn = partial(ran, beside_s=2.0)


def expected(settings: RunConfig, *records: Record, warm: bool = False) -> float:
    return Forecaster(list(records)).turn_s(settings, warm)


@pytest.mark.parametrize(
    ("settings", "compile_s"),
    [
        (PLAIN, 45.0),
        (TORCHAO, 150.0),
        (TE, 0.0),
        (PLAIN.model_copy(update={"compile": "off"}), 0.0),
        (PLAIN.model_copy(update={"compile": "blocks"}), 45.0),
        (TORCHAO.model_copy(update={"world_size": 8}), 120.0),
        (PLAIN.model_copy(update={"world_size": 2}), 80.0),
        (PLAIN.model_copy(update={"device": "cpu"}), 0.0),
    ],
)
def test_what_was_never_run_is_compiled_with_cold_caches_and_once_looked_at_with_warm_ones(
    settings: RunConfig, compile_s: float
) -> None:
    assert cold_s(settings) == compile_s
    assert expected(settings) == START_UP_S[settings.device] + compile_s
    share = WARM[settings.world_size > 1]
    assert expected(settings, warm=True) == pytest.approx(START_UP_S[settings.device] + share * compile_s)
    long = settings.model_copy(update={"min_time_s": 10.0})
    assert expected(long) == START_UP_S[settings.device] + compile_s + 10


DOUBLE, LARGER = (PLAIN.model_copy(update={"batch_size": size}) for size in (128, 256))
NEAR = TE.model_copy(update={"batch_size": 128})
FAR = TE.model_copy(update={"batch_size": 16, "recipe": "current", "te_attention": "sdpa"})
COLD, WARMED = turn(PLAIN, compile_s=50.0), turn(PLAIN, compile_s=7.0, minutes=2)


@pytest.mark.parametrize(
    ("settings", "records", "warm", "beyond_start_s"),
    [
        # Of a single process the next finds warm caches, unless that one did too; of several the last tells.
        (PLAIN, [COLD], False, 2 + WARM[0] * 50 + STEPS_S),
        (PLAIN, [turn(DOUBLE, compile_s=50.0), turn(PLAIN, compile_s=5.0, minutes=2)], False, 2 + 5 + STEPS_S),
        (PLAIN, [COLD, WARMED], False, 2 + 7 + STEPS_S),
        # Another batch size is compiled anew in what its mode took, and its steps take longer.
        (LARGER, [COLD, WARMED], False, 2 + 50 + 4 * STEPS_S),
        (LARGER, [COLD, WARMED], True, 2 + WARM[0] * 50 + 4 * STEPS_S),
        (PLAIN.model_copy(update={"compile": "off"}), [COLD], False, 2 + STEPS_S),
        # The nearest of the mode tells how long steps take; other work and other modes tell nothing.
        (TE, [turn(NEAR, step_s=0.2), turn(FAR, step_s=1.0, minutes=2)], False, 2 + STEPS_S),
        (TE, [turn(TE.model_copy(update={"workload": "vit-micro"}), step_s=9.0), COLD], False, 0),
    ],
)
def test_what_is_on_record_tells(settings: RunConfig, records: list[Record], warm: bool, beyond_start_s: float) -> None:
    assert expected(settings, *records, warm=warm) == pytest.approx(START_S + beyond_start_s)


def test_what_turns_of_this_call_took_beyond_is_added_to_all_and_a_cold_compile_is_none_of_it() -> None:
    forecaster = Forecaster([])
    forecaster.take(COLD, START_S + 2 + 50 + STEPS_S + 20)

    assert forecaster.turn_s(TE) == pytest.approx(START_S + 20)
    assert forecaster.turn_s(PLAIN) == pytest.approx(START_S + 2 + WARM[0] * 50 + STEPS_S + 20)

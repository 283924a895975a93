"""What a turn of a sweep is expected to take: cold and warm compiles, records of the same mode, how busy a host is."""

from functools import partial
from typing import Any

import pytest
from builders import config
from launch.sweep import fake_h100

from fp8bench.launch.forecast import START_UP_S, WARM, Forecaster, cold_s
from fp8bench.schema.config import RunConfig
from fp8bench.schema.record import Record

START_S = START_UP_S["cuda"]
STEPS_S = (5 + 24 + 5 + 5 + 2 * 3 + 1 + 10 + 3) * 0.1
"""Of warm-up, timing (three queues of 8 batches), pace, lead-in, proof, the step after timing, split and profile."""
STEPS: dict[str, Any] = {"world_size": 1, "warmup": 5, "steps": 20, "min_time_s": 0.0, "cuda_graphs": "auto"}
BASELINE = config("baseline-bf16", **STEPS)
TORCHAO = config("torchao-float8", "tensorwise", **STEPS)
TE = config("te-fp8", "delayed", **STEPS)


ran = partial(fake_h100.ran, beside_s=2.0)


def expected(settings: RunConfig, *records: Record, warm: bool = False) -> float:
    return Forecaster(list(records)).turn_s(settings, warm)


@pytest.mark.parametrize(
    ("settings", "compile_s"),
    [
        (BASELINE, 45.0),
        (TORCHAO, 150.0),
        (TE, 0.0),
        (BASELINE.model_copy(update={"compile": "off"}), 0.0),
        (BASELINE.model_copy(update={"compile": "blocks"}), 45.0),
        (TORCHAO.model_copy(update={"world_size": 8}), 120.0),
        (BASELINE.model_copy(update={"world_size": 2}), 80.0),
        (BASELINE.model_copy(update={"device": "cpu"}), 0.0),
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


LARGER, NEAR = BASELINE.model_copy(update={"batch_size": 256}), TE.model_copy(update={"batch_size": 128})
FAR = TE.model_copy(update={"batch_size": 16, "recipe": "current", "te_attention": "sdpa"})
COLD, WARMED = ran(BASELINE, compile_s=50.0), ran(BASELINE, compile_s=7.0, minutes=2)


@pytest.mark.parametrize(
    ("settings", "records", "warm", "beyond_start_s"),
    [
        # Of a single process the next finds warm caches, unless that one did too; of several the last tells.
        (BASELINE, [COLD], False, 2 + WARM[0] * 50 + STEPS_S),
        (
            BASELINE,
            [
                ran(BASELINE.model_copy(update={"batch_size": 128}), compile_s=50.0),
                ran(BASELINE, compile_s=5.0, minutes=2),
            ],
            *(False, 2 + 5 + STEPS_S),
        ),
        (BASELINE, [COLD, WARMED], False, 2 + 7 + STEPS_S),
        # Another batch size is compiled anew in what its mode took, and its steps take longer.
        (LARGER, [COLD, WARMED], False, 2 + 50 + 4 * STEPS_S),
        (LARGER, [COLD, WARMED], True, 2 + WARM[0] * 50 + 4 * STEPS_S),
        (BASELINE.model_copy(update={"compile": "off"}), [COLD], False, 2 + STEPS_S),
        # The nearest of the mode tells how long steps take; other work and other modes tell nothing.
        (TE, [ran(NEAR, step_s=0.2), ran(FAR, step_s=1.0, minutes=2)], False, 2 + STEPS_S),
        (TE, [ran(TE.model_copy(update={"workload": "vit-micro"}), step_s=9.0), COLD], False, 0),
    ],
)
def test_what_is_on_record_tells(settings: RunConfig, records: list[Record], warm: bool, beyond_start_s: float) -> None:
    assert expected(settings, *records, warm=warm) == pytest.approx(START_S + beyond_start_s)


def test_what_turns_of_this_call_took_beyond_is_added_to_all_and_a_cold_compile_is_none_of_it() -> None:
    forecaster = Forecaster([])
    forecaster.take(COLD, START_S + 2 + 50 + STEPS_S + 20)

    assert forecaster.turn_s(TE) == pytest.approx(START_S + 20)
    assert forecaster.turn_s(BASELINE) == pytest.approx(START_S + 2 + WARM[0] * 50 + STEPS_S + 20)

"""What a turn of a sweep is expected to take: cold and warm compiles, records of the same mode, how busy a host is."""

from typing import Any

import pytest
from builders import config, evidence, measured, rank_samples, steps_about, summary

from fp8bench.launch.forecast import COLD_S, OTHERS_COLD_S, START_UP_S, WARM, cold_s
from fp8bench.launch.sweep.budget import Forecaster
from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import CompileEvidence
from fp8bench.schema.record import Record

START_S = START_UP_S["cuda"]
STEPS_S = (5 + 24 + 5 + 5 + 2 * 3 + 1 + 10 + 3) * 0.1
"""Of warm-up, timing (three queues of 8 batches), pace, lead-in, proof, the step after timing, split and profile."""
STEPS: dict[str, Any] = {"world_size": 1, "warmup": 5, "steps": 20, "min_time_s": 0.0, "cuda_graphs": "auto"}
BASELINE = config("baseline-bf16", **STEPS)
TORCHAO = config("torchao-float8", "tensorwise", **STEPS)
TE = config("te-fp8", "delayed", **STEPS)


def ran(
    settings: RunConfig, step_s: float = 0.1, compile_s: float = 0.0, beside_s: float = 2.0, minutes: int = 1
) -> Record:
    """compile_s: by torch's own count. beside_s: what else warm-up took beyond as many steps."""
    warmup_step_s = (compile_s + beside_s + step_s, *(step_s,) * (settings.warmup - 1))
    found = CompileEvidence(enabled=compile_s > 0, reason="auto", seconds=compile_s or None)
    return measured(
        config=settings,
        samples=(rank_samples(0, steps_about(step_s), warmup_step_s=warmup_step_s),),
        summary=summary(step_s, settings.batch_size),
        evidence=evidence().model_copy(update={"compile": found}),
        minutes=minutes,
    )


def expected(settings: RunConfig, *records: Record, warm: bool = False) -> float:
    return Forecaster(list(records)).turn_s(settings, warm)


class TestNeverRun:
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
    def test_what_is_compiled_is_compiled_with_cold_caches(self, settings: RunConfig, compile_s: float) -> None:
        assert cold_s(settings) == compile_s
        assert expected(settings) == START_UP_S[settings.device] + compile_s

    def test_once_looked_at_its_caches_are_warm(self) -> None:
        assert expected(BASELINE, warm=True) == pytest.approx(START_S + WARM.alone * OTHERS_COLD_S.alone)
        both = TORCHAO.model_copy(update={"world_size": 2})
        assert expected(both, warm=True) == pytest.approx(START_S + WARM.ddp * COLD_S["torchao-float8"].ddp)

    def test_timed_steps_last_as_long_as_they_must(self) -> None:
        assert expected(TE.model_copy(update={"min_time_s": 10.0})) == START_S + 10


class TestOnRecord:
    def test_of_a_single_process_the_next_finds_warm_caches(self) -> None:
        found = expected(BASELINE, ran(BASELINE, compile_s=50.0))
        assert found == pytest.approx(START_S + 2 + WARM.alone * 50 + STEPS_S)

    def test_a_single_process_that_found_them_warm_tells_how_long_that_takes(self) -> None:
        other = ran(BASELINE.model_copy(update={"batch_size": 128}), compile_s=50.0)
        found = expected(BASELINE, other, ran(BASELINE, compile_s=5.0, minutes=2))
        assert found == pytest.approx(START_S + 2 + 5 + STEPS_S)

    def test_of_several_the_last_tells(self) -> None:
        found = expected(BASELINE, ran(BASELINE, compile_s=50.0), ran(BASELINE, compile_s=7.0, minutes=2))
        assert found == pytest.approx(START_S + 2 + 7 + STEPS_S)

    def test_another_batch_size_is_compiled_anew_in_what_its_mode_took_and_its_steps_take_longer(self) -> None:
        larger = BASELINE.model_copy(update={"batch_size": 256})
        kept = (ran(BASELINE, compile_s=50.0), ran(BASELINE, compile_s=7.0, minutes=2))

        assert expected(larger, *kept) == pytest.approx(START_S + 2 + 50 + 4 * STEPS_S)
        assert expected(larger, *kept, warm=True) == pytest.approx(START_S + 2 + WARM.alone * 50 + 4 * STEPS_S)

    def test_executed_without_torch_compile_it_takes_none_of_it(self) -> None:
        off = BASELINE.model_copy(update={"compile": "off"})
        assert expected(off, ran(BASELINE, compile_s=50.0)) == pytest.approx(START_S + 2 + STEPS_S)

    def test_the_nearest_of_the_mode_tells_how_long_steps_take(self) -> None:
        near = TE.model_copy(update={"batch_size": 128})
        far = TE.model_copy(update={"batch_size": 16, "recipe": "current", "te_attention": "sdpa"})
        found = expected(TE, ran(near, step_s=0.2), ran(far, step_s=1.0, minutes=2))
        assert found == pytest.approx(START_S + 2 + STEPS_S)

    def test_other_work_and_other_modes_tell_nothing(self) -> None:
        other = ran(TE.model_copy(update={"workload": "vit-micro"}), step_s=9.0)
        assert expected(TE, other, ran(BASELINE, step_s=9.0, compile_s=1.0, minutes=2)) == START_S


def test_what_turns_of_this_call_took_beyond_is_added_to_all_and_a_cold_compile_is_none_of_it() -> None:
    forecaster = Forecaster([])
    forecaster.take(ran(BASELINE, compile_s=50.0), START_S + 2 + 50 + STEPS_S + 20)

    assert forecaster.turn_s(TE) == pytest.approx(START_S + 20)
    assert forecaster.turn_s(BASELINE) == pytest.approx(START_S + 2 + WARM.alone * 50 + STEPS_S + 20)

"""Delayed scaling's history: the rule step by step, the jump, and what is read off Transformer Engine's layer."""

import math

import numpy as np
import pytest
import torch
from numerics import te_delayed_stand_in

from fp8bench.numerics.scaling import (
    DOWN_AT,
    FACTOR,
    SCHEMES,
    STEPS,
    UP_AT,
    Delayed,
    examine_jump,
    jump,
    next_scale,
    read_transformer_engine,
    simulate,
)

CPU = torch.device("cpu")
LAST_FOUR = Delayed(4, "max")


@pytest.fixture(scope="module")
def history():
    return examine_jump(64, 0, CPU, delayed_runs=False)


@pytest.fixture(scope="module")
def traces(history):
    return {(trace.algo, trace.history_len): trace for trace in history.traces}


class TestTheNextScale:
    def test_is_the_largest_value_over_the_windows_greatest_amax(self):
        assert next_scale([7.0], LAST_FOUR, 1.0, 448) == 64
        assert next_scale([7.0, 3.5], LAST_FOUR, 64.0, 448) == 64
        assert next_scale([7.0, 3.5], Delayed(4, "most_recent"), 64.0, 448) == 128

    def test_forgets_an_amax_after_as_many_steps_as_the_history_is_long(self):
        assert next_scale([56.0, 7.0, 7.0, 7.0], LAST_FOUR, 8.0, 448) == 8
        assert next_scale([56.0, 7.0, 7.0, 7.0, 7.0], LAST_FOUR, 8.0, 448) == 64

    def test_halves_with_each_step_of_the_margin(self):
        assert next_scale([7.0], LAST_FOUR, 1.0, 448, margin=2) == 16

    @pytest.mark.parametrize("amax", [0.0, math.inf, math.nan])
    def test_stays_where_an_amax_says_nothing(self, amax):
        assert next_scale([amax], LAST_FOUR, 5.0, 448) == 5

    def test_of_zero_neither_counts_nor_pushes_another_out(self):
        assert next_scale([7.0, *[0.0] * 9, 3.5], LAST_FOUR, 64.0, 448) == 64

    def test_of_a_tiny_amax_is_the_greatest_float32(self):
        assert next_scale([1e-44], LAST_FOUR, 1.0, 448) == float(np.finfo(np.float32).max)

    def test_is_a_float32(self):
        scale = next_scale([3.0], LAST_FOUR, 1.0, 448)
        assert scale == float(np.float32(448 / 3))
        assert scale != 448 / 3


class TestTheJump:
    def test_values_grow_and_shrink_where_they_should_and_bfloat16_holds_them(self):
        values = list(jump(64, 0))
        assert len(values) == STEPS
        sizes = [float(tensor.std()) for tensor in values]
        assert all(size == pytest.approx(FACTOR, rel=0.1) for size in sizes[UP_AT:DOWN_AT])
        assert all(size == pytest.approx(1, rel=0.1) for size in sizes[:UP_AT] + sizes[DOWN_AT:])
        assert all(torch.equal(tensor.bfloat16().float(), tensor) for tensor in values)

    def test_under_delayed_scaling_one_step_saturates_and_is_lost(self, traces):
        for scheme in SCHEMES:
            trace = traces[scheme.algo, scheme.history_len]
            assert trace.saturated[UP_AT] > 0.9
            assert trace.relative_error[UP_AT] > 0.9
            others = [step for step in range(STEPS) if step != UP_AT]
            assert all(trace.saturated[step] < 0.01 for step in others)
            assert all(trace.relative_error[step] < 0.04 for step in others)

    def test_current_scaling_never_saturates(self, traces):
        trace = traces[None, None]
        assert set(trace.saturated) == {0}
        assert max(trace.relative_error) < 0.03

    def test_the_first_scale_is_one(self, traces):
        assert {traces[s.algo, s.history_len].scale[0] for s in SCHEMES} == {1}

    def test_the_scale_of_a_step_is_the_amax_of_steps_before_it(self, traces):
        trace = traces["max", 16]
        for step in range(1, STEPS):
            window = trace.amax[max(0, step - 16) : step]
            assert trace.scale[step] == pytest.approx(448 / max(window), rel=1e-6)

    def test_after_the_fall_the_scale_comes_back_when_the_history_has_forgotten(self, traces):
        def comes_back(algo, length):
            scales = traces[algo, length].scale
            return next((step - DOWN_AT for step in range(DOWN_AT, STEPS) if scales[step] > 50), None)

        assert comes_back("max", 16) == 16
        assert comes_back("most_recent", 16) == 1
        assert comes_back("max", 1024) is None
        assert comes_back(None, None) == 0

    def test_the_same_seed_gives_the_same_history(self, history):
        assert examine_jump(64, 0, CPU, delayed_runs=False) == history
        assert examine_jump(64, 1, CPU, delayed_runs=False) != history


class TestTransformerEnginesLayer:
    @pytest.mark.parametrize("scheme", [*SCHEMES, Delayed(4, "max")])
    def test_is_read_step_by_step_as_it_was_used(self, scheme, monkeypatch):
        te_delayed_stand_in.install(monkeypatch)
        values = list(jump(64, 0))
        read, simulated = read_transformer_engine(values, scheme, CPU), simulate(values, scheme)
        assert read.source == "transformer_engine"
        assert read.amax == simulated.amax
        assert read.scale == pytest.approx(simulated.scale, rel=1e-6)
        assert read.saturated[UP_AT] == simulated.saturated[UP_AT]

    @pytest.mark.slow
    def test_stands_beside_the_simulation_where_it_runs(self, monkeypatch):
        te_delayed_stand_in.install(monkeypatch)
        found = examine_jump(64, 0, CPU, delayed_runs=True)
        assert [trace.source for trace in found.traces] == ["simulated"] * 4 + ["transformer_engine"] * 3
        assert found.traces[-1].algo == "most_recent"

"""The reference casts against torch's own, delayed scaling's rule and jump, and what is read off a te.Linear."""

import pytest
import torch
from numerics import te_delayed_stand_in

from fp8bench.numerics.definitions import E4M3, E5M2
from fp8bench.numerics.scaling import (
    DOWN_AT,
    FACTOR,
    SCHEMES,
    STEPS,
    UP_AT,
    Delayed,
    examine_jump,
    jump,
    read_transformer_engine,
    round_to,
    scale_for,
    scaled_cast,
    simulate,
)

CPU = torch.device("cpu")
FORMATS = [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)]
LAST_FOUR = Delayed(4, "max")


class TestCasts:
    @pytest.mark.parametrize(("to", "dtype"), FORMATS)
    def test_round_as_torch_does_over_the_whole_range_and_at_ties(self, to, dtype):
        spread = torch.randn(200_000) * torch.exp2(torch.randint(-30, 20, (200_000,)))
        every = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        every = every[every.isfinite()].unique()
        ties = (every[:-1] + every[1:]) / 2
        for values in (spread.clamp(-to.max, to.max), every, ties):
            assert torch.equal(round_to(values, to), values.to(dtype).float())

    def test_shares_count_what_is_lost_and_a_scale_takes_the_largest_magnitude_to_the_largest_value(self):
        values = torch.tensor([0.0, 1.0, 448.0, 463.0, 480.0, -1e4, 2.0**-10, -(2.0**-10) * 1.01, 2.0**-11, 1.0])
        made = scaled_cast(values, 1.0, E4M3)
        assert made.saturated == made.flushed == pytest.approx(0.2)
        assert made.values.tolist()[:6] == [0, 1, 448, 448, 448, -448]
        values = torch.tensor([[1.0, -7.0], [0.5, 0.25], [0.0, 0.0]])
        assert float(scale_for(values, E4M3)) == 64
        assert scale_for(values, E4M3, across=-1).flatten().tolist() == [64, 896, 1]
        assert scale_for(values, E4M3, across=-1, power_of_2=True).flatten().tolist() == [64, 512, 1]
        assert scale_for(values, E4M3, across=0, power_of_2=True).tolist() == [[256, 64]]


@pytest.fixture(scope="module")
def traces():
    return {(one.algo, one.history_len): one for one in examine_jump(64, 0, CPU, delayed_runs=False).traces}


class TestTheJump:
    def test_values_grow_and_shrink_where_they_should_and_bfloat16_holds_them(self):
        values = list(jump(64, 0))
        assert len(values) == STEPS
        sizes = [float(tensor.std()) for tensor in values]
        assert all(size == pytest.approx(FACTOR, rel=0.1) for size in sizes[UP_AT:DOWN_AT])
        assert all(size == pytest.approx(1, rel=0.1) for size in sizes[:UP_AT] + sizes[DOWN_AT:])
        assert all(torch.equal(tensor.bfloat16().float(), tensor) for tensor in values)

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_under_delayed_scaling_one_step_saturates_and_is_lost(self, traces, scheme):
        trace = traces[scheme.algo, scheme.history_len]
        assert trace.scale[0] == 1
        assert trace.saturated[UP_AT] > 0.9
        assert trace.relative_error[UP_AT] > 0.9
        others = [step for step in range(STEPS) if step != UP_AT]
        assert all(trace.saturated[step] < 0.01 and trace.relative_error[step] < 0.04 for step in others)

    def test_current_scaling_never_saturates_and_a_delayed_scale_is_the_amax_of_steps_before(self, traces):
        trace = traces[None, None]
        assert set(trace.saturated) == {0}
        assert max(trace.relative_error) < 0.03
        trace = traces["max", 16]
        windows = [trace.amax[max(0, step - 16) : step] for step in range(1, STEPS)]
        assert trace.scale[1:] == pytest.approx([448 / max(window) for window in windows], rel=1e-6)
        trace = traces["most_recent", 16]
        assert trace.scale[1:] == pytest.approx([448 / amax for amax in trace.amax[:-1]], rel=1e-6)

    @pytest.mark.parametrize(
        ("way", "steps"), [(("max", 16), 16), (("most_recent", 16), 1), (("max", 1024), None), ((None, None), 0)]
    )
    def test_after_the_fall_the_scale_comes_back_when_the_history_has_forgotten(self, traces, way, steps):
        scales = traces[way].scale
        assert next((step - DOWN_AT for step in range(DOWN_AT, STEPS) if scales[step] > 50), None) == steps

    @pytest.mark.parametrize("scheme", [*SCHEMES, LAST_FOUR])
    def test_transformer_engines_layer_is_read_step_by_step_as_it_was_used(self, scheme, monkeypatch):
        te_delayed_stand_in.install(monkeypatch)
        values = list(jump(64, 0))
        read, simulated = read_transformer_engine(values, scheme, CPU), simulate(values, scheme)
        assert (read.source, read.amax) == ("transformer_engine", simulated.amax)
        assert read.scale == pytest.approx(simulated.scale, rel=1e-6)
        assert read.saturated[UP_AT] == simulated.saturated[UP_AT]

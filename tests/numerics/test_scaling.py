"""The reference casts against torch's own and torchao's, what a layer is given (distributions, their exact forms, and
seeds), delayed scaling's rule and jump, and what is read off a te.Linear.
"""

import pytest
import torch
from numerics import te_delayed_stand_in
from torch import nn

from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16Article
from fp8bench.numerics.definitions import E4M3, E5M2
from fp8bench.numerics.examination import convert, draw, draw_weight, heads, plain_layer, weights
from fp8bench.numerics.scaling import (
    CASTS,
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
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.numerics import INPUTS

CPU = torch.device("cpu")
FORMATS = [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)]
LAST_FOUR = Delayed(4, "max")
SHAPES = ((256, 128), (256, 512))
EXACT_INPUTS = [name for name in INPUTS if name.endswith("exact")]


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


def correlation(one, other):
    return abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]))


def test_the_same_seed_and_number_give_the_same_values_and_others_give_others():
    one, same = (draw("normal", SHAPES, seed=3, number=0) for _ in range(2))
    assert all(map(torch.equal, one, same))
    for other in (draw("normal", SHAPES, seed=4, number=0), draw("normal", SHAPES, seed=3, number=1)):
        assert correlation(one.input, other.input) < 0.03


@pytest.mark.slow
def test_the_heavy_tailed_input_is_students_t_with_three_degrees_of_freedom():
    from scipy.stats import kstest, t

    values = draw("heavy-tailed", ((400, 128), (16, 16)), seed=0, number=0).input.flatten().numpy()
    assert kstest(values, t(3).cdf).pvalue > 0.01


def test_the_outlier_input_has_a_few_channels_a_hundred_times_as_large():
    sizes = draw("outlier", ((512, 256), (16, 16)), seed=0, number=0).input.std(0)
    large = sizes > 50
    assert int(large.sum()) == 2
    assert float(sizes[large].mean()) == pytest.approx(100, rel=0.1)
    assert float(sizes[~large].mean()) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("name", EXACT_INPUTS)
def test_an_exact_input_survives_the_casts_unchanged_and_is_near_the_one_that_it_was_made_of(name):
    drawn = draw(name, SHAPES, seed=1, number=0)
    exact, plain = drawn.input, draw(name.removesuffix("-exact"), SHAPES, seed=1, number=0).input
    factor = float((exact * plain).sum() / plain.square().sum())
    assert 0.7 < factor < 1.42
    assert float((exact / factor - plain).norm() / plain.norm()) < 0.04
    for across, power_of_2 in ((None, False), (None, True), (0, True), (-1, True)):
        for values, formats in ((drawn.input, (E4M3,)), (drawn.output_gradient, (E4M3, E5M2))):
            for to in formats:
                made = scaled_cast(values, scale_for(values, to, across, power_of_2), to)
                assert torch.equal(made.values, values)
                assert (made.saturated, made.flushed) == (0, 0)
            assert torch.equal(values.bfloat16().float(), values)
    for values in drawn:
        for block in (32, 128):
            blocks = values.reshape(-1, block)
            assert torch.equal(scaled_cast(blocks, scale_for(blocks, E4M3, -1, True), E4M3).values, blocks)


@pytest.mark.parametrize(("width", "count"), [(1280, 16), (64, 4), (16, 1), (48, 1), (1024, 16), (96, 2)])
def test_heads_are_multiples_of_16_wide(width, count):
    assert heads(width) == count


@pytest.mark.slow
def test_a_block_of_an_unknown_kind_is_refused(monkeypatch):
    te_delayed_stand_in.install(monkeypatch)
    with pytest.raises(ModeUnavailable, match="ArticleBlock"):
        weights(convert(TEBF16Article(), plain_layer("block", 32, 0, exact=False)))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("name", ["normal", "heavy-tailed", "outlier"])
def test_products_of_our_casts_are_torchaos(recipe, name):
    weight = draw_weight((128, 64), 0, "linear")
    drawn = draw(name, ((32, 64), (32, 128)), 0, 0)
    plain = nn.Sequential(nn.Linear(64, 128, bias=False))
    with torch.no_grad():
        plain[0].weight.copy_(weight)
    module = TorchAOFloat8(recipe).convert(plain)
    given = drawn.input.clone().requires_grad_()
    output = module(given)
    output.backward(drawn.output_gradient)
    operands = {**drawn._asdict(), "weight": weight}

    def factors(tensor):
        for of in CASTS[f"torchao-float8:{recipe}"][tensor]:
            values = operands[of.operand]
            yield scaled_cast(values, scale_for(values, of.to, of.across, of.power_of_2), of.to).values.double()

    x, w = factors("output")
    gradient, w_again = factors("input_gradient")
    gradient_again, x_again = factors("weight_gradient")
    for found, expected in (
        (output, x @ w.t()),
        (given.grad, gradient @ w_again),
        (module[0].weight.grad, gradient_again.t() @ x_again),
    ):
        assert float((found.detach().double() - expected).norm() / expected.norm()) < 1e-6

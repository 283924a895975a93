"""What a layer is given: distributions, their exact forms, and seeds; and that our casts of it are torchao's."""

import pytest
import torch
from numerics import te_delayed_stand_in
from torch import nn

from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16Article
from fp8bench.numerics.definitions import E4M3, E5M2
from fp8bench.numerics.layers import convert, draw, draw_weight, heads, plain_layer, weights
from fp8bench.numerics.scaling import CASTS, scale_for, scaled_cast
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.numerics import INPUTS

SHAPES = ((256, 128), (256, 512))
EXACT_INPUTS = [name for name in INPUTS if name.endswith("exact")]


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

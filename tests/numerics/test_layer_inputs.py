"""What a layer is given: the distributions, their exact forms, and that a seed says it all."""

import pytest
import torch

from fp8bench.numerics.layers import GRADIENT_SIZE, distribution, draw, draw_weight, is_exact
from fp8bench.numerics.scaling import E4M3, E5M2, scale_for, scaled_cast
from fp8bench.schema.numerics import INPUTS

SHAPES = ((256, 128), (256, 512))
EXACT_INPUTS = [name for name in INPUTS if is_exact(name)]


def test_the_same_seed_and_number_give_the_same_values_and_others_give_others():
    one, same = (draw("normal", *SHAPES, seed=3, number=0) for _ in range(2))
    assert torch.equal(one.input, same.input)
    assert torch.equal(one.output_gradient, same.output_gradient)
    for other in (draw("normal", *SHAPES, seed=4, number=0), draw("normal", *SHAPES, seed=3, number=1)):
        assert abs(float(torch.corrcoef(torch.stack([one.input.flatten(), other.input.flatten()]))[0, 1])) < 0.03


def test_input_and_output_gradient_are_drawn_apart_and_a_gradient_is_small():
    drawn = draw("normal", (256, 128), (256, 128), seed=0, number=0)
    assert float(drawn.input.std()) == pytest.approx(1, rel=0.02)
    assert float(drawn.output_gradient.std()) == pytest.approx(GRADIENT_SIZE, rel=0.02)
    together = torch.stack([drawn.input.flatten(), drawn.output_gradient.flatten()])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.03


@pytest.mark.slow
def test_the_heavy_tailed_input_is_students_t_with_three_degrees_of_freedom():
    from scipy.stats import kstest, t

    values = draw("heavy-tailed", (400, 128), (16, 16), seed=0, number=0).input.flatten().numpy()
    assert kstest(values, t(3).cdf).pvalue > 0.01


def test_the_outlier_input_has_a_few_channels_a_hundred_times_as_large():
    values = draw("outlier", (512, 256), (16, 16), seed=0, number=0).input
    sizes = values.std(0)
    large = sizes > 50
    assert int(large.sum()) == 2
    assert float(sizes[large].mean()) == pytest.approx(100, rel=0.1)
    assert float(sizes[~large].mean()) == pytest.approx(1, rel=0.02)


def test_the_weight_keeps_the_size_of_what_goes_through_it():
    weight = draw_weight((512, 256), 0, "linear")
    assert float(weight.std()) == pytest.approx(1 / 16, rel=0.02)


@pytest.mark.parametrize("name", EXACT_INPUTS)
@pytest.mark.parametrize(("across", "power_of_2"), [(None, False), (None, True), (0, True), (-1, True)])
def test_an_exact_input_survives_the_casts_unchanged(name, power_of_2, across):
    drawn = draw(name, *SHAPES, seed=1, number=0)
    for values, grids in ((drawn.input, (E4M3,)), (drawn.output_gradient, (E4M3, E5M2))):
        for grid in grids:
            made = scaled_cast(values, scale_for(values, grid, across, power_of_2), grid)
            assert torch.equal(made.values, values)
            assert (made.saturated, made.flushed) == (0, 0)
        assert torch.equal(values.bfloat16().float(), values)


@pytest.mark.parametrize("name", EXACT_INPUTS)
def test_an_exact_input_survives_blocks_of_32_and_of_128(name):
    drawn = draw(name, *SHAPES, seed=1, number=0)
    for values in (drawn.input, drawn.output_gradient):
        for block in (32, 128):
            blocks = values.reshape(-1, block)
            assert torch.equal(scaled_cast(blocks, scale_for(blocks, E4M3, -1, True), E4M3).values, blocks)


@pytest.mark.parametrize("name", EXACT_INPUTS)
def test_an_exact_input_is_near_the_one_that_it_was_made_of(name):
    exact = draw(name, *SHAPES, seed=1, number=0).input
    plain = draw(distribution(name), *SHAPES, seed=1, number=0).input
    factor = float((exact * plain).sum() / plain.square().sum())
    assert 0.7 < factor < 1.42
    assert float((exact / factor - plain).norm() / plain.norm()) < 0.04

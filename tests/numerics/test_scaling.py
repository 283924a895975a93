"""The reference quantiser against torch's own casts, and its shares."""

import pytest
import torch

from fp8bench.numerics.scaling import BOTH, E4M3, E5M2, representable, round_to, scale_for, scaled_cast

FORMATS = [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)]


@pytest.mark.parametrize(("grid", "dtype"), FORMATS)
def test_it_rounds_as_torch_does_over_the_whole_range(grid, dtype):
    spread = torch.randn(200_000) * torch.exp2(torch.randint(-30, 20, (200_000,)))
    values = spread.clamp(-grid.largest, grid.largest)
    assert torch.equal(round_to(values, grid), values.to(dtype).float())


@pytest.mark.parametrize(("grid", "dtype"), FORMATS)
def test_ties_and_every_value_of_the_format(grid, dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    every = every[every.isfinite()].unique()
    assert torch.equal(round_to(every, grid), every)
    ties = (every[:-1] + every[1:]) / 2
    assert torch.equal(round_to(ties, grid), ties.to(dtype).float())
    assert float(every.max()) == grid.largest == torch.finfo(dtype).max


def test_values_of_both_formats_are_of_both():
    values = round_to(torch.randn(10_000) * 100, BOTH).clamp(-BOTH.largest, BOTH.largest)
    for _, dtype in FORMATS:
        assert torch.equal(values.to(dtype).float(), values)


def test_shares_count_what_rounds_beyond_the_largest_and_what_becomes_zero():
    values = torch.tensor([0.0, 1.0, 448.0, 463.0, 480.0, -1e4, 2.0**-10, -(2.0**-10) * 1.01, 2.0**-11, 1.0])
    made = scaled_cast(values, 1.0, E4M3)
    assert made.saturated == pytest.approx(0.2)
    assert made.flushed == pytest.approx(0.2)
    assert made.values.tolist()[:6] == [0, 1, 448, 448, 448, -448]


def test_a_scale_takes_the_largest_magnitude_to_the_largest_value():
    values = torch.tensor([[1.0, -7.0], [0.5, 0.25], [0.0, 0.0]])
    assert float(scale_for(values, E4M3)) == 64
    assert scale_for(values, E4M3, across=-1).flatten().tolist() == [64, 896, 1]
    assert scale_for(values, E4M3, across=-1, power_of_2=True).flatten().tolist() == [64, 512, 1]
    assert scale_for(values, E4M3, across=0, power_of_2=True).tolist() == [[256, 64]]


def test_representable_values_keep_the_power_of_two_that_is_nearest():
    values = representable(torch.tensor([1.0, 0.3, -0.01]), E4M3)
    assert float(values.abs().max()) in (448 * 2.0**-9, 448 * 2.0**-8)
    assert float(scale_for(values, E4M3)) in (2.0**9, 2.0**8)

"""Rounding alone: which operands are rounded, how, and which bounds follow from it."""

import math

import pytest
import torch
from torch import nn

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE, Rounding
from fp8bench.worker.rounding import MOST, OVER_ROUNDING, explained, of_steps, round_to, rounded

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
GENERATOR = torch.Generator().manual_seed(3)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR)


@pytest.mark.parametrize(("dtype", "mantissa_bits"), [(E4M3, 3), (E5M2, 2)])
def test_a_value_is_off_by_up_to_half_a_unit_of_the_last_place_and_the_largest_and_zeros_are_kept(dtype, mantissa_bits):
    values = random(10_000).sign() * torch.rand(10_000, generator=GENERATOR).add(0.01)
    error = ((round_to(values, dtype) - values) / values).abs().max().item()
    half = 2 ** -(mantissa_bits + 1)
    assert error == pytest.approx(half / (1 + half), rel=0.01)
    assert round_to(torch.tensor([0.0, -3.7, 1.0]), dtype)[:2].tolist() == pytest.approx([0.0, -3.7])
    assert round_to(torch.zeros(3), dtype).tolist() == [0, 0, 0]


def some_model():
    return nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 16))


def test_the_named_layers_alone_are_rounded_and_only_within_the_context():
    model, x = some_model(), random(4, 32)
    plain = model(x)
    with rounded(model, Rounding(frozenset({"2"}))):
        first, second = model[0](x), model(x)
    assert torch.equal(first, model[0](x))
    assert 0.005 < ((second - plain).norm() / plain.norm()).item() < 0.1
    assert torch.equal(model(x), plain)


def test_the_three_gemms_take_rounded_operands_each_in_its_format():
    layer, x, g = nn.Linear(32, 48), random(5, 7, 32).requires_grad_(), random(5, 7, 48)
    with rounded(layer, Rounding(frozenset({""}))):
        y = layer(x)
    y.backward(g)
    qx, qw, qg = round_to(x.detach(), E4M3), round_to(layer.weight.detach(), E4M3), round_to(g, E5M2)
    assert torch.allclose(y, qx @ qw.T + layer.bias)
    assert torch.allclose(x.grad, qg @ qw)
    assert torch.allclose(layer.weight.grad, qg.flatten(0, 1).T @ qx.flatten(0, 1), atol=1e-5)
    assert torch.allclose(layer.bias.grad, g.sum((0, 1)), atol=1e-5)


def test_under_autocast_it_computes_in_autocasts_dtype_and_keeps_float32_gradients():
    model = some_model()
    with torch.autocast("cpu", torch.bfloat16), rounded(model, Rounding(frozenset({"0", "2"}), E4M3)):
        y = model(random(4, 32))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_bounds_follow_from_what_rounding_does_and_none_exceeds_what_a_fault_gives():
    stated = FP8_TOLERANCE.model_copy(update={"settle_passes": 3})
    found = explained(0.2, 0.3, BF16_TOLERANCE, stated)
    assert found.logits == pytest.approx(math.sqrt((0.2 * OVER_ROUNDING) ** 2 + 0.1**2))
    assert found.input_gradient == pytest.approx(math.sqrt((0.3 * OVER_ROUNDING) ** 2 + 0.1**2))
    assert (found.loss, found.settle_passes) == (0.05, 3)
    found = explained(5.0, math.nan, BF16_TOLERANCE, FP8_TOLERANCE)
    assert (found.logits, found.input_gradient) == (MOST, FP8_TOLERANCE.input_gradient)
    # Steps may be as far off as the mode states, or as rounding explains.
    for gate, steps in ((0.29, 0.45), (0.75, 0.75)):
        derived = FP8_TOLERANCE.model_copy(update={"input_gradient": gate, "logits": 0.2})
        assert of_steps(derived, FP8_TOLERANCE) == derived.model_copy(update={"input_gradient": steps})
    assert of_steps(BF16_TOLERANCE, BF16_TOLERANCE) == BF16_TOLERANCE

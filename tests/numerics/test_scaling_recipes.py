"""Which modes open here, and that the casts told of them are those that torchao does."""

import pytest
import torch
from torch import nn

from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.numerics.examination import open_mode
from fp8bench.numerics.layers import draw, draw_weight
from fp8bench.numerics.scaling import CASTS, operand_casts, scale_for, scaled_cast
from fp8bench.schema.errors import UsageError
from fp8bench.schema.numerics import TENSORS

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("label", ["baseline-bf16", "baseline-fp32", "torchao-float8:rowwise"])
def test_what_runs_here_is_made_anew_each_time(label):
    opened = open_mode(label, CPU, 64)
    assert opened.refusal is None
    assert opened.make() is not opened.make()


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("te-fp8:delayed", "needs an NVIDIA GPU"),
        ("te-fp8:mxfp8", "needs an NVIDIA GPU"),
        ("torchao-float8:rowwise_with_gw_hp", "cannot emulate"),
    ],
)
def test_what_does_not_run_here_says_why_in_the_modes_own_words(label, words):
    refusal = open_mode(label, CPU, 64).refusal
    assert refusal is not None
    assert words in refusal.what
    assert refusal.remedy


def test_an_unknown_recipe_is_wrong_usage():
    with pytest.raises(UsageError, match="Did you mean 'rowwise'"):
        open_mode("torchao-float8:rowise", CPU, 64)


def test_blocks_of_32_need_a_width_of_as_many(monkeypatch):
    monkeypatch.setattr("fp8bench.numerics.examination.ALIGNMENTS", {"baseline-bf16": 32})
    assert open_mode("baseline-bf16", CPU, 64).refusal is None
    refusal = open_mode("baseline-bf16", CPU, 80).refusal
    assert refusal is not None
    assert refusal.remedy == "Use 96"


def test_nothing_is_told_of_casts_that_are_not_imitated():
    assert [operand_casts("te-fp8:block", tensor) for tensor in TENSORS] == [(), (), ()]
    assert operand_casts("torchao-float8:rowwise_with_gw_hp", "weight_gradient") == ()
    assert all(len(both) == 2 for label in CASTS for both in CASTS[label].values())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("name", ["normal", "heavy-tailed", "outlier"])
def test_products_of_our_casts_are_torchaos(recipe, name):
    weight = draw_weight((128, 64), 0, "linear")
    drawn = draw(name, (32, 64), (32, 128), 0, 0)
    plain = nn.Sequential(nn.Linear(64, 128, bias=False))
    with torch.no_grad():
        plain[0].weight.copy_(weight)
    module = TorchAOFloat8(recipe).convert(plain)
    given = drawn.input.clone().requires_grad_()
    output = module(given)
    output.backward(drawn.output_gradient)

    operands = {"input": drawn.input, "weight": weight, "output_gradient": drawn.output_gradient}

    def factors(tensor):
        for of in operand_casts(f"torchao-float8:{recipe}", tensor):
            values = operands[of.operand]
            yield scaled_cast(values, scale_for(values, of.grid, of.across, of.power_of_2), of.grid).values.double()

    x, w = factors("output")
    gradient, w_again = factors("input_gradient")
    gradient_again, x_again = factors("weight_gradient")
    for found, expected in (
        (output, x @ w.t()),
        (given.grad, gradient @ w_again),
        (module[0].weight.grad, gradient_again.t() @ x_again),
    ):
        assert float((found.detach().double() - expected).norm() / expected.norm()) < 1e-6

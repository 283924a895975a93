"""The rules of optimizers give what torch's own give."""

import pytest
import torch
from torch import nn

from fp8bench.worker.execution.optimizers import CLASSES, SETTINGS, UpdateRule, settings_of


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_weights_and_states_are_those_of_torch(name):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(50, 20))
    mine, rule = weight.detach().clone(), UpdateRule(name)
    optimizer = CLASSES[name]([weight], **SETTINGS[name])
    for _ in range(5):
        weight.grad = torch.randn(50, 20)
        before = weight.detach().clone()
        optimizer.step()
        rule.step("weight", mine, weight.grad)
        assert (mine - weight).norm() <= 1e-5 * (weight - before).norm() + 1e-7 * weight.norm()
    assert rule.state
    for key, value in rule.state.items():
        torch.testing.assert_close(value["weight"], optimizer.state[weight][key])


def test_no_optimizer_changes_nothing():
    weight = torch.ones(3)
    UpdateRule("none").step("weight", weight, torch.ones(3))
    assert weight.tolist() == [1, 1, 1]
    assert settings_of("none") == {}


def test_settings_are_torchs_defaults_with_ours():
    assert settings_of("adamw")["lr"] == SETTINGS["adamw"]["lr"]
    assert settings_of("adamw")["eps"] == 1e-8

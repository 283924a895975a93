"""What was compiled against what it was made of: right ones agree, wrong ones are told, and nothing is left behind."""

import math

import pytest
import torch
from builders import config
from outside.outside_plugins import Polite, TinyLinear
from torch import nn

from fp8bench.modes.protocol import BF16_TOLERANCE
from fp8bench.worker import compiled_parity, main, training
from fp8bench.worker.compiled_parity import CompiledErrors, compiled_errors, complaint
from fp8bench.worker.main import Aside, measure
from fp8bench.worker.training import ready_to_train
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
SETTINGS = {"device": "cpu", "world_size": 1, "batch_size": 40, "warmup": 1, "steps": 3, "data": "device", "workers": 0}

pytestmark = pytest.mark.usefixtures("process_group", "thawed")


class Compiled(nn.Module):
    """Stands for what torch.compile gives: the same weights, and whatever `then` makes of the output."""

    def __init__(self, model, then=lambda output: output):
        super().__init__()
        self._orig_mod = model
        self._then = then

    def forward(self, inputs):
        return self._then(self._orig_mod(inputs))


class OnlyLooksRight(torch.autograd.Function):
    """The same output, and half the gradient."""

    @staticmethod
    def forward(_context, output):
        return output.clone()

    @staticmethod
    def backward(_context, gradient):
        return gradient / 2


def errors(monkeypatch, then=lambda output: output, workload=None):
    """Of a model that is compiled so."""
    workload = workload or ViTMicro(data="device")
    model = workload.build(CPU)
    monkeypatch.setattr(training, "_compile", lambda model, _world_size: Compiled(model, then))
    with ready_to_train(config(**SETTINGS), 0, CPU, Polite(), workload, model, compiled=True) as ready:
        before = [weight.detach().clone() for weight in model.parameters()]
        found = compiled_errors(ready, model)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(weight.grad is None for weight in model.parameters())
    return found


def test_pieces_of_a_batch_are_the_batch(monkeypatch):
    found = errors(monkeypatch)
    assert found.logits < 1e-2
    assert found.weight_gradient < 1e-2
    assert complaint(found, BF16_TOLERANCE) is None


def test_other_logits_are_found(monkeypatch):
    found = errors(monkeypatch, lambda output: 1.5 * output)
    assert found.logits == pytest.approx(0.5, abs=0.01)
    assert complaint(found, BF16_TOLERANCE).startswith(f"its logits differ by {found.logits:.3g} (at most 0.1)")


def test_a_backward_pass_that_is_wrong_is_found_where_the_logits_are_right(monkeypatch):
    found = errors(monkeypatch, OnlyLooksRight.apply)
    assert found.logits < 1e-2
    assert found.weight_gradient == pytest.approx(0.5, abs=0.01)
    assert complaint(found, BF16_TOLERANCE) == (
        f"its weights' gradients differ by {found.weight_gradient:.3g} (at most 0.1)"
    )


def test_a_gradient_that_never_comes_is_found(monkeypatch):
    found = errors(monkeypatch, lambda output: output.detach() + 0 * output.detach().requires_grad_())
    assert found.logits < 1e-2
    assert found.weight_gradient == pytest.approx(1)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_is_beyond_any_bound(monkeypatch, broken):
    found = errors(monkeypatch, lambda output: output * broken)
    assert "its logits differ by" in complaint(found, BF16_TOLERANCE)
    assert complaint(CompiledErrors(broken, 0.0), BF16_TOLERANCE)
    assert complaint(CompiledErrors(0.0, broken), BF16_TOLERANCE)


def test_too_little_memory_compares_nothing_and_leaves_nothing(monkeypatch):
    def full(output):
        raise torch.OutOfMemoryError("no memory")

    assert errors(monkeypatch, full) is None


@pytest.fixture
def measured(monkeypatch):
    """The report of a rank whose model is compiled so."""

    def run(then=lambda output: output):
        monkeypatch.setattr(training, "_compile", lambda model, _world_size: Compiled(model, then))
        monkeypatch.setattr(main, "make_mode", lambda _config: Polite())
        monkeypatch.setattr(main, "make_workload", lambda _config: TinyLinear())
        return measure(config("a-mode", **{**SETTINGS, "compile": "on"}), 0, CPU, Aside())

    return run


def test_the_report_has_both_errors(measured):
    report = measured()
    assert report.status == "ok"
    assert 0 <= report.evidence.compile.logits_error < 1e-2
    assert 0 <= report.evidence.compile.weight_gradient_error < 1e-2


def test_a_mode_that_was_compiled_to_something_else_is_invalid_with_what_was_found_kept(measured):
    report = measured(lambda output: -output)
    assert report.status == "invalid"
    assert report.reason.startswith(
        "a-mode compiled does not compute what it does uncompiled: its logits differ by 2 (at most 0.1)"
    )
    assert report.remedy == "Do not use its speed: say --compile off, or try another torch"
    assert report.evidence.compile.logits_error == pytest.approx(2, abs=0.01)
    assert len(report.samples.step_s) == 3


def test_what_was_not_compared_is_told(measured, monkeypatch):
    monkeypatch.setattr(main, "compiled_errors", lambda *_: None)
    report = measured()
    assert report.status == "ok"
    assert report.evidence.compile.logits_error is None
    assert compiled_parity.NOT_COMPARED in report.evidence.warnings

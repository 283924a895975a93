"""From warm-up to what is timed: wrong steps are found, and a capture that fails leaves training as it was."""

import math
import re
from itertools import count

import pytest
import torch
from outside.outside_plugins import Polite, TinyLinear
from torch import nn
from worker.execution import executing
from worker.execution.executing import CAPTURED, Delayed, NoOptimizer, Replayed, StaleInput, decided, some_parts
from worker.faulty_blocks import Scaled

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.stats.steps import PROOF_STEPS
from fp8bench.worker.execution import optimizers, reference
from fp8bench.worker.execution.step import NO_MARKS, step

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]


def settled(launch=Replayed, asked="on", choice=CAPTURED, tolerance=BF16_TOLERANCE, parts=None):
    stages = []
    return decided(launch, choice, tolerance, parts or some_parts(), stages, cuda_graphs=asked), stages


def weights(parts):
    return [weight.detach().clone() for weight in parts.plain.parameters()]


def test_a_right_replay_is_proved_and_told_and_training_goes_on_from_the_steps_that_were_proved():
    parts, batches = some_parts()
    found, stages = settled(parts=(parts, batches))
    assert stages == ["capturing", "comparing"]
    assert isinstance(found.launch, Replayed)
    assert (found.graph.enabled, found.graph.capture_s, found.join) == (True, 0.5, "none")
    assert (found.executed.steps, found.executed.batch_size) == (PROOF_STEPS, 8)
    errors = [found.executed.loss_error, found.executed.gradient_error, found.executed.update_error]
    assert max(errors) < 1e-3
    assert (found.executed.state_error, found.executed.spread) == (None, 0)
    assert found.executed.bound == BF16_TOLERANCE.input_gradient
    for one, other in zip(weights(parts), after_proof(*some_parts()), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def after_proof(parts, batches):
    parts.optimizer.state.clear()
    for _ in range(PROOF_STEPS):
        step(parts, next(batches), NO_MARKS)
    return weights(parts)


class OneWeightApart(Replayed):
    """Moves one bias by 1.5 times what its gradient says, and writes gradients where it wrote them when captured."""

    WEIGHT = "blocks.0.norm1.bias"

    def __init__(self, parts, batch):
        super().__init__(parts, batch)
        self.gradients = {name: torch.zeros_like(weight) for name, weight in parts.plain.named_parameters()}

    def __call__(self, batch, marks):
        weight = dict(self.parts.plain.named_parameters())[self.WEIGHT]
        begun = weight.detach().clone()
        loss = super().__call__(batch, marks)
        weight.data.add_(weight.data - begun, alpha=0.5)
        for name, one in self.parts.plain.named_parameters():
            one.grad = self.gradients[name].copy_(one.grad)
        return loss


@pytest.mark.parametrize("coarse", [True, False])
def test_a_weight_that_rounding_alone_takes_as_far_passes_and_a_replay_keeps_its_gradients(coarse, monkeypatch):
    parts, batches = some_parts()
    monkeypatch.setattr(optimizers, "faults", lambda *_: [])
    if not coarse:
        with pytest.raises(MeasurementInvalid, match=f"what it makes of {OneWeightApart.WEIGHT} differs by 0.5 "):
            settled(OneWeightApart, parts=(parts, batches))
        return
    monkeypatch.setattr(reference, "LAST_DIGIT", 0.9)
    found, _ = settled(OneWeightApart, parts=(parts, batches))
    assert found.executed.rounding_weights == ("blocks.*.norm1.bias x 1",)
    assert found.executed.furthest_weight != OneWeightApart.WEIGHT
    for name, weight in parts.plain.named_parameters():
        assert weight.grad is found.launch.gradients[name]


def test_a_step_and_scales_that_are_kept_from_step_to_step_are_compared_and_frozen_ones_found():
    found, _ = settled(parts=some_parts(Delayed()))
    assert 0 <= found.executed.state_error < 1e-3
    with pytest.raises(MeasurementInvalid, match="what it makes of fp8's scales differs by 1 "):
        settled(executing.FrozenScales, parts=some_parts(Delayed()), tolerance=FP8_TOLERANCE)


@pytest.mark.parametrize("launch", [StaleInput, NoOptimizer])
def test_auto_falls_back_on_python_with_the_reason_and_from_the_same_start(launch):
    parts, batches = some_parts()
    found, stages = settled(launch, asked="auto", parts=(parts, batches))
    assert stages == ["capturing", "comparing"]
    assert not found.graph.enabled
    assert found.graph.reason.startswith("auto: baseline-bf16 as executed does not compute")
    assert found.warning == f"steps were not replayed: {found.graph.reason}"
    assert found.executed.update_error == 0, "the steps from Python are proved in their place"
    assert all(map(torch.equal, weights(parts), after_proof(*some_parts())))


def test_a_capture_that_fails_leaves_training_as_it_was_under_auto_and_is_unsupported_where_it_was_asked_for():
    parts, batches = some_parts()
    found, _ = settled(executing.Uncapturable, asked="auto", parts=(parts, batches))
    assert found.graph.reason == "auto: the step cannot be captured in a CUDA graph: it waits"
    assert all(map(torch.equal, weights(parts), after_proof(*some_parts())))
    assert math.isfinite(found.launch(next(batches), NO_MARKS).item())
    with pytest.raises(ModeUnavailable, match="it waits") as refusal:
        settled(executing.Uncapturable)
    assert refusal.value.cause == "capture"


class Growing(TinyLinear):
    def batches(self, batch_size, rank, device):
        for size in count(batch_size):
            yield next(super().batches(size, rank, device))


def test_batches_that_change_their_shape_are_not_captured():
    words = r"batches change their shape \(\[10, 16\] float32, \[11, 16\] float32\)"
    with pytest.raises(ModeUnavailable, match=words):
        settled(parts=some_parts(workload=Growing()))
    found, _ = settled(asked="auto", parts=some_parts(workload=Growing()))
    assert re.search(words, found.warning)


class Wrong(nn.Module):
    def __init__(self, model, then):
        super().__init__()
        self.inner = model
        self.then = then

    def forward(self, inputs):
        return self.then(self.inner(inputs))


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (lambda output: output, None),
        (lambda output: 1.5 * output, "its gradients differ by"),
        (lambda output: Scaled.apply(output, 0.5), r"its gradients differ by 0\.4[0-9]+ .*weights differs by 0\.4[89]"),
        (lambda output: output.detach() + 0 * output.detach().requires_grad_(), "its gradients differ by 1 "),
        (lambda output: output * math.nan, "its losses differ by nan"),
    ],
    ids=["right", "other logits", "half the gradient", "no gradient", "not finite"],
)
def test_a_model_that_was_compiled_to_something_else_is_found(then, told, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: Wrong(model, then))
    parts = some_parts(choice=executing.COMPILED, warm=0, batch_size=10)
    if told is None:
        found, stages = settled(asked="off", choice=executing.COMPILED, parts=parts)
        assert max(found.executed.gradient_error, found.executed.update_error) < 1e-2
        assert (found.executed.batch_size, stages) == (10, ["comparing"])
    else:
        with pytest.raises(MeasurementInvalid, match=told):
            settled(asked="off", choice=executing.COMPILED, parts=parts)


def test_blocks_that_are_compiled_in_place_are_not_compared_with_themselves(monkeypatch):
    parts, batches = some_parts(warm=0)
    for block in parts.plain.blocks:
        block.compile(backend=lambda graph, _inputs: lambda *inputs: [0.5 * out for out in graph(*inputs)])
    with pytest.raises(MeasurementInvalid, match="its gradients differ"):
        settled(asked="off", choice=executing.COMPILED, parts=(parts, batches))


@pytest.mark.parametrize("asked", ["on", "auto", "off"])
def test_too_little_memory_for_a_proof_refuses_the_run(asked):
    class Full(Polite):
        def forward_context(self):
            raise torch.OutOfMemoryError("no memory")

    with pytest.raises(ModeUnavailable, match="memory does not suffice") as refusal:
        decided(parts=some_parts(), again=Full, cuda_graphs=asked)
    assert refusal.value.cause == "oom"

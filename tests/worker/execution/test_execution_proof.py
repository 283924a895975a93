"""How far losses and gradients may be apart, the rules of optimizers, and where a proof keeps its copies. Wrong steps
are found, and a capture that fails leaves training as it was.
"""

import math
import re
import weakref
from dataclasses import replace

import pytest
import torch
from outside.outside_plugins import Polite
from torch import nn
from worker.execution import executing
from worker.execution.executing import CAPTURED, PLAIN, Delayed, Replayed, decided, gate, settings, some_parts
from worker.faulty_blocks import Scaled

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.modes.protocol import Rounding as Rounds
from fp8bench.records.contradictions import (
    LEAST_SEPARATION,
    WIDEST_ERROR,
    WIDEST_LEAKAGE,
    WIDEST_OF_MODES,
    WIDEST_SPREAD,
    WIDEST_UNSHARED,
)
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.schema.execution import ChosenOptimizer
from fp8bench.stats.steps import PROOF_STEPS
from fp8bench.worker import rounding
from fp8bench.worker.execution import decide as decide_module
from fp8bench.worker.execution import optimizers, proof, reference
from fp8bench.worker.execution.decide import copies_size
from fp8bench.worker.execution.optimizers import UpdateRule, make_optimizer
from fp8bench.worker.execution.proof import (
    MAX_SPREAD,
    MAX_SPREAD_IN_LAYERS,
    Apart,
    Errors,
    Rounding,
    complaints,
    loss_error,
)
from fp8bench.worker.execution.reference import NotProved, plain_steps
from fp8bench.worker.execution.step import NO_MARKS, Snapshot, step
from fp8bench.worker.memory import fits, size
from fp8bench.workloads.vit import ViTMicro


@pytest.mark.parametrize(
    ("plain", "executed", "fresh", "error"),
    [
        ([7.0, 6.9, 6.8], [7.0, 6.2, 6.8], 6.0, 0.1),
        ([2.0, 1.0, 0.1], [2.0, 1.02, 0.12], 1.0, 0.01),
        ([0.3, 0.1, 0.05], [0.3, 0.12, 0.05], 6.9, 0.02 / 6.9),
        ([6.8, 6.7, 6.6], [6.8, 6.7, 6.2], 6.9, 0.4 / 6.9),
        *(([1.0, 1.0], losses, 1.0, math.nan) for bad in (math.nan, math.inf) for losses in ([bad, 1.0], [1.0, bad])),
    ],
    ids=["worst step", "falls fast", "learned by heart", "fresh", "nan", "nan later", "infinite", "infinite later"],
)
def test_the_error_of_losses_is_a_share_of_the_largest_and_of_the_fresh_one(plain, executed, fresh, error):
    assert loss_error(plain, executed, fresh) == pytest.approx(error, nan_ok=True)


@pytest.mark.parametrize(
    ("by_adam", "errors", "told"),
    [
        (False, {"gradient_error": 0.105}, ["its gradients differ"]),
        (True, {"gradient_error": 0.105, "first_gradient_error": 0.02}, []),
        (True, {"gradient_error": 0.105, "first_gradient_error": 0.105}, ["its gradients of the first step differ"]),
        (True, {"gradient_error": 1.2, "first_gradient_error": 0.02}, ["its gradients differ"]),
        (True, {"gradient_error": 0.02, "first_gradient_error": math.nan}, ["its gradients of the first step differ"]),
    ],
)
def test_gradients_after_changes_by_adam_are_held_to_the_bound_on_these_and_the_first_to_that_of_rounding(
    by_adam, errors, told
):
    found = complaints(Errors(errors, BF16_TOLERANCE, by_adam=by_adam))
    assert [one.partition(" by ")[0] for one in found] == told


@pytest.mark.parametrize(
    ("error", "longer", "alone", "excused"),
    [
        (0.5, 0.0, 0.4, True),
        (0.99, -0.3, 1.1, True),
        (0.5, 0.0, 0.3, False),
        (0.5, 0.0, math.nan, False),
        (math.nan, 0.0, math.inf, False),
        (1.0, -1.0, 1.2, False),
        (1.2, 1.1, 1.2, False),
    ],
    ids=["as far", "fp8", "further", "rounding is nan", "nan", "it never moved", "twice as long"],
)
def test_a_weight_that_rounding_alone_takes_as_far_is_judged_by_its_size_and_named(error, longer, alone, excused):
    weights = {"blocks.0.norm.weight": Apart(error, longer), "head.weight": Apart(0.01)}
    of_rounding = Rounding({"blocks.0.norm.weight": alone, "head.weight": 0.01}, 0.0)
    within = dict.fromkeys(("loss_error", "gradient_error", "update_error", "spread"), 0.01 * MAX_SPREAD)
    errors = Errors(within, BF16_TOLERANCE, weights=weights)
    assert len(complaints(errors)) == 1
    judged = replace(errors, rounding=of_rounding)
    assert bool(complaints(judged)) is not excused
    evidence = proof.to_evidence(judged, 8)
    assert evidence.rounding_weights == (("blocks.*.norm.weight x 1",) if excused else ())
    assert evidence.furthest_weight == ("head.weight" if excused else "blocks.0.norm.weight")


def test_rounding_explains_adams_changes_but_not_those_of_sgd_nor_anything_else():
    of_adam, over = Rounding({}, 0.8), {"gradient_error": 0.7, "update_error": 0.7}
    assert complaints(Errors(over, BF16_TOLERANCE, by_adam=True, rounding=of_adam)) == []
    assert len(complaints(Errors(over, BF16_TOLERANCE, rounding=of_adam))) == 2
    most = Rounding({}, math.inf)
    assert len(complaints(Errors(dict.fromkeys(over, 0.95), BF16_TOLERANCE, by_adam=True, rounding=most))) == 2
    for other in ("loss_error", "first_gradient_error", "state_error", "spread", "unshared"):
        wrong = Errors({**over, other: 0.7}, BF16_TOLERANCE, by_adam=True)
        assert not wrong.may_be_rounding, other
        assert len(complaints(replace(wrong, rounding=most))) == 1
    assert Errors(over, BF16_TOLERANCE, by_adam=True).may_be_rounding
    assert not Errors({"update_error": 0.01}, BF16_TOLERANCE).may_be_rounding, "nothing is to be explained"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_plain_steps_from_nudged_weights_differ_by_rounding_alone(optimizer, process_group):
    parts, batches = some_parts(warm=1, optimizer=optimizer)
    host, taken = torch.device("cpu"), [next(batches) for _ in range(3)]
    before = Snapshot.of(parts, host)
    plain, *nudged = (
        plain_steps(parts, gate(parts).again, ChosenOptimizer(optimizer), taken, host, nudged=nudge)
        for nudge in (False, True, True)
    )
    found = [proof.rounding(parts, before, plain, one) for one in (plain, *nudged)]
    assert found[1] == found[2], "every rank must see the same"
    assert max(*found[0].weights.values(), found[0].of_steps) == 0
    assert 0 < found[1].of_steps < 0.1
    assert 0 < max(found[1].weights.values()) < 0.2


class ToFp8(Polite):
    def rounds(self, model):
        return Rounds(frozenset(), torch.float8_e5m2)


class LittleRoom(ViTMicro):
    """Has memory for so many samples at once."""

    piece, room = 4, 8

    def loss(self, model, batch):
        self.asked = [*getattr(self, "asked", []), len(batch.inputs)]
        if len(batch.inputs) > self.room:
            raise torch.OutOfMemoryError
        return super().loss(model, batch)


@pytest.mark.parametrize(
    ("mode", "room", "accumulation", "taken"),
    [
        (ToFp8, 8, 1, 8),
        (ToFp8, 7, 1, 4),
        (ToFp8, 8, 2, 4),
        (Polite, 8, 1, 4),
        (ToFp8, 3, 1, None),
        (Polite, 3, 1, None),
    ],
)
def test_an_fp8_mode_sees_a_whole_batch_where_memory_allows(mode, room, accumulation, taken, process_group):
    workload = type("Room", (LittleRoom,), {"room": room})()
    parts, batches = some_parts(mode(), workload, warm=0, grad_accumulation=accumulation)
    # On a CPU only compiled steps are proved in pieces.
    parts, workload.asked = replace(parts, compiled=True), []

    def plain():
        return plain_steps(parts, gate(parts).again, ChosenOptimizer("sgd"), [next(batches)], torch.device("cpu"))

    if not taken:
        with pytest.raises(NotProved, match="memory does not suffice"):
            plain()
    else:
        assert plain().piece == taken
        assert workload.asked[-8 // taken :] == [taken] * (8 // taken)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_weights_and_states_are_those_of_torch(name):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(50, 20))
    mine, rule = weight.detach().clone(), UpdateRule(ChosenOptimizer(name, 0.01))
    optimizer = make_optimizer(ChosenOptimizer(name, 0.01), [weight], weight.device)
    for _ in range(5):
        weight.grad = torch.randn(50, 20)
        before = weight.detach().clone()
        optimizer.step()
        rule.step("weight", mine, weight.grad)
        assert (mine - weight).norm() <= 1e-5 * (weight - before).norm() + 1e-7 * weight.norm()
    assert rule.state
    for key, value in rule.state.items():
        torch.testing.assert_close(value["weight"], optimizer.state[weight][key])


GIB = 2**30


@pytest.mark.parametrize(
    ("needed", "peak", "memory", "fit"),
    [(12, 30, 139, True), (12, 30, 49.5, True), (12, 30, 49.4, False), (12, 100, 137, True), (12, 101, 137, False)],
)
def test_copies_stay_on_the_gpu_where_a_step_of_a_quarter_more_has_room_beside_them(needed, peak, memory, fit):
    assert fits(needed * GIB, peak * GIB, int(memory * GIB)) is fit


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_room_that_is_requested_is_what_a_proof_keeps(optimizer, process_group):
    parts, batches = some_parts(warm=1, optimizer=optimizer)
    host = torch.device("cpu")
    before = Snapshot.of(parts, host)
    plain = plain_steps(parts, gate(parts).again, ChosenOptimizer(optimizer), [next(batches)], host)
    by_name = (before.weights, plain.weights, plain.gradients, plain.first_gradients, plain.own, *plain.states.values())
    kept = size([*(one for found in by_name for one in found.values()), *before.others, *before.scales, *plain.scales])
    assert copies_size(parts, settings(optimizer=optimizer)) == kept


@pytest.mark.parametrize("choice", [PLAIN, CAPTURED], ids=["launched", "replayed"])
def test_no_copy_of_the_proof_is_in_the_peak_of_timed_steps(choice, process_group, monkeypatch):
    kept, alive = [], []

    def taken(of):
        def call(*given, **named):
            found = of(*given, **named)
            kept.append(weakref.ref(found))
            return found

        return call

    monkeypatch.setattr(decide_module.Snapshot, "of", taken(Snapshot.of))
    monkeypatch.setattr(decide_module, "plain_steps", taken(plain_steps))
    monkeypatch.setattr(
        decide_module, "reset_peaks", lambda _device: alive.append(sum(one() is not None for one in kept))
    )
    decided(Replayed, choice)
    assert len(kept) == 2
    assert alive == [2, 0]


def settled(launch=Replayed, asked="on", choice=CAPTURED, tolerance=BF16_TOLERANCE, parts=None):
    stages = []
    return decided(launch, choice, tolerance, parts or some_parts(), stages, cuda_graphs=asked), stages


def weights(parts):
    return [weight.detach().clone() for weight in parts.plain.parameters()]


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


class Wrong(nn.Module):
    def __init__(self, model, then):
        super().__init__()
        self.inner = model
        self.then = then

    def forward(self, inputs):
        return self.then(self.inner(inputs))


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
class TestDecided:
    """From warm-up to what is timed."""

    def test_a_right_replay_is_proved_and_told_and_training_goes_on_from_the_steps_that_were_proved(self):
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

    @pytest.mark.parametrize("coarse", [True, False])
    def test_a_weight_that_rounding_takes_as_far_passes_and_a_replay_keeps_its_gradients(self, coarse, monkeypatch):
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

    def test_a_step_and_scales_that_are_kept_from_step_to_step_are_compared_and_frozen_ones_found(self):
        found, _ = settled(parts=some_parts(Delayed()))
        assert 0 <= found.executed.state_error < 1e-3
        with pytest.raises(MeasurementInvalid, match="what it makes of fp8's scales differs by 1 "):
            settled(executing.FrozenScales, parts=some_parts(Delayed()), tolerance=FP8_TOLERANCE)

    @pytest.mark.parametrize("launch", [executing.StaleInput, executing.NoOptimizer])
    def test_auto_falls_back_on_python_with_the_reason_and_from_the_same_start(self, launch):
        parts, batches = some_parts()
        found, stages = settled(launch, asked="auto", parts=(parts, batches))
        assert stages == ["capturing", "comparing"]
        assert not found.graph.enabled
        assert found.graph.reason.startswith("auto: baseline-bf16 as executed does not compute")
        assert found.warning == f"steps were not replayed: {found.graph.reason}"
        assert found.executed.update_error == 0, "the steps from Python are proved in their place"
        assert all(map(torch.equal, weights(parts), after_proof(*some_parts())))

    def test_a_capture_that_fails_leaves_training_as_it_was_under_auto_and_is_unsupported_where_it_was_asked_for(self):
        parts, batches = some_parts()
        found, _ = settled(executing.Uncapturable, asked="auto", parts=(parts, batches))
        assert found.graph.reason == "auto: the step cannot be captured in a CUDA graph: it waits"
        assert all(map(torch.equal, weights(parts), after_proof(*some_parts())))
        assert math.isfinite(found.launch(next(batches), NO_MARKS).item())
        with pytest.raises(ModeUnavailable, match="it waits") as refusal:
            settled(executing.Uncapturable)
        assert refusal.value.cause == "capture"

    def test_batches_that_change_their_shape_are_not_captured(self):
        words = r"batches change their shape \(\[10, 16\] float32, \[11, 16\] float32\)"
        with pytest.raises(ModeUnavailable, match=words):
            settled(parts=some_parts(workload=executing.Growing(*range(8, 20))))
        found, _ = settled(asked="auto", parts=some_parts(workload=executing.Growing(*range(8, 20))))
        assert re.search(words, found.warning)

    @pytest.mark.parametrize(
        ("then", "told"),
        [
            (lambda y: y, None),
            (lambda y: 1.5 * y, "its gradients differ by"),
            (lambda y: Scaled.apply(y, 0.5), r"its gradients differ by 0\.4[0-9]+ .*weights differs by 0\.4[89]"),
            (lambda y: y.detach() + 0 * y.detach().requires_grad_(), "its gradients differ by 1 "),
            (lambda y: y * math.nan, "its losses differ by nan"),
        ],
        ids=["right", "other logits", "half the gradient", "no gradient", "not finite"],
    )
    def test_a_model_that_was_compiled_to_something_else_is_found(self, then, told, monkeypatch):
        monkeypatch.setattr(torch, "compile", lambda model: Wrong(model, then))
        parts = some_parts(choice=executing.COMPILED, warm=0, batch_size=10)
        if told is None:
            found, stages = settled(asked="off", choice=executing.COMPILED, parts=parts)
            assert max(found.executed.gradient_error, found.executed.update_error) < 1e-2
            assert (found.executed.batch_size, stages) == (10, ["comparing"])
        else:
            with pytest.raises(MeasurementInvalid, match=told):
                settled(asked="off", choice=executing.COMPILED, parts=parts)

    def test_blocks_that_are_compiled_in_place_are_not_compared_with_themselves(self, monkeypatch):
        parts, batches = some_parts(warm=0)
        for block in parts.plain.blocks:
            block.compile(backend=lambda graph, _inputs: lambda *inputs: [0.5 * out for out in graph(*inputs)])
        with pytest.raises(MeasurementInvalid, match="its gradients differ"):
            settled(asked="off", choice=executing.COMPILED, parts=(parts, batches))

    @pytest.mark.parametrize("asked", ["on", "auto", "off"])
    def test_too_little_memory_for_a_proof_refuses_the_run(self, asked):
        class Full(Polite):
            def forward_context(self):
                raise torch.OutOfMemoryError("no memory")

        with pytest.raises(ModeUnavailable, match="memory does not suffice") as refusal:
            decided(parts=some_parts(), again=Full, cuda_graphs=asked)
        assert refusal.value.cause == "oom"


def test_no_bound_of_a_proof_is_wider_than_a_record_may_have():
    assert (rounding.MOST, MAX_SPREAD_IN_LAYERS) == (WIDEST_ERROR, WIDEST_SPREAD)
    for fp8, tolerance in ((False, BF16_TOLERANCE), (True, FP8_TOLERANCE)):
        assert WIDEST_OF_MODES[fp8] == {name: getattr(tolerance, name) for name in WIDEST_OF_MODES[fp8]}
        assert (tolerance.max_leakage, tolerance.min_separation) == (WIDEST_LEAKAGE, LEAST_SEPARATION)
    assert complaints(Errors({"unshared": WIDEST_UNSHARED}, FP8_TOLERANCE)) == []
    assert complaints(Errors({"unshared": 1.001 * WIDEST_UNSHARED}, FP8_TOLERANCE)) != []

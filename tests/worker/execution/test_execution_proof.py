"""How far losses and gradients may be apart, the rules of optimizers, and where a proof keeps its copies."""

import math
from dataclasses import replace

import pytest
import torch
from outside.outside_plugins import Polite
from torch import nn
from worker.execution.executing import gate, settings, some_parts

from fp8bench.modes.protocol import BF16_TOLERANCE
from fp8bench.modes.protocol import Rounding as Rounds
from fp8bench.worker.execution import proof
from fp8bench.worker.execution.decide import copies_size
from fp8bench.worker.execution.optimizers import UpdateRule, make_optimizer
from fp8bench.worker.execution.proof import MAX_SPREAD, Apart, Errors, Rounding, complaints, loss_error
from fp8bench.worker.execution.reference import NotProved, plain_steps
from fp8bench.worker.execution.step import Snapshot
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
        plain_steps(parts, gate(parts).again, optimizer, taken, host, nudged=nudge) for nudge in (False, True, True)
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
        return plain_steps(parts, gate(parts).again, "sgd", [next(batches)], torch.device("cpu"))

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
    mine, rule = weight.detach().clone(), UpdateRule(name)
    optimizer = make_optimizer(name, [weight], weight.device)
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
    plain = plain_steps(parts, gate(parts).again, optimizer, [next(batches)], host)
    by_name = (before.weights, plain.weights, plain.gradients, plain.first_gradients, plain.own, *plain.states.values())
    kept = size([*(one for found in by_name for one in found.values()), *before.others, *before.scales, *plain.scales])
    assert copies_size(parts, settings(optimizer=optimizer)) == kept

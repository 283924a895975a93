"""Faults planted in an eager step of one rank, each refused by its name, under the bounds of bf16 and of fp8."""

from contextlib import ExitStack

import pytest
import torch
from marks import thorough_unless
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from worker.execution.executing import blocks_of, decided, some_parts

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker.execution import build, step
from fp8bench.worker.execution.optimizers import make_optimizer
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.protocol import Batch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]


def every_other(patch, parts):
    passes = iter(range(100))
    patch.setattr(step, "update", lambda parts: next(passes) % 2 or parts.optimizer.step())


def stepped_but(share):
    def planted(patch, parts):
        weights = list(parts.plain.parameters())
        kept = weights[-max(1, int(share * len(weights))) :]

        def update(parts):
            before = [weight.detach().clone() for weight in kept]
            parts.optimizer.step()
            with torch.no_grad():
                for weight, then in zip(kept, before, strict=True):
                    weight.copy_(then)

        patch.setattr(step, "update", update)

    return planted


def another_rate_for_one(patch, parts):
    groups = parts.optimizer.param_groups
    groups.append({**groups[0], "params": [groups[0]["params"].pop()], "lr": groups[0]["lr"] / 2})


def scaled(factor):
    return lambda patch, parts: patch.setattr(step, "backward", lambda _parts, loss: (factor * loss).backward())


def of_batches(change):
    def planted(patch, parts):
        forward, first = step.forward, []

        def faulty(parts, model, batch, first_micro_batch=True):
            first.append(batch)
            return forward(parts, model, Batch(*(change(*both) for both in zip(first[0], batch, strict=True))))

        patch.setattr(step, "forward", faulty)

    return planted


def without_gradients(patch, parts):
    block = blocks_of(parts.plain)[0]
    patch.setattr(block, "forward", torch.no_grad()(block.forward))


FAULTS = {
    "no optimizer step": (lambda patch, _: patch.setattr(step, "update", lambda _: None), "its optimizer makes of"),
    "every other step": (every_other, "its optimizer took 2 of 3 steps|what it makes of the weights differs"),
    "half of the weights not stepped": (stepped_but(0.5), "its optimizer makes of"),
    "one weight not stepped": (stepped_but(0), "its optimizer makes of"),
    "another rate for one weight": (another_rate_for_one, "its optimizer's lr is"),
    "gradients add up": (
        lambda patch, parts: patch.setattr(parts.optimizer, "zero_grad", lambda **_: None),
        "gradients",
    ),
    "half the loss": (scaled(0.5), "its gradients are [45].% shorter"),
    "a third more loss": (scaled(1.33), "its gradients are .*% longer"),
    "a stale batch": (of_batches(lambda first, _: first), "its gradients differ"),
    "half of the batch": (of_batches(lambda _, now: now[: len(now) // 2]), "its gradients differ"),
    "every other sample": (of_batches(lambda _, now: now[::2]), "its gradients differ"),
    "one sample": (of_batches(lambda _, now: now[:1]), "its gradients differ"),
    "a block without gradients": (without_gradients, "its gradients differ"),
}


def at_first(patch, _parts):
    forward, passes = step.forward, iter(range(100))

    def faulty(parts, model, batch, first_micro_batch=True):
        halved = Batch(*(tensor[: len(tensor) // 2] for tensor in batch))
        return forward(parts, model, batch if next(passes) else halved)

    patch.setattr(step, "forward", faulty)


OF_OPTIMIZERS = {
    "twice the rate": lambda group: {"lr": 2 * group["lr"]},
    "half the rate": lambda group: {"lr": group["lr"] / 2},
    "a tenth more": lambda group: {"lr": 1.1 * group["lr"]},
    "no momentum": lambda _group: {"momentum": 0.0},
    "other betas": lambda _group: {"betas": (0.95, 0.999)},
    "no decay": lambda _group: {"weight_decay": 0.0},
    "another epsilon": lambda _group: {"eps": 1e-4},
}
BOUNDS = pytest.mark.parametrize("tolerance", [BF16_TOLERANCE, FP8_TOLERANCE], ids=["bf16", "fp8"])


def settled(tolerance, plant=lambda parts: None, workload=None, **values):
    parts, batches = some_parts(workload=workload, **values)
    plant(parts)
    return decided(tolerance=tolerance, parts=(parts, batches), **values)


@BOUNDS
@pytest.mark.parametrize(
    ("workload", "optimizer"),
    [
        *((None, name) for name in ("sgd", "adamw")),
        *(thorough_unless(name == "sgd", LLMMicro(), name, id=f"llm-{name}") for name in ("sgd", "adamw")),
    ],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_is_wrong_is_refused(fault, workload, optimizer, tolerance, monkeypatch):
    plant, told = FAULTS[fault]
    with pytest.raises(MeasurementInvalid, match=told) as refusal:
        settled(tolerance, lambda parts: plant(monkeypatch, parts), workload, optimizer=optimizer)
    assert refusal.value.cause == "execution"


@BOUNDS
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_first_step_that_is_wrong_is_seen_in_its_own_gradients(optimizer, tolerance, monkeypatch):
    with pytest.raises(MeasurementInvalid, match="its gradients of the first step differ"):
        settled(tolerance, lambda parts: at_first(monkeypatch, parts), optimizer=optimizer)


@pytest.mark.parametrize(
    ("fault", "optimizer"),
    [
        *[(fault, name) for fault in list(OF_OPTIMIZERS)[:3] for name in ("sgd", "adam", "adamw")],
        ("no momentum", "sgd"),
        *[(fault, "adam") for fault in ("other betas", "another epsilon")],
        ("no decay", "adamw"),
    ],
)
@BOUNDS
def test_an_optimizer_with_other_settings_is_refused(fault, optimizer, tolerance, monkeypatch):
    def other(*args):
        made = make_optimizer(*args)
        made.param_groups[0].update(OF_OPTIMIZERS[fault](made.param_groups[0]))
        return made

    monkeypatch.setattr(build, "make_optimizer", other)
    with pytest.raises(MeasurementInvalid, match="its optimizer's") as refusal:
        settled(tolerance, optimizer=optimizer)
    assert refusal.value.cause == "execution"


@BOUNDS
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_hooks_of_all_optimizers_change_the_step_and_not_the_reference(optimizer, tolerance):
    def times(factor):
        return lambda optimizer, *_: optimizer.param_groups[0].update(lr=factor * optimizer.param_groups[0]["lr"])

    with ExitStack() as hooks:
        hooks.callback(register_optimizer_step_pre_hook(times(0.1)).remove)
        hooks.callback(register_optimizer_step_post_hook(times(10)).remove)
        with pytest.raises(MeasurementInvalid, match="its optimizer"):
            settled(tolerance, optimizer=optimizer)


class Scaling:
    def scaled(self, loss):
        return loss

    def step(self, optimizer):
        optimizer.step()


class LessLoss(Scaling):
    def scaled(self, loss):
        return 0.8 * loss


class OwnDescent(Scaling):
    @torch.no_grad()
    def step(self, optimizer):
        for weight in optimizer.param_groups[0]["params"]:
            self.change(weight, optimizer.param_groups[0]["lr"])

    def change(self, weight, rate):
        weight.sub_(weight.grad, alpha=rate)


class OwnStep(OwnDescent):
    """Changes one number of each weight, whatever its gradient."""

    def change(self, weight, rate):
        weight.view(-1)[0] -= 1e-3


@BOUNDS
@pytest.mark.parametrize("scaling", [LessLoss, OwnStep, OwnDescent])
def test_a_loss_scale_is_no_way_around_the_optimizers_proof(scaling, tolerance):
    with pytest.raises(MeasurementInvalid, match=r"its optimizer makes of|its gradients are 20% shorter"):
        settled(tolerance, lambda parts: setattr(parts.mode, "loss_scaling", scaling()), optimizer="adamw")
    # One that changes nothing passes.
    assert settled(BF16_TOLERANCE, lambda parts: setattr(parts.mode, "loss_scaling", Scaling())).executed

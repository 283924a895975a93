"""Faults planted in an eager step of one rank, each refused by its name, under the bounds of bf16 and of fp8; and what
is right, which passes every proof through a rank's whole run, far from its bounds.
"""

from contextlib import ExitStack

import pytest
import torch
from marks import thorough_unless
from outside.outside_plugins import TinyLinear
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from worker.execution.executing import CPU, blocks_of, decided, settings, some_parts

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.registry import find_mode, modes
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker import main
from fp8bench.worker.execution import build, step
from fp8bench.worker.execution.afterwards import OF_SAMPLES, shares
from fp8bench.worker.execution.optimizers import make_optimizer
from fp8bench.worker.execution.reference import quarters
from fp8bench.worker.main import measure
from fp8bench.worker.rank_report import Aside
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


RIGHT = {
    **{name: {"optimizer": name} for name in ("sgd", "adam", "adamw", "none")},
    "2 micro-batches": {"grad_accumulation": 2, "optimizer": "adamw"},
    "4 micro-batches": {"grad_accumulation": 4},
    "checkpointing": {"activation_checkpointing": "full"},
    "seed 1": {"seed": 1, "optimizer": "adamw"},
    "seed 2": {"seed": 2},
    "two samples": {"batch_size": 2},
    "learned by heart": {"steps": 60, "optimizer": "adamw"},
    "a loader": {"data": "loader", "workers": 2},
    "fp16": {"mode": "baseline-fp16", "optimizer": "adamw"},
    "torchao": {"mode": "torchao-float8", "recipe": "tensorwise", "optimizer": "adamw"},
    "torchao, rows": {"mode": "torchao-float8", "recipe": "rowwise"},
    "llm": {"workload": "llm-micro", "optimizer": "adamw", "batch_size": 4},
    "llm, torchao": {"workload": "llm-micro", "mode": "torchao-float8", "recipe": "tensorwise", "batch_size": 4},
    **{
        f"16-bit layer, {name}": {"workload": "gpt-layer-micro", "weight_dtype": "bfloat16", "optimizer": name}
        # Its loss is linear in its output, so that momentum drives it to infinity.
        for name in ("adam", "adamw", "none")
    },
}


OF_EACH_KIND = {"adamw", "2 micro-batches", "checkpointing", "a loader", "torchao", "llm", "16-bit layer, adamw"}


def measured(**values):
    return measure(settings(**{"data": "device", "workload": "vit-micro", "warmup": 2, **values}), 0, CPU, Aside())


@pytest.mark.parametrize("right", [thorough_unless(name in OF_EACH_KIND, name) for name in RIGHT])
def test_what_is_right_passes_the_proofs(right):
    report = measured(**RIGHT[right])
    assert report.status == "ok", report.reason
    found = report.evidence.executed
    errors = (found.gradient_error, found.update_error, found.weight_error or 0.0)
    assert max(errors) < found.bound
    assert (found.after_loss_error, found.after_gradient_error) != (None, None)


def test_padding_in_every_sample_passes(monkeypatch):
    class Padded(TinyLinear):
        def batches(self, batch_size, rank, device):
            for batch in super().batches(batch_size, rank, device):
                inputs = batch.inputs.clone()
                inputs[:, 12:] = 0
                yield Batch(inputs, batch.targets)

    monkeypatch.setattr(main, "make_workload", lambda _config: Padded())
    report = measured()
    assert report.status == "ok", report.reason


@pytest.mark.parametrize("mode", list(modes()))
def test_no_mode_is_ok_without_a_proof(mode):
    entry, recipe = find_mode(mode)
    report = measured(mode=entry.name, recipe=recipe)
    assert report.status in ("ok", "unsupported")
    assert (report.status == "ok") == (report.evidence is not None and report.evidence.executed is not None)


def test_samples_that_are_left_out_are_told_from_rounding():
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(4000, generator=generator)
    parts = [{"weight": (common + 0.5 * torch.randn(4000, generator=generator)) / 4} for _ in quarters(8)]
    whole = sum(part["weight"] for part in parts)
    noise = 0.4 * whole.norm() * torch.nn.functional.normalize(torch.randn(4000, generator=generator), dim=0)
    assert max(abs(share - 1) for share in shares({"weight": whole + noise}, parts)) < OF_SAMPLES
    half = 2 * (parts[0]["weight"] + parts[1]["weight"])
    assert max(abs(share - 1) for share in shares({"weight": half + noise}, parts)) > OF_SAMPLES
    assert shares({"weight": whole}, [parts[0]] * 4) != []


@pytest.mark.parametrize(("size", "number"), [(1, 1), (2, 2), (3, 3), (8, 4), (9, 4)])
def test_parts_of_a_batch_are_all_of_it(size, number):
    found = quarters(size)
    assert sorted(place for part in found for place in part) == list(range(size))
    assert len(found) == number

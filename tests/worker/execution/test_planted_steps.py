"""Faults planted in an eager step of one rank, each refused by its name under the widest bounds, those of fp8; and what
is right, which passes every proof through a rank's whole run, far from its bounds.
"""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from kept import thorough_unless
from outside.outside_plugins import TinyLinear
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from worker.execution.executing import CPU, blocks_of, decided, settings, some_parts

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.registry import find_mode, modes
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker import main
from fp8bench.worker.execution import build, step
from fp8bench.worker.execution.gradients import OF_SAMPLES, shares
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


def of_batches(change, passes=100):
    """Changes what the first passes are given. change: is given a tensor of the first batch, and of the present one."""

    def planted(patch, parts):
        forward, first = step.forward, []

        def faulty(parts, model, batch, first_micro_batch=True):
            first.append(batch)
            changed = Batch(*(change(*both) for both in zip(first[0], batch, strict=True)))
            return forward(parts, model, changed if len(first) <= passes else batch)

        patch.setattr(step, "forward", faulty)

    return planted


def first_half(_, now):
    return now[: len(now) // 2]


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
    "half of the batch": (of_batches(first_half), "its gradients differ"),
    "every other sample": (of_batches(lambda _, now: now[::2]), "its gradients differ"),
    "one sample": (of_batches(lambda _, now: now[:1]), "its gradients differ"),
    "a block without gradients": (without_gradients, "its gradients differ"),
}


def settled(plant=lambda parts: None, workload=None, tolerance=FP8_TOLERANCE, **values):
    parts, batches = some_parts(workload=workload, **values)
    plant(parts)
    return decided(tolerance=tolerance, parts=(parts, batches), **values)


@pytest.mark.parametrize(
    ("workload", "optimizer"),
    [
        *((None, name) for name in ("sgd", "adamw")),
        *(thorough_unless(name == "sgd", LLMMicro(), name, id=f"llm-{name}") for name in ("sgd", "adamw")),
    ],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_is_wrong_is_refused(fault, workload, optimizer, monkeypatch):
    plant, told = FAULTS[fault]
    with pytest.raises(MeasurementInvalid, match=told) as refusal:
        settled(lambda parts: plant(monkeypatch, parts), workload, optimizer=optimizer)
    assert refusal.value.cause == "execution"


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_first_step_that_is_wrong_is_seen_in_its_own_gradients(optimizer, monkeypatch):
    with pytest.raises(MeasurementInvalid, match="its gradients of the first step differ"):
        settled(lambda parts: of_batches(first_half, 1)(monkeypatch, parts), optimizer=optimizer)


RATES = {"sgd": 1e-3, "adam": 1e-4, "adamw": 1e-4}


@pytest.mark.parametrize(
    ("optimizer", "setting", "value"),
    [
        *[(name, "lr", factor * rate) for factor in (2, 0.5, 1.1) for name, rate in RATES.items()],
        ("sgd", "momentum", 0.0),
        ("adam", "betas", (0.95, 0.999)),
        ("adam", "eps", 1e-4),
        ("adamw", "weight_decay", 0.0),
    ],
)
def test_an_optimizer_with_other_settings_is_refused(optimizer, setting, value, monkeypatch):
    def other(*args):
        made = make_optimizer(*args)
        made.param_groups[0][setting] = value
        return made

    monkeypatch.setattr(build, "make_optimizer", other)
    with pytest.raises(MeasurementInvalid, match="its optimizer's") as refusal:
        settled(optimizer=optimizer)
    assert refusal.value.cause == "execution"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_hooks_of_all_optimizers_change_the_step_and_not_the_reference(optimizer):
    def times(factor):
        return lambda optimizer, *_: optimizer.param_groups[0].update(lr=factor * optimizer.param_groups[0]["lr"])

    with ExitStack() as hooks:
        hooks.callback(register_optimizer_step_pre_hook(times(0.1)).remove)
        hooks.callback(register_optimizer_step_post_hook(times(10)).remove)
        with pytest.raises(MeasurementInvalid, match="its optimizer"):
            settled(optimizer=optimizer)


def scaling(**changed):
    return SimpleNamespace(**{"scaled": lambda loss: loss, "step": lambda optimizer: optimizer.step(), **changed})


def descent(change):
    @torch.no_grad()
    def stepped(optimizer):
        for weight in optimizer.param_groups[0]["params"]:
            change(weight, optimizer.param_groups[0]["lr"])

    return stepped


SCALINGS = {
    "less loss": {"scaled": lambda loss: 0.8 * loss},
    # Changes one number of each weight, whatever its gradient.
    "own step": {"step": descent(lambda weight, _: weight.view(-1)[0].sub_(1e-3))},
    "own descent": {"step": descent(lambda weight, rate: weight.sub_(weight.grad, alpha=rate))},
}


@pytest.mark.parametrize("changed", SCALINGS.values(), ids=SCALINGS)
def test_a_loss_scale_is_no_way_around_the_optimizers_proof(changed):
    with pytest.raises(MeasurementInvalid, match=r"its optimizer makes of|its gradients are 20% shorter"):
        settled(lambda parts: setattr(parts.mode, "loss_scaling", scaling(**changed)), optimizer="adamw")
    # One that changes nothing passes.
    assert settled(lambda parts: setattr(parts.mode, "loss_scaling", scaling()), tolerance=BF16_TOLERANCE).executed


RIGHT = {
    **{name: {"optimizer": name} for name in ("sgd", "adam", "none")},
    "2 micro-batches": {"grad_accumulation": 2, "optimizer": "adamw"},
    "4 micro-batches": {"grad_accumulation": 4},
    "checkpointing": {"activation_checkpointing": "full"},
    "seed 1": {"seed": 1, "optimizer": "adamw"},
    "seed 2": {"seed": 2},
    "two samples": {"batch_size": 2},
    "learned by heart": {"steps": 60, "optimizer": "adamw"},
    "a loader": {"data": "loader", "workers": 2},
    "torchao, rows": {"mode": "torchao-float8", "recipe": "rowwise"},
    "llm": {"workload": "llm-micro", "optimizer": "adamw", "batch_size": 4},
    "llm, torchao": {"workload": "llm-micro", "mode": "torchao-float8", "recipe": "tensorwise", "batch_size": 4},
    **{
        f"16-bit layer, {name}": {"workload": "gpt-layer-micro", "weight_dtype": "bfloat16", "optimizer": name}
        # Its loss is linear in its output, so that momentum drives it to infinity.
        for name in ("adam", "adamw", "none")
    },
}


OF_EACH_KIND = {"2 micro-batches", "checkpointing", "a loader", "llm", "16-bit layer, adamw"}


def measured(**values):
    return measure(settings(**{"data": "device", "workload": "vit-micro", "warmup": 2, **values}), 0, CPU, Aside())


def require_proved(report):
    assert report.status == "ok", report.reason
    found = report.evidence.executed
    errors = (found.gradient_error, found.update_error, found.weight_error or 0.0)
    assert max(errors) < found.bound
    assert (found.after_loss_error, found.after_gradient_error) != (None, None)


@pytest.mark.parametrize("right", [thorough_unless(name in OF_EACH_KIND, name) for name in RIGHT])
def test_what_is_right_passes_the_proofs(right):
    require_proved(measured(**RIGHT[right]))


@pytest.mark.parametrize("mode", list(modes()))
def test_every_mode_that_runs_here_passes_the_proofs(mode):
    entry, recipe = find_mode(mode)
    report = measured(mode=entry.name, recipe=recipe, optimizer="adamw")
    if report.status != "unsupported":
        require_proved(report)


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

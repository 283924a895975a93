"""Faults that begin after the gate: before timing, when it begins, or in its last steps."""

import re

import pytest
import torch
from kept import thorough_unless
from outside.outside_plugins import Polite
from torch import nn
from worker.execution.executing import blocks_of, settings

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.stats.steps import LEAD_IN, PACE_STEPS, PROOF_STEPS
from fp8bench.worker import main
from fp8bench.worker.execution import gradients, reference
from fp8bench.worker.main import measure
from fp8bench.worker.rank_report import Aside
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.protocol import Batch
from fp8bench.workloads.vit import ViTMicro

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]

CPU = torch.device("cpu")
GATE = 16
"""Samples that a gate looks at."""
WARMUP, STEPS = 6, 6
WARM, TIMED, LAST = 3, WARMUP + PROOF_STEPS + PACE_STEPS, WARMUP + PROOF_STEPS + PACE_STEPS + LEAD_IN + 4
BEGINS = {"in warm-up": WARM, "when timed": TIMED, "in the last steps": LAST}


@pytest.fixture
def measured(monkeypatch):
    ready = main.ready_to_train

    def after_the_gate(*given):
        Later.gated = True
        return ready(*given)

    def run(mode=Polite, workload=ViTMicro, **values):
        monkeypatch.setattr(Later, "gated", False)
        monkeypatch.setattr(main, "ready_to_train", after_the_gate)
        monkeypatch.setattr(main, "make_mode", lambda _config: mode())
        monkeypatch.setattr(main, "make_workload", lambda config: workload(data=config.data))
        asked = {"mode": "a-mode", "warmup": WARMUP, "steps": STEPS, "data": "device"}
        return measure(settings(**{**asked, **values}), 0, CPU, Aside())

    return run


def refused(report):
    assert (report.status, report.cause) == ("invalid", "execution"), report.reason
    return report.reason


class Later(Polite):
    """Does less from the trained step `begins` on. fault: changes the model then. ends: the step at which it does all
    again; whatever the fault returns is called then.
    """

    begins, ends, fault, gated = 0, None, None, False

    def __init__(self, recipe=None):
        super().__init__(recipe)
        self.passes = -1

    def convert(self, model):
        self.model = model
        return model

    def forward_context(self):
        self.passes += self.gated
        if self.passes == type(self).begins:
            self.undo = type(self).fault(self.model)
        if self.passes == type(self).ends:
            self.undo()
        return super().forward_context()


def planted(base=Later, **own):
    return type("Planted", (base,), own)


def caches(model):
    forward, kept = model.forward, []

    def cached(*inputs, **named):
        kept.append(kept[0] if kept else forward(*inputs, **named).detach().requires_grad_())
        return kept[0]

    model.forward = cached


def with_forward(module, change):
    forward = module.forward
    module.forward = lambda *inputs, **named: change(forward, *inputs, **named)


def half(model):
    with_forward(model, lambda forward, x: forward(x[: len(x) // 2]).repeat(2, 1))


OF_MODES = {
    "skips": lambda model: with_forward(blocks_of(model)[-1], lambda _, x, *__, **___: x),
    "caches": caches,
    "one sample": lambda model: with_forward(model, lambda forward, x: forward(x[:1]).expand(len(x), -1)),
    "half": half,
    "detaches": lambda model: with_forward(model, lambda forward, x: forward(x).detach().requires_grad_()),
    "detaches a block": lambda model: with_forward(
        blocks_of(model)[-1], lambda forward, x, *_, **__: x + (forward(x) - x).detach()
    ),
    "no weight gradients": lambda model: blocks_of(model).requires_grad_(False),
    "one without gradient": lambda model: next(blocks_of(model)[0].parameters()).requires_grad_(False),
}
OF_EACH_KIND = {"skips", "half", "detaches a block", "no weight gradients"}


@pytest.mark.parametrize(
    ("fault", "begins"),
    [
        thorough_unless(at == TIMED and fault in OF_EACH_KIND, plant, at, id=f"{fault}-{when}")
        for fault, plant in OF_MODES.items()
        for when, at in BEGINS.items()
    ],
)
def test_a_mode_that_does_less_later_is_refused_under_the_widest_bounds(fault, begins, measured):
    report = measured(planted(begins=begins, fault=fault, tolerance=FP8_TOLERANCE))
    assert ("as executed" if begins == WARM else "after its timed steps") in refused(report)


def test_a_mode_that_freezes_weights_when_it_converts_again_is_refused(measured):
    class Again(Polite):
        calls = 0

        def convert(self, model):
            Again.calls += 1
            if Again.calls > 1:
                model.blocks.requires_grad_(False)
            return model

    assert "it does not train blocks." in refused(measured(Again))


class MeanOfValues(Polite):
    def convert(self, model):
        for block in model.blocks:

            def mean(forward, x, *more, attention=block.attn, **named):
                if len(x) <= GATE:
                    return forward(x, *more, **named)
                values = attention.qkv(x).chunk(3, -1)[2]
                return attention.proj(values.mean(1, keepdim=True).expand_as(values))

            with_forward(block.attn, mean)
        return model


def test_attention_that_is_left_out_of_large_batches_has_no_gradient_at_queries_and_keys(measured):
    report, honest = (
        measured(planted(mode, tolerance=bounds), batch_size=2 * GATE)
        for mode, bounds in ((MeanOfValues, FP8_TOLERANCE), (Polite, BF16_TOLERANCE))
    )
    assert re.search(r"differs|no gradient reaches .*rows \d+/12 of blocks.\d.attn.qkv", refused(report))
    assert honest.status == "ok", honest.reason


def times(factor, of):
    def fault(model):
        for name, weight in model.named_parameters():
            if of in name:
                weight.register_hook(lambda gradient: factor * gradient)

    return fault


def mixes_samples(model):
    with_forward(blocks_of(model)[-1], lambda forward, x: torch.lerp(forward(x), forward(x).roll(1, 0), 0.15))


def stale_gradients(model):
    for weight in blocks_of(model)[-1].parameters():
        kept = []
        weight.register_hook(lambda gradient, kept=kept: kept[0] if kept else kept.append(gradient.clone()))


OF_ONE_WEIGHT = {
    "a gradient halved": (times(0.5, "blocks.1.mlp.fc1.weight"), BF16_TOLERANCE),
    "a gradient halved, in fp8": (times(0.5, "blocks.1.mlp.fc1.weight"), FP8_TOLERANCE),
    "a gradient doubled": (times(2.0, "blocks.0.attn.qkv"), BF16_TOLERANCE),
    "gradients of an earlier step": (stale_gradients, FP8_TOLERANCE),
    "samples mixed": (mixes_samples, BF16_TOLERANCE),
    "dropout": (
        lambda model: with_forward(blocks_of(model)[-1].mlp, lambda forward, x: nn.functional.dropout(forward(x), 0.1)),
        BF16_TOLERANCE,
    ),
}


@pytest.mark.parametrize(
    ("fault", "bounds"),
    [thorough_unless("halved" in name or name == "dropout", *one, id=name) for name, one in OF_ONE_WEIGHT.items()],
)
def test_what_later_changes_the_gradients_of_a_few_weights_is_seen_in_these(fault, bounds, measured):
    reason = refused(measured(planted(begins=TIMED, fault=fault, tolerance=bounds)))
    assert re.search(r"its gradient of blocks\.\d\.\S+ differs by|gradients differ by|gradients are not those", reason)


@torch.no_grad()
def rounds_weights(model, *_):
    for weight in model.parameters():
        weight.copy_(weight.bfloat16())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_that_later_lose_what_the_optimizer_made_of_them_are_refused(optimizer, measured):
    rounding = planted(begins=TIMED, fault=lambda model: model.register_forward_pre_hook(rounds_weights))
    assert "its optimizer makes of the gradient of cls_token" in refused(measured(rounding, optimizer=optimizer))
    report = measured(optimizer=optimizer)
    assert report.status == "ok", report.reason


def test_a_weight_that_rounding_takes_as_far_is_no_fault(measured, monkeypatch):
    monkeypatch.setattr(gradients.Off, "beyond", lambda _off, _tolerance, bf16=(), fp8=(): not bf16)
    assert measured().status == "ok"


class Counting(ViTMicro):
    begins = losses = 0

    def batches(self, batch_size, rank, device):
        for step, batch in enumerate(super().batches(batch_size, rank, device)):
            yield self.given(batch) if step >= self.begins else batch

    given = staticmethod(lambda batch: batch)

    def loss(self, model, batch):
        self.losses += torch.is_grad_enabled()
        return self.later(model, batch) if self.losses > self.begins else super().loss(model, batch)

    def later(self, model, batch):
        return super().loss(model, batch)


class Shrinks(Counting):
    given = staticmethod(lambda batch: Batch(batch.inputs[:1], batch.targets[:1]))


class SmallerImages(Counting):
    given = staticmethod(lambda batch: Batch(batch.inputs[..., ::2, ::2].contiguous(), batch.targets))

    def build(self, device):
        model = super().build(device)
        model.patch_embed.strict_img_size = False
        model.pos_embed = nn.Parameter(model.pos_embed[:, :1].clone())
        return model


def keeps_its_output(model):
    forward = model.forward
    caches(model)
    return lambda: setattr(model, "forward", forward)


def drops_gradients(model):
    weights = [weight for block in blocks_of(model) for weight in block.parameters()]
    hooks = [one.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None)) for one in weights]
    return lambda: [hook.remove() for hook in hooks]


@pytest.mark.parametrize(
    ("fault", "ends", "words"),
    [
        (keeps_its_output, TIMED + LEAD_IN + STEPS - 1, "exactly the loss of the step before"),
        (drops_gradients, TIMED + LEAD_IN + STEPS, "did not move while steps were timed: blocks"),
    ],
)
def test_what_is_left_out_only_while_steps_are_timed_is_seen(fault, ends, words, measured):
    assert words in refused(measured(planted(begins=TIMED, ends=ends, fault=fault)))


class Detached(Counting):
    def later(self, model, batch):
        return super().later(model, batch).detach().requires_grad_()


class HalfOfTheLoss(Counting):
    def later(self, model, batch):
        return super().later(model, Batch(*(part[: len(part) // 2] for part in batch)))


OF_WORKLOADS = {
    Shrinks: r"gave 1 samples at step [1-9]",
    SmallerImages: r"gave a batch of \[8, 3, 16, 16\] at step [1-9]",
    Detached: "gradient",
    HalfOfTheLoss: "gradients differ",
}


@pytest.mark.parametrize(
    ("workload", "begins"),
    # The gate, which runs the same loss, sees half of it as logits of half of the samples.
    [
        *[
            thorough_unless(begins == TIMED, one, begins)
            for one in OF_WORKLOADS
            for begins in (WARM, TIMED, LAST)
            if (one, begins) != (HalfOfTheLoss, WARM)
        ],
        (HalfOfTheLoss, 0),
    ],
)
def test_a_workload_that_gives_less_later_is_refused(workload, begins, measured):
    report = measured(workload=planted(workload, begins=begins))
    # A workload counts the gate's losses too.
    causes = ("execution", "parity") if begins <= WARM else ("execution",)
    assert (report.status, report.cause in causes) == ("invalid", True), report.reason
    if report.cause == "execution" and begins:
        assert re.search(OF_WORKLOADS[workload], report.reason)


@pytest.mark.parametrize(("workload", "factor"), [(ViTMicro, 1000), (ViTMicro, 0.5), (LLMMicro, 2)])
def test_units_that_a_batch_does_not_hold_are_refused(workload, factor, measured):
    class Counts(workload):
        def units_per_step(self, batch_size):
            return int(factor * super().units_per_step(batch_size))

    assert "a step, and its batches of" in refused(measured(workload=Counts))


class Chaotic(ViTMicro):
    """Adds to the loss what the last digit of a weight turns around, at unseen batches: its gradient is larger than the
    loss's, and another for each part of a batch. turns: by how much a weight turns it. unseen: which batches.
    """

    turns, unseen = 1e9, range(1, 2)

    def batches(self, batch_size, rank, device):
        for batch in super().batches(batch_size, rank, device):
            if rank in self.unseen:
                batch.inputs[:, 0, 0, 0] = 100.0
            yield batch

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if batch.inputs[0, 0, 0, 0].item() != 100.0:
            return loss
        weight = model.head.weight
        angle = self.turns * (weight * batch.inputs.mean() + weight * weight).sum()
        return loss + 100 * torch.sin(angle) / self.turns


HALF = planted(begins=LAST, fault=half)


def test_a_batch_whose_gradient_is_rounding_tells_nothing_and_the_next_one_is_taken(measured):
    report = measured(workload=Chaotic)
    assert report.status == "ok", report.reason
    assert report.evidence.executed.after_gradient_error < 0.05
    (warning,) = report.evidence.warnings
    assert "gradients of 1 of 2 batches" in warning


@pytest.mark.parametrize(
    ("workload", "alone", "remedy"),
    [
        (ViTMicro, (0, 0.05), "Do not use its speed"),
        (Chaotic, (0, 0.05), "Do not use its speed"),
        (planted(Chaotic, unseen=range(1, 99)), (0.1, 99), "--seed"),
    ],
    ids=["no rounding", "in the first batch", "in every batch"],
)
def test_a_fault_is_found_beside_rounding_and_the_refusal_says_how_large_that_is(workload, alone, remedy, measured):
    report = measured(HALF, workload)
    found = float(re.search(r"rounding alone changes the plain model's(?: gradients)? by ([\d.]+)", refused(report))[1])
    assert alone[0] <= found <= alone[1]
    assert remedy in report.remedy


def test_scales_of_earlier_passes_see_the_new_batch_before_it_is_compared(measured):
    def trained(passes):
        made = []

        class Keeps(Polite):
            tolerance = FP8_TOLERANCE.model_copy(update={"settle_passes": passes})

            def forward_context(self):
                made.append(Later.gated)
                return super().forward_context()

        report = measured(Keeps)
        assert report.status == "ok", report.reason
        return sum(made)

    assert trained(2) - trained(0) == 2


def test_where_no_other_model_has_room_the_loss_alone_is_compared_after_timing(measured, monkeypatch):
    monkeypatch.setattr(reference, "free_bytes", lambda _device: 0)
    evidence = measured().evidence
    assert evidence.executed.after_gradient_error is None
    assert evidence.executed.after_loss_error < 0.05
    (warning,) = evidence.warnings
    assert "the loss alone was compared" in warning


def test_where_rounding_alone_has_no_room_a_fault_is_refused_without_it(measured, monkeypatch):
    monkeypatch.setattr(gradients, "free_bytes", lambda _device: 0)
    reason = refused(measured(HALF))
    assert "its gradients differ by" in reason
    assert "rounding alone" not in reason


def test_where_rounding_alone_has_no_room_the_record_names_the_weight_that_is_further_off(measured, monkeypatch):
    monkeypatch.setattr(gradients, "free_bytes", lambda _device: 0)
    monkeypatch.setattr(gradients.Off, "beyond", lambda _off, _tolerance, bf16=(), fp8=(): not bf16)
    (warning,) = measured().evidence.warnings
    assert "weights are further off than all may be" in warning
    assert "memory does not suffice" in warning

"""One rank that trains on a text, in this process: from the same start whatever came before, validated on the way."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from builders import config
from outside.outside_plugins import Polite, TinyLanguage
from torch import nn
from worker.execution.executing import Delayed, plain_parts

from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.converge import Curve, TextPlan
from fp8bench.schema.errors import RunFailed
from fp8bench.stats.steps import PACE_STEPS
from fp8bench.worker import convergence, parity
from fp8bench.worker.convergence import measure, rate_at
from fp8bench.worker.execution.step import NO_MARKS, Snapshot, step
from fp8bench.worker.progress import read_progress
from fp8bench.worker.rank_report import Aside
from fp8bench.workloads.text import read

CPU = torch.device("cpu")
SETTINGS = {"device": "cpu", "world_size": 1, "batch_size": 4, "warmup": 2, "steps": 6, "data": "device", "workers": 0}

pytestmark = pytest.mark.usefixtures("process_group", "one_thread")


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "abc.txt"
    file.write_text(" ".join(Random(0).choices(["one", "word", "follows", "another"], k=800)))
    settings = {"validate_every": 4, "validation_batches": 2, "learning_rate": 0.01, "rate_warmup": 2}
    sizes, sha256 = {"sequence_length": 16}, read(file).facts.sha256
    return TextPlan(text_file=str(file), text_sha256=sha256, sizes=sizes, **settings)


@pytest.fixture
def report(monkeypatch, plan):
    def run(mode=None, aside=Aside(), of_plan=(), **values):  # noqa: B008
        monkeypatch.setattr(convergence, "make_mode", lambda _config: mode or Polite())
        monkeypatch.setattr(convergence, "make_workload", lambda run: TinyLanguage(seed=run.seed))
        made = config("a-mode", **{**SETTINGS, "optimizer": "adamw", "compile": "off", **values})
        return measure(made, 0, CPU, aside, plan.model_copy(update=dict(of_plan)).model_dump(mode="json"))

    return run


def curve(report):
    assert report.status == "ok", report.reason
    return Curve.model_validate(report.found)


class TestReport:
    def test_it_has_a_curve_and_all_that_shows_what_ran_of_an_emulation_too_and_progress_counts(self, report, tmp_path):
        found = report(TorchAOFloat8(), aside=Aside(progress=tmp_path / "progress"))
        trained = curve(found)
        assert found.environment is not None
        of_model = found.parity.passed, found.facts.sizes["vocab_size"], found.evidence.graph.enabled
        assert (*of_model, found.evidence.emulated) == (True, 256, False, True)
        assert found.memory.peak_host_bytes > 0
        assert [point.step for point in trained.validation] == [0, 4, 6]
        assert (len(trained.train_loss), len(trained.step_s)) == (6, 6)
        assert trained.validation[0].loss == pytest.approx(math.log(256), rel=0.1)
        assert trained.validation[-1].loss < trained.validation[0].loss
        last = read_progress(tmp_path / "progress")
        assert (last.stage, last.step, last.steps) == ("done", *[2 + PACE_STEPS + 6] * 2)

    def test_another_text_than_the_launchers_is_refused_and_a_mode_that_fails_the_gate_not_trained(self, report):
        with pytest.raises(RunFailed, match=r"abc\.txt is not the text that this training began with"):
            report(of_plan={"text_sha256": "0" * 64})

        class Reversed(Polite):
            def convert(self, model):
                model.head.weight.data.neg_()
                return model

        found = report(Reversed())
        assert (found.status, found.cause, found.found) == ("invalid", "parity", None)


class TestSameStart:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"optimizer": "sgd", "warmup": 1}, {"optimizer": "sgd", "warmup": 9}),
            ({"optimizer": "adamw", "warmup": 1}, {"optimizer": "adamw", "warmup": 9}),
            ({"of_plan": {"validate_every": 1}}, {"of_plan": {"validate_every": 6}}),
        ],
    )
    def test_steps_before_the_first_one_that_counts_and_validation_leave_no_trace(self, report, one, other):
        found, expected = curve(report(**one)), curve(report(**other))
        assert found.train_loss == expected.train_loss
        of_step = {point.step: point for point in expected.validation}
        assert [point for point in found.validation if point.step in of_step] == list(of_step.values())

    @pytest.mark.parametrize("mode", [Polite, TorchAOFloat8])
    def test_the_gate_moves_no_digit_of_the_first_loss(self, report, mode, monkeypatch):
        gated = curve(report(mode())).train_loss[0]

        def ungated(mode, workload, _rank, device, *_):
            proof = prove(mode, workload, 0, device)
            return replace(proof, model=mode.convert(workload.build(device)))

        prove = parity.prove
        monkeypatch.setattr(parity, "prove", ungated)
        assert curve(report(mode())).train_loss[0] == gated

    def test_a_seed_is_other_weights_and_another_order(self, report):
        one, again, other = (curve(report(seed=seed)) for seed in (1, 1, 2))
        assert one.train_loss == again.train_loss
        assert one.train_loss != other.train_loss

    def test_scales_that_a_mode_keeps_are_put_back_also_by_validation(self):
        workload, mode = TinyLanguage(), Delayed()
        parts = plain_parts(workload, mode.convert(workload.build(CPU)), mode)
        step(parts, next(workload.batches(2, 0, CPU)), NO_MARKS)
        start = Snapshot.of(parts, CPU)
        before = [scale.clone() for scale in mode.step_state(parts.plain)]
        assert before
        losses = []
        for _ in range(2):
            batches = workload.batches(2, 0, CPU)
            losses.append([float(step(parts, next(batches), NO_MARKS)) for _ in range(3)])
            start.restore(parts)
            assert all(map(torch.equal, before, mode.step_state(parts.plain)))
        assert losses[1][0] == losses[0][0]
        kept = [scale.clone() for scale in mode.step_state(parts.plain)]
        convergence.validation_loss(parts, [next(workload.batches(2, 1, CPU))], compiled=False)
        assert all(map(torch.equal, kept, mode.step_state(parts.plain)))


def test_training_ends_where_a_loss_is_not_finite(report):
    class Explodes(Polite):
        passes = 0

        def convert(self, model):
            model.head.register_forward_pre_hook(self.count)
            return model

        def count(self, head, _inputs):
            self.passes += torch.is_grad_enabled()
            if self.passes > 18:
                with torch.no_grad():
                    head.weight.fill_(math.inf)

    found = curve(report(Explodes(), steps=20))
    assert None in found.train_loss
    assert (len(found.train_loss) < 20, found.validation[-1].loss) == (True, None)


def test_the_rate_rises_by_equal_parts_and_stays_and_steps_take_it(plan, report, monkeypatch):
    rising = [0.01 / 3, 0.02 / 3, 0.01, 0.01, 0.01]
    assert [rate_at(number, plan) for number in range(5)] == pytest.approx(rising)
    seen = []
    plainly = torch.optim.AdamW.step

    def noted(self, *arguments):
        seen.append(self.param_groups[0]["lr"])
        return plainly(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    report()
    assert seen[-6:] == pytest.approx([*rising, 0.01])


def test_a_batch_is_the_text_and_its_targets_are_one_byte_later(plan):
    text = read(plan.text_file)
    workload = convergence.OnText(TinyLanguage(sequence_length=16), text, 1, 0)
    batch = next(workload.batches(3, 0, CPU))
    assert (batch.inputs.shape, batch.targets.shape, batch.inputs.dtype) == ((3, 16), (3, 16), torch.int64)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert bytes(batch.inputs[0].tolist()) in text.train
    assert isinstance(workload.build(CPU), nn.Module)
    [held_out] = workload.validation(2, 1, 0, CPU)
    assert bytes(held_out.inputs[1].tolist()) in text.validation

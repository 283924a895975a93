"""fp16 with a scaled loss: the gate, the steps that are skipped, and the proof of the scale."""

import pytest
import torch
from torch import nn
from worker.execution.executing import CAPTURED, FrozenScales, Replayed, gate, settings, some_parts

from fp8bench.modes.baseline import BaselineFP16, LossScaling, _begin_momentum
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.worker.execution.build import choose
from fp8bench.worker.execution.decide import decide
from fp8bench.worker.execution.step import NO_MARKS, step
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
INFINITE = float("inf")


class Trained:
    def __init__(self, **of_sgd):
        self.weight = nn.Parameter(torch.ones(4))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.5, **of_sgd)
        self.scaling = LossScaling(CPU)

    def step(self, gradient):
        self.optimizer.zero_grad()
        self.scaling.scaled((self.weight * gradient).sum()).backward()
        self.scaling.step(self.optimizer)
        return self.weight.detach().tolist()


def test_a_step_whose_gradients_are_not_finite_is_skipped_halves_the_scale_is_counted_and_many_are_warned_of():
    assert Trained().step(1.0) == [0.5] * 4
    one = Trained()
    scale = float(one.scaling.state()[0])
    assert one.step(INFINITE) == [1.0] * 4
    assert one.step(1.0) == [0.5] * 4
    assert one.scaling.evidence() == {"loss_scale": scale / 2, "optimizer_steps": 2, "skipped_steps": 1}
    mode = BaselineFP16()
    mode.loss_scaling = one.scaling
    [warning] = mode.evidence(nn.Linear(4, 4))["warnings"]
    assert warning.startswith("1 of 2 optimizer steps were skipped")


def test_fused_sgd_whose_first_step_is_skipped_begins_with_no_momentum():
    one = Trained(momentum=0.9, fused=True)
    one.step(INFINITE)
    assert one.optimizer.state[one.weight]["momentum_buffer"].tolist() == [0.0] * 4
    assert one.step(1.0) == [0.5] * 4
    assert one.step(0.0) == pytest.approx([0.5 - 0.5 * 0.9] * 4)
    other = Trained(momentum=0.9)
    _begin_momentum(other.optimizer)
    assert not other.optimizer.state, "one that does not skip by itself is left alone"


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
class TestInTraining:
    def test_steps_train_in_fp16_and_none_is_skipped(self):
        with torch.autocast("cpu", dtype=torch.bfloat16), BaselineFP16().forward_context():
            assert nn.functional.linear(torch.ones(1, 4), torch.ones(4, 4)).dtype == torch.float16
        parts, batches = some_parts(BaselineFP16(), warm=0)
        losses = [float(step(parts, next(batches), NO_MARKS)) for _ in range(8)]
        assert losses[-1] < losses[0]
        assert parts.mode.loss_scaling.evidence()["skipped_steps"] == 0

    def decided(self, launch):
        parts, batches = some_parts(BaselineFP16())
        return decide(settings(cuda_graphs="on"), parts, CAPTURED, batches, gate(parts), lambda _: None, launch)

    def test_replayed_steps_are_proved_with_their_scale_and_one_that_stands_still_is_found(self):
        assert self.decided(Replayed).executed.state_error == 0
        with pytest.raises(MeasurementInvalid, match="fp8's scales differs by"):
            self.decided(FrozenScales)

    def test_weights_that_ranks_share_are_refused(self):
        with pytest.raises(ModeUnavailable, match="skip steps apart"):
            choose(settings(parallel="fsdp"), BaselineFP16(), CPU, ViTMicro())

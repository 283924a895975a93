"""A step of several micro-batches is the step of the whole batch: the same loss, gradients and update."""

import pytest
import torch
from outside.outside_plugins import TinyLinear
from worker.execution.executing import CAPTURED, CPU, Delayed, Replayed, decided, some_parts

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker.execution.step import NO_MARKS, micro_batches, step

pytestmark = pytest.mark.usefixtures("process_group")

IN_TWO = {"cuda_graphs": "on", "grad_accumulation": 2}


def test_the_gradients_are_those_of_the_whole_batch():
    whole, batches = some_parts(warm=0)
    batch = next(batches)
    parts, _ = some_parts(warm=0, grad_accumulation=4)
    loss, pieces = step(whole, batch, NO_MARKS), step(parts, batch, NO_MARKS)
    assert pieces.item() == pytest.approx(loss.item(), rel=1e-3)
    for one, other in zip(whole.plain.parameters(), parts.plain.parameters(), strict=True):
        assert (other.grad - one.grad).norm() <= 0.03 * one.grad.norm() + 1e-6


@pytest.mark.parametrize("mode", [None, Delayed()], ids=["plain", "scales"])
def test_the_steps_are_proved_against_whole_batches(mode):
    tolerance = FP8_TOLERANCE if mode else BF16_TOLERANCE
    found = decided(Replayed, CAPTURED, tolerance, some_parts(mode, grad_accumulation=2), **IN_TWO)
    assert found.parallel.grad_accumulation == 2
    assert found.executed.update_error < 0.05
    # Scales follow from what a pass sees, so that the plain steps see the same micro-batches.
    assert found.executed.batch_size == (4 if mode else 8)


class FirstOnly(Replayed):
    """Trains on the first of its micro-batches."""

    def __call__(self, batch, marks):
        first = micro_batches(batch, 2)[0]
        return super().__call__(type(batch)(*(torch.cat([tensor, tensor]) for tensor in first)), marks)


def test_a_micro_batch_that_is_left_out_is_found():
    with pytest.raises(MeasurementInvalid, match="its gradients differ"):
        decided(FirstOnly, CAPTURED, parts=some_parts(grad_accumulation=2), **IN_TWO)


def test_a_batch_that_is_not_divided_is_refused():
    batch = next(TinyLinear().batches(9, 0, CPU))
    with pytest.raises(MeasurementInvalid, match="a batch of 9 samples is not divided by 2 micro-batches"):
        micro_batches(batch, 2)

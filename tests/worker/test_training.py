"""A model made ready to train: as it was chosen to be executed, and its batches ended with it."""

import gc
from contextlib import nullcontext

import pytest
import torch
from builders import config
from outside.outside_plugins import Polite, TinyLinear
from torch import nn
from worker.execution.executing import PLAIN

from fp8bench.worker.clock import HostClock
from fp8bench.worker.execution.build import ready_to_train
from fp8bench.worker.execution.step import PythonLaunch
from fp8bench.worker.timing import Training, train

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("process_group")


class Watched(TinyLinear):
    """Knows whether its batches were ended."""

    ended = False

    def batches(self, batch_size, rank, device):
        try:
            yield from super().batches(batch_size, rank, device)
        finally:
            self.ended = True


def ready(workload=None, model=None):
    settings = config(device="cpu", world_size=1, batch_size=8)
    model = nn.Linear(16, 4) if model is None else model
    return ready_to_train(settings, 0, CPU, Polite(), workload or TinyLinear(), model, PLAIN)


def test_it_trains_the_very_model_it_was_given():
    model = nn.Linear(16, 4)
    before = model.weight.detach().clone()
    with ready(model=model) as (parts, batches):
        assert parts.plain is parts.model is model
        training = Training(PythonLaunch(parts), batches, CPU)
        losses = train(training, 3, HostClock(), lambda _step: None).losses
    assert len(losses) == 3
    assert not torch.equal(model.weight, before)


def test_its_batches_go_on_from_one_loop_to_the_next():
    with ready() as (_, batches):
        first, second = next(batches), next(batches)
    assert not torch.equal(first.inputs, second.inputs)


@pytest.mark.parametrize("fails", [False, True], ids=["done", "a step failed"])
def test_its_batches_are_ended_with_it(fails):
    workload = Watched()
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), ready(workload) as (_, batches):
        next(batches)
        assert not workload.ended
        if fails:
            raise ZeroDivisionError
    assert workload.ended


@pytest.mark.thorough
def test_what_was_made_before_is_no_longer_walked_by_the_collector():
    gc.unfreeze()
    with ready():
        assert gc.get_freeze_count() > 1000

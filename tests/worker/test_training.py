"""A model made ready to train: inside DDP, compiled where that was decided, and its batches ended with it."""

import gc

import pytest
import torch
from builders import config
from outside.outside_plugins import Polite, TinyLinear
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fp8bench.worker.clock import HostClock
from fp8bench.worker.loop import train
from fp8bench.worker.training import ready_to_train

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("process_group", "thawed")


class Watched(TinyLinear):
    """Knows whether its batches were ended."""

    ended = False

    def batches(self, batch_size, rank, device):
        try:
            yield from super().batches(batch_size, rank, device)
        finally:
            self.ended = True


@pytest.fixture
def unset_again():
    """torch's setting as it was, after the test."""
    import torch._dynamo.config

    before = torch._dynamo.config.optimize_ddp
    yield
    torch._dynamo.config.optimize_ddp = before


def ready(workload=None, model=None, compiled=False, world_size=1):
    settings = config(device="cpu", world_size=world_size, batch_size=8)
    model = nn.Linear(16, 4) if model is None else model
    return ready_to_train(settings, 0, CPU, Polite(), workload or TinyLinear(), model, compiled)


def test_it_trains_the_very_model_it_was_given():
    model = nn.Linear(16, 4)
    before = model.weight.detach().clone()
    with ready(model=model) as training:
        assert isinstance(training.model, DistributedDataParallel)
        assert training.model.module is model
        losses = train(training, 3, HostClock(), lambda _step: None).losses

    assert len(losses) == 3
    assert not torch.equal(model.weight, before)


def test_its_batches_go_on_from_one_loop_to_the_next():
    first, second = [], []
    with ready() as training:
        first.append(next(training.batches).inputs)
        second.append(next(training.batches).inputs)

    assert not torch.equal(first[0], second[0])


def test_its_batches_are_ended_with_it():
    workload = Watched()
    with ready(workload) as training:
        next(training.batches)
        assert not workload.ended

    assert workload.ended


def test_they_are_ended_also_where_a_step_failed():
    workload = Watched()
    with pytest.raises(ZeroDivisionError), ready(workload) as training:  # noqa: PT012
        next(training.batches)
        raise ZeroDivisionError

    assert workload.ended


def test_what_was_made_before_is_no_longer_walked_by_the_collector():
    gc.unfreeze()
    with ready():
        assert gc.get_freeze_count() > 1000


@pytest.mark.usefixtures("unset_again")
@pytest.mark.parametrize(("world_size", "cut"), [(1, False), (2, True)], ids=["one GPU", "two GPUs"])
def test_a_single_gpu_compiles_one_graph_and_several_cut_it_at_the_buckets_of_ddp(world_size, cut, monkeypatch):
    given = []
    monkeypatch.setattr(torch, "compile", lambda model: given.append(model) or nn.Sequential(model))
    torch._dynamo.config.optimize_ddp = not cut
    model = nn.Linear(16, 4)
    with ready(model=model, compiled=True, world_size=world_size) as training:
        assert torch._dynamo.config.optimize_ddp is cut
        assert given == [model]
        assert isinstance(training.model.module, nn.Sequential)


def test_what_is_not_to_be_compiled_is_not(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda _model: pytest.fail("it was compiled"))
    with ready(compiled=False) as training:
        assert isinstance(training.model.module, nn.Linear)

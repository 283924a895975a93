"""A loader that is too slow shows, however much it had made ahead: real loader processes, and work made of sleeps."""

import time
from statistics import mean

import pytest
import torch
from builders import workload_facts
from outside.outside_plugins import TinyLinear
from torch.utils.data import Dataset
from worker.execution.executing import plain_parts

from fp8bench.stats.length import LEAD_IN, Length
from fp8bench.stats.steps import bottleneck
from fp8bench.stats.summary import summarize
from fp8bench.worker.execution.step import PythonLaunch
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.timing import Training, time_steps
from fp8bench.workloads.fake_data import PREFETCH_FACTOR, EndlessSampler, LoaderBatches
from fp8bench.workloads.protocol import prefetched

CPU = torch.device("cpu")
ENDLESS = 1_000_000
STEP_S = 0.05

pytestmark = [
    pytest.mark.usefixtures("process_group"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Sleeping(Dataset):
    def __init__(self, item_s):
        self.item_s = item_s

    def __len__(self):
        return ENDLESS

    def __getitem__(self, index):
        time.sleep(self.item_s)
        return torch.ones(16), index % 4


class TakesItsTime(TinyLinear):
    def __init__(self, step_s):
        super().__init__()
        self.step_s = step_s

    def loss(self, model, batch):
        time.sleep(self.step_s)
        return super().loss(model, batch)


def loader(batch_s, workers):
    return LoaderBatches(Sleeping(batch_s * max(workers, 1)), EndlessSampler(ENDLESS, 1, 0), 1, CPU, workers)


def timed(batches, steps, warmup=3, step_s=STEP_S):
    workload = TakesItsTime(step_s)
    training = Training(PythonLaunch(plain_parts(workload, workload.build(CPU))), batches, CPU)
    return time_steps(training, 0, Length(warmup, steps), ProgressFile(None)).samples


def waits_for(batches, number):
    for _ in range(number):
        began = time.perf_counter()
        next(batches)
        yield time.perf_counter() - began


@pytest.mark.serial
@pytest.mark.parametrize(("workers", "steps", "step_s"), [(2, 16, 0.12), (16, 10, 0.08)])
def test_the_step_is_as_long_as_the_loader_takes_and_is_called_loader_bound(workers, steps, step_s):
    batches = loader(1.4 * step_s, workers)
    samples = timed(batches, steps, step_s=step_s)
    alone_s = mean(list(waits_for(batches, 2 * batches.prefetched))[batches.prefetched :])
    batches.close()
    summary = summarize([samples], workload_facts())
    assert summary.step_time_s == pytest.approx(alone_s, rel=0.1)
    assert summary.step_time_s > 0.99 * 1.4 * step_s
    assert bottleneck(None, summary.data_wait_share).label == "loader-bound"
    if workers == 16:
        # Sixteen deliver at once, so that most steps wait for nothing, and the median hides those that do.
        assert summary.median_step_s < summary.step_time_s


@pytest.mark.serial
def test_a_loader_in_the_rank_itself_is_waited_for_all_the_time_that_it_takes():
    step_s = 4 * STEP_S
    batches = loader(0.5 * step_s, workers=0)
    summary = summarize([timed(batches, 6, warmup=1, step_s=step_s)], workload_facts())
    assert summary.data_wait_s == pytest.approx(0.5 * step_s, rel=0.2)
    assert summary.data_wait_share == pytest.approx(1 / 3, abs=0.05)
    assert str(bottleneck(None, summary.data_wait_share)).startswith("loader-bound (wait 3")


@pytest.mark.serial
def test_one_that_keeps_up_shows_no_wait():
    batches = loader(1.6 * STEP_S, workers=2)
    summary = summarize([timed(batches, 12, step_s=4 * STEP_S)], workload_facts())
    batches.close()
    assert summary.data_wait_share < 0.05
    assert bottleneck(None, summary.data_wait_share) is None


class Counted:
    """Says that so many batches may be waiting."""

    def __init__(self, waiting):
        self.made = 0
        if waiting is not None:
            self.prefetched = waiting

    def __next__(self):
        self.made += 1
        return next(TinyLinear().batches(4, 0, CPU))


@pytest.mark.thorough
@pytest.mark.parametrize(("waiting", "timed_steps", "dropped"), [(None, 3, 0), (0, 3, 0), (2, 4, 2), (7, 7, 7)])
def test_what_may_be_waiting_is_dropped_and_without_a_word_nothing_is(waiting, timed_steps, dropped):
    batches = Counted(waiting)
    samples = timed(batches, 3, warmup=1)
    assert len(samples.step_s) == timed_steps
    assert batches.made == 1 + dropped + LEAD_IN + timed_steps


@pytest.mark.serial
def test_a_full_queue_holds_no_more_than_it_says():
    assert prefetched(loader(0.0, 0)) == prefetched(TinyLinear().batches(4, 0, CPU)) == 0
    batches = loader(0.05, workers=2)
    assert prefetched(batches) == 2 * PREFETCH_FACTOR
    next(batches)
    time.sleep(1.0)
    waits = list(waits_for(batches, batches.prefetched + 1))
    batches.close()
    assert max(waits[:-1]) < 0.05 < waits[-1]

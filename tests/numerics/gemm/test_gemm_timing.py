"""How often a product is timed, and how much memory it is allowed."""

import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fp8bench.numerics import memory
from fp8bench.numerics.gemm import bench
from fp8bench.numerics.gemm.bench import FEWEST, MOST, SETTLE_S, WARM_SHARE, HostTimer, repetitions
from fp8bench.numerics.memory import FEWEST_SETS, MOST_SETS, gemm_bytes, operand_sets
from fp8bench.schema.errors import UsageError
from fp8bench.schema.gemm import Shape

MIB = 2**20
FLUSH = 256 * MIB
HUGE = Shape(m=12608, n=5120, k=1280)


def test_repetitions_fill_the_budget_within_bounds():
    assert [repetitions(0.1, each_s) for each_s in (0.001, 0.1, 1e-6, 0.0)] == [100, FEWEST, MOST, MOST]
    assert repetitions(1e9, 0.001) == MOST


def test_a_cpu_is_timed_by_the_host(monkeypatch):
    now = iter(number * 0.002 for number in range(10_000))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(now))
    calls = []
    samples = HostTimer().samples(calls.append, 0.1)
    assert len(samples) == 50
    assert samples == pytest.approx([0.002] * 50)
    assert calls[-50:] == list(range(50))


class Queue(list):
    """What a GPU was told, in order; the device takes a millisecond for what was queued since the last event. late:
    whether the GPU has passed an event when it is asked.
    """

    late = staticmethod(lambda: False)

    def work(self, settled=True):
        """Time work for 50 ms on a timer of its own, and return the samples; this is what it was told since then."""
        timer = bench.CudaTimer(torch.device("cuda"))
        assert timer.flush_bytes == FLUSH
        del self[:]
        return timer.samples(lambda number: self.append("work"), 0.05, settled)


@pytest.fixture
def cuda(monkeypatch):
    """Enough of torch.cuda to see in which order work is queued."""
    queue = Queue()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            queue.append("event")

        def query(self):
            return queue.late()

        def elapsed_time(self, other):
            return 0.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: queue.append("wait"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=60 * MIB))
    monkeypatch.setattr(torch, "empty", lambda *size, **options: SimpleNamespace(zero_=lambda: queue.append("flush")))
    return queue


def test_a_gpu_is_flushed_before_each_repetition_and_waited_for_only_at_the_ends(cuda):
    assert cuda.work() == [0.0005] * 50
    last = cuda[len(cuda) - 1 - cuda[-2::-1].index("wait") :]
    assert last == [*["flush", "event", "work", "event"] * 50, "wait"]


def test_a_product_is_loaded_until_the_power_limit_is_felt_unless_told_not_to(cuda):
    counts = []
    for settled in (True, False):
        cuda.work(settled)
        counts.append(cuda.count("work"))
    # A repetition takes 1 ms here, with its flush. Beside the warm-up, both make the same.
    assert counts[0] - counts[1] == round(SETTLE_S / 0.001) - math.ceil(WARM_SHARE * 50)


def test_what_waited_for_the_host_does_not_count_and_one_that_is_overtaken_gets_a_longer_lead(cuda):
    asked = itertools.count()
    cuda.late = lambda: next(asked) % 20 == 0
    assert len(cuda.work()) in (47, 48)
    cuda.late = lambda: cuda[-7:].count("flush") < 4
    assert len(cuda.work()) >= FEWEST
    assert cuda[-8:] == [*["flush"] * 4, "event", "work", "event", "wait"]
    cuda.late = lambda: True
    with pytest.raises(RuntimeError, match="more slowly than the GPU runs it: 20 of 20 repetitions waited for it"):
        cuda.work()


def test_the_flush_lasts_longer_than_the_host_needs_to_launch(cuda, monkeypatch):
    now = iter(number * 0.001 for number in range(10_000))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(now))
    cuda.work()
    # A launch takes 1 ms, a flush 0.5 ms.
    assert cuda[-8:] == ["event", "flush", "flush", "flush", "event", "work", "event", "wait"]


def test_operand_sets_exceed_the_cache_and_what_fits_in_memory_is_not_refused(monkeypatch):
    assert [operand_sets(Shape.cube(size), FLUSH) for size in (512, 8192)] == [MOST_SETS, FEWEST_SETS]
    assert [operand_sets(HUGE, flush) for flush in (FLUSH, None)] == [12, FEWEST_SETS]
    needed = gemm_bytes(HUGE, None)
    for free in (needed - 1, needed, None):
        monkeypatch.setattr(memory, "free_host_bytes", lambda free=free: free)
        with pytest.raises(UsageError, match="are free on this host") if free == needed - 1 else nullcontext():
            bench.Bench.on("cpu", 1.0).require_memory([HUGE])

"""GEMMs proved and timed: what is right is timed, what is wrong is not, what cannot run says why; how often a product
is timed, and how much memory it is allowed.
"""

import dataclasses
import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from fp8bench.numerics import memory
from fp8bench.numerics.gemm import bench as module
from fp8bench.numerics.gemm.bench import FEWEST, MOST, SETTLE_S, WARM_SHARE, Bench, HostTimer, pooled, repetitions
from fp8bench.numerics.gemm.multiply import Kernel, Operand, widened_mm
from fp8bench.numerics.memory import FEWEST_SETS, MOST_SETS, gemm_bytes, operand_sets
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.gemm import PRECISIONS, Product, Shape, Timing

PRODUCT = Product(shape=Shape(m=48, n=32, k=64), role="weight gradient")
TENSORWISE = ("bf16", "fp8-tensorwise")
MIB = 2**20
FLUSH = 256 * MIB
HUGE = Shape(m=12608, n=5120, k=1280)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def bench(monkeypatch):
    """On this CPU, quickly."""
    monkeypatch.setattr(module, "CEILING_SIZES", {"cpu": (16, 32)})
    return Bench.on("cpu", seconds=1e-4)


def with_kernel(bench, multiply, emulated=False):
    return dataclasses.replace(bench, kernel=Kernel("made", multiply, emulated))


def test_every_precision_is_proved_and_timed_with_and_without_casts_and_what_stays_bf16_in_bf16_alone(bench):
    found = bench.measure(PRODUCT, PRECISIONS)
    assert [(t.precision, t.casts) for t in found.timings] == [
        ("bf16", "none"),
        *((precision, casts) for precision in PRECISIONS[1:] for casts in ("none", "eager")),
    ]
    for timing in found.timings:
        assert (timing.status, timing.reason) == ("ok", None)
        assert timing.error < 0.003
        assert timing.repetitions == len(timing.samples_s) >= 20
        assert timing.time_ci_s is None, "one round has no interval"
        assert timing.emulated == (timing.precision != "bf16")
    head = Product(shape=Shape(m=16, n=10, k=64), stays_bf16="the head stays bf16 in every mode")
    assert [t.precision for t in bench.measure(head, PRECISIONS).timings] == ["bf16"]


def test_a_wrong_product_or_cast_is_invalid_and_has_no_time(bench, monkeypatch):
    def doubled(left, right, fast):
        return widened_mm(left, right, fast) * 2

    (bf16, wrong) = with_kernel(bench, doubled).measure(PRODUCT, ("bf16", "fp8-rowwise")).timings
    assert bf16.status == "ok"
    assert (wrong.status, wrong.time_s, wrong.samples_s) == ("invalid", None, ())
    assert wrong.reason == "the GEMM is off by 1, more than 0.01"
    assert wrong.error == pytest.approx(1, abs=0.01)

    def one_scale_off(matrix, dtype, rowwise):
        data, inverse = real(matrix, dtype, rowwise)
        return data, inverse * 1.5

    real = module.quantize
    monkeypatch.setattr(module, "quantize", one_scale_off)
    *right, wrong = bench.measure(PRODUCT, TENSORWISE).timings
    assert [t.status for t in right] == ["ok", "ok"]
    assert (wrong.status, wrong.reason) == ("invalid", "a cast is off by 0.5, more than 0.1")


def test_what_the_device_cannot_do_is_unsupported_and_the_rest_goes_on(bench):
    def refuses(left, right, fast):
        if left.inverse_scale.dim():
            raise RuntimeError("rowwise scaling needs another GPU.\nand a long trace")
        return widened_mm(left, right, fast)

    *right, wrong = with_kernel(bench, refuses).measure(PRODUCT, (*TENSORWISE, "fp8-rowwise")).timings
    assert [(t.precision, t.status) for t in right] == [("bf16", "ok"), *[("fp8-tensorwise", "ok")] * 2]
    reason = "rowwise scaling needs another GPU"
    assert (wrong.precision, wrong.status, wrong.reason) == ("fp8-rowwise", "unsupported", reason)


def test_casts_that_do_not_compile_cost_no_other_timing(bench, monkeypatch):
    monkeypatch.setattr(module, "_compiled_quantize", Mock(side_effect=RuntimeError("no compiler")))
    both = dataclasses.replace(bench, compiled_casts=True).measure(PRODUCT, TENSORWISE)
    found = [(t.casts, t.status, t.reason) for t in both.timings[1:]]
    assert found == [("none", "ok", None), ("eager", "ok", None), ("compiled", "unsupported", "no compiler")]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), torch.AcceleratorError("illegal access")])
def test_a_device_that_breaks_ends_the_run_with_a_remedy(bench, error):
    with pytest.raises(RunFailed, match="in fp8-tensorwise broke the run"):
        with_kernel(bench, Mock(side_effect=error)).measure(PRODUCT, ("fp8-tensorwise",))


def test_fast_accumulation_is_asked_for_where_the_name_says_so(bench):
    asked = set()

    def notes(left: Operand, right: Operand, fast: bool):
        asked.add((left.inverse_scale.dim(), fast))
        return widened_mm(left, right, fast)

    with_kernel(bench, notes).measure(PRODUCT, ("fp8-tensorwise", "fp8-rowwise-fast"))
    assert asked == {(0, False), (2, True)}


def test_ceilings_are_the_best_of_the_large_squares_and_emulation_has_none(bench):
    found = with_kernel(bench, widened_mm).ceilings(PRECISIONS)
    assert [one.arithmetic for one in found] == ["bf16", "fp8"]
    assert all(one.size in (16, 32) and one.tflops > 0 for one in found)
    assert found[1].precision.startswith("fp8-tensorwise")
    assert [one.arithmetic for one in bench.ceilings(PRECISIONS)] == ["bf16"]
    assert [one.arithmetic for one in with_kernel(bench, widened_mm).ceilings(("bf16",))] == ["bf16"]


class Clock:
    """A timer whose answers are made up."""

    flush_bytes = None

    def __init__(self):
        self.asked = []

    def samples(self, call, seconds, settled=True):
        self.asked.append((seconds, settled))
        return [1e-3 * (1 + 1e-4 * (number % 3)) for number in range(30)]


def test_rounds_go_there_and_back_and_share_the_budget(bench, monkeypatch):
    order = []

    def noted(self, work, precision, casts, *what):
        order.append((precision, casts))
        return real(self, work, precision, casts, *what)

    real = Bench._timed
    monkeypatch.setattr(Bench, "_timed", noted)
    clock = Clock()
    in_rounds = dataclasses.replace(bench, timer=clock, rounds=3, seconds=0.3)
    found = in_rounds.measure(PRODUCT, TENSORWISE)
    there = [("bf16", "none"), ("fp8-tensorwise", "none"), ("fp8-tensorwise", "eager")]
    assert order == [*there, *there[::-1], *there]
    assert clock.asked == [(pytest.approx(0.1), True)] * 9, "under a lasting load"
    in_rounds.ceilings(("bf16",))
    assert [settled for _, settled in clock.asked[9:]] == [False, False], "which ceilings are not"
    assert [t.casts for t in found.timings] == ["none", "none", "eager"]
    assert {(t.repetitions, t.round_sizes) for t in found.timings} == {(90, (30, 30, 30))}
    assert all(timing.time_ci_s is not None for timing in found.timings)


def test_what_fails_in_a_later_round_is_not_timed(bench):
    calls = []

    def fails_in_the_end(left, right, fast):
        calls.append(fast)
        return widened_mm(left, right, fast) * (1 if len(calls) < 40 else 2)

    timed = dataclasses.replace(with_kernel(bench, fails_in_the_end), rounds=3)
    bf16, fp8 = timed.measure(PRODUCT, TENSORWISE).timings
    assert (bf16.precision, bf16.status, bf16.time_s is None) == ("bf16", "ok", False)
    assert (fp8.precision, fp8.status, fp8.time_s) == ("fp8-tensorwise", "invalid", None)


def ok(time_s, error=0.001, count=24):
    samples = tuple(time_s * (1 + 1e-4 * (number % 5 - 2)) for number in range(count))
    return Timing(precision="bf16", time_s=time_s, error=error, repetitions=count, samples_s=samples)


def test_the_rounds_medians_are_averaged_and_their_samples_kept_in_order():
    rounds = [ok(1.00e-3), ok(1.02e-3, error=0.002, count=30), ok(1.04e-3)]
    found = pooled(rounds)
    assert found.time_s == pytest.approx(1.02e-3)
    assert found.time_ci_s[0] < 1.00e-3
    assert found.time_ci_s[1] > 1.04e-3
    assert (found.repetitions, found.round_sizes, found.error) == (78, (24, 30, 24), 0.002)
    assert found.samples_s == (*rounds[0].samples_s, *rounds[1].samples_s, *rounds[2].samples_s)


def test_repetitions_fill_the_budget_within_bounds():
    assert [repetitions(0.1, each_s) for each_s in (0.001, 0.1, 1e-6, 0.0)] == [100, FEWEST, MOST, MOST]
    assert repetitions(1e9, 0.001) == MOST


def test_a_cpu_is_timed_by_the_host(monkeypatch):
    now = iter(number * 0.002 for number in range(10_000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
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
        timer = module.CudaTimer(torch.device("cuda"))
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
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
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
            module.Bench.on("cpu", 1.0).require_memory([HUGE])

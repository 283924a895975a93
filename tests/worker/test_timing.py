"""Warm-up and timed steps of a real model on a CPU: where one ends and the other begins, and what happens meanwhile. A
loader that is too slow shows, however much it had made ahead: real loader processes, and work made of sleeps.
"""

import math
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from statistics import mean
from types import SimpleNamespace

import pytest
import torch
from builders import workload_facts
from outside.outside_plugins import TinyLinear
from torch import nn
from torch.utils.data import Dataset
from worker.execution.executing import Growing, plain_parts

from fp8bench.schema.rank import CompileEvidence, RankTelemetry
from fp8bench.stats.steps import LEAD_IN, Length, bottleneck, summarize
from fp8bench.worker import clock, timing
from fp8bench.worker.execution.step import Launch
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.timing import Compilations, Training, compilations, compiled_to, time_steps
from fp8bench.workloads.fake_data import LoaderBatches

CPU = torch.device("cpu")
NO_FILE = ProgressFile(None)
ENDLESS = 1_000_000
STEP_S = 0.05

pytestmark = [
    pytest.mark.usefixtures("process_group"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def training(workload=None, model=None, batches=None):
    workload = workload or TinyLinear()
    model = workload.build(CPU) if model is None else model
    return Training(Launch(plain_parts(workload, model)), batches or workload.batches(8, 0, CPU), CPU)


def test_warm_up_is_kept_apart_from_the_timed_steps_whose_parts_add_up_and_which_last_and_every_loss_is_kept(
    monkeypatch,
):
    monkeypatch.setattr(clock, "perf_counter", partial(next, count(0.0, 0.001)))
    timed = time_steps(training(), 3, Length(5, 3, min_time_s=0.2), NO_FILE)
    samples = timed.samples
    assert samples.rank == 3
    steps = len(samples.step_s)
    assert steps > 3, "as many as last so long"
    assert (len(samples.warmup_step_s), len(samples.loss)) == (5 + LEAD_IN, 5 + LEAD_IN + steps)
    parts = (samples.data_wait_s, samples.forward_s, samples.backward_s, samples.optimizer_s)
    assert list(map(sum, zip(*parts, strict=True))) == pytest.approx(samples.step_s)
    assert len(samples.host_s) == steps
    assert timed.telemetry is samples.allocator_retries is samples.host_lead_s is None
    assert list(samples.loss) == timed.losses
    assert all(math.isfinite(loss) for loss in timed.losses)


def test_the_telemetry_is_asked_for_over_the_timed_steps_alone(monkeypatch):
    asked, seen = [], RankTelemetry(rank=1, timed_s=1.0)

    @contextmanager
    def fake_sampler(_device, rank):
        asked.append(f"begun on {rank}")
        yield SimpleNamespace(
            wait_ready=lambda _: asked.append("ready"), telemetry=lambda *of: asked.append(of) or seen
        )
        asked.append("ended")

    monkeypatch.setattr(timing, "Sampler", fake_sampler)
    timed = time_steps(training(), 1, Length(2, 3), NO_FILE)
    begun, ready, (from_s, to_s), ended = asked
    assert (begun, ready, ended) == ("begun on 1", "ready", "ended")
    assert to_s - from_s == pytest.approx(sum(timed.samples.step_s))
    assert timed.telemetry is seen


def test_a_loss_that_is_not_finite_becomes_null_in_the_samples():
    class Diverges(TinyLinear):
        factors = iter((*[1.0] * (LEAD_IN + 1), math.inf, math.nan))

        def loss(self, model, batch):
            return next(self.factors) * super().loss(model, batch).clamp(min=1.0).detach().requires_grad_()

    losses = time_steps(training(Diverges()), 0, Length(1, 2), NO_FILE).samples.loss
    assert [loss is None for loss in losses] == [False] * (LEAD_IN + 1) + [True] * 2


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield lambda model: torch.compile(model, backend="aot_eager")
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_graph_break_is_counted_with_its_reason(compiled):
    def breaks(x):
        x = torch.tan(x)
        torch._dynamo.graph_break()
        return x + 1

    compiled(breaks)(torch.ones(4))
    found = compilations()
    assert (found.graphs, found.graph_breaks) == (2, 1)
    assert found.frames >= 1
    assert found.graph_break_reasons


def test_reasons_are_a_few_short_lines_and_a_process_that_never_loaded_torch_compile_has_compiled_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert compilations() == Compilations()
    breaks = {f"reason {number} {'x' * 500}\nand a traceback": 2 for number in range(20)}
    counters = {"frames": {"total": 3}, "stats": {"unique_graphs": 21}, "aot_autograd": {"total": 98}}
    spent = {"entire_frame_compile": 30.0, "entire_backward_compile": 4.0, "inductor_compile": 25.0}
    dynamo = SimpleNamespace(counters={**counters, "graph_break": breaks}, calculate_time_spent=lambda: spent)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    found = compilations()
    assert (found.frames, found.graphs, found.split_graphs, found.graph_breaks, found.seconds) == (3, 21, 98, 40, 34)
    assert len(found.graph_break_reasons) == 5
    assert all(len(reason) == 160 and "\n" not in reason for reason in found.graph_break_reasons)


DECIDED = CompileEvidence(enabled=True, reason="asked for")


@pytest.mark.parametrize(
    ("sizes", "while_timed", "in_all"),
    [
        ((8,) * (2 + LEAD_IN) + (8, 9, 9), 1, 1),
        ((8, 9) + (9,) * (LEAD_IN + 3), 0, 1),
        ((8, 8, 9) + (9,) * (LEAD_IN + 2), 0, 1),
        ((8,) * (2 + LEAD_IN + 3), 0, 0),
    ],
    ids=["while timed", "in warm-up", "in the lead-in", "never"],
)
@pytest.mark.slow
def test_recompilations_while_timed_are_told_from_those_before(sizes, while_timed, in_all, compiled):
    timed = time_steps(training(Growing(*sizes), compiled(nn.Linear(16, 4))), 0, Length(2, 3), NO_FILE)
    assert timed.samples.recompilations == while_timed
    found = compiled_to(DECIDED, timed.after_first_step, timed.at_end)
    assert (found.recompilations, found.graph_breaks, found.graphs) == (in_all, 0, 1 + in_all)
    expected = "torch.compile recompiled once while steps were timed" if while_timed else None
    assert summarize([timed.samples], workload_facts()).steadiness.unsteady == expected


def test_where_torch_compile_was_off_nothing_is_said_of_graphs_and_else_the_reasons_of_breaks_are_kept():
    off = CompileEvidence(enabled=False, reason="asked for")
    counts = Compilations(frames=3, graphs=2)
    assert compiled_to(off, counts, counts) == off
    broken = Compilations(frames=5, graphs=4, split_graphs=6, graph_breaks=3, graph_break_reasons=("a print",))
    found = compiled_to(DECIDED, Compilations(frames=2), broken)
    assert (found.graphs, found.split_graphs, found.graph_breaks) == (4, 6, 3)
    assert (found.graph_break_reasons, found.recompilations) == (("a print",), 3)


def test_steps_run_from_start_to_start_add_up_to_the_whole_time_and_split_into_wait_and_host(monkeypatch):
    def ticking(steps, ticks, micro_batches=1):
        monkeypatch.setattr(clock, "perf_counter", iter(ticks).__next__)
        host = clock.HostClock()
        for _ in range(steps):
            host.start_step()
            host.data_ready()
            for _ in range(micro_batches):
                host.forward_done()
                host.backward_done()
        return host

    times = ticking(2, (0.0, 1.0, 2.0, 4.5, 5.0, 5.5, 5.75, 6.75, 7.0)).finish()
    assert (times.began_s, times.host_lead_s) == (0.0, None)
    assert (times.step_s, times.data_wait_s, times.host_s) == ([5.0, 2.0], [1.0, 0.5], [4.0, 1.5])
    assert (times.forward_s, times.backward_s, times.optimizer_s) == ([1.0, 0.25], [2.5, 1.0], [0.5, 0.25])
    times = ticking(10, (float(tick**2) for tick in count())).finish()
    assert sum(times.step_s) == 40**2
    parts = zip(times.data_wait_s, times.forward_s, times.backward_s, times.optimizer_s, strict=True)
    assert list(map(sum, parts)) == times.step_s
    times = ticking(1, (0.0, 1.0, 2.0, 5.0, 7.0, 11.0, 12.0), micro_batches=2).finish()
    assert (times.forward_s, times.backward_s, times.optimizer_s) == ([3.0], [7.0], [1.0])
    assert (times.step_s, times.data_wait_s) == ([12.0], [1.0])
    assert isinstance(clock.clock_for(torch.device("cpu")), clock.HostClock)


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
    return LoaderBatches(Sleeping(batch_s * max(workers, 1)), 1, 0, CPU, workers)


def timed(batches, steps, warmup=3, step_s=STEP_S):
    return time_steps(training(TakesItsTime(step_s), batches=batches), 0, Length(warmup, steps), NO_FILE).samples


def waits_for(batches, number):
    for _ in range(number):
        began = time.perf_counter()
        next(batches)
        yield time.perf_counter() - began


def undisturbed(attempt):
    """One of a few attempts holds: what else the machine does lengthens the sleeps of one, a fault those of all."""
    for _ in range(3):
        with suppress(AssertionError):
            return attempt()
    return attempt()


@pytest.mark.serial
@pytest.mark.parametrize(("workers", "steps", "step_s"), [(2, 16, 0.12), (8, 32, 0.08)])
def test_the_step_is_as_long_as_the_loader_takes_and_is_called_loader_bound(workers, steps, step_s):
    @undisturbed
    def attempt():
        batches = loader(1.4 * step_s, workers)
        samples = timed(batches, steps, step_s=step_s)
        alone_s = mean(list(waits_for(batches, 2 * batches.prefetched))[batches.prefetched :])
        batches.close()
        summary = summarize([samples], workload_facts())
        assert summary.step_time_s == pytest.approx(alone_s, rel=0.1)
        assert summary.step_time_s > 0.99 * 1.4 * step_s
        assert bottleneck(None, summary.data_wait_share).label == "loader-bound"
        if workers == 8:
            # Eight deliver at once, so that most steps wait for nothing, and the median hides those that do.
            assert summary.median_step_s < summary.step_time_s


@pytest.mark.serial
def test_a_loader_in_the_rank_itself_is_waited_for_all_the_time_that_it_takes_and_one_that_keeps_up_shows_no_wait():
    # What a busy machine adds to a sleep, and the 10 ms of taking a batch from another process, are little beside it.
    step_s = 10 * STEP_S

    @undisturbed
    def in_the_rank():
        batches = loader(0.5 * step_s, workers=0)
        summary = summarize([timed(batches, 6, warmup=1, step_s=step_s)], workload_facts())
        assert summary.data_wait_s == pytest.approx(0.5 * step_s, rel=0.2)
        assert summary.data_wait_share == pytest.approx(1 / 3, abs=0.05)
        assert str(bottleneck(None, summary.data_wait_share)).startswith("loader-bound (wait 3")

    @undisturbed
    def that_keeps_up():
        batches = loader(0.4 * step_s, workers=2)
        summary = summarize([timed(batches, 8, step_s=step_s)], workload_facts())
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

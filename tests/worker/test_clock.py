"""Time between the starts of steps, with nothing lost between them."""

from itertools import count

import torch

from fp8bench.worker import clock


def test_steps_run_from_start_to_start_and_split_into_wait_and_host(monkeypatch):
    ticks = iter([0.0, 1.0, 2.0, 4.5, 5.0, 5.5, 5.75, 6.75, 7.0])
    monkeypatch.setattr(clock, "perf_counter", lambda: next(ticks))
    host = clock.HostClock()
    for _ in range(2):
        take_a_step(host)
    times = host.finish()
    assert times.began_s == 0.0
    assert times.step_s == [5.0, 2.0]
    assert times.data_wait_s == [1.0, 0.5]
    assert times.host_s == [4.0, 1.5]
    assert times.host_lead_s is None
    assert (times.forward_s, times.backward_s, times.optimizer_s) == ([1.0, 0.25], [2.5, 1.0], [0.5, 0.25])


def take_a_step(host):
    host.start_step()
    host.data_ready()
    host.forward_done()
    host.backward_done()


def test_the_steps_add_up_to_the_whole_time(monkeypatch):
    ticks = count()
    monkeypatch.setattr(clock, "perf_counter", lambda: float(next(ticks) ** 2))
    host = clock.HostClock()
    for _ in range(10):
        take_a_step(host)
    times = host.finish()
    assert sum(times.step_s) == 40**2
    parts = zip(times.data_wait_s, times.forward_s, times.backward_s, times.optimizer_s, strict=True)
    assert list(map(sum, parts)) == times.step_s


def test_when_each_step_began_is_told_from_the_first_one_on(monkeypatch):
    ticks = count(100)
    monkeypatch.setattr(clock, "perf_counter", lambda: float(next(ticks)))
    host = clock.HostClock()
    for _ in range(3):
        take_a_step(host)
    assert host.since_first_step() == [0.0, 4.0, 8.0]


def test_a_cpu_is_timed_by_the_host_alone():
    assert isinstance(clock.clock_for(torch.device("cpu")), clock.HostClock)

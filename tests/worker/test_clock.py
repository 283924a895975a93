"""Time between the starts of steps, with nothing lost between them."""

from itertools import count

import torch

from fp8bench.worker import clock


def test_steps_run_from_start_to_start_and_split_into_wait_and_host(monkeypatch):
    ticks = iter([0.0, 1.0, 5.0, 5.5, 7.0])
    monkeypatch.setattr(clock, "perf_counter", lambda: next(ticks))
    host = clock.HostClock()
    for _ in range(2):
        host.start_step()
        host.data_ready()
    times = host.finish()
    assert times.step_s == [5.0, 2.0]
    assert times.data_wait_s == [1.0, 0.5]
    assert times.host_s == [4.0, 1.5]
    assert times.host_lead_s is None


def test_the_steps_add_up_to_the_whole_time(monkeypatch):
    ticks = count()
    monkeypatch.setattr(clock, "perf_counter", lambda: float(next(ticks) ** 2))
    host = clock.HostClock()
    for _ in range(10):
        host.start_step()
        host.data_ready()
    assert sum(host.finish().step_s) == 20**2


def test_a_cpu_is_timed_by_the_host_alone():
    assert isinstance(clock.clock_for(torch.device("cpu")), clock.HostClock)

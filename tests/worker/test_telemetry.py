"""A rank's telemetry: from the sampler's start to figures of the timed steps, whatever goes wrong on the way."""

import json
import os
import signal
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from worker.sampled import FAKE, PATIENCE_S, UUID, is_running

from fp8bench.stats.telemetry import drawn_between
from fp8bench.worker import telemetry
from fp8bench.worker.sampler import Header, Sample
from fp8bench.worker.telemetry import Sampler, read

pytestmark = pytest.mark.slow

WATTS = 500
GPU = torch.device("cuda", 0)
BOUNDED_S = 5.0


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr(telemetry, "_uuid", lambda _device: UUID)
    return lambda **script: monkeypatch.setenv("FAKE_NVML", json.dumps(script))


def pid_of(sampler):
    return sampler._process.pid


@pytest.fixture
def sampled(nvml):
    """Sample while `during` runs, given the sampler's process. Its telemetry, and how long it took to ask."""

    def run(during, rank=0, period_s=0.05, **script):
        nvml(**script)
        with Sampler(GPU, rank, period_s=period_s) as sampler:
            ready, pid = sampler.wait_ready(PATIENCE_S), pid_of(sampler)
            begin = time.perf_counter()
            during(pid)
            end = time.perf_counter()
            found = sampler.telemetry(begin, end)
            taken_s = time.perf_counter() - end
        assert found is not None
        assert not is_running(pid)
        assert ready == ("missing" not in script)
        return SimpleNamespace(found=found, taken_s=taken_s)

    return run


def file_of(samples, header=Header(700.0, 1980, {}, None), **columns):  # noqa: B008
    usual = {
        **{"sm_clock_mhz": 1755, "memory_clock_mhz": 3201, "power_w": 500.0, "temperature_c": 61},
        **{"utilization_percent": 99, "throttle_reasons": 4},
    }
    rows = [Sample(at_s=at_s, energy_j=counter, **(usual | columns)) for at_s, counter in samples]
    return "".join(json.dumps(line) + "\n" for line in [header._asdict(), *rows]).encode()


class TestSampler:
    def test_it_tells_what_the_gpu_did_between_two_moments(self, sampled):
        found = sampled(lambda _pid: time.sleep(0.4), rank=3).found
        assert (found.rank, found.power_limit_w, found.max_sm_clock_mhz, found.warning) == (3, 700.0, 1980, None)
        assert found.timed_s == pytest.approx(0.4, abs=0.3)
        assert found.energy_j == pytest.approx(WATTS * found.timed_s, rel=0.1)
        assert found.series.at_s[-2] <= found.timed_s < found.series.at_s[-1]
        assert sum(at_s >= 0 for at_s in found.series.at_s) >= 3
        assert set(found.series.sm_clock_mhz) == {1755}

    def test_a_short_time_between_two_samples_has_its_energy_since_the_sampler_looks_once_more(self, sampled):
        found = sampled(lambda _pid: time.sleep(0.1), period_s=60).found
        assert found.energy_j == pytest.approx(WATTS * found.timed_s, rel=0.2)
        assert found.warning == "no sample fell into the timed steps"

    def test_a_cpu_has_none(self):
        with Sampler(torch.device("cpu"), rank=0) as sampler:
            assert not sampler.wait_ready(PATIENCE_S)
            assert sampler.telemetry(0.0, 1.0) is None

    def test_leaving_without_asking_ends_the_sampler_too_and_leaves_nothing_open(self, nvml):
        nvml()
        before = set(os.listdir("/proc/self/fd"))
        with suppress(KeyboardInterrupt), Sampler(GPU, rank=0) as sampler:
            sampler.wait_ready(PATIENCE_S)
            pid = pid_of(sampler)
            raise KeyboardInterrupt
        assert not is_running(pid)
        assert set(os.listdir("/proc/self/fd")) == before

    @pytest.mark.parametrize(
        ("script", "warning"),
        [
            ({"missing": True}, "NVML: NVML Shared Library Not Found"),
            ({"denied": {"energy": 4}}, "NVML denies energy_j (Insufficient Permissions)"),
            ({"denied": {"energy": 999}}, "the energy counter does not enclose the timed steps"),
        ],
    )
    def test_what_nvml_refuses_is_null_and_a_line_of_warning(self, script, warning, sampled):
        found = sampled(lambda _pid: time.sleep(0.15), **script).found
        assert (found.energy_j, found.warning) == (None, warning)
        assert (found.series is not None) == ("missing" not in script)

    def test_a_sampler_that_died_leaves_what_it_saw(self, sampled):
        found = sampled(lambda pid: (os.kill(pid, signal.SIGKILL), time.sleep(0.4))).found
        assert found.energy_j is None
        assert found.warning.startswith("the sampler ended early, with exit code -9")

    def test_a_sampler_that_hangs_is_killed_in_a_bounded_time(self, sampled, monkeypatch):
        monkeypatch.setattr(telemetry, "END_S", 0.3)
        run = sampled(lambda _pid: None, hang=True)
        assert run.taken_s < BOUNDED_S
        assert run.found.warning.startswith("the sampler did not end within 0.3 s")

    def test_a_sampler_that_cannot_start_is_a_line_of_warning(self, nvml, monkeypatch):
        monkeypatch.setattr(telemetry.sys, "executable", "/nowhere/python")
        with Sampler(GPU, rank=0) as sampler:
            assert not sampler.wait_ready(PATIENCE_S)
            found = sampler.telemetry(1.0, 3.0)
        assert (found.timed_s, found.series, found.energy_j) == (2.0, None, None)
        assert found.warning.startswith("the sampler did not start: [Errno 2]")

    @pytest.mark.thorough
    def test_waiting_for_the_first_sample_has_an_end(self, nvml):
        nvml(slow_s=600)
        with Sampler(GPU, rank=0) as sampler:
            begin = time.monotonic()
            assert not sampler.wait_ready(0.3)
            assert time.monotonic() - begin < BOUNDED_S


class TestRead:
    def test_the_series_begins_shortly_before_the_first_step_and_ends_with_one_sample_after_the_last(self):
        found = read(
            file_of([(at_s, 100.0 * at_s) for at_s in (98.9, 99.0, 99.9, 100.0, 101.0, 102.0, 102.1, 102.2)]),
            *(0, 100.0, 102.0, 0.2),
        )
        assert found.series.at_s == pytest.approx((-1.0, -0.1, 0.0, 1.0, 2.0, 2.1))
        assert found.warning is None

    @pytest.mark.parametrize("period_s", [0.2, 0.9], ids=["many samples", "few samples"])
    def test_the_energy_can_be_computed_again_from_what_is_kept(self, period_s):
        moments = [98.0 + period_s * place for place in range(int(4.6 / period_s) + 1)]
        found = read(file_of([(at_s, 650.0 * at_s + at_s**2) for at_s in moments]), 0, 100.0, 102.0, period_s)
        series = found.series
        assert drawn_between(series.at_s, series.energy_j, 0.0, 2.0, period_s) == pytest.approx(found.energy_j)

    def test_samples_around_the_timed_steps_are_read_between_and_none_among_them_is_a_warning(self):
        found = read(file_of([(99.9, 100.0), (102.1, 1500.0)]), 0, 100.0, 102.0, 0.2)
        assert found.warning == "no sample fell into the timed steps"
        found = read(file_of([(9.9, 1000.0), (10.1, 1100.0), (11.9, 2000.0), (12.1, 2060.0)]), 0, 10.0, 12.0, 0.2)
        assert found.energy_j == pytest.approx(2030 - 1050)
        content = file_of([(10.0, 0.0), (11.0, 500.0), (12.0, 1000.0)])
        found = read(content[:-5], 0, 10.0, 11.0, 0.2)
        assert len(found.series.at_s) == 2
        assert found.energy_j == pytest.approx(500)
        found = read(file_of([(10.5, 0.0)]), 0, 10.0, 12.0, 0.2, trouble="the sampler ended early, with exit code -9")
        assert found.warning == (
            "the sampler ended early, with exit code -9; the energy counter does not enclose the timed steps"
        )

    @pytest.mark.parametrize(
        "content",
        [
            b"\x00\xff\xfe\n",
            b"Traceback (most recent call last):\n",
            b"[1, 2]\n",
            file_of([(10.0, 0.0)]) + b"garbage\n",
            file_of([(10.0, 0.0), (11.0, float("nan")), (12.0, 2.0)]),
            file_of([(10.0, 0.0)], sm_clock_mhz=1755.5),
            file_of([(10.0, 0.0)], Header("much", 1, {}, None)),
        ],
        ids=["bytes", "words", "no header", "a line", "not a number", "half a megahertz", "a limit in words"],
    )
    def test_garbage_is_null_and_one_line_of_warning(self, content):
        found = read(content, 0, 10.0, 12.0, 0.2)
        assert (found.series, found.energy_j, found.timed_s) == (None, None, 2.0)
        assert found.warning.startswith("the sampler's file is damaged: ")
        assert "\n" not in found.warning
        for empty in (b"", b'{"power_lim'):
            assert read(empty, 0, 10.0, 12.0, 0.2).warning == "the sampler had not begun"

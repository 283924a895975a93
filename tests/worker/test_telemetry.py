"""A rank's telemetry: the real sampler process, before an NVML that is not one, and what a rank makes of what it wrote,
whatever goes wrong on the way.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
import torch
from launch.seen import ended, until

from fp8bench.stats.telemetry import drawn_between
from fp8bench.worker import telemetry
from fp8bench.worker.sampler import Header, Sample, next_due
from fp8bench.worker.telemetry import Sampler, read

pytestmark = pytest.mark.slow

FAKE = Path(__file__).parent / "fake_nvml"
UUID = "GPU-1a2b"
GPU = torch.device("cuda", 0)
WATTS = 500
PATIENCE_S = 60.0
"""For what ends at once: a busy machine takes seconds, and what hangs here does so for ten minutes."""

PARENT = """
import os, subprocess, sys, tempfile, time
file = tempfile.TemporaryFile()
path = f"/proc/self/fd/{file.fileno()}"
command = [sys.executable, "-m", "fp8bench.worker.sampler", sys.argv[1], "0.1", path]
sampler = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(file.fileno(),))
while file.seek(0) or file.read().count(b"\\n") < 2:
    time.sleep(0.01)
fork = os.fork()
if fork:
    print(sampler.pid, fork, flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def call(uuid=UUID, period_s=0.02, **script):
        path = tmp_path / f"samples-{len(started)}"
        process = subprocess.Popen(
            [sys.executable, "-m", "fp8bench.worker.sampler", uuid, str(period_s), str(path)],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(FAKE), "FAKE_NVML": json.dumps(script)},
        )
        started.append(process)
        return process, path

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def wrote(start):
    """The header and samples of a sampler whose input ended after so many lines."""

    def run(lines, **given):
        process, path = start(**given)
        wait_for_lines(path, lines)
        process.communicate(timeout=PATIENCE_S)
        return written(path)

    return run


def wait_for_lines(path, count):
    until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, PATIENCE_S)


def written(path):
    header, *samples = map(json.loads, path.read_text().splitlines())
    return Header(**header), [Sample(*values) for values in samples]


def test_neither_torch_nor_pydantic_is_imported():
    code = "import sys, fp8bench.worker.sampler; print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_writes_what_nvml_says_in_units_until_its_input_ends(start):
    begun = time.perf_counter()
    process, path = start()
    wait_for_lines(path, 8)
    process.communicate(timeout=PATIENCE_S)
    header, found = written(path)
    assert (process.returncode, header) == (0, (700.0, 1980, {}, None))
    assert {sample[1:7] for sample in found} == {(1755, 3201, 500.0, 61, 99, 0)}
    assert begun < found[0].at_s < found[-1].at_s < time.perf_counter()
    # The scripted counter is 500 W times the clock, so that the stamp is when it was read.
    # (Between the two a busy machine may take the processor away, hence the median.)
    assert median(abs(sample.energy_j - 500 * sample.at_s) for sample in found) < 0.5


def test_it_samples_once_more_when_it_is_told_to_end(start):
    process, path = start(period_s=600)
    wait_for_lines(path, 2)
    told = time.monotonic()
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    assert [sample.at_s > told for sample in written(path)[1]] == [False, True]


def test_it_ends_with_its_parent_though_a_fork_keeps_its_input_open(start):
    environ = os.environ | {"PYTHONPATH": str(FAKE)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, UUID], stdout=subprocess.PIPE, text=True, env=environ)
    sampler, fork = (int(word) for word in parent.stdout.readline().split())
    try:
        assert not ended([sampler])
        parent.kill()
        parent.wait(PATIENCE_S)
        until(lambda: ended([sampler]), PATIENCE_S)
        assert not ended([fork])
    finally:
        os.kill(fork, signal.SIGKILL)
        parent.stdout.close()


def test_a_column_that_nvml_denies_is_null_and_named_and_a_passing_error_is_no_denial(wrote):
    header, found = wrote(4, denied={"energy": 3, "power": 4, "max_clock": 3, "temperature": 999})
    denied = {"energy_j": "Not Supported", "power_w": "Insufficient Permissions", "max_sm_clock_mhz": "Not Supported"}
    assert header == (700.0, None, denied, None)
    columns = {(sample.energy_j, sample.power_w, sample.temperature_c, sample.sm_clock_mhz) for sample in found}
    assert columns == {(None, None, None, 1755)}


@pytest.mark.parametrize("script", [{"old": True}, {"denied": {"events": 13}}], ids=["a library", "a driver"])
def test_throttle_reasons_go_by_their_old_name_too(script, wrote):
    assert {sample.throttle_reasons for sample in wrote(2, **script)[1]} == {4}


def test_where_there_is_no_such_gpu_it_says_so_and_ends(start):
    process, path = start("GPU-ffff")
    assert process.wait(PATIENCE_S) == 0
    assert written(path) == (Header(None, None, {}, "Not Found"), [])


def test_the_next_sample_is_due_on_the_grid_and_periods_that_a_slow_call_ran_past_are_left_out(wrote):
    for now, expected in ((10.01, 10.2), (10.2, 10.2), (10.3, 10.4), (11.1, 11.2)):
        assert next_due(10.0, now, 0.2) == pytest.approx(expected)
    at_s = [sample.at_s for sample in wrote(5, period_s=0.05, slow_s=0.12)[1][:-1]]
    assert all(later - earlier > 0.12 for earlier, later in pairwise(at_s)), "none is made up for"


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr(telemetry, "_uuid", lambda _device: UUID)
    return lambda **script: monkeypatch.setenv("FAKE_NVML", json.dumps(script))


def several_samples(sampler):
    before = sampler._read().count(b"\n")
    until(lambda: sampler._read().count(b"\n") >= before + 4, PATIENCE_S)


@pytest.fixture
def sampled(nvml, monkeypatch):
    """Sample while `during` runs, given the sampler, and ask for its telemetry, which never takes long."""
    monkeypatch.setattr(telemetry, "END_S", PATIENCE_S)

    def run(during, rank=0, period_s=0.05, **script):
        nvml(**script)
        with Sampler(GPU, rank, period_s=period_s) as sampler:
            ready, pid = sampler.wait_ready(PATIENCE_S), sampler._process.pid
            begin = time.perf_counter()
            during(sampler)
            end = time.perf_counter()
            found = sampler.telemetry(begin, end)
            assert time.perf_counter() - end < PATIENCE_S
        assert found is not None
        assert found.timed_s == end - begin
        assert ended([pid])
        assert ready == ("missing" not in script)
        return found

    return run


def file_of(samples, header=Header(700.0, 1980, {}, None), **columns):  # noqa: B008
    usual = Sample(0.0, 1755, 3201, 500.0, 61, 99, 4, None)._replace(**columns)
    rows = [usual._replace(at_s=at_s, energy_j=counter) for at_s, counter in samples]
    return "".join(json.dumps(line) + "\n" for line in [header._asdict(), *rows]).encode()


class TestSampler:
    def test_it_tells_what_the_gpu_did_between_two_moments(self, sampled):
        found = sampled(several_samples, rank=3)
        assert (found.rank, found.power_limit_w, found.max_sm_clock_mhz, found.warning) == (3, 700.0, 1980, None)
        series = found.series
        assert found.energy_j == drawn_between(series.at_s, series.energy_j, 0.0, found.timed_s, 0.05)
        # Between the reading of a counter and its stamp a busy machine may take the processor away, hence the median.
        both = pairwise(zip(series.at_s, series.energy_j, strict=True))
        assert median((later[1] - one[1]) / (later[0] - one[0]) for one, later in both) == pytest.approx(WATTS, rel=0.1)
        assert series.at_s[-2] <= found.timed_s < series.at_s[-1]
        assert sum(at_s >= 0 for at_s in series.at_s) >= 3
        assert set(series.sm_clock_mhz) == {1755}

    def test_a_cpu_has_none_and_leaving_without_asking_ends_the_sampler_and_leaves_nothing_open(self, nvml):
        with Sampler(torch.device("cpu"), rank=0) as sampler:
            assert not sampler.wait_ready(PATIENCE_S)
            assert sampler.telemetry(0.0, 1.0) is None
        nvml()
        before = set(os.listdir("/proc/self/fd"))
        with suppress(KeyboardInterrupt), Sampler(GPU, rank=0) as sampler:
            sampler.wait_ready(PATIENCE_S)
            pid = sampler._process.pid
            raise KeyboardInterrupt
        assert ended([pid])
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
        found = sampled(several_samples if "missing" not in script else lambda _: None, **script)
        assert (found.energy_j, found.warning) == (None, warning)
        assert (found.series is not None) == ("missing" not in script)

    def test_a_sampler_that_died_leaves_what_it_saw(self, sampled):
        def killed(sampler):
            sampler._process.kill()
            until(lambda: ended([sampler._process.pid]), PATIENCE_S)

        found = sampled(killed)
        assert found.energy_j is None
        assert found.warning.startswith("the sampler ended early, with exit code -9")

    def test_a_sampler_that_hangs_is_killed_in_a_bounded_time(self, sampled, monkeypatch):
        monkeypatch.setattr(telemetry, "END_S", 0.3)
        found = sampled(lambda _sampler: None, hang=True)
        assert found.warning.startswith("the sampler did not end within 0.3 s")

    def test_a_sampler_that_cannot_start_is_a_line_of_warning(self, nvml, monkeypatch):
        monkeypatch.setattr(telemetry.sys, "executable", "/nowhere/python")
        with Sampler(GPU, rank=0) as sampler:
            assert not sampler.wait_ready(PATIENCE_S)
            found = sampler.telemetry(1.0, 3.0)
        assert (found.timed_s, found.series, found.energy_j) == (2.0, None, None)
        assert found.warning.startswith("the sampler did not start: [Errno 2]")

    def test_waiting_for_the_first_sample_has_an_end(self, nvml, monkeypatch):
        monkeypatch.setattr(telemetry, "END_S", 0.1)
        nvml(slow_s=600)
        with Sampler(GPU, rank=0) as sampler:
            begin = time.monotonic()
            assert not sampler.wait_ready(0.3)
            assert time.monotonic() - begin < PATIENCE_S


class TestRead:
    def test_the_series_begins_shortly_before_the_first_step_and_ends_with_one_sample_after_the_last(self):
        moments = (98.9, 99.0, 99.9, 100.0, 101.0, 102.0, 102.1, 102.2)
        found = read(file_of([(at_s, 100.0 * at_s) for at_s in moments]), 0, 100.0, 102.0, 0.2)
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
        found = read(content[:-5], 0, 10.0, 11.1, 0.2)
        assert (len(found.series.at_s), found.energy_j) == (2, pytest.approx(550))
        found = read(file_of([(10.5, 0.0)]), 0, 10.0, 12.0, 0.2, trouble="it ended early")
        assert found.warning == "it ended early; the energy counter does not enclose the timed steps"

    @pytest.mark.parametrize(
        "content",
        [
            b"\x00\xff\xfe\n",
            b"Traceback (most recent call last):\n",
            b"[1, 2]\n",
            file_of([(10.0, 0.0)]) + b"garbage\n",
            file_of([(10.0, 0.0)]) + b"[11.0]\n",
            file_of([(None, 0.0)]),
            file_of([(10.0, 0.0)], throttle_reasons=True),
            file_of([(10.0, 0.0), (11.0, float("nan")), (12.0, 2.0)]),
            file_of([(10.0, 0.0)], sm_clock_mhz=1755.5),
            file_of([(10.0, 0.0)], Header("much", 1, {}, None)),
            file_of([(10.0, 0.0)], Header(700.0, 1, 3, None)),
        ],
    )
    def test_garbage_is_null_and_one_line_of_warning(self, content):
        found = read(content, 0, 10.0, 12.0, 0.2)
        assert (found.series, found.energy_j, found.timed_s) == (None, None, 2.0)
        assert found.warning.startswith("the sampler's file is damaged: ")
        assert "\n" not in found.warning
        for empty in (b"", b'{"power_lim'):
            assert read(empty, 0, 10.0, 12.0, 0.2).warning == "the sampler had not begun"

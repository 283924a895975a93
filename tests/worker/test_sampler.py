"""The real sampler process, before an NVML that is not one."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from statistics import median

import pytest
from worker.sampled import ENDS_WITHIN_S, FAKE, PATIENCE_S, UUID, ends_in_time, is_running

from fp8bench.worker.sampler import next_due, read_header, read_sample

pytestmark = pytest.mark.slow

PERIOD_S = 0.02

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
time.sleep(60)
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def call(uuid=UUID, period_s=PERIOD_S, **script):
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
        return read_header(lines_of(path)[0]), samples(path)

    return run


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def wait_for_lines(path, count):
    deadline = time.monotonic() + PATIENCE_S
    while len(lines_of(path)) < count:
        assert time.monotonic() < deadline, "the sampler wrote too little"
        time.sleep(0.005)


def samples(path):
    return [read_sample(line) for line in lines_of(path)[1:]]


def test_monotonic_and_perf_counter_are_one_clock_and_neither_torch_nor_pydantic_is_imported():
    clocks = [time.get_clock_info(name).implementation for name in ("monotonic", "perf_counter")]
    assert clocks == ["clock_gettime(CLOCK_MONOTONIC)"] * 2
    code = "import sys, fp8bench.worker.sampler; print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_writes_what_nvml_says_in_units_until_its_input_ends(start):
    begun = time.perf_counter()
    process, path = start()
    wait_for_lines(path, 8)
    told = time.monotonic()
    process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - told < ENDS_WITHIN_S
    header, found = read_header(lines_of(path)[0]), samples(path)
    assert process.returncode == 0
    assert header == (700.0, 1980, {}, None)
    assert {sample[1:7] for sample in found} == {(1755, 3201, 500.0, 61, 99, 0)}
    assert begun < found[0].at_s < found[-1].at_s < time.perf_counter()
    # The scripted counter is 500 W times the clock, so that the stamp is when it was read.
    # (Between the two a busy machine may take the processor away, hence the median.)
    assert median(abs(sample.energy_j - 500 * sample.at_s) for sample in found) < 0.5


def test_it_samples_once_more_when_it_is_told_to_end(start):
    process, path = start(period_s=60)
    wait_for_lines(path, 2)
    told = time.monotonic()
    process.terminate()
    process.wait(PATIENCE_S)
    assert process.returncode == 0
    assert time.monotonic() - told < ENDS_WITHIN_S
    assert [sample.at_s > told for sample in samples(path)] == [False, True]


def test_it_ends_with_its_parent_though_a_fork_keeps_its_input_open(start):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, UUID],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(FAKE)},
    )
    assert parent.stdout is not None
    sampler, fork = (int(word) for word in parent.stdout.readline().split())
    try:
        assert is_running(sampler)
        parent.kill()
        parent.wait(PATIENCE_S)
        assert ends_in_time(sampler)
        assert is_running(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        parent.stdout.close()


def test_a_column_that_nvml_denies_is_null_and_named_and_a_passing_error_is_no_denial(wrote):
    header, found = wrote(4, denied={"energy": 3, "power": 4, "max_clock": 3, "temperature": 999})
    assert header.denied == {
        "energy_j": "Not Supported",
        "power_w": "Insufficient Permissions",
        "max_sm_clock_mhz": "Not Supported",
    }
    assert (header.power_limit_w, header.max_sm_clock_mhz) == (700.0, None)
    columns = {(sample.energy_j, sample.power_w, sample.temperature_c, sample.sm_clock_mhz) for sample in found}
    assert columns == {(None, None, None, 1755)}


@pytest.mark.parametrize(
    "script", [{"old": True}, {"denied": {"events": 13}}], ids=["an older library", "an older driver"]
)
def test_throttle_reasons_go_by_their_old_name_too(script, wrote):
    assert {sample.throttle_reasons for sample in wrote(2, **script)[1]} == {4}


@pytest.mark.parametrize(
    ("uuid", "script", "words"),
    [(UUID, {"missing": True}, "NVML Shared Library Not Found"), ("GPU-ffff", {}, "Not Found")],
)
def test_where_there_is_nothing_to_sample_it_says_why_and_ends(uuid, script, words, start):
    process, path = start(uuid, **script)
    assert process.wait(PATIENCE_S) == 0
    assert [read_header(line).error for line in lines_of(path)] == [words]


def test_the_next_sample_is_due_on_the_grid_and_periods_that_a_slow_call_ran_past_are_left_out(wrote):
    for now, expected in ((10.01, 10.2), (10.2, 10.2), (10.3, 10.4), (11.1, 11.2)):
        assert next_due(10.0, now, 0.2) == pytest.approx(expected)
    at_s = [sample.at_s for sample in wrote(5, period_s=0.05, slow_s=0.12)[1][:-1]]
    assert all(later - earlier > 0.12 for earlier, later in pairwise(at_s)), "none is made up for"


@pytest.mark.parametrize(
    ("read", "line"),
    [
        *((read_sample, line) for line in ("", "{", "[1.0]", "{}")),
        *((read_sample, f"[{values},1,1,1,1,1,1]") for values in ('"x",1', "null,1", "1,true")),
        *((read_header, line) for line in ("", "[]", "{}")),
        (read_header, '{"power_limit_w": 1, "max_sm_clock_mhz": 1, "denied": 3, "error": 0}'),
    ],
)
def test_a_line_that_is_no_sample_or_header_is_an_error(read, line):
    with pytest.raises(ValueError, match=f"{read.__name__[5:]}|Expecting"):
        read(line)

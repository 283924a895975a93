"""The host as its files tell it, a container's limits included; and a loop timed many times."""

import os
from itertools import accumulate, chain

import pytest

from fp8bench.machine.host import SpeedFacts, free_host_bytes, look, measure_speed

GIB = 1 << 30


@pytest.fixture
def root(written):
    """Write files under a root of our own, then look."""
    return lambda **files: look(written(**files))


def test_a_bare_machine(root):
    found = root(
        proc__loadavg="1.25 0.5 0.1 2/300 77\n",
        proc__meminfo="MemTotal: 100 kB\nMemAvailable:   4194304 kB\n",
        proc__cpuinfo="processor : 0\nmodel name : AMD EPYC 9654\n",
    )

    assert (found.cpu, found.load, found.memory_free_bytes) == ("AMD EPYC 9654", 1.25, 4 * GIB)
    assert found.cores == len(os.sched_getaffinity(0))
    assert (found.governors, found.shm_bytes) == (None, None)


def test_nothing_told_is_none(root):
    found = root()

    assert (found.cpu, found.load, found.memory_free_bytes, found.governors) == (None, None, None, None)


@pytest.mark.parametrize(
    "files",
    [
        {"sys__fs__cgroup__cpu.max": "50000 100000\n"},
        {"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "50000\n", "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n"},
    ],
    ids=["v2", "v1"],
)
def test_a_quota_limits_the_cores(files, root):
    assert root(**files).cores == 0.5


@pytest.mark.parametrize(
    "files",
    [
        {"sys__fs__cgroup__cpu.max": "max 100000\n"},
        {"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1\n", "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n"},
    ],
    ids=["v2", "v1"],
)
def test_no_quota_limits_nothing(files, root):
    assert root(**files).cores == len(os.sched_getaffinity(0))


def test_every_governor_is_told_once(root):
    governor = "sys__devices__system__cpu__cpu{}__cpufreq__scaling_governor"

    found = root(**{governor.format(0): "powersave\n", governor.format(1): "performance\n", governor.format(2): "\n"})

    assert found.governors == ("performance", "powersave")


def test_this_machine_has_cores_and_a_load():
    found = look()

    assert found.cores > 0
    assert found.load is not None
    assert found.memory_free_bytes


@pytest.mark.parametrize(
    ("limit_file", "used_file"),
    [
        ("sys__fs__cgroup__memory.max", "sys__fs__cgroup__memory.current"),
        ("sys__fs__cgroup__memory__memory.limit_in_bytes", "sys__fs__cgroup__memory__memory.usage_in_bytes"),
    ],
    ids=["v2", "v1"],
)
@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [("40960", "8192", 32768), ("5", "9", 0), ("max", "5", 65536), (str(2**63 - 4096), "5", 65536)],
)
def test_a_containers_limit_counts_where_it_is_the_smaller(written, limit_file, used_file, limit, used, free):
    files = {"proc__meminfo": "MemAvailable: 64 kB\n", limit_file: f"{limit}\n", used_file: f"{used}\n"}
    assert free_host_bytes(written(**files)) == free


@pytest.mark.parametrize(
    ("folder", "limit_file", "used_file", "prefix"),
    [("", "max", "current", ""), ("memory__", "limit_in_bytes", "usage_in_bytes", "total_")],
    ids=["v2", "v1"],
)
def test_files_that_a_container_has_cached_make_room(written, folder, limit_file, used_file, prefix):
    group = f"sys__fs__cgroup__{folder}memory."
    files = {
        "proc__meminfo": "MemAvailable: 64 kB\n",
        f"{group}{limit_file}": "40960\n",
        f"{group}{used_file}": "40000\n",
        f"{group}stat": f"anon 8192\nshmem 900\n{prefix}inactive_file 20000\n{prefix}active_file 11808\nbroken\n",
    }
    assert free_host_bytes(written(**files)) == 32768


def test_the_first_loop_is_left_out():
    durations = [9.0, 2.0, 3.0, 2.0]
    ticks = accumulate(chain.from_iterable((0.0, duration) for duration in durations))

    found = measure_speed(clock=lambda: next(ticks), turns=1, repeats=3)

    assert found.loop_s == (2.0, 3.0, 2.0)
    assert (found.median_s, found.swing) == (2.0, 1.5)


@pytest.mark.slow
def test_a_real_one_takes_about_a_moment():
    found = measure_speed()

    assert len(found.loop_s) == 15
    assert sum(found.loop_s) < 10
    assert found.swing >= 1


def test_an_even_host_has_a_swing_of_one():
    assert SpeedFacts(loop_s=(0.01, 0.01)).swing == 1

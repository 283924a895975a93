"""The host as its files tell it, a container's limits included; and a loop timed many times."""

import os
from itertools import accumulate, chain

import pytest

from fp8bench.machine.host import free_host_bytes, look, loop_times

GIB = 1 << 30


@pytest.fixture
def root(written):
    """Write files under a root of our own, then look."""
    return lambda **files: look(written(**files))


def test_a_bare_machine_and_nothing_told_is_none(root):
    found = root()
    assert (found.cpu, found.load, found.memory_free_bytes, found.governors) == (None, None, None, None)
    found = root(
        proc__loadavg="1.25 0.5 0.1 2/300 77\n",
        proc__meminfo="MemTotal: 100 kB\nMemAvailable:   4194304 kB\n",
        proc__cpuinfo="processor : 0\nmodel name : AMD EPYC 9654\n",
    )
    assert (found.cpu, found.load, found.memory_free_bytes) == ("AMD EPYC 9654", 1.25, 4 * GIB)
    assert found.cores == len(os.sched_getaffinity(0))
    assert (found.governors, found.shm_bytes) == (None, None)
    governor = "sys__devices__system__cpu__cpu{}__cpufreq__scaling_governor"
    found = root(**{governor.format(0): "powersave\n", governor.format(1): "performance\n", governor.format(2): "\n"})
    assert found.governors == ("performance", "powersave"), "every governor is told once"


V1 = "sys__fs__cgroup__cpu__cpu.cfs_"


@pytest.mark.parametrize(
    ("v2", "v1", "cores"), [("50000", "50000", 0.5), ("max", "-1", None)], ids=["a quota", "no quota limits nothing"]
)
def test_a_quota_limits_the_cores(v2, v1, cores, root, tmp_path):
    expected = cores or len(os.sched_getaffinity(0))
    assert root(**{"sys__fs__cgroup__cpu.max": f"{v2} 100000\n"}).cores == expected
    (tmp_path / "sys/fs/cgroup/cpu.max").unlink()
    assert root(**{f"{V1}quota_us": f"{v1}\n", f"{V1}period_us": "100000\n"}).cores == expected


@pytest.mark.parametrize(
    ("folder", "limit_file", "used_file", "prefix"),
    [("", "max", "current", ""), ("memory__", "limit_in_bytes", "usage_in_bytes", "total_")],
    ids=["v2", "v1"],
)
def test_a_containers_limit_counts_where_it_is_the_smaller_and_files_that_it_has_cached_make_room(
    written, folder, limit_file, used_file, prefix
):
    group = f"sys__fs__cgroup__{folder}memory."
    for limit, used, free in (("40960", "8192", 32768), ("5", "9", 0), ("max", "5", 65536), (2**63 - 4096, "5", 65536)):
        files = {f"{group}{limit_file}": f"{limit}\n", f"{group}{used_file}": f"{used}\n"}
        assert free_host_bytes(written(proc__meminfo="MemAvailable: 64 kB\n", **files)) == free
    cached = f"anon 8192\nshmem 900\n{prefix}inactive_file 20000\n{prefix}active_file 11808\nbroken\n"
    files = {f"{group}{limit_file}": "40960\n", f"{group}{used_file}": "40000\n", f"{group}stat": cached}
    assert free_host_bytes(written(**files)) == 32768


def test_the_first_loop_is_left_out():
    durations = [9.0, 2.0, 3.0, 2.0]
    ticks = accumulate(chain.from_iterable((0.0, duration) for duration in durations))
    assert loop_times(clock=lambda: next(ticks), turns=1, repeats=3) == (2.0, 3.0, 2.0)

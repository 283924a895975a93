"""What memory is free: the machine's, or what its container leaves."""

import pytest
import torch

from fp8bench.machine.host import free_host_bytes
from fp8bench.numerics import free_memory


def test_a_machine_says_what_is_available(written):
    assert free_host_bytes(written(proc__meminfo="MemTotal:  100 kB\nMemAvailable:   64 kB\n")) == 64 * 1024


def test_nothing_tells(written):
    assert free_host_bytes(written()) is None


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


def test_on_a_cpu_the_hosts_memory_is_what_is_free(monkeypatch):
    monkeypatch.setattr(free_memory, "free_host_bytes", lambda: 77)
    assert free_memory.free_bytes(torch.device("cpu")) == 77

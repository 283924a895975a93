"""The host as its files tell it, a container's limits included; and a loop timed many times. Which machine this is: the
same in every record, another than any other's, and nothing of it in clear.
"""

import hashlib
import hmac
import os
import platform
from importlib.metadata import version
from itertools import accumulate, chain
from unittest.mock import Mock

import pynvml
import pytest
from builders import environment, machine_called, measured

from fp8bench.machine import identity
from fp8bench.machine.gpus import Gpu
from fp8bench.machine.host import free_host_bytes, look, loop_times
from fp8bench.machine.identity import OURS, Here, digest, software_here, this_machines_identity, together

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


UUIDS = ["GPU-8f2e6c1a-0000-4000-8000-000000000001", "GPU-8f2e6c1a-0000-4000-8000-000000000002"]
MACHINE_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Say what this machine has."""

    def has(uuids=(), machine_id=None, boot_id=None):
        gpus = tuple(Gpu(index, uuid, "NVIDIA H200") for index, uuid in enumerate(uuids))
        monkeypatch.setattr(identity, "gpus_here", lambda: gpus)
        for name, text in (("MACHINE_ID", machine_id), ("BOOT_ID", boot_id)):
            path = tmp_path / name
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(f"{text}\n")
            monkeypatch.setattr(identity, name, path)

    return has


def test_it_is_the_keyed_digest_of_all_gpus_in_whatever_order_also_of_hidden_ones(machine, monkeypatch):
    machine(UUIDS, MACHINE_ID, "boot")
    found = this_machines_identity("vendor-a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine(UUIDS[::-1], "another", "another")
    assert found == this_machines_identity("vendor-a")
    assert (found.basis, found.label) == ("gpu-uuids", "vendor-a")
    expected = hmac.new("\n".join(UUIDS).encode(), OURS, hashlib.sha256).hexdigest()
    assert found.id == expected[:16]
    machine(UUIDS[:1])
    assert this_machines_identity().id != found.id, "another GPU makes another machine"
    # Nothing of the machine is in it.
    assert not any(part in found.model_dump_json() for part in (*UUIDS, "8f2e6c1a", MACHINE_ID, platform.node()))


@pytest.mark.parametrize("uninitialized", ["", "uninitialized"])
def test_without_gpus_it_is_the_machine_id_and_without_that_the_boot_id(machine, uninitialized):
    machine((), MACHINE_ID, "boot")
    by_machine = this_machines_identity()
    machine((), uninitialized, "boot")
    by_boot = this_machines_identity()
    machine()
    assert (by_machine.basis, by_machine.id) == ("machine-id", digest(MACHINE_ID))
    assert (by_boot.basis, by_boot.id) == ("boot-id", digest("boot"))
    assert this_machines_identity() is None


@pytest.mark.parametrize(
    "uuids", [("", ""), (UUIDS[0], ""), None], ids=["unknown", "one unknown", "a driver that breaks"]
)
def test_gpus_that_are_not_told_apart_are_no_basis_nor_is_a_driver_that_breaks(machine, monkeypatch, uuids):
    machine(uuids or (), MACHINE_ID)
    if uuids is None:
        monkeypatch.setattr(identity, "gpus_here", Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)))
    assert this_machines_identity().basis == "machine-id"


def test_nodes_together_are_one_machine_in_whatever_order_and_of_which_one_is_unknown_are_unknown():
    one, other = machine_called("a"), machine_called("b")
    found = together([one, other, one])
    assert found == together([other, one])
    assert (found.basis, found.label) == ("nodes", None)
    assert found.id not in (one.id, other.id)
    assert together([one, one]) == one
    assert together([one, other.model_copy(update={"label": "a"})]).label == "a"
    assert together([machine_called("a"), None]) is None
    assert together([]) is None


def test_what_of_a_record_is_unlike_here_is_named_and_software_is_told_by_a_records_names():
    found = software_here(on_gpu=False)
    python = ".".join(platform.python_version_tuple()[:2])
    assert (found["torch"], found["python"], found["driver"]) == (version("torch"), python, None)
    here = Here(machine_called("a"), {"torch": "2.12.0", "python": "3.12"})
    record = measured(machine=machine_called("b"), environment=environment(versions={"torch": "2.11.0"}))
    place = f"machine {machine_called('b')} (here {machine_called('a')})"
    assert here.unlike(record) == [place, "torch 2.11.0 (here 2.12.0)"]
    assert Here(machine_called("b"), {"torch": "2.11.0"}).unlike(record) == []
    assert Here(None, {}, one=False).unlike(record) == []
    assert Here(None).unlike(record) == [f"machine {machine_called('b')} (here unknown)"]

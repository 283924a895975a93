"""The host as its files tell it: CPU, cores, load, memory, shared memory, open files and the clock's governor. None: it
does not say.

A container may have less than the machine: its control group's limits count, whichever is smaller. psutil knows no
control groups, and would count the memory of the host around a container as free: so the files are read here.
"""

import os
import resource
from collections.abc import Iterable
from pathlib import Path

from fp8bench.schema.files import Frozen, text_if_any

CGROUP = Path("sys/fs/cgroup")
LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Of control groups of the second and of the first version: the limit's file, and that of what is used."""

KIB = 1024
NO_LIMIT_BYTES = 1 << 60
"""Control groups of the first version say `no limit` by a number near 2 ** 63."""


class HostFacts(Frozen):
    """cores: what this process may use, a fraction under a quota. load: runnable processes over the last minute."""

    cpu: str | None
    cores: float
    load: float | None
    governors: tuple[str, ...] | None
    open_files: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None
    memory_free_bytes: int | None


def look(root: Path = Path("/")) -> HostFacts:
    """root: where /proc, /sys and /dev lie."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm, shm_free = _shm(root / "dev/shm")
    return HostFacts(
        cpu=cpu_model(root),
        cores=min([float(len(os.sched_getaffinity(0))), *_quota(root / CGROUP)]),
        load=_first_number(root / "proc/loadavg"),
        governors=_governors(root / "sys/devices/system/cpu"),
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        shm_bytes=shm,
        shm_free_bytes=shm_free,
        memory_free_bytes=free_host_bytes(root),
    )


def cpu_model(root: Path = Path("/")) -> str | None:
    """The CPU's name. root: where /proc lies."""
    lines = text_if_any(root / "proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Without swapping; None where nothing tells. root: where /proc and /sys lie."""
    return min([*_available(root / "proc/meminfo"), *_room(root / CGROUP)], default=None)


def _first_number(path: Path) -> float | None:
    words = text_if_any(path).split()
    return float(words[0]) if words else None


def _governors(cpus: Path) -> tuple[str, ...] | None:
    """Every governor in use; None in most virtual machines, where the host below has the clocks."""
    found = {text_if_any(path).strip() for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    return tuple(sorted(found - {""})) or None


def _shm(path: Path) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _quota(cgroup: Path) -> Iterable[float]:
    """Cores that the control group may use at once."""
    quota, _, period = text_if_any(cgroup / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (text_if_any(cgroup / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return [int(quota) / int(period)] if quota.isdigit() and period.isdigit() and int(period) else []


def _available(meminfo: Path) -> Iterable[int]:
    lines = text_if_any(meminfo).splitlines()
    return [int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:")]


def _room(cgroup: Path) -> Iterable[int]:
    """Memory that the control group may still take."""
    for limit, used in (
        (text_if_any(cgroup / limit).strip(), text_if_any(cgroup / used).strip()) for limit, used in LIMITS
    ):
        if limit.isdigit() and used.isdigit() and int(limit) < NO_LIMIT_BYTES:
            return [max(0, int(limit) - int(used))]
    return []

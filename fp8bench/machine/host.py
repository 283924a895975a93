"""The host, from its files, and how fast it runs Python. None is unknown. A container may have less than the machine:
the smaller of both limits counts, which psutil does not know.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fp8bench.schema.files import Frozen, text_if_any

CGROUP = Path("sys/fs/cgroup")
# For control groups of the second and of the first version: the files of the limit, of what is used, and of what of it
# are cached files, whose names there have a prefix.
LIMITS = (
    ("memory.max", "memory.current", "memory.stat", ""),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
)

LOOP_TURNS = 400_000


class HostFacts(Frozen):
    """cores: for this process, a fraction under a quota. load: runnable processes in the last minute."""

    cpu: str | None
    cores: float
    load: float | None
    governors: tuple[str, ...] | None
    shm_bytes: int | None
    shm_free_bytes: int | None
    memory_free_bytes: int | None


def loop_times(
    clock: Callable[[], float] = time.perf_counter, turns: int = LOOP_TURNS, repeats: int = 15
) -> tuple[float, ...]:
    """Return how long a loop took each time: how evenly this host runs Python, by which steps swing that are not
    replayed as a CUDA graph. It takes half a second. The first loop warms the interpreter and is not counted.
    """
    times = []
    for _ in range(repeats + 1):
        start = clock()
        total = 0
        for number in range(turns):
            total += number & 7
        times.append(clock() - start)
    return tuple(times[1:])


def look(root: Path = Path("/")) -> HostFacts:
    shm, shm_free = None, None
    with suppress(OSError):
        shm, _, shm_free = shutil.disk_usage(root / "dev/shm")
    load = text_if_any(root / "proc/loadavg").split()
    cpus = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = {text_if_any(path).strip() for path in cpus}
    return HostFacts(
        cpu=cpu_model(root),
        cores=_cores(root / CGROUP),
        load=float(load[0]) if load else None,
        # None in most virtual machines, where the host below has the clocks.
        governors=tuple(sorted(governors - {""})) or None,
        shm_bytes=shm,
        shm_free_bytes=shm_free,
        memory_free_bytes=free_host_bytes(root),
    )


def cpu_model(root: Path = Path("/")) -> str | None:
    lines = text_if_any(root / "proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that may be taken without swapping."""
    lines = text_if_any(root / "proc/meminfo").splitlines()
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*available, *_room(root / CGROUP)], default=None)


def _cores(cgroup: Path) -> float:
    """Return the number of cores that this process may use at once, by the control group's quota too."""
    cores = float(len(os.sched_getaffinity(0)))
    quota, _, period = text_if_any(cgroup / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (text_if_any(cgroup / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    limited = quota.isdigit() and period.isdigit() and int(period)
    return min(cores, int(quota) / int(period)) if limited else cores


def _room(cgroup: Path) -> Iterable[int]:
    """Return the memory that the control group may still take, or may free of cached files."""
    for limit_file, used_file, stat_file, prefix in LIMITS:
        limit, used = (text_if_any(cgroup / name).strip() for name in (limit_file, used_file))
        # For `no limit`, control groups of the first version have a number near 2 ** 63.
        if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
            cached = re.findall(rf"^{prefix}(?:in)?active_file (\d+)$", text_if_any(cgroup / stat_file), re.MULTILINE)
            return [max(0, int(limit) - max(0, int(used) - sum(map(int, cached))))]
    return []

"""What memory this host has free, as its files tell it.

A container may have less than the machine: its control group's limit counts, whichever is smaller.
"""

from collections.abc import Iterable
from pathlib import Path

from fp8bench.schema.files import text_if_any

CGROUP = Path("sys/fs/cgroup")
LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Of control groups of the second and of the first version: the limit's file, and that of what is used."""

KIB = 1024
NO_LIMIT_BYTES = 1 << 60
"""Control groups of the first version say `no limit` by a number near 2 ** 63."""


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Without swapping; None where nothing tells. root: where /proc and /sys lie."""
    return min([*_available(root / "proc/meminfo"), *_room(root / CGROUP)], default=None)


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

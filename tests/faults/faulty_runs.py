"""Runs in which something goes wrong, and what must be true after each: nothing is left of it but its record."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from kept import documents

from fp8bench.launch.signals import process, processes

TINY = ("--mode", "faulty", "--workload", "faulty-linear", "--batch-size", "8", "--warmup", "2", "--steps", "6")
WORDS = ("run", *TINY, "--min-time", "0", "--rounds", "1")
LIMIT_S = 120
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Done:
    """A run that has ended. records: as they lie on disk, by time."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    folder: Path

    @property
    def records(self):
        return documents(self.folder / "results")

    @property
    def record(self):
        (record,) = self.records
        return record


def nothing_left(folder):
    """No process at work in the folder, nothing in its folder for temporary files, no shared memory of the dead."""
    deadline = time.monotonic() + 5
    while found := [*at_work_in(folder), *in_temporary(folder), *orphaned_memory()]:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return True


def in_temporary(folder):
    """But what compilers and torchrun keep there, and records that found no other place."""
    kept = ("torchinductor", "torchelastic")
    found = [path.name for path in (folder / "temporary").iterdir() if not _holds_a_record(path)]
    return [name for name in found if not name.startswith(kept)]


def _holds_a_record(path):
    inside = list(path.iterdir()) if path.is_dir() else []
    return bool(inside) and all(one.suffix == ".json" for one in inside)


def at_work_in(folder):
    """Processes whose working directory it is, or below it."""
    found = []
    for one in processes():
        try:
            place = os.readlink(f"/proc/{one.pid}/cwd")
        except OSError:
            continue
        if one.state != "Z" and Path(place).is_relative_to(folder):
            found.append(one)
    return found


def orphaned_memory():
    """torch names its files after the process that made them."""
    names = [path.name for path in SHARED_MEMORY.iterdir()] if SHARED_MEMORY.is_dir() else []
    owned = [(name, name.split("_")[1]) for name in names if name.startswith("torch_")]
    return [name for name, pid in owned if pid.isdecimal() and process(int(pid)) is None]

"""Runs in which something goes wrong, and what must be true after each: nothing is left of it but its record."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli.calling import call

from fp8bench.launch.signals import process, processes

PLUGINS = Path(__file__).parent / "faulty_plugins.py"
ENTRY_POINTS = """\
[fp8bench.modes]
faulty = faulty_plugins:Faulty
[fp8bench.workloads]
faulty-linear = faulty_plugins:Linear
"""
TINY = ("--mode", "faulty", "--workload", "faulty-linear", "--batch-size", "8", "--warmup", "2", "--steps", "6")
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
        return records_in(self.folder / "results")

    @property
    def record(self):
        (record,) = self.records
        return record


def records_in(results):
    return [json.loads(path.read_text()) for path in sorted(results.glob("*/*.json"))]


@pytest.fixture(scope="session")
def faulty_site(tmp_path_factory):
    """A folder that holds the faulty package, for PYTHONPATH."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(PLUGINS, site)
    info = site / "faulty_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


@pytest.fixture
def variables(tmp_path, faulty_site):
    """Of every run: the package, and a folder for temporary files that is the test's own."""
    (tmp_path / "temporary").mkdir()
    return {"PYTHONPATH": str(faulty_site), "TMPDIR": str(tmp_path / "temporary")}


@pytest.fixture(scope="session")
def torch_imported(tmp_path_factory, faulty_site):
    """By the server that forks: the first run takes as long as that does, and no other."""
    words = ("run", *TINY, "--min-time", "0", "--rounds", "1", "--gpus", "1")
    assert call(tmp_path_factory.mktemp("first"), *words, PYTHONPATH=str(faulty_site)).code == 0


@pytest.fixture
def run(tmp_path, variables, torch_imported):
    """`fp8bench run` with this fault to its end. Whatever happens, nothing is left behind."""

    def running(fault, *flags, **more):
        began = time.monotonic()
        words = ("run", *TINY, "--min-time", "0", "--rounds", "1", *flags)
        done = call(tmp_path, *words, FAULT=fault, **{**variables, **more})
        seconds = time.monotonic() - began
        assert "Traceback" not in done.stderr
        assert nothing_left(tmp_path)
        return Done(done.code, done.stdout, done.stderr, seconds, tmp_path)

    return running


def nothing_left(folder):
    """No process at work in the folder, nothing in its folder for temporary files, no shared memory of the dead."""
    deadline = time.monotonic() + 5
    while found := [*at_work_in(folder), *in_temporary(folder), *orphaned_memory()]:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return True


def in_temporary(folder):
    """But what compilers and torchrun keep there."""
    kept = ("torchinductor", "torchelastic")
    return [path.name for path in (folder / "temporary").iterdir() if not path.name.startswith(kept)]


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


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of so many bytes; a mount is root's."""
    place = tmp_path / "disk"
    mounted = []

    def mount(size):
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no file system can be mounted here")
        mounted.append(place)
        return place

    yield mount
    for one in mounted:
        subprocess.run(["umount", "-l", str(one)], check=True)

"""Two hundred runs in a row, by one launcher: nothing grows but the records."""

import os
import signal
from pathlib import Path

import pytest
from faults.faulty_runs import SHARED_MEMORY, at_work_in, in_temporary, nothing_left
from kept import documents, record_paths
from launch.seen import until

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1800)]

RUNS = 200
EARLY = 40
"""By then the launcher has imported and cached what it ever will."""

A_RECORD_BYTES = 150_000
"""Of memory, at most: the launcher keeps what it needs of each record to know when to stop."""


def resident_bytes(pid):
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def test_nothing_grows(begin, tmp_path):
    results = tmp_path / "results" / "cpu"
    shared = set(SHARED_MEMORY.iterdir())
    running, _ = begin("--gpus", "1", "--rounds", str(RUNS + 1))
    seen = {}
    for count in (EARLY, RUNS):
        until(lambda count=count: results.is_dir() and len(record_paths(results, "*.json")) >= count, 1500)
        seen[count] = {
            "memory": resident_bytes(running.pid),
            "files": descriptors(running.pid),
            "threads": threads(running.pid),
            "processes": len(at_work_in(tmp_path)),
            "temporary": len(in_temporary(tmp_path)),
        }
    running.send_signal(signal.SIGTERM)
    running.wait(60)
    early, late = seen[EARLY], seen[RUNS]

    assert {record["status"] for record in documents(tmp_path / "results")} == {"ok"}
    assert late["memory"] - early["memory"] < (RUNS - EARLY) * A_RECORD_BYTES
    # A look comes between two runs, or within one: of the launcher and one rank, with its pipe and its folder.
    assert late["files"] <= early["files"] + 4
    assert late["threads"] <= early["threads"]
    assert late["processes"] <= 3
    assert late["temporary"] <= 1
    assert nothing_left(tmp_path)
    assert {path.name for path in set(SHARED_MEMORY.iterdir()) - shared if path.name.startswith("torch_")} == set()

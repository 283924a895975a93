"""Where a measurement's seconds went: from what a rank said and its launcher saw, and of a real run."""

import subprocess
import sys
import time

import pytest
from cli.calling import environment
from kept import documents

from fp8bench.launch.assemble import OF_STAGES, phases
from fp8bench.launch.signals import process_began_s
from fp8bench.worker.progress import STAGES, Progress


def test_every_stage_of_a_rank_belongs_to_a_phase():
    assert set(OF_STAGES) == set(STAGES)


@pytest.mark.parametrize(
    ("seen", "ended_s", "now_s", "found"),
    [
        (
            {"stage": "done", "since_s": 20.0, "seconds": {"starting": 1.0, "proving": 2.0, "timing": 4.0}},
            20.5,
            21.0,
            {"prepare": 1.0, "start": 3.0, "proof": 2.0, "timed": 4.0, "write": 1.0},
        ),
        # The stage in which a rank was killed ends with it; one that said nothing did nothing but start.
        (
            {"stage": "warming up", "since_s": 14.0, "seconds": {"starting": 1.0}},
            20.0,
            20.0,
            {"prepare": 1.0, "start": 3.0, "warm_up": 6.0, "write": 0.0},
        ),
        (None, 20.0, 20.5, {"prepare": 1.0, "start": 9.0, "write": 0.5}),
    ],
)
def test_what_the_rank_said_is_joined_to_what_its_launcher_saw(seen, ended_s, now_s, found):
    progress = Progress(step=1, median_s=None, began_s=13.0, **seen) if seen else None

    assert phases(10.0, 11.0, progress, ended_s, now_s) == found


def test_a_process_knows_when_it_began():
    asked = "import time; time.sleep(0.5); from fp8bench.launch.signals import process_began_s; "
    asked += "print(time.monotonic() - process_began_s())"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert 0.5 <= float(said.stdout) < 60
    assert process_began_s() < time.monotonic()


@pytest.mark.slow
def test_the_phases_of_a_real_session_add_up_to_its_wall_time(tmp_path):
    command = ["run", "--mode", "baseline-bf16", "--mode", "baseline-fp32", "--workload", "vit-micro"]
    options = ["--steps", "3", "--rounds", "1", "--min-time", "0.1", "--notes", "--results-dir", str(tmp_path)]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fp8bench", *command, *options],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    wall_s = time.monotonic() - began
    records = documents(tmp_path, "**/*.json")
    assert len(records) == 2
    for record in records:
        assert record["phases_s"].keys() >= set("prepare start build proof warm_up timed profile write".split())
    told = sum(sum(record["phases_s"].values()) for record in records)
    # What follows the last record is its table.
    assert 0.93 * wall_s < told <= wall_s
    lines = done.stdout[done.stdout.index("start and imports") :].splitlines()
    assert lines[-1].split()[0] == "together"
    assert float(lines[-1].split()[-1]) == pytest.approx(told, abs=0.1)
    timed = [sum(record["samples"][0]["step_s"]) for record in records]
    assert sum(record["phases_s"]["timed"] for record in records) >= sum(timed)

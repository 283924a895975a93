"""Ranks without torch that do what ranks do when something is wrong, started by the real launcher in real processes.

The workload's name in the configuration says which fault it is.
"""

import json
import os
import signal
import subprocess
import sys
import time

from fp8bench.launch.processes.rank import TASK, Task, rank_path
from fp8bench.machine.identity import settings_given
from fp8bench.schema.private import settings_in
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import ProgressFile

ENTRY = "launch.faulty_work:measure"
PIDS = "FAULTY_PIDS"
"""Names the folder in which ranks and their children say that they are there."""


def measure(folder, rank, teller):
    """What a rank does instead of training."""
    task = Task.model_validate_json((folder / TASK).read_bytes())
    progress = ProgressFile(rank_path(folder, rank, "progress"))
    progress.stage("proving")
    say_here()
    globals()[task.config.workload.replace("-", "_")](rank, progress)
    report = RankReport(rank=rank, environment=None)
    teller.say("report", report.model_dump_json())


def say_here():
    if PIDS in os.environ:
        with open(os.path.join(os.environ[PIDS], str(os.getpid())), "w"):
            pass


def wait_for_others():
    time.sleep(600)


def well(rank, progress):
    progress.stage("done")


def tells_its_settings(rank, progress):
    with open(os.path.join(os.environ[PIDS], "settings"), "w") as file:
        json.dump([settings_given(), settings_in(os.environ)], file)


def rank_1_stops(rank, progress):
    """It is ahead of the others when it stops: they wait for it all the same."""
    if rank == 1:
        progress.stage("warming up")
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_for_others()


def rank_1_sleeps(rank, progress):
    progress.stage("timing")
    for _ in range(3 if rank == 1 else 4):
        progress.step()
    wait_for_others()


def all_hang(rank, progress):
    wait_for_others()


def rank_1_terminated(rank, progress):
    end_of_rank_1(rank, lambda: os.kill(os.getpid(), signal.SIGTERM))


def rank_1_crashes(rank, progress):
    end_of_rank_1(rank, lambda: os.abort())


def rank_1_raises(rank, progress):
    def fail():
        raise ValueError(
            "\n2 fields are invalid\n  width: no number\nFor further information visit https://example.org"
        )

    end_of_rank_1(rank, fail)


def rank_0_waits_for_ever(rank, progress):
    """As a rank inside an NCCL kernel, which never hears that another is gone."""
    if rank == 1:
        raise ZeroDivisionError("enough")
    wait_for_others()


def end_of_rank_1(rank, how):
    """Rank 0 notices, and says so, as gloo does."""
    if rank == 1:
        how()
    time.sleep(0.4)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234")


def leaves_a_child(rank, progress):
    """A child of a child, in a session of its own, which holds every pipe open and does not heed SIGTERM."""
    sleeper = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid(); "
        "from launch.faulty_work import say_here; say_here(); time.sleep(600)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if rank == 1 and os.fork() == 0:
        subprocess.Popen([sys.executable, "-c", sleeper], env=environ)
        os._exit(0)
    deadline = time.monotonic() + 20
    while len(os.listdir(os.environ[PIDS])) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    progress.stage("done")

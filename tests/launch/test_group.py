"""A group of ranks does one function's work, and leaves nothing behind, whatever becomes of it."""

import os
import re
import signal
import threading
import time

import pytest

from fp8bench.launch.processes.group import Job, run
from fp8bench.launch.signals import Interrupt, descendants, processes
from fp8bench.schema.errors import RunFailed

pytestmark = pytest.mark.thorough

RANKS = """
import os, signal, time
from fp8bench.schema.errors import UsageError

def answers(payload, rank, meet):
    print("not on standard output")
    return f"{payload} {rank} {meet.startswith('file://')}"

def second_raises(payload, rank, meet):
    if rank == 1:
        raise ValueError("no such luck")
    time.sleep(60)

def second_refuses(payload, rank, meet):
    if rank == 1:
        raise UsageError("it does not fit", "Give less")
    time.sleep(60)

def second_is_killed(payload, rank, meet):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

def never_ends(payload, rank, meet):
    time.sleep(60)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    (tmp_path / "ranks_of_a_test.py").write_text(RANKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def made(function, limit_s=60.0):
        return Job(f"ranks_of_a_test:{function}", "given", 2, limit_s)

    yield made
    assert _ours() == []


def _ours():
    """Ranks of this process that still live."""
    found = []
    for one in descendants(os.getpid(), processes()):
        try:
            with open(f"/proc/{one.pid}/cmdline", "rb") as file:
                found += [one] if b"processes.group" in file.read() and one.state != "Z" else []
        except OSError:
            continue
    return found


def test_every_rank_answers_by_its_rank(job, capfd):
    assert run(job("answers")) == ["given 0 True", "given 1 True"]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("function", "says", "cause"),
    [
        ("second_raises", "rank 1 died: ValueError: no such luck", "crash"),
        ("second_refuses", "it does not fit", "crash"),
        ("second_is_killed", "rank 1 died: ended by SIGKILL", "host-death"),
    ],
)
def test_one_that_fails_ends_the_others_and_is_named(job, function, says, cause):
    began = time.monotonic()
    with pytest.raises(RunFailed, match=re.escape(says)) as failed:
        run(job(function))
    assert failed.value.cause == cause
    assert time.monotonic() - began < 30


def test_a_limit_ends_all_and_says_where_they_were(job):
    with pytest.raises(RunFailed, match=r"was not done after 2 s: it is at .*ranks_of_a_test.py:\d+ in never_ends"):
        run(job("never_ends", limit_s=2.0))


def test_a_signal_ends_all(job):
    main = threading.main_thread()
    timer = threading.Timer(1.0, lambda: signal.pthread_kill(main.ident, signal.SIGINT))
    timer.start()
    with pytest.raises(Interrupt):
        run(job("never_ends"))
    timer.join()

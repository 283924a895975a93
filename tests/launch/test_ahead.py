"""Ranks of the next run that are started while this one is not timed, as real processes; and none of them left."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import config
from launch import faulty_work
from launch.seen import until

from fp8bench.launch.processes import start, watch
from fp8bench.launch.processes.start import Ahead
from fp8bench.launch.processes.watch import SpawnExecutor
from fp8bench.launch.signals import STOPPED, ZOMBIE, descendants, process, processes

pytestmark = pytest.mark.thorough


class Seen(list):
    """(stage, processes that wait) at each look at the present run."""

    def __init__(self, ahead):
        super().__init__()
        self.ahead = ahead

    def __call__(self, progress):
        self.append((progress.stage, [pid for pid, _ in self.ahead.identities()]))

    def pids(self):
        """Of the processes that waited, in all looks."""
        return {pid for _, pids in self for pid in pids}


@pytest.fixture
def there(monkeypatch, tmp_path):
    """The folder in which ranks say that they are there; they import nothing heavy. Nothing is left in the end."""
    folder, temporary = tmp_path / "there", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(watch, "ENTRY", faulty_work.ENTRY)
    monkeypatch.setattr(start, "WORKER", "json")
    monkeypatch.setenv(faulty_work.PIDS, str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    known = frozenset(one.identity for one in descendants(os.getpid(), processes()))
    yield folder
    assert descendants(os.getpid(), processes(), known) == []
    assert list(temporary.iterdir()) == []


@pytest.fixture
def ahead(there):
    found = Ahead()
    yield found
    found.close()


def run(ahead, workload="at-each-stage", world_size=2):
    """(reports, what was seen of those that wait, pids of the ranks)."""
    seen, folder = Seen(ahead), Path(os.environ[faulty_work.PIDS])
    before = set(folder.iterdir())
    reports = SpawnExecutor(60, ahead=ahead).run(config(workload=workload, world_size=world_size), seen)
    return reports, seen, {int(path.name) for path in set(folder.iterdir()) - before}


def statuses(reports):
    return [report.status for report in reports]


def test_the_next_run_has_the_processes_that_waited_for_it(ahead):
    ahead.expect(range(2))
    first, seen, _ = run(ahead)
    ahead.expect(None)
    second, nobody, ranks = run(ahead)

    assert statuses(first) == statuses(second) == ["ok", "ok"]
    assert seen.pids() == ranks
    assert nobody.pids() == set()


def test_while_steps_are_timed_they_are_stopped(ahead):
    def states():
        return {process(pid).state == STOPPED for pid, _ in ahead.identities()}

    ahead.expect(range(2))
    ahead.look("proving")
    until(lambda: [ahead.look("timing"), states()][1] == {True})
    ahead.look("profiling")
    until(lambda: states() == {False})


def test_without_a_run_that_follows_none_is_started(ahead):
    _, seen, _ = run(ahead)
    assert [pids for _, pids in seen if pids] == []
    assert {stage for stage, *_ in seen} >= {"proving", "timing"}


def test_those_of_a_run_that_does_not_come_are_ended(ahead):
    ahead.expect(range(2))
    _, seen, _ = run(ahead)
    assert all(process(pid) for pid in seen.pids())

    ahead.close()

    assert len(seen.pids()) == 2
    assert not any(process(pid) for pid in seen.pids())


@pytest.mark.parametrize("spoil", ["another number", "one ended"])
def test_where_they_cannot_be_used_others_are_started(spoil, ahead):
    ahead.expect(range(2))
    _, seen, _ = run(ahead)
    if spoil == "one ended":
        killed = max(seen.pids())
        os.kill(killed, signal.SIGKILL)
        until(lambda: process(killed).state == ZOMBIE)
    ahead.expect(None)
    size = 1 if spoil == "another number" else 2
    reports, _, ranks = run(ahead, world_size=size)

    assert statuses(reports) == ["ok"] * size
    assert ranks.isdisjoint(seen.pids())
    assert not any(process(pid) for pid in seen.pids())


def test_a_rank_that_failed_does_not_end_those_of_the_next_run(ahead):
    ahead.expect(range(2))
    failed, seen, _ = run(ahead, "rank-1-raises")
    ahead.expect(None)
    well, _, ranks = run(ahead)

    assert "failed" in statuses(failed)
    assert statuses(well) == ["ok", "ok"]
    assert ranks == seen.pids()


def test_without_room_for_them_the_present_run_goes_on(ahead, monkeypatch):
    asked, folder = [], start.temporary.folder

    def room_for_one(kind):
        asked.append(kind)
        if len(asked) > 1:
            raise OSError(errno.ENOSPC, "no space")
        return folder(kind)

    monkeypatch.setattr(start.temporary, "folder", room_for_one)
    ahead.expect(range(2))
    reports, seen, _ = run(ahead)
    assert statuses(reports) == ["ok", "ok"]
    assert (len(asked), seen.pids()) == (2, set())


def test_what_cannot_be_imported_is_left_for_the_run_to_find(ahead):
    ahead.expect(range(2), ["no_such_module"])
    _, seen, _ = run(ahead)
    ahead.expect(None)
    reports, _, ranks = run(ahead)
    assert statuses(reports) == ["ok", "ok"]
    assert ranks == seen.pids()


LAUNCHER = """
import sys, time
from fp8bench.launch.processes import start
start.WORKER = "json"
waiting = start.Ahead()
waiting.expect(range(2))
waiting.look("proving")
while len(waiting._stopped) < 2:
    waiting.look("timing")
    time.sleep(0.05)
print(*[pid for pid, _ in waiting.identities()], flush=True)
time.sleep(60)
"""


def test_they_end_with_a_launcher_that_is_killed_though_they_are_stopped(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True, env=environment)
    pids = list(map(int, launcher.stdout.readline().split()))
    assert len(pids) == 2
    assert {process(pid).state for pid in pids} == {STOPPED}
    launcher.kill()
    launcher.communicate()

    until(lambda: not any(map(process, pids)))

"""The server that ranks are forked from: it is killed, or left alone, or cannot import what it should."""

import json
import os
import signal
import subprocess
import sys

import pytest
from builders import config
from faults.faulty_runs import LIMIT_S, WORDS, nothing_left
from kept import documents
from launch import faulty_work
from launch.seen import fresh, until
from launch.test_spawn_signals import maps

from fp8bench.launch.processes import watch
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor
from fp8bench.launch.signals import ZOMBIE, descendants, process, processes

pytestmark = [pytest.mark.slow, pytest.mark.faults]

STREAMS = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
DRIVER = """
import ctypes, os, sys, time
SEIZE, CONTINUE, MAY_NOT = 0x4206, 7, 3
while not (ranks := os.listdir(sys.argv[1])):
    time.sleep(0.02)
rank, ptrace = int(ranks[0]), ctypes.CDLL(None).ptrace
if ptrace(SEIZE, rank, None, None):
    sys.exit(MAY_NOT)
print(rank, flush=True)
while (seen := os.waitid(os.P_PID, rank, os.WEXITED | os.WSTOPPED | os.WNOWAIT)).si_code == os.CLD_TRAPPED:
    os.waitpid(rank, 0)
    ptrace(CONTINUE, rank, None, ctypes.c_void_p(seen.si_status))
time.sleep(3)
os.waitpid(rank, 0)
"""
"""Lets a rank that is killed disappear three seconds later, as a GPU's driver does: the kernel tells its parent of its
end only when whoever traces it has taken note.
"""


def children(pid):
    return [one.pid for one in processes() if one.parent == pid and one.state != ZOMBIE]


@pytest.mark.parametrize("phase", ["proving", "timing"])
def test_if_it_is_killed_its_ranks_end_and_the_run_has_failed(begin, tmp_path, phase):
    waiting = tmp_path / "waiting"
    running, _ = begin(FAULT=f"waits {phase} 1", WAITING=str(waiting))
    until(waiting.exists)
    [server] = children(running.pid)
    ranks = children(server)
    assert len(ranks) == 2
    os.kill(server, signal.SIGKILL)
    until(lambda: not {server, *ranks} & {one.pid for one in processes() if one.state != ZOMBIE}, 10)
    assert running.wait(LIMIT_S) == 5
    [record] = documents(tmp_path / "results")
    assert (record["status"], record["cause"]) == ("failed", "host-death")
    assert "ended by SIGKILL" in record["reason"]
    assert "forked from was ended" in record["remedy"]
    assert nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_it_imports_leaves_nothing(tmp_path, variables, number):
    """Ctrl-C on a terminal goes to all of the launcher's group."""
    running = fresh(tmp_path, variables, *WORDS, **STREAMS, process_group=0)
    [server] = until(lambda: [pid for pid in children(running.pid) if "libtorch" in maps(pid)])
    os.killpg(running.pid, number)
    _, errors = running.communicate(timeout=LIMIT_S)

    assert running.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in errors
    until(lambda: server not in [one.pid for one in processes()], 10)
    assert number == signal.SIGKILL or nothing_left(tmp_path)


def test_a_library_that_cannot_be_imported_is_named_and_the_ranks_say_it_too(tmp_path, variables):
    site = tmp_path / "broken"
    site.mkdir()
    (site / "timm.py").write_text("raise RuntimeError('it is damaged')")
    path = os.pathsep.join([str(site), variables["PYTHONPATH"]])
    words = ("run", "--mode", "baseline-bf16", "--workload", "vit-micro", "--batch-size", "4", "--rounds", "1")
    running = fresh(tmp_path, {**variables, "PYTHONPATH": path}, *words, **STREAMS)
    _, errors = running.communicate(timeout=LIMIT_S)

    assert running.returncode in (3, 5)
    assert "fp8bench: ranks are spawned, which takes longer: timm cannot be imported: RuntimeError: it is" in errors
    [record] = documents(tmp_path / "results")
    assert "it is damaged" in record["reason"]
    assert "Traceback" not in errors


def task_of(workload, world_size=2, timeout_s=60):
    return Task(config=config(workload=workload, world_size=world_size), timeout_s=timeout_s)


class TestItself:
    """Ranks that import no torch, and what they are said to import."""

    @pytest.fixture
    def executor(self, monkeypatch, tmp_path):
        monkeypatch.setattr(watch, "ENTRY", faulty_work.ENTRY)
        monkeypatch.setattr(watch, "modules_of", lambda _config: ())
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "starts_a_thread.py").write_text(
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        )
        (tmp_path / "never_done.py").write_text("import time\ntime.sleep(600)\n")
        before = frozenset(one.identity for one in descendants(os.getpid(), processes()))
        with Executor() as executor:
            yield executor
        assert descendants(os.getpid(), processes(), before) == []

    def run(self, executor, timeout_s=60):
        return executor.run(task_of("well", timeout_s=timeout_s))

    def test_it_stays_unless_it_is_killed_or_variables_change_and_ends_with_the_session(self, executor, monkeypatch):
        servers = []
        for value in ("1", "1", "2", "2"):
            monkeypatch.setenv("SOME_LIBRARY_READS", value)
            assert [report.status for report in self.run(executor)] == ["ok", "ok"]
            servers.append(executor.server.pid)
            if len(servers) == 3:
                os.kill(servers[2], signal.SIGKILL)
                until(lambda: not executor.server.alive)

        assert servers[0] == servers[1]
        assert len({*servers[1:]}) == 3
        executor.close()
        assert executor.server.pid is None

    def test_it_is_gone_only_when_a_rank_that_the_kernel_ends_slowly_is_gone_too(self, executor, monkeypatch, tmp_path):
        there = tmp_path / "there"
        there.mkdir()
        monkeypatch.setenv(faulty_work.PIDS, str(there))
        # On a busy host the server alone may take three seconds to import torch.
        with subprocess.Popen([sys.executable, "-c", DRIVER, str(there)], stdout=subprocess.PIPE, text=True) as driver:
            reports = executor.run(task_of("all_hang", timeout_s=10))
            held = driver.stdout.readline()
            if not held:
                pytest.skip("processes may not be traced here")
            ours = [executor.server.pid, *map(int, os.listdir(there))]
            assert process(int(held)) is not None, "it has had less than three seconds"
            executor.close()
            assert [pid for pid in ours if process(pid) is not None] == []
            assert driver.wait(LIMIT_S) == 0
        assert {report.cause for report in reports} == {"timeout"}

    def test_where_an_import_starts_threads_ranks_are_spawned_and_it_is_named_once(self, executor, monkeypatch, capfd):
        monkeypatch.setattr(watch, "modules_of", lambda _config: ("json", "starts_a_thread"))
        assert [report.status for _ in range(2) for report in self.run(executor)] == ["ok"] * 4

        errors = capfd.readouterr().err
        assert errors.count("starts_a_thread leaves 1 thread") == 1
        assert errors.count("ranks are spawned") == 1, "no innocent module is blamed for the later ranks"
        assert "resource_tracker" not in errors

    @pytest.mark.parametrize("forked", [True, False])
    def test_a_variable_that_an_import_sets_is_none_that_the_run_was_given(
        self, executor, monkeypatch, tmp_path, forked
    ):
        """Rows with and without it would not be comparable, and no session could be resumed."""
        (tmp_path / "sets_a_variable.py").write_text("import os\nos.environ['NVTE_CUDA_INCLUDE_DIR'] = '/include'\n")
        modules = ("sets_a_variable",) if forked else ("sets_a_variable", "starts_a_thread")
        monkeypatch.setattr(watch, "modules_of", lambda _config: modules)
        monkeypatch.setenv(faulty_work.PIDS, str(tmp_path))
        monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
        reports = executor.run(task_of("tells_its_settings", 1))
        given, there = json.loads((tmp_path / "settings").read_text())

        assert [report.status for report in reports] == ["ok"]
        assert given.get("NVTE_FLASH_ATTN") == "0"
        assert "NVTE_CUDA_INCLUDE_DIR" not in given
        assert ("NVTE_CUDA_INCLUDE_DIR" in there) == forked, "the library that set it reads it later"

    def test_what_is_not_installed_is_left_for_the_ranks_to_find(self, executor, monkeypatch, capfd):
        monkeypatch.setattr(watch, "modules_of", lambda _config: ("no_such_module",))
        assert [report.status for report in self.run(executor)] == ["ok", "ok"]
        assert capfd.readouterr().err == ""

    def test_an_import_that_never_ends_is_ended_by_the_deadline_with_its_place(self, executor, monkeypatch):
        monkeypatch.setattr(watch, "modules_of", lambda _config: ("never_done",))
        reports = self.run(executor, timeout_s=3)

        assert {report.cause for report in reports} == {"timeout"}
        assert "held up the phase 'starting'" in reports[0].reason
        assert "never_done.py:2" in "".join(report.log or "" for report in reports)
        monkeypatch.setattr(watch, "modules_of", lambda _config: ())
        assert [report.status for report in self.run(executor)] == ["ok", "ok"]

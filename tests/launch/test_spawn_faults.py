"""Ways in which a rank can die or hang, in real processes: the run ends in time, and names who did it and how. Others,
in every phase, are in tests/faults/test_phases.py. And SIGINT, SIGTERM and SIGHUP to the launcher alone: nothing that
it brought about outlives it.
"""

import math
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import fork_server
import pytest
from builders import config
from cli.calling import environment
from launch import faulty_work
from launch.seen import ended, fresh, maps, until

from fp8bench.launch.processes import watch
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor
from fp8bench.launch.signals import ZOMBIE, descendants, process, processes
from fp8bench.schema.files import ROOT

pytestmark = pytest.mark.thorough

CLOSED = ("Connection closed by peer", 0)


@pytest.fixture
def limit_s(slowness):
    """Of each phase, for ranks that hang."""
    return math.ceil(2 * slowness)


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    """One for all tests: its server imports torch once. Ranks import nothing else that is heavy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "ENTRY", faulty_work.ENTRY)
        patch.setattr(watch, "modules_of", lambda _config: ())
        patch.setenv(faulty_work.PIDS, str(tmp_path_factory.mktemp("there")))
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        with Executor() as executor:
            executor.run(Task(config=config(workload="well")))
            yield executor


@pytest.fixture
def run(executor, monkeypatch, tmp_path, slowness):
    """The reports of two ranks that have this fault. Whatever happens, nothing is left behind."""
    there, temporary = Path(os.environ[faulty_work.PIDS]), tmp_path / "temporary"
    for one in there.iterdir():
        one.unlink()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    # The server of forked processes may still be starting.
    known = frozenset(one.identity for one in descendants(os.getpid(), processes()))

    def running(fault, timeout_s=60 * slowness):
        # It differs from test to test, and a server serves one set of variables.
        monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
        reports = executor.run(Task(config=config(workload=fault, world_size=2), timeout_s=timeout_s))
        # The server collects what ended a moment later.
        found = [process(int(name)) for name in os.listdir(there)]
        assert [one for one in found if one is not None and one.state != ZOMBIE] == []
        # Of this process's children the ranks' server alone is new, and it has no children.
        left = descendants(os.getpid(), processes(), known)
        assert [one.pid for one in left if one.pid != executor.server.pid and one.state != ZOMBIE] == []
        assert list(temporary.iterdir()) == []
        return reports

    return running


def hung(run, fault, limit_s):
    """Run ranks that hang once they have started, under a limit of each phase; return their reports, the limit
    and how long it took. On a busy machine the start of a process may take as long: then with a longer limit.
    """
    for longer in (1, 2, 4):
        start, limit = time.monotonic(), longer * limit_s
        reports = run(fault, limit)
        if not any("the phase 'starting'" in report.reason for report in reports):
            break
    return reports, limit, time.monotonic() - start


def culprits(reports):
    return [report.rank for report in reports if report.status == "failed" and not report.collateral]


def test_ranks_that_are_well_leave_their_reports(run):
    assert [(report.rank, report.status, report.log) for report in run("well")] == [(0, "ok", None), (1, "ok", None)]


@pytest.mark.parametrize(
    ("fault", "reason", "cause", "logged"),
    [
        ("rank-1-terminated", "rank 1 died: ended by SIGTERM", "host-death", [CLOSED]),
        ("rank-1-crashes", "rank 1 died: ended by SIGABRT", "host-death", [("Fatal Python error: Aborted", 1)]),
        (
            "rank-1-raises",
            "rank 1 died: ValueError: 2 fields are invalid",
            "crash",
            [("For further information visit", 1), ("in fail\n", 1), CLOSED],
        ),
        ("rank-0-waits-for-ever", "rank 1 died: ZeroDivisionError: enough", "crash", [("in wait_for_others\n", 0)]),
    ],
)
def test_who_died_of_itself_is_named_and_not_the_sibling_that_noticed(run, fault, reason, cause, logged):
    """logged: words, and the rank in whose log they are: tracebacks of all, stacks of one that waits or crashes."""
    reports = run(fault)

    assert culprits(reports) == [1]
    # Python errors are raised in a file of the tests, whose place is told.
    place = r", at launch/faulty_work\.py:\d+" if re.match(r"rank 1 died: \w+: ", reason) else ""
    assert re.fullmatch(f"{re.escape(reason)}{place}, in the phase 'proving'", reports[1].reason)
    assert reports[1].cause == cause
    assert reports[0].reason == "rank 0 was ended because rank 1 failed"
    for words, rank in logged:
        assert words in reports[rank].log


@pytest.mark.parametrize(
    ("fault", "reason", "logged"),
    [
        (
            *("rank-1-stops", "'proving' for more than {} s: its process is stopped"),
            ["alive; its process is stopped; in the phase 'warming up', step 0, last moved ", "in rank_1_stops\n"],
        ),
        (
            *("rank-1-sleeps", r"'timing' for more than {} s: it is at launch/faulty_work\.py:\d+ in wait_for_others$"),
            ["in wait_for_others\n"],
        ),
    ],
    ids=["a stopped rank rather than those that wait", "of two that both wait the one that is steps behind"],
)
def test_who_hangs_ends_the_run_by_the_deadline_and_is_named(run, limit_s, slowness, fault, reason, logged):
    reports, limit_s, seconds = hung(run, fault, limit_s)

    assert seconds < limit_s + 30 * slowness
    assert (culprits(reports), reports[1].cause) == ([1], "timeout")
    assert re.match(f"rank 1 held up the phase {reason.format(limit_s)}", reports[1].reason)
    assert [words for words in logged if words not in reports[1].log] == []
    assert "in wait_for_others\n" in reports[0].log


def test_ranks_that_all_hang_are_all_named(run, limit_s):
    reports, *_ = hung(run, "all-hang", limit_s)

    assert culprits(reports) == [0, 1]
    assert {report.cause for report in reports} == {"timeout"}
    assert "ranks 0 and 1 held up the phase 'proving'" in reports[0].reason


def test_a_forked_child_that_holds_pipes_open_neither_holds_the_run_up_nor_outlives_it(run, slowness):
    start = time.monotonic()
    reports = run("leaves-a-child")

    assert [report.status for report in reports] == ["ok", "ok"]
    assert time.monotonic() - start < 25 * slowness


TINY = ("run", "--workload", "outside-linear", "--batch-size", "8", "--warmup", "1", "--min-time", "0", "--rounds", "1")


@pytest.fixture
def launched(tmp_path, outside_site):
    """The program with these words in the background, whose temporary files are in a folder of the test's own."""
    running = []

    def launch(*words, **popen):
        (tmp_path / "temporary").mkdir()
        path = os.pathsep.join([str(outside_site), str(ROOT)])
        environ = {"PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary")}
        running.append(fresh(tmp_path, environ, *words, **{"stderr": subprocess.PIPE, **popen}))
        return running[0]

    yield launch
    for one in running:
        one.kill()
        one.communicate()


def below(launcher):
    return descendants(launcher.pid, processes())


def left_in(tmp_path):
    """Compilers keep their caches there on purpose."""
    return [path.name for path in (tmp_path / "temporary").iterdir() if not path.name.startswith("torchinductor")]


def test_while_ranks_train_sigterm_ends_loader_processes_too(tmp_path, slowness):
    (tmp_path / "temporary").mkdir()
    flags = "--mode baseline-bf16 --gpus 1 --workers 2 --warmup 1 --steps 100000 --min-time 0 --rounds 1".split()
    with (
        open(os.devnull, "r+") as nothing,
        fork_server.begin(
            *(["run", *flags], tmp_path, environment(TMPDIR=str(tmp_path / "temporary")), [nothing.fileno()] * 3),
        ) as launcher,
    ):
        tree = until(lambda: found if len(found := below(launcher)) >= 3 else None)
        time.sleep(1)
        sent = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        # A second one changes nothing.
        time.sleep(0.1)
        launcher.send_signal(signal.SIGTERM)

        assert launcher.wait(20 * slowness) == 143
    assert time.monotonic() - sent < 10 * slowness
    assert ended(one.pid for one in tree)
    assert left_in(tmp_path) == []


def test_a_terminal_that_is_closed_is_a_sighup_though_nothing_can_be_said_there_any_more(launched, tmp_path, slowness):
    ours, its = os.openpty()
    launcher = launched(*TINY, "--mode", "outside-polite", stderr=its, start_new_session=True)
    os.close(its)
    ranks = until(lambda: below(launcher))
    os.close(ours)
    launcher.send_signal(signal.SIGHUP)

    assert launcher.wait(timeout=20 * slowness) == 129
    assert ended(one.pid for one in ranks)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("command", ["gemm", "numerics"])
def test_commands_that_compute_in_their_own_process_exit_by_the_signal_too(launched, slowness, command):
    asked = {"gemm": ("--sweep", "--seconds", "60"), "numerics": ("--width", "4096")}[command]
    running = launched(command, *asked)
    until(lambda: "libtorch" in maps(running.pid))
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=30 * slowness)

    assert running.returncode == 143
    assert errors.endswith("fp8bench: interrupted. Run the command again.\n")

"""SIGINT, SIGTERM and SIGHUP to the launcher alone, and its sudden end: nothing that it brought about outlives it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import fork_server
import pytest
from cli.calling import environment
from launch.seen import ended, fresh, until

from fp8bench.launch.signals import descendants, processes
from fp8bench.schema.files import ROOT

pytestmark = pytest.mark.thorough

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


def maps(pid):
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


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

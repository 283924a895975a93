"""Signals to the launcher, outputs that are gone, and several runs at once."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time

import pytest
from cli.calling import call_python
from faults.faulty_runs import LIMIT_S, WORDS, at_work_in, nothing_left
from kept import documents
from launch.seen import fresh, until

from fp8bench.launch.processes.watch import UNPROFILED

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def text(said):
    said.seek(0)
    return said.read()


class TestSignals:
    @pytest.mark.parametrize("phase", ["proving", "timing", "profiling", "done"])
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_in_every_phase_they_end_all_within_ten_seconds(self, begin, tmp_path, phase, number, code):
        waiting = tmp_path / "waiting"
        running, said = begin(FAULT=f"waits {phase} 1", WAITING=str(waiting))
        until(waiting.exists)
        # The launcher looks at its ranks several times a second.
        time.sleep(1)
        began = time.monotonic()
        running.send_signal(number)

        assert running.wait(LIMIT_S) == code
        assert time.monotonic() - began < 20
        assert nothing_left(tmp_path)
        assert "interrupted while faulty ran; its workers have ended" in text(said)
        if phase in ("proving", "timing"):
            assert documents(tmp_path / "results") == []
            return
        # All that the process was started for has been measured.
        [record] = documents(tmp_path / "results")
        assert record["status"] == "ok"
        assert [len(rank["step_s"]) for rank in record["samples"]] == [6, 6]
        # In the phase `done` rank 0 has reported, and rank 1 has not.
        assert (record["profile"] is None) == (phase == "profiling")
        assert record["summary"]["flags"] == ([UNPROFILED] if phase == "profiling" else [])
        assert record["evidence"]["join"] == "ddp"
        # The session knows it.
        assert "its record is kept" in text(said)
        again, _ = begin("--session", record["session"]["session_id"], "--rounds", "2")
        assert again.wait(LIMIT_S) == 0
        assert {one["session"]["round"] for one in documents(tmp_path / "results")} == {1, 2}

    def test_what_a_killed_launcher_left_the_next_run_removes(self, begin, tmp_path):
        running, said = begin(FAULT="waits timing 1")
        until(lambda: "timing" in text(said))
        running.send_signal(signal.SIGKILL)
        running.wait(LIMIT_S)
        until(lambda: at_work_in(tmp_path) == [], 10)
        [left] = (tmp_path / "temporary").glob("fp8bench-ranks-*")
        os.utime(left, (0, 0))
        second, _ = begin()

        assert second.wait(LIMIT_S) == 0
        assert nothing_left(tmp_path)

    def test_a_launcher_that_is_stopped_for_a_while_goes_on(self, begin, tmp_path):
        """As by Ctrl-Z and fg: the time does not count against any phase."""
        running, said = begin("--steps", "400", "--timeout", "8", FAULT="slow timing 1")
        until(lambda: "timing" in text(said))
        running.send_signal(signal.SIGSTOP)
        time.sleep(12)
        running.send_signal(signal.SIGCONT)

        assert running.wait(LIMIT_S) == 0, text(said)


def start(folder, variables, *flags, **popen):
    return fresh(folder, {**variables, "FAULT": "slow timing 0"}, *WORDS, *flags, **popen)


class TestOutputs:
    def test_a_reader_who_takes_one_line_loses_no_record(self, tmp_path, variables):
        """`fp8bench run 2>&1 | head -1`."""
        running = start(tmp_path, variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        running.stdout.readline()
        running.stdout.close()

        assert running.wait(LIMIT_S) == 141
        assert [record["status"] for record in documents(tmp_path / "results")] == ["ok"]

    def test_nor_does_one_of_standard_error_alone_end_anything(self, tmp_path, variables):
        running = start(tmp_path, variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        running.stderr.close()

        assert running.wait(LIMIT_S) == 0
        assert [record["status"] for record in documents(tmp_path / "results")] == ["ok"]

    def test_a_full_disk_under_the_log_ends_nothing(self, tmp_path, variables):
        with open("/dev/full", "w") as full:
            running = start(tmp_path, variables, stdout=subprocess.DEVNULL, stderr=full)

            assert running.wait(LIMIT_S) == 0

    def test_a_terminal_that_is_closed_under_nohup_ends_nothing(self, tmp_path, variables):
        """nohup ignores SIGHUP; what is written to the terminal that is gone fails."""
        ours, its = pty.openpty()

        def as_nohup_does():
            os.setsid()
            fcntl.ioctl(its, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

        running = start(tmp_path, variables, stdin=its, stdout=subprocess.DEVNULL, stderr=its, preexec_fn=as_nohup_does)
        os.close(its)
        os.read(ours, 1)
        os.close(ours)

        assert running.wait(LIMIT_S) == 0
        assert [record["status"] for record in documents(tmp_path / "results")] == ["ok"]


class TestDoctor:
    def test_a_doctor_that_is_killed_leaves_no_probe(self, tmp_path, variables):
        running = fresh(tmp_path, variables, "doctor", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: len(at_work_in(tmp_path)) > 1)
        running.kill()
        running.wait()

        until(lambda: at_work_in(tmp_path) == [], 10)

    @pytest.mark.parametrize(
        ("name", "said", "code"),
        [
            ("pynvml.py", "pynvml cannot be imported: RuntimeError: it is damaged", 3),
            ("torch.py", "RuntimeError: it is damaged", 3),
        ],
    )
    @pytest.mark.parametrize("command", ["doctor", "run"])
    def test_a_package_that_does_not_import_is_told_in_a_line(self, tmp_path, variables, name, said, code, command):
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / name).write_text("raise RuntimeError('it is damaged')")
        path = os.pathsep.join([str(broken), variables["PYTHONPATH"]])
        words = WORDS if command == "run" else ("doctor", *(["--quick"] if name == "pynvml.py" else []))
        done = call_python(tmp_path, "-m", "fp8bench", *words, **{**variables, "PYTHONPATH": path})

        assert said in done.stdout + done.stderr
        assert done.code == (5 if (command, name) == ("run", "torch.py") else code)
        assert "Traceback" not in done.stderr


class TestAtOnce:
    @pytest.mark.parametrize("count", [2, 8])
    def test_runs_of_one_folder_and_one_machine_all_keep_their_records(self, begin, tmp_path, count):
        runs = [begin("--gpus", "1", "--session", f"run-{number}") for number in range(count)]

        assert [running.wait(LIMIT_S) for running, _ in runs] == [0] * count
        records = documents(tmp_path / "results")
        assert sorted(record["session"]["session_id"] for record in records) == [f"run-{n}" for n in range(count)]
        assert {record["status"] for record in records} == {"ok"}
        assert nothing_left(tmp_path)

    @pytest.mark.parametrize("count", [2, 8])
    def test_of_one_session_one_runs_and_the_others_are_told_who(self, begin, tmp_path, count):
        runs = [begin("--gpus", "1", "--session", "monday", FAULT="slow timing 0") for _ in range(count)]
        codes = sorted(running.wait(LIMIT_S) for running, _ in runs)

        assert set(codes) <= {0, 2}
        assert codes.count(0) >= 1
        refused = [text(said) for running, said in runs if running.returncode == 2]
        assert all("session 'monday' is in use by process " in one for one in refused)
        assert [record["session"]["round"] for record in documents(tmp_path / "results")] == [1]

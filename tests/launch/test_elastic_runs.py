"""Under torchrun: its group is joined, rank 0 alone writes and prints, and refusals are kept."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

import fork_server
import pytest
from cli.calling import LIMIT_S, call, environment, one_line

pytestmark = pytest.mark.slow

TINY = ("--workload", "outside-linear", "--batch-size", "8", "--warmup", "1", "--steps", "3", "--min-time", "0")


@pytest.fixture
def torchrun(tmp_path, outside_site):
    """Two ranks of `fp8bench run` with these flags; returns (exit code, standard output, standard error).

    fresh: whether torchrun and its ranks are to import torch themselves; else all are forked.
    """
    variables = environment(PYTHONPATH=str(outside_site))

    def call(*flags, fresh=False):
        arguments = ["--standalone", "--nproc-per-node=2", "-m", "fp8bench", "run", "--json", "--min-time", "0", *flags]
        if not fresh:
            return fork_server.called(arguments, tmp_path, variables, LIMIT_S, fork_server.TORCHRUN)
        done = subprocess.run(
            [sys.executable, *fork_server.TORCHRUN, *arguments],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        return done.returncode, done.stdout, done.stderr

    return call


def stored(tmp_path):
    return [json.loads(path.read_text()) for path in tmp_path.glob("results/cpu/*.json")]


def test_one_record_of_the_whole_group_is_written_and_printed_once(torchrun, tmp_path):
    code, output, errors = torchrun("--mode", "baseline-bf16", *TINY, "--name", "box-7", fresh=True)
    assert code == 0, errors
    [record] = stored(tmp_path)
    assert json.loads(output) == [record]
    assert (record["config"]["world_size"], record["config"]["nodes"]) == (2, 1)
    assert [samples["rank"] for samples in record["samples"]] == [0, 1]
    assert errors.count("baseline-bf16, round 1 of 1: outside-linear") == 1
    assert (record["session"]["round"], record["session"]["position"]) == (1, 1)
    assert record["profile"]["device"] == "cpu"
    assert (record["machine"]["label"], len(record["machine"]["id"])) == ("box-7", 16)


def test_a_refusal_reaches_every_rank_and_is_kept(torchrun, tmp_path):
    code, _, errors = torchrun("--mode", "outside-across-the-batch", "--batch-size", "2")
    assert code != 0
    [record] = stored(tmp_path)
    assert record["status"] == "invalid", errors


def test_several_modes_are_refused_before_anything_runs(torchrun, tmp_path):
    code, _, errors = torchrun("--mode", "baseline-bf16", "--mode", "torchao-float8", *TINY)
    assert code != 0
    assert "torchrun makes one group of processes" in errors
    assert stored(tmp_path) == []


@pytest.mark.parametrize("flags", [("--rounds", "3"), ("--aa",), ("--precision", "1%")], ids=lambda flags: flags[0])
def test_more_than_one_round_is_refused_before_anything_runs(flags, tmp_path):
    """As torchrun would start rank 0; no group is needed to refuse."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = call(
        tmp_path, "run", "--mode", "baseline-bf16", *flags, **place, MASTER_ADDR="localhost", MASTER_PORT="29500"
    )
    assert done.code == 2
    assert "torchrun makes one group of processes, and each round needs fresh ones" in one_line(done)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_hangs_ends_the_group_by_its_deadline_with_its_stack_and_one_line(torchrun, tmp_path, slowness):
    limit_s = math.ceil(5 * slowness)
    code, _, errors = torchrun("--mode", "outside-lags", "--timeout", str(limit_s), *TINY)

    assert code != 0
    assert f"did not get past the phase 'proving' within {limit_s} s (timeout)" in errors
    assert "most recent call first" in errors
    assert stored(tmp_path) == []


def test_a_rank_that_fails_says_so_in_a_line_with_its_traceback_before(torchrun, tmp_path):
    code, _, errors = torchrun("--mode", "outside-raises", *TINY)

    assert code != 0
    [record] = stored(tmp_path)
    reason = "rank 1 died: ZeroDivisionError: rank one has had enough, in the phase 'proving'"
    assert (record["status"], record["cause"], record["reason"]) == ("failed", "crash", reason)
    assert "in evidence" in log_of(record, tmp_path)
    assert "fp8bench: rank 1 died: ZeroDivisionError: rank one has had enough (crash)." in errors
    assert errors.index("Traceback") < errors.index("fp8bench: rank 1 died")


@pytest.mark.parametrize(
    ("mode", "rank", "flags"),
    [
        ("outside-killed", 1, ("--workload", "vit-micro", "--batch-size", "4", "--steps", "3")),
        ("outside-first-killed", 0, TINY),
        ("outside-first-deaf", 1, TINY),
    ],
)
def test_a_rank_that_is_killed_is_on_record_and_in_one_line_and_nothing_is_left_running(
    torchrun, tmp_path, slowness, mode, rank, flags
):
    """The record is kept by rank 0, also while that is inside a native call; by rank 1 where rank 0 is killed."""
    began = time.monotonic()
    code, _, errors = torchrun("--mode", mode, *flags)

    assert time.monotonic() - began < 60 * slowness
    assert code != 0
    [record] = stored(tmp_path)
    reason = f"rank {rank} died: its process ended without an error, in the phase 'proving'"
    assert (record["status"], record["cause"], record["reason"]) == ("failed", "host-death", reason), errors
    assert [line for line in errors.splitlines() if line.startswith(f"fp8bench: {mode}: ")] == [
        f"fp8bench: {mode}: {reason}. {record['remedy']}."
    ]
    assert [pid for pid in filter(str.isdecimal, os.listdir("/proc")) if folder_of(pid) == tmp_path] == []


def log_of(record, tmp_path):
    return (tmp_path / "results" / "cpu" / f"{record['run_id']}.log").read_text()


def folder_of(pid):
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None


class TestSigterm:
    """As torchrun ends its workers; a group of one needs no torchrun."""

    @pytest.mark.parametrize("mode", ["outside-sleeps", "outside-deaf"])
    def test_a_rank_exits_with_143_also_inside_a_call_that_does_not_return(
        self, mode, tmp_path, outside_site, slowness
    ):
        there, temporary = tmp_path / "there", tmp_path / "temporary"
        there.mkdir()
        temporary.mkdir()
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        place = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1") | dict.fromkeys(("RANK", "LOCAL_RANK"), "0")
        place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
        extra = {"PYTHONPATH": str(outside_site), "OUTSIDE_PIDS": str(there), "TMPDIR": str(temporary)}
        variables = environment(**place, **extra)
        with (
            TemporaryFile("w+") as said,
            fork_server.begin(["run", "--mode", mode, *TINY], tmp_path, variables, [said.fileno()] * 3) as rank,
        ):
            deadline = time.monotonic() + 90
            while not list(there.iterdir()) and time.monotonic() < deadline:
                time.sleep(0.1)
            rank.send_signal(signal.SIGTERM)
            code = rank.wait(10 * slowness)
            said.seek(0)
            assert code == 143, said.read()

        assert [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor")] == []

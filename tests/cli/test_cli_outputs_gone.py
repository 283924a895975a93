"""Whatever becomes of the output, or of a file that is read, it is one line and never a traceback."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

import fork_server
import pytest
from cli.calling import environment
from kept import record_paths

FULL = Path("/dev/full")


def forked(folder, *arguments, stdout):
    """Run the program with that standard output; returns its exit code and what it says on standard error."""
    with open(os.devnull) as nothing, TemporaryFile("w+") as errors:
        streams = [nothing.fileno(), stdout.fileno(), errors.fileno()]
        with fork_server.begin(arguments, folder, environment(), streams) as running:
            code = running.wait(60)
        errors.seek(0)
        return code, errors.read()


def called(folder, *arguments, stdout, preexec_fn=None):
    """The same in a fresh interpreter, whose own end may have something to say too."""
    command = [sys.executable, "-m", "fp8bench", *arguments]
    streams = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True, "preexec_fn": preexec_fn}
    done = subprocess.run(command, cwd=folder, env=environment(), timeout=60, check=False, **streams)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    ("calling", "words"),
    [(called, "--help"), *((forked, words) for words in ("compare p4d p5", "list modes --json", "run --dry-run"))],
)
def test_a_reader_who_stops_ends_the_program_in_silence_and_a_full_disk_in_one_line(calling, words, tmp_path):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone, FULL.open("w") as full:
        assert calling(tmp_path, *words.split(), stdout=gone) == (141, "")
        code, said = calling(tmp_path, *words.split(), stdout=full)
    assert code == 5
    assert said == (
        "fp8bench: cannot write the output: No space left on device. Make room, and run the command again.\n"
    )


class Full(io.TextIOWrapper):
    """A standard output whose disk is full."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8")

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_a_record_that_cannot_be_printed_is_kept_and_the_line_tells_where(form, run_with, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", Full())
    done = run_with([0.1], "--mode", "baseline-bf16", "--rounds", "1", *form, code=5)
    [path] = record_paths(tmp_path / "results")

    assert done.stderr.splitlines()[-1] == (
        "fp8bench: cannot write the output: No space left on device; the record is kept as "
        f"{path.relative_to(tmp_path)}. Show it with `fp8bench compare cpu`."
    )


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_record_of_another_kind_that_cannot_be_printed_is_shown_by_the_command_that_is_told(tmp_path):
    with FULL.open("w") as full:
        code, said = forked(tmp_path, "gemm", "--shape", "16,16,16", "--rounds", "1", stdout=full)
    [path] = (tmp_path / "results").rglob("*.json")
    path = path.relative_to(tmp_path)

    assert code == 5
    assert said.splitlines()[-1] == (
        f"fp8bench: cannot write the output: No space left on device; the record is kept as {path}. "
        f"Show it with `fp8bench gemm --record {path}`."
    )


@pytest.mark.slow
def test_a_closed_output_is_told_before_anything_is_done(tmp_path):
    code, said = called(tmp_path, "run", "--mode", "te-fp8", stdout=None, preexec_fn=lambda: os.close(1))

    assert said.startswith("fp8bench: standard output is closed")
    assert (code, list(tmp_path.iterdir())) == (5, [])


@pytest.mark.slow
def test_without_a_standard_error_the_result_is_printed_all_the_same(tmp_path):
    command = [sys.executable, "-m", "fp8bench", "compare", "p4d", "p5"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2), check=False
    )

    assert done.returncode == 0
    assert b"Which instance? p4d: 21.7 % more" in done.stdout


def raising(error):
    def call(*_arguments, **_options):
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PermissionError(13, "Permission denied", "results/p5"), 2, "cannot use results/p5: Permission denied. Check"),
        (OSError(11, "Resource temporarily unavailable"), 5, "the operating system refused: Resource temporarily"),
        (RecursionError("maximum recursion depth exceeded"), 2, "a file that was read is nested too deeply"),
        (KeyboardInterrupt(), 130, "interrupted. Run the command again."),
    ],
    ids=["unreadable folder", "no process", "deep nesting", "Ctrl-C"],
)
def test_what_no_command_has_put_into_words_is_one_line(error, code, said, main_with, monkeypatch):
    monkeypatch.setattr("fp8bench.records.results.read", raising(error))
    line = main_with(None, "compare", "p5", code=code).stderr
    assert line.startswith(f"fp8bench: {said}")
    assert line.count("\n") == 1


def test_an_error_shows_what_a_name_would_do_to_the_terminal(main_with, tmp_path):
    (tmp_path / "red\x1b[31m\u202e").write_text("")
    line = main_with(None, "compare", "p5", "--results-dir", "red\x1b[31m\u202e", code=2).stderr
    assert line.startswith("fp8bench: --results-dir: invalid value 'red\\x1b[31m\\u202e': it is a file")

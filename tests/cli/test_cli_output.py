"""What a terminal is shown without a command, in colours, and on the tab key; and whatever becomes of the output, or of
a file that is read, it is one line and never a traceback.
"""

import errno
import io
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

import fork_server
import pynvml
import pytest
from builders import measured
from cli.calling import call_python, environment, keep
from kept import record_paths
from launch.seen import fresh

from fp8bench.cli.app import start
from fp8bench.cli.program import COMMANDS
from fp8bench.machine import gpus

MOST_LINES = 13
FULL = Path("/dev/full")
NO_ROOM = "fp8bench: cannot write the output: No space left on device"


def next_commands(said):
    return re.findall(r"^fp8bench (\S+(?: [a-z0-9.-]+)*)  ", said, re.MULTILINE)


def test_without_a_gpu_or_records_it_is_the_cpu_and_what_was_published(fp8bench_in):
    done = fp8bench_in()

    assert (done.code, done.stderr) == (0, "")
    assert "no NVIDIA GPU: a tiny model on the CPU" in done.stdout
    assert len(done.stdout.splitlines()) <= MOST_LINES
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert next_commands(done.stdout) == ["doctor", "run", "compare p4d p5"]


def test_the_command_that_compares_names_what_was_measured_last_and_can_be_typed(fp8bench_in, tmp_path):
    for instance in ("p5", "p4d"):
        keep(measured(instance, step_time_s=0.5), tmp_path / "mine")
    (tmp_path / "mine" / "b200").mkdir()
    (tmp_path / "mine" / "b200" / "20991231T000000Z-gemm-sweep-000000.json").write_text("{}")
    there = {"FP8BENCH_RESULTS_DIR": "mine"}
    *_, compare = next_commands(fp8bench_in(**there).stdout)

    assert set(compare.split()) == {"compare", "p4d", "p5"}
    assert fp8bench_in(*shlex.split(compare), **there).code == 0


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (("NVIDIA H200",), "This machine: 1 x NVIDIA H200\n"),
        (("NVIDIA H100", "NVIDIA H100", "NVIDIA L4"), "This machine: 2 x NVIDIA H100, 1 x NVIDIA L4\n"),
        (None, "NVIDIA's driver does not list the GPUs"),
    ],
    ids=["one", "three", "a driver that lists none"],
)
def test_gpus_are_counted_by_name_and_a_driver_that_lists_none_is_no_error(found, said, monkeypatch, tmp_path, capsys):
    def here():
        if found is None:
            raise pynvml.NVMLError_Unknown
        return [gpus.Gpu(at, "", name) for at, name in enumerate(found)]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpus, "gpus_here", here)
    start({})
    shown = capsys.readouterr().out
    assert said in shown
    assert next_commands(shown)[0] == "doctor" or found


def on_a_terminal(folder: Path, *arguments: str, **variables: str) -> str:
    """What the program prints to a terminal of 240 columns."""
    ours, theirs = pty.openpty()
    process = fresh(folder, {"TERM": "xterm-256color", "COLUMNS": "240", **variables}, *arguments, stdout=theirs)
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 65536):
            printed += chunk
    except OSError:  # Linux's way of saying that the other end is closed.
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return printed.decode()


@pytest.mark.slow
def test_a_loss_is_coloured_on_a_terminal_and_not_under_no_color(tmp_path):
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")

    assert colour.search(on_a_terminal(tmp_path, "compare", "p4d", "p5"))
    plain = on_a_terminal(tmp_path, "compare", "p4d", "p5", NO_COLOR="1")
    assert "-31.3 %" in plain
    assert not colour.search(plain)


@pytest.mark.slow
def test_a_warning_is_shown_once_where_both_streams_are_one_and_else_on_both(fp8bench_in, tmp_path):
    keep(measured("p5", "te-bf16"), tmp_path / "results")
    warning, words = "warning: no ok record of p5:baseline-bf16 to compare the rows with", ("compare", "p5")
    done = fp8bench_in(*words)
    assert [said.count(warning) for said in (done.stdout, done.stderr)] == [1, 1]
    with open(os.devnull) as nothing, TemporaryFile("w+") as both:
        streams = [nothing.fileno(), both.fileno(), both.fileno()]
        with fork_server.begin(words, tmp_path, environment(), streams) as running:
            assert running.wait(60) == 0
        both.seek(0)
        assert both.read().count(warning) == 1


@pytest.mark.parametrize("arguments", [("compare", "p4d", "p5"), ("--help",), ("compare", "p4dd")])
def test_a_pipe_gets_no_escape_codes_even_from_a_colour_terminal(arguments, fp8bench_in):
    outcome = fp8bench_in(*arguments, TERM="xterm-256color", COLORTERM="truecolor")

    assert "\x1b" not in outcome.stdout + outcome.stderr


COMPLETED = """
comp | compare
run --max-ro | --max-rounds
run --compile o | on off
run --cuda-graphs a | auto
compare p5 --format j | json
numerics --layer b | block
list w | workloads
"""


@pytest.mark.parametrize(("words", "offered"), [line.split(" | ") for line in COMPLETED.strip().splitlines()])
def test_commands_options_and_their_words_complete(words, offered, fp8bench_in):
    place = {"COMP_WORDS": f"fp8bench {words}", "COMP_CWORD": str(len(words.split()))}
    done = fp8bench_in(_FP8BENCH_COMPLETE="complete_bash", **place)
    assert (done.code, done.stderr) == (0, "")
    assert set(done.stdout.split()) == set(offered.split())


@pytest.mark.slow
def test_names_of_commands_complete_without_an_import_of_any_and_the_script_can_be_shown(tmp_path, fp8bench_in):
    (tmp_path / "pydantic.py").write_text("raise RuntimeError('a command was imported')")
    words = {"_FP8BENCH_COMPLETE": "complete_bash", "COMP_WORDS": "fp8bench ", "COMP_CWORD": "1"}
    done = call_python(tmp_path, "-m", "fp8bench", PYTHONPATH=str(tmp_path), **words)
    assert (done.code, done.stderr) == (0, "")
    assert set(done.stdout.split()) == set(COMMANDS)
    done = fp8bench_in("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_FP8BENCH_COMPLETE=complete_bash" in done.stdout


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
    with fresh(folder, {}, *arguments, stdout=stdout, stderr=subprocess.PIPE, preexec_fn=preexec_fn) as running:
        _, said = running.communicate(timeout=60)
    return running.returncode, said


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
    assert (code, said) == (5, f"{NO_ROOM}. Make room, and run the command again.\n")


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

    kept = f"the record is kept as {path.relative_to(tmp_path)}"
    assert done.stderr.splitlines()[-1] == f"{NO_ROOM}; {kept}. Show it with `fp8bench compare cpu`."


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_record_of_another_kind_that_cannot_be_printed_is_shown_by_the_command_that_is_told(tmp_path):
    with FULL.open("w") as full:
        code, said = forked(tmp_path, "gemm", "--shape", "16,16,16", "--rounds", "1", stdout=full)
    [path] = (tmp_path / "results").rglob("*.json")
    path = path.relative_to(tmp_path)

    shown_by = f"Show it with `fp8bench gemm --record {path}`."
    assert (code, said.splitlines()[-1]) == (5, f"{NO_ROOM}; the record is kept as {path}. {shown_by}")


@pytest.mark.slow
def test_a_closed_output_is_told_before_anything_is_done(tmp_path):
    code, said = called(tmp_path, "run", "--mode", "te-fp8", stdout=None, preexec_fn=lambda: os.close(1))

    assert said.startswith("fp8bench: standard output is closed")
    assert (code, list(tmp_path.iterdir())) == (5, [])


@pytest.mark.slow
def test_without_a_standard_error_the_result_is_printed_all_the_same(tmp_path):
    words = ("compare", "p4d", "p5")
    with fresh(tmp_path, {}, *words, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2)) as running:
        assert "Which instance? p4d: 21.7 % more" in running.communicate(timeout=60)[0]
    assert running.returncode == 0


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

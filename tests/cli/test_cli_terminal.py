"""What a terminal is shown without a command, in colours, and on the tab key."""

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from builders import measured
from cli.calling import call_python, environment, keep

from fp8bench.cli.program import COMMANDS
from fp8bench.cli.start import start
from fp8bench.machine import gpus

MOST_LINES = 12


def next_commands(said):
    return re.findall(r"^  fp8bench (\S+(?: [a-z0-9.-]+)*)  ", said, re.MULTILINE)


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
    process = subprocess.Popen(
        [sys.executable, "-m", "fp8bench", *arguments],
        cwd=folder,
        env=environment(TERM="xterm-256color", COLUMNS="240", **variables),
        stdout=theirs,
    )
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


@pytest.mark.parametrize("arguments", [("compare", "p4d", "p5"), ("--help",), ("compare", "p4dd")])
def test_a_pipe_gets_no_escape_codes_even_from_a_colour_terminal(arguments, fp8bench_in):
    outcome = fp8bench_in(*arguments, TERM="xterm-256color", COLORTERM="truecolor")

    assert "\x1b" not in outcome.stdout + outcome.stderr


COMPLETED = """
comp | compare
run --max-ro | --max-rounds
run --mode te-b | te-bf16
run --mode te-fp8: | te-fp8:delayed te-fp8:current te-fp8:block te-fp8:mxfp8
run --instance lambda-1x | lambda-1x-h100 lambda-1x-b200
run --workload vit-m | vit-micro
run --compile o | on off
run --cuda-graphs a | auto
explain te-b | te-bf16
compare p4 | p4d p4de
compare p5 --format j | json
compare p5 --sort spe | speed-up
explain --mode torchao-float8:t | torchao-float8:tensorwise
numerics --layer b | block
list w | workloads
list workloads vit-m | vit-micro
"""


@pytest.mark.parametrize(("words", "offered"), [line.split(" | ") for line in COMPLETED.strip().splitlines()])
def test_options_and_names_complete(words, offered, fp8bench_in):
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


@pytest.mark.parametrize(("folder", "variables"), [("results", {}), ("mine", {"FP8BENCH_RESULTS_DIR": "mine"})])
def test_a_machine_of_ones_own_completes_where_its_results_are(folder, variables, fp8bench_in, tmp_path):
    keep(measured("my-box"), tmp_path / folder)
    words = {"COMP_WORDS": "fp8bench compare my", "COMP_CWORD": "2", **variables}

    assert fp8bench_in(_FP8BENCH_COMPLETE="complete_bash", **words).stdout.split() == ["my-box"]

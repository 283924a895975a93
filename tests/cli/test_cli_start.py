"""The program alone says what this machine can measure, and what to type next."""

import re
import shlex

import pynvml
import pytest
from builders import measured
from cli.calling import keep

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
        (("NVIDIA H200",), "1 x NVIDIA H200"),
        (("NVIDIA H100", "NVIDIA H100", "NVIDIA L4"), "2 x NVIDIA H100, 1 x NVIDIA L4"),
    ],
)
def test_gpus_are_counted_by_name(found, said, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpus, "gpus_here", lambda: [gpus.Gpu(at, "", name) for at, name in enumerate(found)])
    start({})

    assert f"This machine: {said}\n" in capsys.readouterr().out


def test_a_driver_that_lists_no_gpus_is_said_and_is_no_error(monkeypatch, tmp_path, capsys):
    def broken():
        raise pynvml.NVMLError_Unknown

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpus, "gpus_here", broken)
    start({})

    said = capsys.readouterr().out
    assert "NVIDIA's driver does not list the GPUs" in said
    assert next_commands(said)[0] == "doctor"

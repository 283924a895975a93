"""`fp8bench run --dry-run`: every setting with its origin, and nothing made."""

import json
import re

import pytest
from builders import measured_on_cpu
from cli.calling import call_python, keep, one_line


@pytest.fixture
def four_origins(tmp_path):
    """Arguments and variables that give one setting from each place, some of them twice."""
    (tmp_path / "mine.yaml").write_text("mode: [baseline-bf16, torchao-float8]\nsteps: 5\nwarmup: 9\nbatch-size: 4\n")
    arguments = ("run", "--dry-run", "--config", "mine.yaml", "--warmup", "1")
    return arguments, {"FP8BENCH_STEPS": "7", "FP8BENCH_WARMUP": "3"}


def test_a_dry_run_prints_every_setting_with_its_origin_and_makes_nothing(four_origins, fp8bench_in, tmp_path):
    arguments, variables = four_origins
    outcome = fp8bench_in(*arguments, **variables)
    lines = [re.split(r"\s{2,}", line) for line in outcome.stdout.splitlines()]

    assert (outcome.code, outcome.stderr) == (0, "")
    assert ["warmup", "1", "flag"] in lines
    assert ["steps", "7", "FP8BENCH_STEPS"] in lines
    assert ["batch_size", "4", "mine.yaml"] in lines
    assert ["seed", "0", "default"] in lines
    assert "instance: cpu\nwould run 2 rounds of these, each in fresh processes:\n" in outcome.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_dry_run_in_json_has_the_settings_and_the_runs(four_origins, fp8bench_in):
    arguments, variables = four_origins
    outcome = fp8bench_in(*arguments, "--json", **variables)
    printed = json.loads(outcome.stdout)
    settings = printed["settings"]

    assert settings["warmup"] == {"value": 1, "origin": "flag"}
    assert settings["steps"] == {"value": 7, "origin": "FP8BENCH_STEPS"}
    assert settings["batch_size"] == {"value": 4, "origin": "mine.yaml"}
    assert settings["seed"] == {"value": 0, "origin": "default"}
    assert settings["rounds"] == {"value": None, "origin": "default"}
    assert (printed["instance"], printed["rounds"]) == ("cpu", 2)
    assert [(run["mode"], run["recipe"], run["steps"], run["batch_size"]) for run in printed["runs"]] == [
        ("baseline-bf16", None, 7, 4),
        ("torchao-float8", "tensorwise", 7, 4),
    ]


def test_the_config_file_is_read_once_so_that_it_may_be_a_pipe(fp8bench_in):
    """What was read of a pipe is gone: a second reader would find no line for the fault, or no value."""
    piped = ("run", "--dry-run", "--config", "/dev/stdin")
    outcome = fp8bench_in(*piped, stdin="seed: 3\nsteps: 5\n")
    assert outcome.code == 0
    assert ["steps", "5", "/dev/stdin"] in [re.split(r"\s{2,}", line) for line in outcome.stdout.splitlines()]

    outcome = fp8bench_in(*piped, stdin="seed: 3\nsteps: 0\n")
    assert outcome.code == 2
    assert "steps from /dev/stdin line 2: invalid value 0" in one_line(outcome)


AROUND = 5 + 2 * 3 + 1 + 5 + 3
"""Steps that find the pace and prove the step, and those of the lead-in and the profile."""


def test_a_dry_run_estimates_time_and_cost_from_what_is_kept(fp8bench_in, tmp_path):
    keep(measured_on_cpu(step_time_s=10.0, settings={"te_attention": "te"}), tmp_path / "results")
    arguments = ("run", "--dry-run", "--mode", "baseline-bf16", "--rounds", "2", "--price", "36", "--steps", "100")
    said = fp8bench_in(*arguments).stdout.splitlines()[-3:]
    estimate = json.loads(fp8bench_in(*arguments, "--json").stdout)["estimate"]

    low, high = estimate["seconds"]
    assert low == high == pytest.approx(2 * (15 + (11 + 100 + AROUND) * 10))
    assert estimate["usd"] == pytest.approx([low / 100, high / 100])
    assert said[0] == "time: about 44 min for 2 rounds"
    assert said[1] == "cost: about 26.50 USD at 36.00 USD an hour"
    assert said[2].startswith("assumed: 15 s to start, prove and profile a mode; ")


LOST = """
import sys
import pynvml
from fp8bench.__main__ import main

def refuse():
    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

pynvml.nvmlInit = pynvml.nvmlShutdown = lambda: None
pynvml.nvmlDeviceGetCount = refuse
sys.argv = ["fp8bench", "run", "--dry-run"]
main()
"""


@pytest.mark.slow
def test_a_driver_that_lists_no_gpu_is_one_line_unless_all_are_hidden(tmp_path):
    refused = call_python(tmp_path, "-c", LOST, CUDA_VISIBLE_DEVICES="0")
    hidden = call_python(tmp_path, "-c", LOST, CUDA_VISIBLE_DEVICES="")

    assert (refused.code, refused.stdout) == (3, "")
    assert one_line(refused).startswith("fp8bench: NVIDIA's driver does not list the GPUs of this machine: ")
    assert "CUDA_VISIBLE_DEVICES=" in one_line(refused)
    assert (hidden.code, hidden.stderr) == (0, "")

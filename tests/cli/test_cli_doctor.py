"""`fp8bench doctor` on this machine, its GPUs hidden: both forms, the exit codes, and no heavy import of its own."""

import json
import re
from functools import partial

import pytest
from cli.calling import call_python, forking_program

PROGRAM = """
import os
import sys
from fp8bench.cli.app import main
from fp8bench.doctor.probe import run_probes
if "FORKING_PROBE" in os.environ:
    run_probes.__defaults__ = ((os.environ["FORKING_PROBE"],),)
sys.argv = ["fp8bench", "doctor", *sys.argv[1:]]
try:
    main()
finally:
    heavy = {"torch", "timm", "torchao", "transformer_engine"} & set(sys.modules)
    assert not heavy, heavy
"""


@pytest.fixture
def doctor_in(tmp_path):
    return partial(call_python, tmp_path, "-c", PROGRAM)


@pytest.mark.slow
def test_json_holds_the_machine_and_every_finding(doctor_in, tmp_path):
    """The probes look at this machine's torch, timm and torchao; `doctor.test_probe` starts the first one afresh."""
    outcome = doctor_in(
        "--json",
        # Without its parent's process id: a forked one has another.
        FORKING_PROBE=str(forking_program(tmp_path / "probe", "-m", "fp8bench.doctor.probe", passed=1)),
        MY_TOKEN="sesame-open",
        CUDA_LAUNCH_BLOCKING="1",
        CUBLAS_WORKSPACE_CONFIG="sesame-open",
    )

    read = json.loads(outcome.stdout)
    findings = {finding["name"]: finding for finding in read["findings"]}
    assert outcome.code == 0, outcome.stdout
    assert read["machine"]["gpus"] == []
    assert read["machine"]["cores"] >= 1
    assert findings["torch"]["status"] in ("ok", "unknown")
    assert {findings[name]["status"] for name in ("timm", "torchao")} <= {"ok", "unknown"}
    assert findings["environment"]["status"] == "warning"
    assert {findings[name]["status"] for name in ("busy", "power-limit", "fp8", "te-attention")} == {"unknown"}
    assert "sesame" not in outcome.stdout


def test_json_is_a_format_and_text_ends_in_a_sum_and_quick_asks_no_probe(doctor_in):
    formatted, flagged = doctor_in("--quick", "--format", "json"), doctor_in("--quick", "--json")
    assert json.loads(formatted.stdout).keys() == json.loads(flagged.stdout).keys() == {"machine", "findings"}
    outcome = doctor_in("--quick")
    assert (outcome.code, outcome.stderr) == (0, ""), outcome.stdout
    assert "\x1b" not in outcome.stdout
    lines = outcome.stdout.splitlines()
    assert {"GPU", "Software", "Host"} <= set(lines)
    assert re.fullmatch(r"(\d+ warnings?, )?\d+ ok, \d+ unknown", lines[-1])
    assert "imports" not in outcome.stdout


def test_packages_that_break_are_problems_with_their_last_lines_and_exit_code_3(doctor_in, tmp_path):
    for name in ("torch", "timm", "torchao"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} is broken')\n")
    outcome = doctor_in(PYTHONPATH=str(tmp_path))
    assert outcome.code == 3
    assert re.search(r"problem +timm .*import: RuntimeError: timm is broken\n +-> Install it: ", outcome.stdout)
    assert "3 problems" in outcome.stdout.splitlines()[-1]
    assert str(tmp_path) not in outcome.stdout

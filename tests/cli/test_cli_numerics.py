"""`fp8bench numerics`: what it prints where, what it keeps and draws, and what it refuses before it begins."""

import csv
import io
import json
from functools import partial

import pytest
from calling import invoked

from fp8bench.kinds.numerics.measure import NumericsRecord

QUICK = ("--layer", "linear", "--input", "normal", "--width", "32")


@pytest.fixture
def numerics(tmp_path, monkeypatch):
    """Call the command in a folder of its own, without a GPU; what it raises is raised here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    return partial(invoked, "numerics")


def kept(tmp_path):
    return [NumericsRecord.model_validate_json(path.read_text()) for path in tmp_path.glob("results/*/*.json")]


@pytest.mark.slow
def test_a_table_on_stdout_and_a_record_in_the_results(numerics, tmp_path):
    done = numerics(*QUICK, "--mode", "torchao-float8:rowwise", "--mode", "te-fp8:block", "--seed", "3")
    # te-fp8:block was named, and cannot run here.
    assert done.exit_code == 3, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("numerics, width 32, 64 tokens, seed 3, on cpu")
    assert ["normal", "torchao-float8:rowwise", "3.7e-02"] in [line.split()[:3] for line in lines]
    assert "unsupported [a]" in done.stdout
    assert "A jump: values 100 times as large" in done.stdout
    [record] = kept(tmp_path)
    assert (record.status, record.instance, record.config.seed) == ("ok", "cpu", 3)
    assert f"kept as results/cpu/{record.run_id}.json" in done.stderr


@pytest.mark.slow
def test_the_same_call_prints_the_same(numerics):
    first, second = (numerics(*QUICK, "--mode", "torchao-float8").stdout for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_json_and_csv_are_for_machines(numerics, tmp_path):
    done = numerics(*QUICK, "--mode", "baseline-bf16", "--format", "json")
    assert [NumericsRecord.model_validate(one) for one in json.loads(done.stdout)] == kept(tmp_path)
    done = numerics(*QUICK, "--mode", "baseline-bf16", "--format", "csv")
    assert [line["tensor"] for line in csv.DictReader(io.StringIO(done.stdout))] == [
        *("output", "input_gradient", "weight_gradient"),
    ]


@pytest.mark.slow
def test_both_pictures(numerics, tmp_path):
    done = numerics(*QUICK, "--mode", "torchao-float8", "--plot", "errors.png", "--history-plot", "jump.svg")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "errors.png").stat().st_size > 5_000
    assert "max of 1024" in (tmp_path / "jump.svg").read_text()
    assert "drawn as errors.png" in done.stderr
    assert "drawn as jump.svg" in done.stderr


@pytest.mark.slow
def test_where_nothing_could_run_the_exit_code_is_3_and_the_reason_is_told(numerics, tmp_path):
    done = numerics(*QUICK, "--mode", "te-fp8", "--plot", "errors.png")
    assert done.exit_code == 3
    assert "needs an NVIDIA GPU" in done.stdout
    [record] = kept(tmp_path)
    assert (record.status, record.remedy is not None) == ("unsupported", True)
    assert not (tmp_path / "errors.png").exists()

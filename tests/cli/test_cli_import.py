"""`fp8bench results import`: a figure from elsewhere, always marked as one."""

import json
from pathlib import Path

import pytest
from builders import measured
from cli.calling import keep

IMPORT = ("results", "import", "--instance", "p5", "--step-time", "0.2", "--batch-size", "64", "--gpus", "8")


def test_an_imported_figure_is_written_and_compared_marked_as_external(fp8bench_in, tmp_path):
    written = fp8bench_in(*IMPORT, "--mode", "te-fp8:delayed", "--source", "a talk", "--compile")
    path = tmp_path / written.stdout.strip()
    compared = fp8bench_in("compare", "p5", "--batch-size", "64", "--columns", "mode,throughput,notes")
    (line,) = [line for line in compared.stdout.splitlines() if line.startswith("te-fp8:delayed")]

    assert (written.code, written.stderr, compared.code) == (0, "", 0)
    assert path.parent == tmp_path / "results" / "p5"
    assert json.loads(path.read_text())["provenance"]["citation"] == "a talk"
    assert line.endswith("external")
    assert "2,560" in line


def test_an_imported_figure_with_a_date_is_published(fp8bench_in, tmp_path):
    written = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a paper", "--published-on", "2024-05-01")

    assert written.code == 0
    assert Path(written.stdout.strip()).parent == Path("results/published")
    assert json.loads((tmp_path / written.stdout.strip()).read_text())["source"] == "published"


def test_a_figure_that_follows_from_what_was_published_is_marked_with_how(fp8bench_in, tmp_path):
    figure = ("--mode", "te-bf16", "--source", "a paper", "--published-on", "2024-05-01", "--derivation", "0.24 / 1.2")
    written = fp8bench_in(*IMPORT, *figure)
    compared = fp8bench_in("compare", "p5", "--format", "json")

    assert json.loads((tmp_path / written.stdout.strip()).read_text())["provenance"]["derivation"] == "0.24 / 1.2"
    (row,) = [row for row in json.loads(compared.stdout) if row["step_time_s"] == 0.2]
    assert row["marks"][:2] == ["published", "derived from 0.24 / 1.2"]


@pytest.mark.parametrize("step_time", ["150", "199", "0.0002"])
def test_a_step_that_the_gpu_cannot_take_is_doubted_and_kept(step_time, fp8bench_in):
    outcome = fp8bench_in(*IMPORT, "--mode", "te-bf16", "--source", "a talk", "--step-time", step_time)

    assert outcome.code == 0
    assert outcome.stdout.startswith("results/p5/")
    assert outcome.stderr.startswith(f"fp8bench: warning: a step of {step_time} s for 64 images a GPU uses ")
    assert outcome.stderr.count("\n") == 1


def test_a_figure_that_no_table_shows_says_so(fp8bench_in, tmp_path):
    keep(measured("p5"), tmp_path / "results")
    outcome = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a talk")
    shown = fp8bench_in("compare", "p5")
    every = fp8bench_in("compare", "p5", "--all", "--allow-mismatch")

    assert outcome.stderr.startswith("fp8bench: warning: no table shows this figure: p5 has measured records")
    assert "`fp8bench compare p5 --all --allow-mismatch` does" in outcome.stderr
    assert "te-fp8" not in shown.stdout
    assert "te-fp8" in every.stdout


def test_a_figure_in_the_place_of_another_says_of_which(fp8bench_in):
    fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a talk")
    outcome = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a better talk")

    assert outcome.stderr.startswith("fp8bench: warning: this figure replaces ")


def test_a_figure_of_other_work_says_how_it_is_shown(fp8bench_in):
    outcome = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a talk", "--workload", "vit-huge-256")
    flag = outcome.stderr.strip().rpartition("with ")[2].split()

    assert flag == ["--workload", "vit-huge-256"]
    assert "te-fp8" in fp8bench_in("compare", "p5", *flag).stdout

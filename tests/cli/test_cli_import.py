"""`fp8bench import`: a figure from elsewhere, always marked as one."""

import json
from pathlib import Path

import pytest
from cli.calling import one_line

IMPORT = ("import", "--instance", "p5", "--step-time", "0.2", "--batch-size", "64", "--gpus", "8")


def test_an_imported_figure_is_written_and_compared_marked_as_external(fp8bench_in, tmp_path):
    written = fp8bench_in(*IMPORT, "--mode", "te-fp8:delayed", "--source", "a talk", "--compile")
    path = tmp_path / written.stdout.strip()
    compared = fp8bench_in("compare", "p5")
    (line,) = [line for line in compared.stdout.splitlines() if "te-fp8:delayed" in line]

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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("--source", "measured"), "--source 'measured' does not say where the figure is from"),
        (("--step-time", "0"), "--step-time '0' is wrong"),
        (("--instance", "p55"), "Did you mean 'p5'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_figure_that_is_refused_leaves_nothing_behind(changed, words, fp8bench_in, tmp_path):
    outcome = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a talk", *changed)

    assert words in one_line(outcome)
    assert outcome.code == 2
    assert list(tmp_path.iterdir()) == []

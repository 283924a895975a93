"""`fp8bench predict` and `scaling`: what is printed, and that it is kept apart from what was measured."""

import json
import re
from functools import partial

import pytest
from builders import evidence, published
from cli.calling import keep_all
from kept import record_paths
from predict.known import records
from scaling.made_scaling import nodes_of, sized

from fp8bench.schema.errors import UsageError

PARTS = {"gemm_bf16": 0.06, "elementwise": 0.025, "attention": 0.01}
FP8_PARTS = {"gemm_fp8": 0.04, "elementwise": 0.045, "attention": 0.01}


def measured(mode="baseline-bf16", recipe=None, parts=PARTS, **changes):
    """Two rounds on one H200."""
    found = evidence(fp8="gemm_fp8" in parts, recipe=recipe)
    values = {"by_category": parts, "evidence": found, "session_id": mode, **changes}
    return records("h200-1x", mode, recipe, **values)


@pytest.fixture
def folder(tmp_path):
    """A folder with results of two modes."""
    keep_all([*measured(), *measured("te-fp8", "delayed", FP8_PARTS)], tmp_path / "results")
    return tmp_path


@pytest.fixture
def predict(folder, rows_of):
    """Predict from the results of that folder."""
    return partial(rows_of, "predict")


def test_one_mode_on_some_gpus_for_their_share_of_the_price(predict):
    whole = predict("p5", "--from", "h200-1x:te-fp8")
    (row,) = predict("p5.48xlarge", "--from", "h200-1x:te-fp8/eager", "--gpus", "1")
    assert [one["mode"] for one in whole] == ["te-fp8"]
    assert (row["source"], row["instance"], row["world_size"], row["price_share"]) == ("predicted", "p5", 1, 0.125)
    assert row["usd_per_hour"] == pytest.approx(whole[0]["usd_per_hour"] / 8)
    assert row["step_time_range_s"][0] < row["step_time_s"] < row["step_time_range_s"][1]


def test_of_several_workloads_the_one_of_most_records_is_predicted_and_said(predict, command, folder):
    longer = measured(settings={"workload": "vit-huge-256"}, session_id="longer", minutes=30)
    keep_all(longer, folder / "results")
    words = ("p5", "--from", "h200-1x")
    assert {row["workload"] for row in predict(*words)} == {"vit-huge"}
    assert {row["workload"] for row in predict(*words, "--workload", "vit-huge-256")} == {"vit-huge-256"}
    said = "fp8bench: predicting vit-huge, the workload of most records; --workload chooses another (vit-huge-256)\n"
    assert said in command("predict", *words).stderr
    assert "workload of most" not in command("predict", "p5", "--from", "h200-1x:te-fp8").stderr


def test_fp8_on_a_gpu_without_it_is_unsupported_with_exit_code_3_only_where_nothing_else_ran(predict, command):
    assert "has no fp8 units" in command("predict", "p4d", "--from", "h200-1x:te-fp8", code=3).stdout
    assert [row["status"] for row in predict("p4d", "--from", "h200-1x")] == ["predicted", "unsupported"]
    with pytest.raises(UsageError, match="nvlink_gb_s of L40S is not known"):
        predict("g6e-48xlarge", "--from", "h200-1x")


def test_a_prediction_is_neither_kept_nor_compared(predict, rows_of, folder):
    before = sorted((folder / "results").rglob("*"))
    predict("p5", "--from", "h200-1x")
    assert sorted((folder / "results").rglob("*")) == before
    rows = rows_of("compare", "p5", "h200-1x", "--allow-mismatch")
    assert {row["source"] for row in rows} == {"measured", "published"}


def test_a_broken_record_is_named_once(command, folder):
    first = record_paths(folder / "results" / "h200-1x", "*baseline*.json")[0]
    first.write_text(first.read_text()[:-50])
    done = command("predict", "p5", "--from", "h200-1x", "--gpus", "1")
    assert done.stderr.count("warning: not read: ") == 1
    assert "baseline-bf16 " in done.stdout


@pytest.mark.parametrize("words", [(), ("p5",), ("p4d",), ("p5", "p4d"), ("p5", "--project", "2")])
def test_whatever_is_named_there_is_a_table_as_long_as_a_row_can_be_shown(command, tmp_path, words):
    keep_all([*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.11, 0.11)], tmp_path / "results")
    assert re.search("^ +8 ", command("scaling", *words).stdout, re.MULTILINE)


@pytest.mark.slow
def test_a_plot_is_drawn(command, tmp_path):
    done = command("scaling", "p5", "--workload", "llm-1b", "--plot", "scaling.svg")
    assert "drawn as scaling.svg" in done.stderr
    assert "<svg" in (tmp_path / "scaling.svg").read_text()


def test_a_projection_warns_on_standard_error_too_and_ones_own_steps_count_as_what_they_are(command, tmp_path):
    words = ("scaling", "p5", "--workload", "vit-huge")
    keep_all(sized(*nodes_of(1, 0.1, 0.1)), tmp_path / "results")
    done = command(*words, "--project", "4,2")
    assert "Projected, and not measured" in done.stdout
    assert "fp8bench: warning: projections are what links allow" in done.stderr
    steps = ((8, 0.2), (16, 0.21))
    figures = [published("p5", world_size=gpus, step_time_s=step, minutes=-gpus) for gpus, step in steps]
    keep_all(figures, tmp_path / "other")
    data = json.loads(command(*words, "--format", "json", "--results-dir", "other").stdout)
    assert {(one["nodes"], one["source"]) for one in data["points"]} == {(1, "published"), (2, "published")}

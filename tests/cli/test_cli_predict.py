"""`fp8bench predict`: what is printed, what is refused, and that it is kept apart from what was measured."""

import gc
import json
import shutil

import pytest
from builders import environment, evidence, profile, published, rank_samples, rounds, steps_about, summary
from calling import call, invoked, keep, one_line
from kept import record_paths
from typer.testing import CliRunner

from fp8bench.cli.app import program
from fp8bench.records.files import samples_path
from fp8bench.schema.errors import UsageError

PARTS = {"gemm_bf16": 0.06, "elementwise": 0.025, "attention": 0.01}
FP8_PARTS = {"gemm_fp8": 0.04, "elementwise": 0.045, "attention": 0.01}


def measured(mode="baseline-bf16", recipe=None, parts=PARTS, **changes):
    """Two rounds on one H200."""
    values = {
        "instance": "h200-1x",
        "environment": environment("NVIDIA H200"),
        "profile": profile(by_category=parts, busy_s=sum(parts.values())),
        "summary": summary(0.1, 64, flops_per_step=64 * 763_500_000_000),
        "samples": (rank_samples(0, steps_about(0.1)),),
        "settings": {"world_size": 1},
        "evidence": evidence(fp8="gemm_fp8" in parts, recipe=recipe),
        "session_id": mode,
    }
    return rounds(0.1, 0.1, mode=mode, recipe=recipe, **{**values, **changes})


@pytest.fixture(autouse=True)
def _collect_garbage_again():
    """The command is the whole life of its process, and turns collection off."""
    yield
    gc.enable()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with results of two modes."""
    for record in (*measured(), *measured("te-fp8", "delayed", FP8_PARTS)):
        keep(record, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def predict(folder):
    """Call the command beside the results; what it raises is raised here."""

    def called(*arguments, code=0):
        done = invoked("predict", *arguments)
        assert done.exit_code == code, done.output
        return done.stdout

    return called


@pytest.mark.slow
def test_every_mode_of_an_instance_is_predicted(folder):
    done = call(folder, "predict", "p5", "--from", "h200-1x")
    assert done.code == 0
    assert done.stdout.startswith("Predicted for 8 H100-SXM5-80GB of p5 from what was measured on 1 H200-SXM-141GB")
    assert "te-fp8:delayed/eager" in done.stdout
    assert "baseline-bf16/eager" in done.stdout
    assert "8 GPUs are predicted from 1" in done.stderr


def test_one_mode_on_some_gpus_for_their_share_of_the_price(predict):
    whole = json.loads(predict("p5", "--from", "h200-1x:te-fp8", "--format", "json"))
    (row,) = json.loads(predict("p5.48xlarge", "--from", "h200-1x:te-fp8/eager", "--gpus", "1", "--format", "json"))
    assert [one["mode"] for one in whole] == ["te-fp8"]
    assert (row["source"], row["instance"], row["world_size"], row["price_share"]) == ("predicted", "p5", 1, 0.125)
    assert row["usd_per_hour"] == pytest.approx(whole[0]["usd_per_hour"] / 8)
    assert row["step_time_range_s"][0] < row["step_time_s"] < row["step_time_range_s"][1]


def test_of_several_workloads_the_one_of_most_records_is_predicted(predict, folder):
    for record in measured(settings={"world_size": 1, "workload": "vit-huge-256"}, session_id="longer", minutes=30):
        keep(record, folder / "results")
    rows = {
        name: json.loads(predict("p5", "--from", "h200-1x", *more, "--format", "json"))
        for name, more in (("most", ()), ("named", ("--workload", "vit-huge-256")))
    }
    assert {row["workload"] for row in rows["most"]} == {"vit-huge"}
    assert {row["workload"] for row in rows["named"]} == {"vit-huge-256"}


def test_which_workload_is_predicted_is_said(folder):
    for record in measured(settings={"world_size": 1, "workload": "vit-huge-256"}, session_id="longer", minutes=30):
        keep(record, folder / "results")
    said = "fp8bench: predicting vit-huge, the workload of most records; --workload chooses another (vit-huge-256)\n"
    assert said in call(folder, "predict", "p5", "--from", "h200-1x").stderr
    assert "workload of most" not in call(folder, "predict", "p5", "--from", "h200-1x:te-fp8").stderr


def test_a_records_file_is_a_source_wherever_it_lies(predict, folder):
    path = record_paths(folder / "results" / "h200-1x", "*te-fp8*.json")[0]
    shutil.move(samples_path(path), folder)
    shutil.move(path, folder / "kept.json")
    (row,) = json.loads(predict("p5", "--from", "kept.json", "--format", "json"))
    assert row["mode"] == "te-fp8"


def test_fp8_on_a_gpu_without_it_is_unsupported_with_exit_code_3_only_where_nothing_else_ran(predict):
    assert "has no fp8 units" in predict("p4d", "--from", "h200-1x:te-fp8", code=3)
    rows = json.loads(predict("p4d", "--from", "h200-1x", "--format", "json"))
    assert [row["status"] for row in rows] == ["predicted", "unsupported"]


def test_a_prediction_is_neither_kept_nor_compared(predict, folder):
    before = sorted((folder / "results").rglob("*"))
    predict("p5", "--from", "h200-1x")
    assert sorted((folder / "results").rglob("*")) == before
    words = ["compare", "p5", "h200-1x", "--allow-mismatch", "--format", "json"]
    rows = json.loads(CliRunner().invoke(program(words), words).stdout)
    assert {row["source"] for row in rows} == {"measured", "published"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no instance was named"),
        (["p5"], "--from is missing"),
        (["p5", "--from", "a.json", "--workload", "vit-huge"], "--workload does not apply to a record's file"),
        (["p55", "--from", "h200-1x"], "unknown instance 'p55'"),
        (["p5", "--from", "h100-1x"], "no record for instance 'h100-1x': results has records of h200-1x"),
        (["p5", "--from", "p4d"], "published figure, which has no profile"),
        (["p5", "--from", "h200-1x:te-bf16"], "no record of h200-1x:te-bf16"),
        (["p5", "--from", "h200-1x/graphed"], "no record of h200-1x/graphed"),
        (["p5", "--from", "h200-1x/graphing"], "unknown variant 'graphing'"),
        (["p5", "--from", "h200-1x", "--batch-size", "7"], "no record of h200-1x at batch size 7"),
        (["p5", "--from", "h200-1x", "--gpus", "9"], "p5 has 8 GPUs, not 9"),
        (["p5", "--from", "h200-1x", "--gpus", "0"], "--gpus '0' is not a whole number of at least 1"),
        (["h200-1x", "--from", "h200-1x"], "h200-1x itself was measured on 1 GPU"),
        (["g6e-48xlarge", "--from", "h200-1x"], "nvlink_gb_s of L40S is not known"),
        (["p5", "--from", "h200-1x", "--price-as-of", "soon"], "--price-as-of 'soon' is not a date"),
        (["p5", "--from", "h200-1x", "--purchase", "barter"], "unknown --purchase 'barter'"),
        (["p5", "--from", "h200-1x", "--region", "mars"], "no price is of region 'mars'"),
        (["p5", "--from", "nowhere.json"], "cannot read nowhere.json"),
        (["p5", "--from", "h200-1x", "--workload", "vit-huger"], "unknown workload 'vit-huger'"),
    ],
)
def test_what_is_refused_is_one_line_with_its_remedy(predict, words, said):
    with pytest.raises(UsageError) as refused:
        predict(*words)
    assert said in str(refused.value)
    assert refused.value.remedy


@pytest.mark.slow
def test_a_record_without_a_profile_is_refused_by_the_program_in_one_line(tmp_path):
    for record in measured(profile=None):
        keep(record, tmp_path / "results")
    done = call(tmp_path, "predict", "p5", "--from", "h200-1x")
    assert done.code == 2
    assert one_line(done) == (
        "fp8bench: h200-1x:baseline-bf16 was recorded without a profile. "
        "Measure it again: `fp8bench run --mode baseline-bf16`."
    )


def test_published_figures_beside_records_are_no_source_of_their_own(predict, folder):
    keep(published("p4d"), folder / "results")
    with pytest.raises(UsageError, match="which has no profile"):
        predict("p5", "--from", "p4d")


@pytest.mark.slow
def test_a_broken_record_is_named_once_and_the_rest_is_predicted(folder):
    first = record_paths(folder / "results" / "h200-1x", "*baseline*.json")[0]
    first.write_text(first.read_text()[:-50])
    done = call(folder, "predict", "p5", "--from", "h200-1x", "--gpus", "1")
    assert done.code == 0
    assert done.stderr.count("warning: not read: ") == 1
    assert "baseline-bf16/eager" in done.stdout

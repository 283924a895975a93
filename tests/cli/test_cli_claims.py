"""`fp8bench claims`: what is printed, and what is refused."""

import json

import pytest
from built_claims import BF16, FILE, FP8, SPEEDUP
from calling import invoked, keep
from report.made_converge import record as converge_record

from fp8bench.schema.errors import UsageError


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for record in (*BF16, *FP8):
        keep(record, tmp_path / "results")
    (tmp_path / "own.yaml").write_text(FILE.format(test=SPEEDUP, at_least=1.1))


@pytest.mark.usefixtures("kept")
def test_ones_own_claims_are_tested_on_the_records_here():
    (row,) = json.loads(invoked("claims", "p5", "--claims", "own.yaml", "--format", "json").stdout)
    assert (row["id"], row["instance"], row["verdict"]) == ("faster", "p5", "reproduced")


@pytest.mark.usefixtures("kept")
def test_the_claims_that_come_with_the_program_can_be_chosen_by_id():
    done = invoked("claims", "--id", "p5-worse", "--id", "three-times", "--format", "json")
    assert [(row["id"], row["instance"]) for row in json.loads(done.stdout)] == [
        ("p5-worse", "p5, p4d"),
        ("three-times", "p5, p4d"),
    ]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--id", "p5-wors"), "unknown claim 'p5-wors'. Did you mean 'p5-worse'?"),
        (("p55",), "unknown instance 'p55'"),
        (("--claims", "none.yaml"), "cannot read none.yaml"),
    ],
)
def test_what_is_not_there_is_an_error_with_the_nearest(words, message):
    with pytest.raises(UsageError) as raised:
        invoked("claims", *words)
    assert message in str(raised.value)


@pytest.mark.parametrize("words", [("claims",), ("compare", "p5"), ("scaling", "p5", "--workload", "llm-1b")])
def test_a_folder_that_was_named_and_is_missing_is_an_error_and_the_default_may_be_absent(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoked(*words).exit_code == 0
    with pytest.raises(UsageError, match=r"there is no folder absent. Name another with --results-dir"):
        invoked(*words, "--results-dir", "absent")
    monkeypatch.setenv("FP8BENCH_RESULTS_DIR", "gone")
    with pytest.raises(UsageError, match="there is no folder gone"):
        invoked(*words)


def test_the_study_of_language_models_is_shown_by_its_own_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("study-title", "study-printed", "study-1b-falls")
    words = [word for name in names for word in ("--id", name)]
    rows = {row["id"]: row for row in json.loads(invoked("claims", *words, "--format", "json").stdout)}
    assert {name: round(rows[name]["value"], 3) for name in names} == dict(
        zip(names, (0.176, 0.176, 0.833), strict=True)
    )
    assert {row["verdict"] for row in rows.values()} == {"not measured"}
    assert rows["study-title"]["why"] is None
    assert "15 % is their difference over the figure with FP8" in rows["study-printed"]["why"]


def test_a_gap_of_losses_is_that_of_the_latest_record_of_converge(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = converge_record()
    keep(record, tmp_path / "results")
    (row,) = json.loads(invoked("claims", "--id", "study-1b-loss", "--format", "json").stdout)
    assert (row["instance"], row["value_from"], row["run_ids"]) == (record.instance, "measured", [record.run_id])
    assert row["value_ci"][0] < row["value"] < row["value_ci"][1]
    assert row["verdict"] == "reproduced"

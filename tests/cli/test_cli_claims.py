"""`fp8bench claims`: what is printed, and what is refused."""

import json

import pytest
from built_claims import BF16, FILE, FP8, SPEEDUP
from calling import invoked, keep

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

"""Commands name a record that contradicts itself, and leave it out; `results verify` ends with exit code 4."""

import json

import pytest
from builders import rounds
from calling import invoked, keep
from kept import record_paths


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two modes, three rounds each; one round of te-bf16 has ten times its units."""
    monkeypatch.chdir(tmp_path)
    for mode in ("baseline-bf16", "te-bf16"):
        for record in rounds(0.1, 0.1004, 0.0997, mode=mode, session_id="monday", instance="h100-1x"):
            keep(record, tmp_path / "results")
    for record in rounds(0.1, 0.1004, 0.0997, session_id="sunday", instance="h100-1x", minutes=-100):
        keep(record, tmp_path / "before")
    for record in rounds(0.09, 0.09, session_id="one", instance="h100-1x", settings={"world_size": 1}, minutes=-10):
        keep(record, tmp_path / "results")
    path = record_paths(tmp_path / "results" / "h100-1x", "*te-bf16*.json")[-1]
    document = json.loads(path.read_text())
    document["summary"]["units_per_step"] *= 10
    document["summary"]["throughput_per_s"] *= 10
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "h100-1x"),
        ("check", "--against", "before"),
        ("report", "h100-1x", "-o", "page.html"),
        ("scaling", "h100-1x"),
    ],
)
def test_it_is_named_and_left_out_and_the_rest_is_shown(words, folder):
    command, *rest = words
    done = invoked(command, *rest)
    assert done.exit_code == 0
    assert folder.name in done.stderr
    assert "left out" in done.stderr
    assert "units_per_step" in done.stderr


def test_its_row_rests_on_the_others(folder):
    rows = json.loads(invoked("compare", "h100-1x", "--format", "json").stdout)
    (row,) = (row for row in rows if row["mode"] == "te-bf16")
    assert row["rounds"] == 2
    assert row["throughput_per_s"] == pytest.approx(512 / 0.1002, rel=1e-3)


def test_where_it_is_named_by_the_user_it_is_refused(folder):
    with pytest.raises(Exception, match="contradicts itself") as caught:
        invoked("explain", str(folder))
    assert caught.value.exit_code == 2


def test_verify_names_it_with_exit_code_4_and_an_empty_folder_is_wrong_usage(folder, tmp_path):
    done = invoked("results", "verify")
    assert done.exit_code == 4
    assert folder.name in done.stdout
    (tmp_path / "empty").mkdir()
    with pytest.raises(Exception, match="no records") as caught:
        invoked("results", "verify", "--results-dir", "empty")
    assert caught.value.exit_code == 2


def test_where_very_many_are_broken_each_is_named_once_and_what_is_left_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        (record,) = rounds(0.1, session_id=f"s{number}", instance="h100-1x", minutes=number)
        broken = record.model_copy(update={"cause": "crash"})
        keep(broken if number else record, tmp_path / "results")
    done = invoked("compare", "h100-1x", "--format", "json")
    assert [row["session_id"] for row in json.loads(done.stdout)] == ["s0"]
    assert done.stderr.count("left out") == 29


def test_rows_of_an_older_proof_are_told_in_one_note(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for mode, version in (("baseline-bf16", None), ("te-bf16", 2)):
        for record in rounds(0.1, 0.1004, 0.0997, mode=mode, session_id="monday", instance="h100-1x"):
            proved = record.evidence.model_copy(update={"proof_version": version})
            keep(record.model_copy(update={"evidence": proved}), tmp_path / "results")
    shown = invoked("compare", "h100-1x").stdout
    (note,) = (line for line in shown.splitlines() if "older rules" in line)
    assert "h100-1x:baseline-bf16/eager" in note
    assert "te-bf16" not in note
    rows = json.loads(invoked("compare", "h100-1x", "--format", "json").stdout)
    assert {row["mode"]: row["proof_version"] for row in rows} == {"baseline-bf16": 1, "te-bf16": 2}

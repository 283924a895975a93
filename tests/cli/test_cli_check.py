"""`fp8bench check`: what is held against what, exit codes, exports, and what is refused."""

import json
import shutil

import pytest
from builders import rounds
from cli.calling import keep, keep_all

from fp8bench.schema.errors import UsageError

OLD, NEW, THIRD = "20260501T100000Z-aaaaaa", "20260502T100000Z-bbbbbb", "20260503T100000Z-cccccc"
SAME = (0.1, 0.1002, 0.0999, 0.1)
SLOWER = tuple(1.1 * seconds for seconds in SAME)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with results of two sessions, the later of them slower, and a reference of its own."""
    keep_all(rounds(*SAME, session_id=OLD), tmp_path / "results")
    shutil.copytree(tmp_path / "results", tmp_path / "reference")
    keep_all(rounds(*SLOWER, session_id=NEW, minutes=600), tmp_path / "results")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


@pytest.fixture
def check(folder, command):
    """Call the command beside the results."""
    return lambda *words, code=0: command("check", *words, code=code).stdout


def test_a_regression_is_exit_code_1_with_the_answer_first_on_stderr_and_where_github_reads_it(
    folder, command, monkeypatch
):
    assert "GITHUB_STEP_SUMMARY is not set" in command("check", "--against", OLD, "--summary", code=1).stderr
    summary = folder / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = command("check", "--against", "reference", "--summary", code=1)
    assert done.stdout.startswith("Failed: regression: p5:baseline-bf16/eager, +10.0 %")
    assert f"Session {NEW} against reference; a step may take 3 % longer." in done.stdout
    assert done.stderr.startswith("fp8bench: Failed: regression: p5:baseline-bf16/eager")
    text = summary.read_text()
    assert text.startswith("before\n## fp8bench check\n\nFailed: regression")
    assert "| p5" in text
    command("check", "--against", OLD, code=1)
    assert summary.read_text() == text


@pytest.mark.parametrize("against", ["reference", OLD, OLD[:10], "results"])
def test_a_folder_a_session_or_the_same_folder_is_the_reference_and_a_published_figure_is_neither(
    check, folder, against
):
    shutil.copytree(folder / "reference", folder / "results" / "published")
    (row,) = json.loads(check("--against", against, "--format", "json", code=1))["rows"]
    assert (row["outcome"], row["change"]) == ("regression", pytest.approx(0.1))


def test_what_is_allowed_is_a_share(check):
    for share in ("0.15", "15%"):
        assert check("--against", OLD, "--max-regression", share).startswith("Passed: 1 of 1")
    assert check("--against", NEW, "--session", OLD).startswith("Passed: 1 of 1"), "the earlier one is the faster"


def test_every_export_is_written_in_the_place_of_an_older_one(check, folder):
    (folder / "out.xml").write_text("old")
    check("--against", OLD, "--export", "junit=out.xml", "--export", "json=new/check.json", code=1)
    assert (folder / "out.xml").read_text().startswith("<?xml")
    assert json.loads((folder / "new" / "check.json").read_text())["exit_code"] == 1


def test_a_broken_record_is_named_and_fails_under_strict_alone(folder, command):
    *_, path = keep_all(rounds(*SAME, session_id=THIRD, minutes=900), folder / "results")
    path.write_text(path.read_text()[:-20])
    assert command("check", "--against", OLD).stderr.count("not read") == 1
    command("check", "--against", OLD, "--strict", code=4)


def test_what_is_undecided_says_so_first_everywhere_and_is_exit_code_6(folder, command, monkeypatch):
    keep_all(rounds(0.1, 0.13, 0.1, 0.13, session_id=THIRD, minutes=900), folder / "results")
    summary = folder / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = command("check", "--against", OLD, "--summary", "--export", "junit=out.xml", code=6)
    assert done.stdout.startswith("Undecided: p5:baseline-bf16/eager")
    assert done.stderr.splitlines()[-1].startswith("fp8bench: Undecided: ")
    assert summary.read_text().startswith("## fp8bench check\n\nUndecided: ")
    assert "<system-out>Undecided: " in (folder / "out.xml").read_text()


def test_a_plan_needs_no_reference_and_is_undecided_where_rounds_find_nothing(check, folder):
    """What they find is in tests/goldens."""
    for words in ((), ("--against", OLD)):
        assert check("--plan", *words).startswith("Plan: ")
    keep_all(rounds(0.1, session_id=THIRD, minutes=900), folder / "results")
    assert check("--plan", code=6).startswith("Undecided: ")


def test_a_copy_of_the_checked_session_is_the_same_session_and_nights_take_those_of_a_folder(check, folder):
    keep(rounds(*SLOWER, session_id=NEW, minutes=600)[0], folder / "copy")
    with pytest.raises(UsageError, match=f"the same session, {NEW}"):
        check("--against", "copy")
    assert "regression" in check("--against", "reference", "--nights", code=1)

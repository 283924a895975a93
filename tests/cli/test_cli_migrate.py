"""`fp8bench results migrate` lists records of older formats, and writes them anew when it is told to."""

import json

import pytest
from builders import measured, profile
from cli.calling import invoked, keep

from fp8bench.records.results import read_record
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import SCHEMA_VERSION


@pytest.fixture
def results(tmp_path):
    """A record of today, and one of format 3."""
    keep(measured("p5", run_id="new", profile=profile()), tmp_path)
    path = keep(measured("p5", run_id="old", profile=profile()), tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 3}, indent=1))
    return tmp_path


def called(results, *words):
    return invoked("results", "migrate", "--results-dir", results, *words)


def test_without_yes_nothing_is_changed(results):
    before = {path: path.read_bytes() for path in results.rglob("*.json")}
    done = called(results)

    assert done.exit_code == 0
    assert "p5/old.json" in done.stdout
    assert "p5/new.json" not in done.stdout
    assert "nothing was changed, since --yes was not given" in done.stdout
    assert {path: path.read_bytes() for path in results.rglob("*.json")} == before


def test_with_yes_the_older_one_is_written_anew_and_reads_the_same(results):
    before = read_record(results / "p5" / "old.json")
    done = called(results, "--yes", "--format", "json")

    assert json.loads(done.stdout)["records"] == [{"file": "p5/old.json", "format": 3, "kept": None}]
    assert json.loads((results / "p5" / "old.json").read_text())["schema_version"] == SCHEMA_VERSION
    assert read_record(results / "p5" / "old.json") == before
    assert json.loads(called(results, "--format", "json").stdout)["records"] == []


def test_what_cannot_be_read_is_named_and_left_with_exit_code_4(results):
    (results / "p5" / "half.json").write_text("{")
    done = called(results, "--yes")

    assert done.exit_code == 4
    assert "p5/half.json" in done.stdout
    assert (results / "p5" / "half.json").read_text() == "{"
    assert json.loads((results / "p5" / "old.json").read_text())["schema_version"] == SCHEMA_VERSION


def test_a_folder_that_cannot_be_written_is_one_line_and_loses_nothing(results, monkeypatch):
    from fp8bench.records import rewrite
    from fp8bench.schema.errors import RunFailed

    def full(*_given, **_named):
        raise OSError(28, "No space left on device")

    before = (results / "p5" / "old.json").read_bytes()
    monkeypatch.setattr(rewrite, "write_atomically", full)
    with pytest.raises(RunFailed, match="No space left"):
        called(results, "--yes")

    assert (results / "p5" / "old.json").read_bytes() == before


def test_records_at_an_address_are_never_changed(tmp_path, monkeypatch):
    from fp8bench.schema.address import local

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    mirror = str(local("s3://bucket/results"))
    (tmp_path / mirror).mkdir(parents=True)
    from fp8bench.cli.results import _migrate

    with pytest.raises(UsageError, match="never changes"):
        _migrate(tmp_path / mirror, yes=True)


def test_yes_applies_to_what_changes_something(results):
    with pytest.raises(UsageError, match="does not apply"):
        invoked("results", "verify", "--yes", "--results-dir", results)

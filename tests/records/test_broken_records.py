"""One broken file stops no search: it is named with its line and reason, and the rest is read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from builders import in_one_file, measured, profile, published

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.records import results
from fp8bench.records.files import Broken
from fp8bench.schema.record import SCHEMA_VERSION, Record

GOOD = measured("mine", run_id="good")


def found_beside(text: str | bytes, folder: Path) -> Broken:
    """What is said of a file with this text, which lies beside a good record, that is read all the same."""
    results.write(GOOD, folder)
    (folder / "mine" / "wrong.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    found = results.read(folder, ["mine"])

    assert [kept.record.run_id for kept in found] == ["good"]
    (broken,) = found.broken
    assert broken.path == folder / "mine" / "wrong.json"
    assert str(broken.path) in str(broken)
    assert broken.reason in str(broken)
    return broken


def changed(**changes: Any) -> str:
    return json.dumps(in_one_file(measured("mine", run_id="wrong"), **changes), indent=1)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "is not JSON"),
        ('{\n "schema_version": 3,\n "run_id": oops\n}\n', 3, "is not JSON"),
        ("[" * 100_000, 1, "recursion limit"),
        ('{"schema_version": 3, "evidence": ' + '{"a": ' * 100_000, 1, "recursion limit"),
        (b"\xff\xfe\x00{", 1, "is not JSON"),
        ('{"name": "of something else"}', 1, "field "),
        (changed(colour="green"), None, "field colour"),
        (changed(status="fine"), None, "field status"),
        (changed(schema_version=SCHEMA_VERSION + 1), None, f"schema version {SCHEMA_VERSION + 1}"),
    ],
    ids=["empty", "broken", "deep list", "deep object", "no text", "no record", "a field", "a value", "newer"],
)
def test_it_is_named_with_its_line_and_reason(text, line, words, tmp_path):
    broken = found_beside(text, tmp_path)

    assert words in broken.reason
    assert line is None or broken.line == line


def test_a_file_that_the_system_does_not_give_is_named(tmp_path):
    results.write(GOOD, tmp_path)
    (tmp_path / "mine" / "loop.json").symlink_to("loop.json")
    found = results.read(tmp_path, ["mine"])

    assert [kept.record.run_id for kept in found] == ["good"]
    assert [(broken.path.name, broken.line) for broken in found.broken] == [("loop.json", None)]
    assert "cannot read" in str(found.broken[0])


def test_so_is_a_folder(tmp_path, monkeypatch):
    results.write(GOOD, tmp_path)
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refuses(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    found = results.read(tmp_path, ["mine"])

    assert [kept.record.run_id for kept in found] == ["good"]
    assert [str(broken) for broken in found.broken] == [f"cannot read {tmp_path / 'locked'}: Permission denied"]


def samples_with(step_s: list[Any]) -> str:
    document = json.loads(measured("mine", run_id="wrong").model_dump_json())
    document["samples"][0]["step_s"] = step_s
    return json.dumps(document, indent=1)


@pytest.mark.parametrize(
    ("step_s", "words"),
    [
        ([], "at least 1 item"),
        ([0.1, 0.0, 0.1], "greater than 0"),
        ([0.1, -0.1, 0.1], "greater than 0"),
        ([0.1, float("inf"), 0.1], "finite"),
        ([0.1, float("nan"), 0.1], "finite"),
        ([0.1, None, 0.1], "valid number"),
    ],
    ids=["none", "zero", "negative", "infinite", "not a number", "null"],
)
def test_samples_that_mean_nothing_are_refused_by_line_and_field(step_s, words, tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(samples_with(step_s))
    broken = results.read_whole(path)

    assert isinstance(broken, Broken)
    assert broken.reason.startswith("field samples.0.step_s")
    assert words in broken.reason
    lines = path.read_text().splitlines()
    assert broken.line is not None
    assert broken.line > lines.index(' "samples": [')


def test_ranks_that_counted_unlike_steps_are_refused(tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(samples_with([0.1, 0.1]))
    broken = results.read_whole(path)

    assert isinstance(broken, Broken)
    assert "different numbers of steps" in broken.reason


def test_a_measurement_that_is_ok_without_any_sample_is_refused(tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(changed(samples=[]))
    broken = results.read_whole(path)

    assert isinstance(broken, Broken)
    assert (broken.line, "has samples" in broken.reason) == (1, True)


def test_a_record_that_was_cut_off_is_refused_though_its_beginning_is_whole(tmp_path):
    results.write(GOOD, tmp_path)
    path = results.write(measured("mine", run_id="cut", profile=profile()), tmp_path)
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b'"step_times"') + 20])
    found = results.read(tmp_path, ["mine"])

    assert [kept.record.run_id for kept in found] == ["good"]
    assert [(broken.path, "is not JSON" in broken.reason) for broken in found.broken] == [(path, True)]


def test_a_broken_record_of_another_kind_is_named_by_a_search_for_it(tmp_path):
    results.write(GOOD, tmp_path)
    (tmp_path / "mine" / "gemm.json").write_text(changed(kind="gemm", run_id="g"))
    found = results.read_kind(tmp_path, ["mine"], GemmRecord)

    assert not found
    assert [broken.path.name for broken in found.broken] == ["gemm.json"]
    assert results.read(tmp_path, ["mine"]).broken == ()


class TestWhereRecordsLie:
    def put(self, path: Path, record: Record) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(in_one_file(record)))

    @pytest.mark.parametrize("folder", ["h200-1x-may", "old/h200-1x-may", "a/b/c/d", "published", "."])
    def test_a_record_is_found_wherever_it_was_moved_and_is_of_the_instance_that_it_names(self, folder, tmp_path):
        self.put(tmp_path / folder / "r.json", measured("h200-1x", run_id="r"))

        assert [kept.record.run_id for kept in results.read(tmp_path, ["h200-1x"])] == ["r"]
        assert not results.read(tmp_path, ["h200-1x-may"])

    @pytest.mark.parametrize("hidden", [".old/r.json", "mine/.r.json", "mine/.r.json.x7.tmp", "mine/r.json.bak"])
    def test_what_is_hidden_or_still_being_written_is_not(self, hidden, tmp_path):
        self.put(tmp_path / hidden, measured("mine"))

        assert not results.read(tmp_path, ["mine"])
        assert results.known_instances(tmp_path) == set()

    def test_links_to_folders_are_followed_and_no_folder_is_searched_twice(self, tmp_path):
        self.put(tmp_path / "disk" / "r.json", measured("mine", run_id="r"))
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "mine").symlink_to(tmp_path / "disk")
        (tmp_path / "disk" / "back").symlink_to(tmp_path / "results")

        assert [kept.record.run_id for kept in results.read(tmp_path / "results", ["mine"])] == ["r"]
        assert results.counts(tmp_path / "results") == {"mine": 1}

    def test_a_search_that_finds_nothing_names_the_folder_and_what_lies_there(self, tmp_path):
        for number in (1, 2):
            self.put(tmp_path / "old" / f"{number}.json", measured("h200-1x", run_id=str(number)))
        self.put(tmp_path / "p5" / "r.json", measured("p5"))
        results.write(published("p4d"), tmp_path)
        error = results.nothing_found("for instance 'x'", tmp_path, "Run it")

        assert error.what == f"no record for instance 'x': {tmp_path} has records of h200-1x (2), p5 (1)"
        assert results.what_lies_in(tmp_path / "absent") == f"there is no folder {tmp_path / 'absent'}"
        assert results.what_lies_in(tmp_path / "published" / "..").endswith("has records of h200-1x (2), p5 (1)")

    def test_a_search_for_a_kind_names_the_records_of_that_kind(self, tmp_path):
        self.put(tmp_path / "p5" / "r.json", measured("p5"))
        assert results.what_lies_in(tmp_path, "run").endswith(" has records of p5 (1)")
        assert results.what_lies_in(tmp_path, "gemm").endswith(" has no records of kind gemm")
        assert results.counts(tmp_path, "gemm") == {}

"""Records are read back strictly, oldest first, from their instances' folders and the published ones."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from builders import in_one_file, measured, profile, published

from fp8bench.records import results
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import SCHEMA_VERSION, Record


def put(path: Path, record: Record, **changes: Any) -> list[str]:
    """Write the record's JSON with some fields changed, as a later program or a hand would. Returns its lines."""
    text = json.dumps(in_one_file(record) | json.loads(json.dumps(changes, default=str)), indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text.splitlines()


class TestReadStrictly:
    @pytest.mark.parametrize("changes", [{}, {"a_field_of_the_future": 1}, {"summary": "in a new form"}])
    def test_a_newer_schema_is_a_clear_error_whether_or_not_it_could_be_read(
        self, tmp_path: Path, changes: dict[str, Any]
    ) -> None:
        path = tmp_path / "new.json"
        put(path, measured(), schema_version=SCHEMA_VERSION + 1, **changes)

        with pytest.raises(UsageError) as caught:
            results.read_record(path)

        assert str(path) in caught.value.what
        assert f"schema version {SCHEMA_VERSION + 1}" in caught.value.what
        assert f"up to {SCHEMA_VERSION}" in caught.value.what
        assert "Upgrade fp8bench" in caught.value.remedy

    def test_an_unknown_field_is_told_by_file_line_and_name(self, tmp_path: Path) -> None:
        path = tmp_path / "extra.json"
        lines = put(path, measured(), colour="green")

        with pytest.raises(UsageError) as caught:
            results.read_record(path)

        line = lines.index(' "colour": "green"') + 1
        assert caught.value.what.startswith(f"{path} line {line}, field colour: ")

    def test_a_wrong_value_deep_inside_is_told_by_file_line_and_field(self, tmp_path: Path) -> None:
        path, record = tmp_path / "wrong.json", measured()
        config = json.loads(record.model_dump_json())["config"]
        lines = put(path, record, config=config | {"batch_size": 0})

        with pytest.raises(UsageError) as caught:
            results.read_record(path)

        line = lines.index('  "batch_size": 0,') + 1
        assert caught.value.what.startswith(f"{path} line {line}, field config.batch_size: ")

    def test_a_missing_field_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "poor.json"
        document = json.loads(measured().model_dump_json())
        del document["run_id"]
        path.write_text(json.dumps(document))

        with pytest.raises(UsageError, match="field run_id: field required") as caught:
            results.read_record(path)

        assert str(path) in caught.value.what

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "no json"])
    def test_what_is_no_record_is_told_by_file(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "broken.json"
        path.write_text(text)

        with pytest.raises(UsageError, match="line 1") as caught:
            results.read_record(path)

        assert str(path) in caught.value.what

    def test_broken_json_is_told_by_file_and_its_own_line(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.json"
        path.write_text('{\n "schema_version": 1,\n "run_id": oops\n}\n')

        with pytest.raises(UsageError) as caught:
            results.read_record(path)

        assert caught.value.what.startswith(f"{path} line 3")
        assert "line 1" not in caught.value.what

    def test_a_time_without_a_zone_is_told_by_file_line_and_field(self, tmp_path: Path) -> None:
        path = tmp_path / "local.json"
        lines = put(path, measured(), created_utc="2026-05-01T10:00:00")

        with pytest.raises(UsageError) as caught:
            results.read_record(path)

        line = lines.index(' "created_utc": "2026-05-01T10:00:00",') + 1
        assert caught.value.what.startswith(f"{path} line {line}, field created_utc: ")

    @pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
    def test_a_number_that_is_not_finite_is_told_by_file_and_field(self, tmp_path: Path, word: str) -> None:
        path, text = tmp_path / "endless.json", json.dumps(in_one_file(measured()))
        path.write_text(text.replace('"loss_last": null', f'"loss_last": {word}'))

        with pytest.raises(UsageError, match=r"field summary\.loss_last: .*finite") as caught:
            results.read_record(path)

        assert str(path) in caught.value.what

    def test_bytes_that_are_no_text_are_told_by_file(self, tmp_path: Path) -> None:
        path = tmp_path / "binary.json"
        path.write_bytes(b"\xff\xfe\x00{")

        with pytest.raises(UsageError, match=r"binary\.json"):
            results.read_record(path)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot read .*absent\.json"):
            results.read_record(tmp_path / "absent.json")


class TestRead:
    def test_records_come_oldest_first(self, tmp_path: Path) -> None:
        for minutes, run_id in [(1, "b"), (2, "a"), (0, "c")]:
            results.write(measured("mine", run_id=run_id, minutes=minutes), tmp_path)

        assert [kept.record.run_id for kept in results.read(tmp_path, ["mine"])] == ["c", "b", "a"]

    def test_records_of_other_instances_stay_away(self, tmp_path: Path) -> None:
        results.write(measured("mine", run_id="m"), tmp_path)
        results.write(measured("other", run_id="o"), tmp_path)
        results.write(published("other", run_id="p"), tmp_path)

        assert [kept.record.run_id for kept in results.read(tmp_path, ["mine"])] == ["m"]

    def test_a_broken_file_among_the_records_of_other_instances_alone_is_not_told(self, tmp_path: Path) -> None:
        results.write(measured("mine", run_id="m"), tmp_path)
        results.write(measured("other", run_id="o"), tmp_path)
        (tmp_path / "other" / "broken.json").write_text("{")
        found = results.read(tmp_path, ["mine"])

        assert ([kept.record.run_id for kept in found], found.broken) == (["m"], ())
        assert [broken.path.name for broken in results.read(tmp_path, ["other"]).broken] == ["broken.json"]

    def test_a_broken_record_of_another_instance_is_not_told(self, tmp_path: Path) -> None:
        results.write(measured("mine", run_id="m"), tmp_path)
        put(tmp_path / "other" / "broken.json", measured("other"), colour="green")

        assert results.read(tmp_path, ["mine"]).broken == ()

    def test_a_broken_file_that_may_be_anybodys_is_told(self, tmp_path: Path) -> None:
        results.write(measured("mine", run_id="m"), tmp_path)
        (tmp_path / "unknown").mkdir()
        (tmp_path / "unknown" / "broken.json").write_text("{")

        assert [broken.path.name for broken in results.read(tmp_path, ["mine"]).broken] == ["broken.json"]

    def test_a_record_that_strayed_into_another_instances_folder_is_left_out(self, tmp_path: Path) -> None:
        put(tmp_path / "mine" / "stray.json", measured("other"))

        assert not results.read(tmp_path, ["mine"])

    def test_ones_own_published_figures_are_read_with_the_measurements(self, tmp_path: Path) -> None:
        results.write(measured("mine", run_id="m"), tmp_path)
        results.write(published("mine", run_id="p", minutes=1), tmp_path)

        assert [kept.record.run_id for kept in results.read(tmp_path, ["mine"])] == ["m", "p"]

    def test_the_same_run_in_two_folders_counts_once(self, tmp_path: Path) -> None:
        record = measured("mine")
        results.write(record, tmp_path)
        put(tmp_path / "mine" / "a-copy.json", record)

        assert [kept.record.run_id for kept in results.read(tmp_path, ["mine"])] == [record.run_id]

    def test_a_fault_behind_what_was_left_out_is_told_by_its_own_line(self, tmp_path: Path) -> None:
        """Records of format 2 had their samples in the middle."""
        document = json.loads(measured("mine", profile=profile()).model_dump_json())
        document["summary"] = document.pop("summary") | {"step_time_s": "soon"}
        path = tmp_path / "mine" / "wrong.json"
        path.parent.mkdir()
        path.write_text(json.dumps(document | {"schema_version": 2}, indent=1))
        lines = path.read_text().splitlines()
        expected = next(number for number, line in enumerate(lines, start=1) if '"soon"' in line)
        (broken,) = results.read(tmp_path, ["mine"]).broken

        assert lines.index(' "samples": [') < expected
        assert (broken.path, broken.line) == (path, expected)
        assert broken.reason.startswith("field summary.step_time_s: ")

    @pytest.mark.parametrize("folder", ["", "not-there-yet"])
    def test_the_figures_that_travel_with_the_program_are_found_from_an_empty_folder(
        self, tmp_path: Path, folder: str
    ) -> None:
        records = [kept.record for kept in results.read(tmp_path / folder, ["p4d", "p5"])]

        times = {(r.instance, r.figure.mode, r.summary.step_time_s) for r in records if r.figure and r.summary}
        assert times >= {("p4d", "baseline-bf16", 0.41), ("p5", "baseline-bf16", 0.199)}
        assert {record.source for record in records} == {"published"}
        assert all(record.provenance and record.provenance.published_on for record in records)

    def test_of_those_too_only_the_asked_ones_are_returned(self, tmp_path: Path) -> None:
        assert {kept.record.instance for kept in results.read(tmp_path, ["p5"])} == {"p5"}
        assert not results.read(tmp_path, ["mine"])
        assert not results.read(tmp_path, [])

    def test_files_that_are_no_records_lie_beside_them_in_peace(self, tmp_path: Path) -> None:
        results.write(measured("mine", run_id="m"), tmp_path)
        (tmp_path / "mine" / "instance.yaml").write_text("key: mine\n")
        (tmp_path / "mine" / "notes.txt").write_text("a slow day\n")

        assert [kept.record.run_id for kept in results.read(tmp_path, ["mine"])] == ["m"]

    def test_times_of_different_zones_are_put_in_their_true_order(self, tmp_path: Path) -> None:
        late = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
        put(tmp_path / "mine" / "a.json", measured("mine", run_id="1-late", created_utc=late))
        early = measured("mine", run_id="2-early")
        put(tmp_path / "mine" / "b.json", early, created_utc="2026-01-01T13:00:00+02:00")

        assert [kept.record.run_id for kept in results.read(tmp_path, ["mine"])] == ["2-early", "1-late"]


class TestKnownInstances:
    def test_they_are_the_folders_but_for_the_published_ones(self, tmp_path: Path) -> None:
        results.write(measured("mine"), tmp_path)
        results.write(measured("other"), tmp_path)
        results.write(published("p5"), tmp_path)
        (tmp_path / "README.md").write_text("a file\n")

        assert results.known_instances(tmp_path) == {"mine", "other"}

    def test_a_folder_that_is_not_there_knows_none(self, tmp_path: Path) -> None:
        assert results.known_instances(tmp_path / "absent") == set()

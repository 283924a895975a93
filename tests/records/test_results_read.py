"""Records are read back oldest first, from their instances' folders and the published ones."""

import json
from datetime import UTC, datetime

import pytest
from builders import in_one_file, measured, profile, published

from fp8bench.records import results


def put(path, record, **changes):
    """Write the record's JSON with some fields changed, as a later program or a hand would; return its lines."""
    text = json.dumps(in_one_file(record) | json.loads(json.dumps(changes, default=str)), indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text.splitlines()


def run_ids(folder, *instances):
    return [kept.record.run_id for kept in results.read(folder, instances or ["mine"])]


def broken_names(folder, instance="mine"):
    return [broken.path.name for broken in results.read(folder, [instance]).broken]


def test_records_come_oldest_first_each_once_without_those_of_other_instances(tmp_path):
    for minutes, run_id in [(1, "b"), (2, "a"), (0, "c")]:
        results.write(measured("mine", run_id=run_id, minutes=minutes), tmp_path)
    put(tmp_path / "mine" / "a-copy.json", measured("mine", run_id="a", minutes=2))
    results.write(published("mine", run_id="p", minutes=3), tmp_path)
    results.write(measured("other", run_id="o"), tmp_path)
    results.write(published("other", run_id="q"), tmp_path)
    (tmp_path / "mine" / "instance.yaml").write_text("key: mine\n")
    (tmp_path / "mine" / "notes.txt").write_text("a slow day\n")

    assert run_ids(tmp_path) == ["c", "b", "a", "p"]
    assert results.known_instances(tmp_path) == {"mine", "other"}
    assert results.known_instances(tmp_path / "absent") == set()


def test_times_of_different_zones_are_put_in_their_true_order(tmp_path):
    late = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    put(tmp_path / "mine" / "a.json", measured("mine", run_id="1-late", created_utc=late))
    put(tmp_path / "mine" / "b.json", measured("mine", run_id="2-early"), created_utc="2026-01-01T13:00:00+02:00")

    assert run_ids(tmp_path) == ["2-early", "1-late"]


def test_a_broken_file_is_told_to_whom_it_may_belong(tmp_path):
    results.write(measured("mine", run_id="m"), tmp_path)
    results.write(measured("other", run_id="o"), tmp_path)
    (tmp_path / "other" / "broken.json").write_text("{")
    put(tmp_path / "other" / "wrong.json", measured("other"), colour="green")

    assert run_ids(tmp_path) == ["m"]
    assert broken_names(tmp_path) == []
    assert broken_names(tmp_path, "other") == ["broken.json", "wrong.json"]

    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "anybodys.json").write_text("{")
    assert broken_names(tmp_path) == ["anybodys.json"]


def test_a_record_that_strayed_into_another_instances_folder_is_left_out(tmp_path):
    put(tmp_path / "mine" / "stray.json", measured("other"))
    assert run_ids(tmp_path) == []


def test_a_fault_behind_what_was_left_out_is_told_by_its_own_line(tmp_path):
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
def test_the_figures_that_travel_with_the_program_are_found_from_an_empty_folder(tmp_path, folder):
    records = [kept.record for kept in results.read(tmp_path / folder, ["p4d", "p5"])]
    times = {(r.instance, r.figure.mode, r.summary.step_time_s) for r in records}

    assert times >= {("p4d", "baseline-bf16", 0.41), ("p5", "baseline-bf16", 0.199)}
    assert {record.source for record in records} == {"published"}
    assert all(record.provenance.published_on for record in records)
    assert {kept.record.instance for kept in results.read(tmp_path, ["p5"])} == {"p5"}
    assert not results.read(tmp_path, [])

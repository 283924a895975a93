"""Records are read back oldest first, wherever they lie. One broken file stops no search: it is named with its line and
reason, and the rest is read. Named itself, it is refused with the same words.
"""

import json
import os
import re
from pathlib import Path

import pytest
from builders import in_one_file, measured, published
from kept import put as put_text

from fp8bench.records import results
from fp8bench.schema.errors import UsageError


def put(path, record, **changes):
    """Write the record's JSON with some fields changed, as a later program or a hand would."""
    put_text(path, json.dumps(in_one_file(record) | json.loads(json.dumps(changes, default=str)), indent=1))


def run_ids(folder, *instances):
    return [kept.record.run_id for kept in results.read(folder, instances or ["mine"])]


def broken_names(folder, instance="mine"):
    return [broken.path.name for broken in results.read(folder, [instance]).broken]


def test_records_come_oldest_first_each_once_without_those_of_other_instances_or_that_strayed(tmp_path):
    for minutes, run_id in [(1, "b"), (2, "a"), (0, "c")]:
        results.write(measured("mine", run_id=run_id, minutes=minutes), tmp_path)
    put(tmp_path / "mine" / "a-copy.json", measured("mine", run_id="a", minutes=2))
    put(tmp_path / "mine" / "z.json", measured("mine", run_id="zone"), created_utc="2026-05-01T12:02:30+02:00")
    results.write(published("mine", run_id="p", minutes=3), tmp_path)
    results.write(measured("other", run_id="o"), tmp_path)
    results.write(published("other", run_id="q"), tmp_path)
    (tmp_path / "mine" / "instance.yaml").write_text("key: mine\n")
    (tmp_path / "mine" / "notes.txt").write_text("a slow day\n")
    put(tmp_path / "mine" / "stray.json", measured("other"))
    assert run_ids(tmp_path) == ["c", "b", "a", "zone", "p"]
    assert results.known_instances(tmp_path) == {"mine", "other"}
    assert results.known_instances(tmp_path / "absent") == set()


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


def test_a_file_or_folder_that_the_system_does_not_give_is_named(tmp_path, monkeypatch):
    results.write(measured("mine", run_id="good"), tmp_path)
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refuses(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    found = results.read(tmp_path, ["mine"])
    assert [kept.record.run_id for kept in found] == ["good"]
    assert [str(broken) for broken in found.broken] == [f"{tmp_path / 'locked'} cannot be read: Permission denied"]
    with pytest.raises(UsageError, match=r"absent\.json cannot be read: No such file"):
        results.read_record(tmp_path / "absent.json")


def test_a_record_is_found_wherever_it_was_moved_unless_hidden_or_half_written(tmp_path):
    for name in (".old/r.json", "mine/.r.json", "mine/.r.json.x7.tmp", "mine/r.json.bak"):
        put(tmp_path / name, measured("h200-1x", run_id="r"))
    assert results.known_instances(tmp_path) == {*run_ids(tmp_path, "h200-1x")} == set()
    for place, folder in enumerate(("h200-1x-may", "old/h200-1x-may", "a/b/c/d", "published", "."), start=1):
        put(tmp_path / folder / "r.json", measured("h200-1x", run_id=f"r{place}"))
        assert len(run_ids(tmp_path, "h200-1x")) == place
    assert run_ids(tmp_path, "h200-1x-may") == []


def test_links_to_folders_are_followed_and_no_folder_is_searched_twice(tmp_path):
    put(tmp_path / "disk" / "r.json", measured("mine", run_id="r"))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "back").symlink_to(tmp_path / "results")
    assert run_ids(tmp_path / "results") == ["r"]
    assert results.counts(tmp_path / "results") == {"mine": 1}


def test_a_search_that_finds_nothing_names_the_folder_and_what_lies_there(tmp_path):
    for number in (1, 2):
        put(tmp_path / "old" / f"{number}.json", measured("h200-1x", run_id=str(number)))
    put(tmp_path / "p5" / "r.json", measured("p5"))
    results.write(published("p4d"), tmp_path)
    error = results.nothing_found("for instance 'x'", tmp_path, "Run it")

    assert error.what == f"no record for instance 'x': {tmp_path} has records of h200-1x (2), p5 (1)"
    assert results.what_lies_in(tmp_path, "run").endswith(" has records of h200-1x (2), p5 (1)")
    assert results.what_lies_in(tmp_path, "gemm").endswith(" has no records of kind gemm")
    assert results.counts(tmp_path, "gemm") == {}
    assert results.what_lies_in(tmp_path / "absent") == f"there is no folder {tmp_path / 'absent'}"


DATA = Path(__file__).parent / "data"
FP8 = DATA / "20261121T124825Z-te-fp8-delayed-73ddb8.json"
INVALID = DATA / "20261121T121621Z-te-bf16-article-5c8396.json"


def document():
    return json.loads(FP8.read_text())


def test_what_version_1_recorded_otherwise_is_brought_over_and_what_it_did_not_record_is_null():
    """That all else is as it was is in tests/faults/test_golden_records.py."""
    record, stopped = results.read_record(FP8), results.read_record(INVALID)
    assert [(gpu.rank, gpu.power_limit_w, gpu.series, gpu.energy_j) for gpu in record.telemetry] == [
        (rank, 700.0, None, None) for rank in (0, 1)
    ]
    assert {gpu.warning for gpu in record.telemetry} == {"recorded at two moments only, by an older fp8bench"}
    # A mode with a recipe was in fp8, and one without was not.
    assert (record.evidence.fp8, stopped.evidence.fp8, stopped.telemetry) == (True, False, ())
    assert record.session is record.profile is record.evidence.fp8_kernels is None
    assert record.samples[0].forward_s is record.samples[0].recompilations is None
    assert record.summary.joules_per_unit is record.summary.steadiness is None
    assert record.summary.flags == ()


def test_an_old_record_that_is_broken_is_refused_by_file_line_and_field(tmp_path):
    path = tmp_path / "broken.json"
    for change, field in (
        ({"telemetry": [{"rank": 0, "before": None, "after": None, "mood": "good"}]}, "telemetry.0.mood"),
        ({"telemetry": [{"rank": 0, "after": "hot"}]}, "telemetry.0.after"),
        ({"telemetry": ["nothing"]}, "telemetry.0"),
        ({"evidence": "none"}, "evidence"),
        ({"config": None}, "value error"),
        ({"config": document()["config"] | {"batch_size": "many"}}, "line 19, field config.batch_size: "),
    ):
        path.write_text(json.dumps(document() | change, indent=1))
        with pytest.raises(UsageError, match=re.escape(field)) as caught:
            results.read_record(path)
        assert caught.value.what.startswith(f"{path} line ")

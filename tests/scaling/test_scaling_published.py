"""The figures that travel with the program are what their file says, and harm no other command."""

import json
from pathlib import Path

import pytest
from cli.calling import call

from fp8bench.records import results
from fp8bench.records.audit import verify
from fp8bench.scaling.published import PUBLISHED_THROUGHPUT, read_studies, records_published, write_all
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import PUBLISHED_RESULTS
from fp8bench.schema.throughput import ThroughputRecord

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_records_are_made_of_the_file():
    made = {record.run_id: record for record in records_published()}
    kept = {
        path.stem: results.read_record(path, ThroughputRecord)
        for path in PUBLISHED_RESULTS.glob("*.json")
        if '"kind": "throughput"' in path.read_text()
    }
    assert kept == made, "run `make published`"
    assert {record.workload for record in made.values()} == {"llm-1b", "llm-7b"}


def test_they_say_whose_they_are():
    for record in records_published():
        assert record.source == "published"
        assert record.provenance.published_on.isoformat() == "2024-11-20"
        assert "https://" in record.provenance.citation


def test_they_are_whole_by_the_audit():
    found = verify(PUBLISHED_RESULTS, {"run": results.Record, "throughput": ThroughputRecord})
    assert found.bad == ()


def test_they_are_made_in_the_place_of_older_ones(tmp_path):
    old = tmp_path / "published" / "old.json"
    other = tmp_path / "published" / "other.json"
    old.parent.mkdir()
    old.write_text('{"kind": "throughput"}')
    other.write_text('{"kind": "run"}')
    made = write_all(tmp_path)
    assert sorted(old.parent.iterdir()) == sorted([*made, other])
    assert write_all(tmp_path) == made


def test_a_file_that_is_wrong_is_refused_by_its_line(tmp_path):
    path = tmp_path / "published.yaml"
    path.write_text(PUBLISHED_THROUGHPUT.read_text().replace("units_per_s_per_gpu: 9400", "units_per_s_per_gpu: -9400"))
    with pytest.raises(UsageError, match=r"published.yaml line \d+, field .*units_per_s_per_gpu"):
        read_studies(path)


@pytest.mark.slow
def test_unknown_workloads_in_them_disturb_no_other_command():
    """`compare` of the instance that they are of shows runs, and nothing of these."""
    done = call(ROOT, "compare", "p4d", "p5", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    assert {row["workload"] for row in json.loads(done.stdout)} == {"vit-huge"}

"""Sections are read when they are asked for; a broken one is told, and the question asked again without it."""

import pytest
from builders import measured, rounds

from fp8bench.records import results
from fp8bench.records.results import read_on_demand


@pytest.fixture
def kept(tmp_path):
    """Three records, oldest first, and the file of each."""
    records = rounds(0.1, 0.2, 0.3, instance="mine")
    return tmp_path, records, [results.write(record, tmp_path) for record in records]


def test_records_come_without_their_sections_and_whole_ones_on_demand(kept):
    folder, records, _ = kept
    told = []
    light, whole = read_on_demand(
        results.read(folder, ["mine"]), told.extend, lambda found, whole: (found, whole(found[-1]))
    )

    assert told == []
    assert [record.run_id for record in light] == [record.run_id for record in records]
    assert all(record.samples == () for record in light)
    assert whole == records[-1]


def test_where_the_latest_is_broken_it_is_told_and_the_one_before_it_is_the_latest(kept):
    folder, records, paths = kept
    paths[-1].write_text(paths[-1].read_text().replace('"step_s": [', '"step_s": [-', 1))
    (folder / "mine" / "other.json").write_text("{")
    told = []
    found = read_on_demand(results.read(folder, ["mine"]), told.extend, lambda found, whole: whole(found[-1]))

    assert found == records[-2]
    assert [broken.path for broken in told] == [folder / "mine" / "other.json", paths[-1]]


def test_a_file_is_read_once(kept, monkeypatch):
    folder, _, paths = kept
    read = []
    monkeypatch.setattr(
        "fp8bench.records.results.read_whole", lambda path: read.append(path) or measured("mine", run_id=path.stem)
    )
    read_on_demand(results.read(folder, ["mine"]), list, lambda found, whole: [whole(found[0]), whole(found[0])])

    assert read == paths[:1]


def test_where_a_copy_of_a_record_is_broken_the_good_one_counts_whatever_their_names(kept):
    folder, records, paths = kept
    good = paths[-1].read_text()
    bad = good.replace('"step_s": [', '"step_s": [-', 1)
    for own, copy in ((good, bad), (bad, good)):
        paths[-1].write_text(own)
        (folder / "mine" / f"zz {paths[-1].name}").write_text(copy)
        told = []
        found = read_on_demand(results.read(folder, ["mine"]), told.extend, lambda found, whole: whole(found[-1]))
        assert found == records[-1]
    assert [broken.path for broken in told] == [paths[-1]]


def test_an_instance_is_known_by_what_cannot_be_read_too(kept):
    folder, _, paths = kept
    for path in paths:
        path.write_text(path.read_text().replace('"warmup":', '"warmth":', 1))
    found = results.read(folder, ["mine"])
    assert (len(found), results.instances_of(found)) == (0, {"mine"})


def test_the_first_file_that_can_be_read_is_taken_and_those_before_it_are_told(kept):
    folder, records, paths = kept
    bad = folder / "mine" / "bad.json"
    bad.write_text("{")
    record, broken = results.first_whole([bad, *paths])
    assert (record, [one.path for one in broken]) == (records[0], [bad])
    record, broken = results.first_whole([bad])
    assert (record, len(broken)) == (None, 1)

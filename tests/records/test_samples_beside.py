"""A record's raw part lies in a file beside it: written first, read where it is needed, and never exchanged. A record
that relies on the parity of another is left out without that one.
"""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
from builders import in_one_file, measured, parity, place, profile, rounds

from fp8bench.records import layout, results
from fp8bench.records.files import samples_path
from fp8bench.records.results import verify
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import SCHEMA_VERSION, Record, Samples

RAW = ("samples", "telemetry", "profile")


def kept(folder, record):
    path = results.write(record, folder)
    return path, samples_path(path)


@pytest.fixture
def three(tmp_path):
    """Three records, oldest first, and the file of each."""
    records = rounds(0.1, 0.2, 0.3, instance="mine")
    return tmp_path, records, [results.write(record, tmp_path) for record in records]


def sound(folder):
    told = []
    found = results.sound(results.read(folder, ["mine"]), told.extend, lambda records: records[-1:])
    return found, [broken.path for broken in told]


class TestLayout:
    def test_the_record_has_the_digest_and_the_step_times_and_the_other_file_all_that_is_raw(self, tmp_path):
        record = measured("mine", session=place(), profile=profile())
        path, beside = kept(tmp_path, record)
        document, raw = json.loads(path.read_text()), Samples.model_validate_json(beside.read_bytes())

        assert document["samples_sha256"] == sha256(beside.read_bytes()).hexdigest()
        assert (document["samples"], document["profile"]["kernels"]) == ([], [])
        assert {one["series"] for one in document["telemetry"]} == {None}
        assert document["step_times"]["mean_s"] == pytest.approx(0.1)
        assert (raw.schema_version, raw.run_id, raw.samples) == (SCHEMA_VERSION, record.run_id, record.samples)
        assert raw.series == tuple(one.series for one in record.telemetry)
        assert raw.kernels == record.profile.kernels
        odd = record.evidence.model_copy(update={"details": {"scale": float("nan")}})
        path, _ = kept(tmp_path / "odd", record.model_copy(update={"evidence": odd}))
        assert json.loads(path.read_text())["evidence"]["details"] == {"scale": None}, "what is not finite is null"

    def test_a_field_is_a_line_and_so_is_an_element_of_an_array_of_objects(self, tmp_path):
        record = measured(profile=profile())
        path, beside = kept(tmp_path, record)
        fields = len(type(record).model_fields) + sum(2 + len(getattr(record, name)) - 1 for name in RAW[1:2])

        assert path.read_text().count("\n") == 2 + fields + 1 + len(record.memory)
        assert beside.read_text().count("\n") < 100
        path.write_text(json.dumps(dict(sorted(json.loads(path.read_text()).items())), indent=2))
        assert results.read_record(path) == record, "however it is laid out"


class TestRead:
    def test_a_search_leaves_the_raw_part_alone(self, three):
        folder, records, paths = three
        for path in paths:
            samples_path(path).write_text("{")
        found = results.read(folder, ["mine"])

        assert ([one.record.run_id for one in found], found.broken) == ([one.run_id for one in records], ())
        assert {one.record.samples for one in found} == {()}
        assert [one.record.step_times.mean_s for one in found] == [pytest.approx(0.1), pytest.approx(0.2), 0.3]

    def test_in_this_format_it_is_refused_in_the_record_itself_and_never_without_digest_or_step_times(self, tmp_path):
        path = tmp_path.with_suffix(".json")
        path.write_text(json.dumps(in_one_file(measured("mine"), schema_version=SCHEMA_VERSION)))
        with pytest.raises(UsageError, match="beside it"):
            results.read_record(path)
        path, _ = kept(tmp_path, measured("mine"))
        whole = json.loads(path.read_text())
        for name in ("samples_sha256", "step_times"):
            path.write_text(json.dumps(whole | {name: None}))
            (broken,) = results.read(tmp_path, ["mine"]).broken
            assert "field samples" in broken.reason


def exchanged(old, new):
    return lambda beside, _other: beside.write_text(beside.read_text().replace(old, new, 1))


NOT_WRITTEN = "not the file that was written"
FAULTS = {
    "gone": (lambda beside, _other: beside.unlink(), "No such file"),
    "cut off": (lambda beside, _other: beside.write_text(beside.read_text()[:-9]), NOT_WRITTEN),
    "a digit": (exchanged("0.3,", "0.2,"), NOT_WRITTEN),
    "of another record": (lambda beside, other: beside.write_bytes(samples_path(other).read_bytes()), NOT_WRITTEN),
    "a pipe": (lambda beside, _other: (beside.unlink(), os.mkfifo(beside)), "Not a regular file"),
}


class TestSound:
    @pytest.mark.parametrize("name", FAULTS)
    def test_samples_that_are_not_the_records_own_are_named_and_the_one_before_it_is_the_latest(self, three, name):
        folder, records, paths = three
        spoil, said = FAULTS[name]
        spoil(samples_path(paths[-1]), paths[0])
        found, told = sound(folder)

        assert [one.run_id for one in found] == [one.run_id for one in records[:-1]]
        assert len(told) == 1
        assert told[0] in (paths[-1], samples_path(paths[-1]))
        with pytest.raises(UsageError, match=said):
            results.read_record(paths[-1])

    def test_a_digest_that_was_changed_with_them_does_not_help(self, three):
        """A record that agrees with its samples, and they with nothing."""
        folder, _, paths = three
        beside, document = samples_path(paths[-1]), json.loads(paths[-1].read_text())
        text = beside.read_text()
        for edited, said in (
            (text.replace("0.3,", "0.2,", 1), "contradicts itself"),
            (json.dumps(json.loads(text) | {"run_id": "another"}), "of another record"),
            (json.dumps(json.loads(text) | {"series": []}), "of another record"),
        ):
            beside.write_text(edited)
            paths[-1].write_text(json.dumps(document | {"samples_sha256": sha256(edited.encode()).hexdigest()}))
            assert sound(folder)[1] == [paths[-1]]
            with pytest.raises(UsageError, match=said):
                results.read_record(paths[-1])

    def test_a_run_id_leads_nowhere_else(self, three):
        folder, _, paths = three
        for run_id in ("../mine/another", "a\0b", "x" * 5000):
            paths[-1].write_text(json.dumps(json.loads(paths[-1].read_text()) | {"run_id": run_id}))
            assert sound(folder)[1] == [paths[-1]]

    def test_only_what_is_shown_is_opened_and_each_once(self, three, monkeypatch):
        folder, _, paths = three
        opened, whole = [], layout.whole
        monkeypatch.setattr(layout, "whole", lambda path, model: opened.append(path) or whole(path, model))
        sound(folder)

        assert opened == paths[-1:]

    def test_many_that_are_not_sound_are_asked_for_in_few_tries(self, tmp_path):
        for record in rounds(*[0.1] * 60, instance="mine"):
            samples_path(results.write(record, tmp_path)).unlink()
        asked, told, there = [], [], results.read(tmp_path, ["mine"])
        found = results.sound(there, told.extend, lambda records: asked.append(None) or records[-1:])
        assert (found, len(asked) <= results.MANY, len({one.path for one in told}), len(told)) == ([], True, 60, 60)


OWN = parity(loss_size=2.5, depends_on="digest")


@pytest.fixture
def session(tmp_path):
    """Three processes of a session, in the folder where they are kept; two rely on the first."""
    first, *later = (one.model_copy(update={"parity": OWN}) for one in rounds(0.1, 0.1, 0.1, instance="mine"))
    relied = OWN.model_copy(update={"of_run": first.run_id})
    return tmp_path, [first, *(one.model_copy(update={"parity": relied}) for one in later)]


def test_a_process_that_is_copied_under_another_run_id_is_named(tmp_path):
    first, second = rounds(0.1, 0.1, instance="mine")
    copy = first.model_copy(update={"run_id": f"{second.run_id}-copy", "session": second.session})
    for record in (first, second, copy):
        results.write(record, tmp_path)
    said = {f"mine/{copy.run_id}.json": f"has every step time of {first.run_id}, so it is a copy of it"}
    assert verify(tmp_path, {"run": Record}) == (3, said)


def believed(folder, records):
    """Which of the records are believed, and what is said of the others."""
    for record in records:
        results.write(record, folder)
    told = []
    found = results.sound(results.read(folder, ["mine"]), told.extend, lambda left: left)
    return [records.index(one) for one in records if one.run_id in {each.run_id for each in found}], told


def test_all_are_believed_together(session):
    assert believed(*session) == ([0, 1, 2], [])
    assert verify(session[0], {"run": Record}) == (3, {})


@pytest.mark.parametrize(
    "spoil",
    [
        None,
        {"parity": OWN.model_copy(update={"depends_on": "another"})},
        {"parity": OWN.model_copy(update={"of_run": "another"})},
        {"status": "invalid", "reason": "it is so", "remedy": "Look", "summary": None},
        {"parity": OWN.model_copy(update={"logits_error": 0.9})},
    ],
    ids=["missing", "of other code", "relies itself", "invalid", "contradicts itself"],
)
def test_none_is_believed_without_the_first(session, spoil):
    folder, [first, *later] = session
    kept = [*([] if spoil is None else [first.model_copy(update=spoil)]), *later]
    found, told = believed(folder, kept)

    assert not {kept.index(one) for one in later} & {*found}
    bad = {Path(path).stem for path in verify(folder, {"run": Record})[1]}
    assert bad >= {one.run_id for one in later}, "verify says the same"
    said = [one for one in told if "relies on the parity of" in one.reason]
    assert {Path(one.path).stem for one in said} >= {one.run_id for one in later}
    assert all(first.run_id in one.reason for one in said if Path(one.path).stem != first.run_id)

"""Records are verified one by one, to their ends; what no table shows can go."""

import pytest
from builders import invalid, measured, rounds, unsupported

from fp8bench import registry
from fp8bench.records import results
from fp8bench.records.audit import spent, verify

MODELS = {entry.name: registry.load(entry).record for entry in registry.KINDS}


def test_sound_records_have_no_fault(tmp_path):
    results.write(measured(), tmp_path)
    results.write(unsupported(), tmp_path)

    assert verify(tmp_path, MODELS) == type(verify(tmp_path, MODELS))(2, ())


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"status": "ok"', '"status": "well"', "field status"),
        ('"samples": [', '"samples": [], "other": [', "other"),
        ('"workload": "vit-huge", "sizes"', '"workload": "vit-base", "sizes"', "field fingerprint"),
        ('"kind": "run"', '"kind": "dance"', "unknown kind"),
        ("}\n", "", "JSON"),
    ],
)
def test_a_broken_record_is_named_with_its_reason(tmp_path, before, after, said):
    path = results.write(measured(), tmp_path)
    text = path.read_text().replace('"workload": "vit-huge","sizes"', '"workload": "vit-huge", "sizes"')
    assert before in text
    at = text.rindex(before)
    path.write_text(text[:at] + after + text[at + len(before) :])
    (bad,) = verify(tmp_path, MODELS).bad

    assert (bad.path, said in bad.reason) == (f"p5/{path.name}", True)


def test_a_renamed_record_and_an_instance_that_is_none_are_bad(tmp_path):
    path = results.write(measured(), tmp_path)
    path.rename(path.with_name("copy.json"))
    (tmp_path / "p5" / "instance.yaml").write_text("key: p5\nspeed: 9\n")
    reasons = {one.path: one.reason for one in verify(tmp_path, MODELS).bad}

    assert "its run id is" in reasons["p5/copy.json"]
    assert "line 1, field gpu" in reasons["p5/instance.yaml"]


def pruned(folder):
    return [one.record.run_id for one in spent(folder, MODELS)[0]]


def test_a_later_session_supersedes_and_rounds_of_one_session_stay(tmp_path):
    old, *session = measured(minutes=0), *rounds(0.1, 0.11, minutes=60)
    for record in (old, *session):
        results.write(record, tmp_path)

    assert pruned(tmp_path) == [old.run_id]


def test_what_failed_goes_and_what_is_invalid_stays_while_it_decides_a_row(tmp_path):
    failed, wrong = unsupported(minutes=0), invalid(minutes=5)
    for record in (failed, wrong):
        results.write(record, tmp_path)

    assert pruned(tmp_path) == [failed.run_id]
    assert len(verify(tmp_path, MODELS).bad) == 0


def test_a_file_that_cannot_be_read_is_named_and_never_pruned(tmp_path):
    (tmp_path / "p5").mkdir()
    (tmp_path / "p5" / "half.json").write_text("{")
    found, broken = spent(tmp_path, MODELS)

    assert (found, [one.path.name for one in broken]) == ([], ["half.json"])

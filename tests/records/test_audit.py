"""Records are verified one by one, to their ends."""

import pytest
from builders import measured, unsupported

from fp8bench import registry
from fp8bench.records import results
from fp8bench.records.audit import verify

MODELS = {entry.name: registry.load(entry).record for entry in registry.KINDS}


def test_sound_records_have_no_fault(tmp_path):
    results.write(measured(), tmp_path)
    results.write(unsupported(), tmp_path)

    assert verify(tmp_path, MODELS) == type(verify(tmp_path, MODELS))(2, ())


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"status": "ok"', '"status": "well"', "field status"),
        ('"samples": [', '"other": [', "other"),
        ('"samples": [', '"samples": [{}', "field samples.0"),
        ('"mean_s": 0.1', '"mean_s": 0.2', "step_times.mean_s is 0.2"),
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

"""Records of an older format are read as if they were of this one, as strictly; their files stay as they are.

data/ holds two records as version 1 wrote them: an ok one of two H200s in fp8, and one that failed the parity gate.
"""

import json
from pathlib import Path

import pytest

from fp8bench.records import results
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import SCHEMA_VERSION

DATA = Path(__file__).parent / "data"
FP8 = DATA / "20261121T124825Z-te-fp8-delayed-73ddb8.json"
INVALID = DATA / "20261121T121621Z-te-bf16-article-5c8396.json"


def document(path=FP8):
    return json.loads(path.read_text())


def test_an_ok_record_of_version_1_is_read_with_all_that_it_knows():
    old, record = document(), results.read_record(FP8)

    assert (old["schema_version"], record.schema_version) == (1, SCHEMA_VERSION)
    assert (record.run_id, record.method_version, record.status) == (old["run_id"], 1, "ok")
    assert record.summary.step_time_s == old["summary"]["step_time_s"]
    assert record.summary.step_time_ci_s == tuple(old["summary"]["step_time_ci_s"])
    assert [list(rank.step_s) for rank in record.samples] == [rank["step_s"] for rank in old["samples"]]
    assert record.fingerprint == old["fingerprint"]


def test_of_its_telemetry_the_power_limit_is_kept_and_why_there_is_no_more():
    found = results.read_record(FP8).telemetry

    assert [(gpu.rank, gpu.power_limit_w, gpu.series, gpu.energy_j) for gpu in found] == [
        (0, 700.0, None, None),
        (1, 700.0, None, None),
    ]
    assert {gpu.warning for gpu in found} == {"recorded at two moments only, by an older fp8bench"}


def test_what_it_did_not_record_is_null():
    record = results.read_record(FP8)

    assert record.session is record.profile is None
    assert record.samples[0].forward_s is record.samples[0].recompilations is None
    assert record.summary.joules_per_unit is record.summary.steadiness is None
    assert record.summary.flags == ()
    assert record.evidence.fp8_kernels is None


def test_a_mode_with_a_recipe_was_in_fp8_and_one_without_was_not():
    fp8, plain = results.read_record(FP8).evidence, results.read_record(INVALID).evidence

    assert (fp8.fp8, plain.fp8) == (True, False)


def test_a_record_that_stopped_is_read_too_and_the_file_stays_as_it_is():
    before, record = INVALID.read_bytes(), results.read_record(INVALID)

    assert (record.status, record.summary, record.telemetry) == ("invalid", None, ())
    assert (record.reason, INVALID.read_bytes()) == (document(INVALID)["reason"], before)


def test_the_published_figures_that_travel_with_the_program_are_read_whatever_their_version(tmp_path):
    assert {kept.record.schema_version for kept in results.read(tmp_path, ["p4d", "p5"])} == {SCHEMA_VERSION}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "green"}, "colour"),
        ({"telemetry": [{"rank": 0, "before": None, "after": None, "mood": "good"}]}, "telemetry.0.mood"),
        ({"telemetry": [{"before": None, "after": None}]}, "telemetry.0.rank"),
        ({"telemetry": [{"rank": 0, "after": "hot"}]}, "telemetry.0.after"),
        ({"telemetry": ["nothing"]}, "telemetry.0"),
        ({"telemetry": None}, "telemetry"),
        ({"evidence": "none"}, "evidence"),
        ({"config": None}, "value error"),
    ],
    ids=str,
)
def test_an_old_record_that_is_broken_is_refused_by_file_line_and_field(change, field, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(document() | change, indent=1))

    with pytest.raises(UsageError) as caught:
        results.read_record(path)

    assert caught.value.what.startswith(f"{path} line ")
    assert field in caught.value.what


def test_an_old_record_with_a_wrong_value_is_told_by_the_line_of_its_own_file(tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(FP8.read_text().replace('"batch_size": 64', '"batch_size": "many"', 1))
    number = next(place for place, line in enumerate(path.read_text().splitlines(), 1) if '"many"' in line)

    with pytest.raises(UsageError) as caught:
        results.read_record(path)

    assert caught.value.what.startswith(f"{path} line {number}, field config.batch_size: ")

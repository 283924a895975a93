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


def test_an_ok_record_of_version_1_is_read_with_all_that_it_knows_and_what_it_did_not_record_is_null():
    old, record = document(), results.read_record(FP8)
    assert (old["schema_version"], record.schema_version) == (1, SCHEMA_VERSION)
    assert (record.run_id, record.method_version, record.status) == (old["run_id"], 1, "ok")
    assert record.summary.step_time_s == old["summary"]["step_time_s"]
    assert record.summary.step_time_ci_s == tuple(old["summary"]["step_time_ci_s"])
    assert [list(rank.step_s) for rank in record.samples] == [rank["step_s"] for rank in old["samples"]]
    assert record.fingerprint == old["fingerprint"]
    assert [(gpu.rank, gpu.power_limit_w, gpu.series, gpu.energy_j) for gpu in record.telemetry] == [
        (rank, 700.0, None, None) for rank in (0, 1)
    ]
    assert {gpu.warning for gpu in record.telemetry} == {"recorded at two moments only, by an older fp8bench"}
    assert record.session is record.profile is record.evidence.fp8_kernels is None
    assert record.samples[0].forward_s is record.samples[0].recompilations is None
    assert record.summary.joules_per_unit is record.summary.steadiness is None
    assert record.summary.flags == ()


def test_a_record_that_stopped_is_read_too_and_the_file_stays_as_it_is(tmp_path):
    before, record = INVALID.read_bytes(), results.read_record(INVALID)
    assert (record.status, record.summary, record.telemetry) == ("invalid", None, ())
    assert (record.reason, INVALID.read_bytes()) == (document(INVALID)["reason"], before)
    # A mode with a recipe was in fp8, and one without was not.
    assert (results.read_record(FP8).evidence.fp8, record.evidence.fp8) == (True, False)
    # The published figures that travel with the program are read whatever their version.
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
        ({"config": document()["config"] | {"batch_size": "many"}}, '"many"'),
    ],
    ids=lambda one: str(one)[:40],
)
def test_an_old_record_that_is_broken_is_refused_by_file_line_and_field(change, field, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(document() | change, indent=1))
    if field == '"many"':
        number = next(place for place, line in enumerate(path.read_text().splitlines(), 1) if field in line)
        field = f"line {number}, field config.batch_size: "

    with pytest.raises(UsageError) as caught:
        results.read_record(path)

    assert caught.value.what.startswith(f"{path} line ")
    assert field in caught.value.what

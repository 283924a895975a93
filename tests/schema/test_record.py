"""Records are frozen, know no fields but their own, hold their invariants, and come back from JSON as they went."""

import json
from datetime import date

import pynvml
import pytest
from builders import (
    config,
    measured,
    place,
    profile,
    published,
    rank_samples,
    telemetry,
    unsupported,
)
from pydantic import ValidationError

from fp8bench.schema.rank import POWER_CAP, SLOWDOWNS, RankTelemetry
from fp8bench.schema.record import SCHEMA_VERSION, Provenance, Record, Session, Summary

FIELDS_OF_THE_CONTRACT = (
    "schema_version kind method_version run_id status reason source created_utc instance session config fingerprint "
    "environment evidence parity samples summary memory telemetry profile phases_s"
).split()
DAY = date(2023, 11, 15)
PUBLISHED, EXTERNAL = (Provenance(citation="an article", published_on=day) for day in (DAY, None))
NOT_FINITE = [float("inf"), float("-inf"), float("nan")]


def summary_with(**overrides):
    return Summary(**(measured().summary.model_dump() | overrides))


def session_with(**overrides):
    return Session.model_validate(place().model_dump() | overrides)


def test_a_record_and_its_parts_never_change():
    record = measured()
    parts = [(record, field) for field in ("status", "summary", "instance", "samples")]
    for part, field in [*parts, (record.summary, "step_time_s"), (record.config, "mode"), (record.samples[0], "rank")]:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, field, 1)
    assert isinstance(record.samples, tuple)
    assert isinstance(record.samples[0].step_s, tuple)


def test_a_field_that_a_record_or_a_part_of_it_does_not_know_is_refused():
    with pytest.raises(ValidationError, match="price_usd"):
        measured(price_usd=3.0)
    for part in ("config", "session", "summary", "environment", "evidence", "parity", "profile"):
        document = json.loads(measured(session=place(), profile=profile()).model_dump_json())
        document[part]["typo"] = 1
        with pytest.raises(ValidationError, match=rf"{part}\.typo"):
            Record.model_validate(document)


def test_a_value_that_means_nothing_is_refused():
    for make, wrong in (
        (measured, {"status": ["fine"], "source": ["guessed"], "created_utc": ["soon", "2026-05-01T10:00:00"]}),
        (summary_with, dict.fromkeys(("step_time_s", "throughput_per_s", "units_per_step"), (0, -1, "fast", None))),
        (summary_with, dict.fromkeys(("step_time_s", "loss_last", "data_wait_s", "host_lead_s"), NOT_FINITE)),
        (session_with, {"round": [0, None], "position": [0], "arm": ["C"], "session_id": [None]}),
        (config, {**dict.fromkeys(("world_size", "batch_size", "steps"), (0,)), "device": ["tpu"]}),
        (config, dict.fromkeys(("warmup", "workers"), (-1,))),
    ):
        for field, value in ((field, value) for field, values in wrong.items() for value in values):
            with pytest.raises(ValidationError) as caught:
                make(**{field: value})
            assert caught.value.errors()[0]["loc"] == (field,)


def test_samples_are_finite_columns_equally_long_and_what_the_driver_would_not_say_is_null_in_its_place():
    for value in NOT_FINITE:
        with pytest.raises(ValidationError, match="finite"):
            rank_samples(loss=(7.0, value))
    with pytest.raises(ValidationError, match="the columns of a series are equally long"):
        telemetry(samples=4, power_w=(650.0, 650.0))
    found = telemetry(samples=2, temperature_c=(60, None), throttle_reasons=(None, None))
    assert (found.series.temperature_c, found.series.throttle_reasons) == ((60, None), (None, None))
    found = RankTelemetry(rank=1, warning="NVML: library not found")
    assert found.series is found.energy_j is found.power_limit_w is None


@pytest.mark.parametrize(
    ("make", "wrong", "why"),
    [
        (measured, {"summary": None}, "status ok needs a summary"),
        (unsupported, {"reason": None}, "needs a reason"),
        (unsupported, {"summary": measured().summary, "status": "failed"}, "has no summary"),
        (published, {"source": "external", "provenance": PUBLISHED}, "a published record, and no other"),
        (published, {"provenance": EXTERNAL}, "a published record, and no other"),
        (published, {"provenance": None}, "a published record, and no other"),
        (measured, {"provenance": PUBLISHED}, "a published record, and no other"),
        (measured, {"config": None}, "a measured record has a config"),
        (measured, {"figure": published().figure}, "a measured record has a config and no figure"),
        (published, {"figure": None}, "an imported one a figure"),
        (published, {"config": config()}, "no config"),
        (measured, {"source": "published", "provenance": PUBLISHED}, "an imported one a figure and no config"),
        (published, {"source": "measured"}, "a published record, and no other"),
    ],
)
def test_a_record_that_does_not_fit_together_is_refused(make, wrong, why):
    with pytest.raises(ValidationError, match=why):
        make(**wrong)


def test_compilation_and_attention_are_what_was_found_or_said_or_unknown():
    for record, found in (
        (measured(compiled=True, attention="te:fused", settings={"compile": "auto"}), (True, "te:fused")),
        (published(compiled=True, attention="sdpa"), (True, "sdpa")),
        (published(), (None, None)),
        (unsupported(), (None, None)),
    ):
        assert (record.compiled, record.attention) == found
        assert record.what is (record.config or record.figure)


def test_a_record_has_every_field_of_the_contract_and_no_price():
    """That it comes back as it went: tests/faults/test_golden_records.py and test_fuzz.py."""
    text = measured(session=place(2, arm="B"), profile=profile()).model_dump_json()
    assert set(FIELDS_OF_THE_CONTRACT) <= set(json.loads(text))
    assert json.loads(text)["schema_version"] == SCHEMA_VERSION == 13
    assert "usd" not in text
    assert "price" not in text


def test_a_profile_knows_what_communication_is_hidden_whether_fp8_ran_and_takes_nothing_impossible():
    for nccl_s, exposed, hidden_s in ((0.0, {}, 0.0), (0.03, {"nccl": 0.01}, 0.02), (0.03, {}, 0.03)):
        assert profile(nccl_s=nccl_s, by_category=exposed).nccl_overlapped_s == pytest.approx(hidden_s)
    for categories, has in (({"gemm_fp8": 0.0}, False), ({"gemm_fp8": 1e-6, "gemm_bf16": 0.06}, True)):
        assert profile(by_category=categories).has_fp8_gemm is has
    for changes in ({"by_category": {"magic": 0.1}}, {"steps": 0}, {"busy_s": -1}, {"device": "tpu"}):
        with pytest.raises(ValidationError):
            profile(**changes)


def test_the_bits_are_nvmls():
    assert POWER_CAP == pynvml.nvmlClocksThrottleReasonSwPowerCap
    names = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert [*SLOWDOWNS] == [getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in names]

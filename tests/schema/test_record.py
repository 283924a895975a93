"""Records are frozen, know no fields but their own, hold their invariants, and come back from JSON as they went."""

import json
from datetime import UTC, date
from typing import Any

import pytest
from builders import config, invalid, measured, place, profile, published, rank_report, rank_samples, unsupported
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import RankReport, RankSamples
from fp8bench.schema.record import METHOD_VERSION, SCHEMA_VERSION, Provenance, Record, Session, Summary

FIELDS_OF_THE_CONTRACT = (
    "schema_version kind method_version run_id status reason source created_utc instance session config fingerprint "
    "environment evidence parity samples summary memory telemetry profile phases_s"
).split()

DAY = date(2023, 11, 15)

seconds = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
step_times = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)


def summary_with(**overrides: Any) -> Summary:
    whole = measured().summary
    assert whole is not None
    return Summary(**(whole.model_dump() | overrides))


class TestFrozen:
    @pytest.mark.parametrize("field", ["status", "summary", "instance", "samples"])
    def test_a_record_never_changes(self, field: str) -> None:
        record = measured()

        with pytest.raises(ValidationError, match="frozen"):
            setattr(record, field, None)

    def test_nor_do_its_parts(self) -> None:
        record = measured()

        for part, field in [(record.summary, "step_time_s"), (record.config, "mode"), (record.samples[0], "rank")]:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(part, field, 1)

    def test_samples_cannot_be_added_to(self) -> None:
        assert isinstance(measured().samples, tuple)
        assert isinstance(measured().samples[0].step_s, tuple)


class TestStrict:
    def test_a_field_that_a_record_does_not_know_is_refused(self) -> None:
        with pytest.raises(ValidationError, match="price_usd") as caught:
            measured(price_usd=3.0)

        assert caught.value.errors()[0]["type"] == "extra_forbidden"

    @pytest.mark.parametrize("part", ["config", "session", "summary", "environment", "evidence", "parity", "profile"])
    def test_so_is_one_that_a_part_of_it_does_not_know(self, part: str) -> None:
        document = json.loads(measured(session=place(), profile=profile()).model_dump_json())
        document[part]["typo"] = 1

        with pytest.raises(ValidationError) as caught:
            Record.model_validate(document)

        assert caught.value.errors()[0]["loc"] == (part, "typo")

    @pytest.mark.parametrize(("field", "value"), [("status", "fine"), ("source", "guessed"), ("created_utc", "soon")])
    def test_words_outside_the_vocabulary_are_refused(self, field: str, value: str) -> None:
        with pytest.raises(ValidationError) as caught:
            measured(**{field: value})

        assert caught.value.errors()[0]["loc"] == (field,)

    @pytest.mark.parametrize("field", ["step_time_s", "throughput_per_s", "units_per_step"])
    @pytest.mark.parametrize("value", [0, -1, "fast", None, float("nan")])
    def test_a_summary_without_a_positive_time_and_throughput_is_refused(self, field: str, value: object) -> None:
        with pytest.raises(ValidationError) as caught:
            summary_with(**{field: value})

        assert caught.value.errors()[0]["loc"] == (field,)

    @pytest.mark.parametrize(
        ("field", "value"), [("round", 0), ("position", 0), ("arm", "C"), ("session_id", None), ("round", None)]
    )
    def test_a_place_that_no_session_has_is_refused(self, field: str, value: object) -> None:
        with pytest.raises(ValidationError) as caught:
            Session.model_validate(place().model_dump() | {field: value})

        assert caught.value.errors()[0]["loc"] == (field,)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("world_size", 0), ("batch_size", 0), ("steps", 0), ("warmup", -1), ("workers", -1), ("device", "tpu")],
    )
    def test_a_config_that_cannot_run_is_refused(self, field: str, value: object) -> None:
        with pytest.raises(ValidationError) as caught:
            config(**{field: value})

        assert caught.value.errors()[0]["loc"] == (field,)


class TestInvariants:
    def test_what_is_ok_has_a_summary(self) -> None:
        with pytest.raises(ValidationError, match="status ok needs a summary"):
            measured(summary=None)

    @pytest.mark.parametrize("status", ["unsupported", "failed", "invalid"])
    def test_what_stopped_needs_none(self, status: str) -> None:
        record = unsupported(status=status)

        assert record.summary is None
        assert record.status == status

    @pytest.mark.parametrize("status", ["unsupported", "failed", "invalid"])
    def test_what_stopped_says_why(self, status: str) -> None:
        with pytest.raises(ValidationError, match="another status than ok needs a reason"):
            unsupported(status=status, reason=None)

    @pytest.mark.parametrize("status", ["unsupported", "failed", "invalid"])
    def test_what_stopped_has_no_summary(self, status: str) -> None:
        with pytest.raises(ValidationError, match="has no summary"):
            unsupported(status=status, summary=measured().summary)

    @pytest.mark.parametrize("published_on", [DAY, None], ids=["its day", "no day"])
    def test_only_what_is_published_has_the_day_of_its_publication(self, published_on: date | None) -> None:
        given = Provenance(citation="an article", published_on=published_on)
        wrong = "external" if published_on else "published"

        with pytest.raises(ValidationError, match="a published record, and no other, has a provenance with its day"):
            published(source=wrong, provenance=given)

    def test_what_is_published_has_a_provenance(self) -> None:
        with pytest.raises(ValidationError, match="a published record, and no other"):
            published(provenance=None)

    def test_a_measurement_was_not_published(self) -> None:
        with pytest.raises(ValidationError, match="a published record, and no other"):
            measured(provenance=Provenance(citation="an article", published_on=DAY))

    def test_what_was_measured_has_its_config(self) -> None:
        with pytest.raises(ValidationError, match="a measured record has a config"):
            measured(config=None)

    def test_what_was_measured_is_no_figure(self) -> None:
        with pytest.raises(ValidationError, match="a measured record has a config and no figure"):
            measured(figure=published().figure)

    @pytest.mark.parametrize("published_on", [DAY, None], ids=["published", "external"])
    def test_what_was_imported_has_its_figure(self, published_on: date | None) -> None:
        with pytest.raises(ValidationError, match="an imported one a figure"):
            published(published_on=published_on, figure=None)

    @pytest.mark.parametrize("published_on", [DAY, None], ids=["published", "external"])
    def test_what_was_imported_has_no_config(self, published_on: date | None) -> None:
        with pytest.raises(ValidationError, match="no config"):
            published(published_on=published_on, config=config())

    @pytest.mark.parametrize("published_on", [DAY, None], ids=["published", "external"])
    def test_a_measurement_cannot_pass_for_an_imported_figure(self, published_on: date | None) -> None:
        provenance = Provenance(citation="an article", published_on=published_on)

        with pytest.raises(ValidationError, match="an imported one a figure and no config"):
            measured(source="published" if published_on else "external", provenance=provenance)

    @pytest.mark.parametrize(
        ("published_on", "why"),
        [(DAY, "a published record, and no other"), (None, "a measured record has a config")],
        ids=["published", "external"],
    )
    def test_an_imported_figure_cannot_pass_for_a_measurement(self, published_on: date | None, why: str) -> None:
        with pytest.raises(ValidationError, match=why):
            published(published_on=published_on, source="measured")

    def test_its_time_has_a_zone(self) -> None:
        with pytest.raises(ValidationError, match="timezone") as caught:
            measured(created_utc="2026-05-01T10:00:00")

        assert caught.value.errors()[0]["loc"] == ("created_utc",)

    @pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")], ids=str)
    @pytest.mark.parametrize("field", ["loss_last", "data_wait_s", "host_lead_s", "step_time_s"])
    def test_no_number_of_it_is_without_bounds_or_is_none_at_all(self, field: str, value: float) -> None:
        with pytest.raises(ValidationError, match="finite") as caught:
            summary_with(**{field: value})

        assert caught.value.errors()[0]["loc"] == (field,)

    @pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
    def test_nor_is_a_sample(self, value: float) -> None:
        with pytest.raises(ValidationError, match="finite"):
            rank_samples(loss=(7.0, value))


class TestWhatItTells:
    def test_what_was_run_is_the_config_of_a_measurement_and_the_figure_of_an_import(self) -> None:
        ours, theirs = measured(), published()

        assert ours.what is ours.config
        assert theirs.what is theirs.figure

    @pytest.mark.parametrize("compiled", [True, False])
    def test_what_was_compiled_and_the_attention_are_those_that_were_found(self, compiled: bool) -> None:
        record = measured(compiled=compiled, attention="te:fused", settings={"compile": "auto"})

        assert (record.compiled, record.attention) == (compiled, "te:fused")

    @pytest.mark.parametrize(("compiled", "attention"), [(True, "sdpa"), (None, None)])
    def test_of_an_imported_figure_they_are_what_was_said(self, compiled: bool | None, attention: str | None) -> None:
        record = published(compiled=compiled, attention=attention)

        assert (record.compiled, record.attention) == (compiled, attention)

    def test_of_a_run_that_stopped_before_they_are_unknown(self) -> None:
        assert (unsupported().compiled, unsupported().attention) == (None, None)


class TestJson:
    @pytest.mark.parametrize(
        "record",
        [
            measured(),
            measured(session=place(2, arm="B"), profile=profile()),
            measured("p5", "te-fp8", "delayed", compiled=True, settings={"world_size": 1}),
            invalid(),
            unsupported(environment=None),
            published(),
            published(published_on=None),
        ],
        ids=["measured", "a round", "fp8", "invalid", "unsupported", "published", "external"],
    )
    def test_a_record_comes_back_as_it_went(self, record: Record) -> None:
        back = Record.model_validate_json(record.model_dump_json())

        assert back == record
        assert back.model_dump_json() == record.model_dump_json()

    @given(st.lists(step_times, min_size=1, max_size=8), st.lists(st.none() | seconds, max_size=8))
    def test_samples_come_back_to_the_last_bit(self, times: list[float], losses: list[float | None]) -> None:
        samples = rank_samples(step_s=tuple(times), host_s=tuple(times), loss=tuple(losses))

        assert RankSamples.model_validate_json(samples.model_dump_json()) == samples

    def test_every_field_of_the_contract_is_written_even_when_it_is_null(self) -> None:
        for record in (measured(), published(), unsupported(status="failed")):
            assert set(FIELDS_OF_THE_CONTRACT) <= set(json.loads(record.model_dump_json()))

    def test_versions_and_time_are_written_as_they_are(self) -> None:
        document = json.loads(measured().model_dump_json())

        assert document["schema_version"] == SCHEMA_VERSION == 10
        assert document["method_version"] == METHOD_VERSION == 3
        assert document["created_utc"] == "2026-05-01T10:00:00Z"

    def test_the_time_comes_back_in_utc(self) -> None:
        back = Record.model_validate_json(measured().model_dump_json())

        assert back.created_utc.utcoffset() == UTC.utcoffset(None)

    def test_raw_samples_of_every_rank_stay_in_the_record(self) -> None:
        back = Record.model_validate_json(measured(settings={"world_size": 3}).model_dump_json())

        assert [rank.rank for rank in back.samples] == [0, 1, 2]
        assert all(len(rank.step_s) == 3 and len(rank.warmup_step_s) == 2 for rank in back.samples)

    def test_a_record_knows_nothing_of_prices(self) -> None:
        text = measured().model_dump_json() + published().model_dump_json()

        assert "usd" not in text
        assert "price" not in text

    @pytest.mark.parametrize(
        "report", [rank_report(profile=profile()), rank_report(rank=3, status="failed", samples=None, collateral=True)]
    )
    def test_a_ranks_report_comes_back_as_it_went(self, report: RankReport) -> None:
        assert RankReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (config("te-fp8", "delayed"), "te-fp8:delayed"),
        (config("baseline-bf16"), "baseline-bf16"),
    ],
)
def test_a_config_labels_its_mode_as_the_command_line_does(config: RunConfig, label: str) -> None:
    assert config.mode_label == label

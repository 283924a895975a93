"""Figures from elsewhere: refusals that name the flag, and records that say where they are from."""

from datetime import date

import pytest

from fp8bench.launch.imported import ImportedFigure, to_record
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record

WORDS = {
    "mode": "te-fp8:delayed",
    "workload": "vit-huge",
    "step_time_s": "0.199",
    "batch_size": "64",
    "gpus": "8",
    "source": "an article",
    "published_on": "2023-11-15",
    "compile": None,
    "attention": None,
}


def parsed(**words: object) -> ImportedFigure:
    return ImportedFigure.parse(**{**WORDS, **words})


@pytest.mark.parametrize(
    ("field", "flag", "value"),
    [
        ("step_time_s", "--step-time", "0"),
        ("step_time_s", "--step-time", "-0.199"),
        ("step_time_s", "--step-time", "199 ms"),
        ("step_time_s", "--step-time", ""),
        ("step_time_s", "--step-time", "nan"),
        ("step_time_s", "--step-time", "inf"),
        ("step_time_s", "--step-time", "1e-320"),
        ("batch_size", "--batch-size", "0"),
        ("batch_size", "--batch-size", "-64"),
        ("batch_size", "--batch-size", "many"),
        ("batch_size", "--batch-size", "64.5"),
        ("gpus", "--gpus", "0"),
        ("gpus", "--gpus", "-8"),
        ("gpus", "--gpus", "eight"),
        ("published_on", "--published-on", "last autumn"),
        ("published_on", "--published-on", "2023-11-31"),
    ],
)
def test_a_wrong_number_or_date_is_refused_by_flag_and_value(field, flag, value):
    with pytest.raises(UsageError) as refusal:
        parsed(**{field: value})

    assert refusal.value.what.startswith(f"{flag} {value!r} is an invalid value: ")


@pytest.mark.parametrize("source", ["measured", "Measured", " MEASURED ", "", "  "])
def test_a_source_that_does_not_say_where_the_figure_is_from_is_refused(source):
    with pytest.raises(UsageError, match=r"--source .* does not say where the figure is from"):
        parsed(source=source)


@pytest.mark.parametrize(("words", "nearest"), [({"mode": "te-fp9"}, "te-fp8"), ({"workload": "vit-hug"}, "vit-huge")])
def test_an_unknown_mode_or_workload_is_refused_with_the_nearest(words, nearest):
    with pytest.raises(UsageError, match=f"Did you mean '{nearest}'"):
        to_record(parsed(**words), "p5")


def test_a_figure_with_a_date_is_published():
    record = to_record(parsed(), "p5")

    assert record.source == "published"
    assert record.provenance is not None
    assert (record.provenance.citation, record.provenance.published_on) == ("an article", date(2023, 11, 15))


def test_a_figure_without_a_date_is_external():
    record = to_record(parsed(published_on=None), "p5")

    assert record.source == "external"
    assert record.provenance is not None
    assert record.provenance.published_on is None


def test_the_numbers_are_those_of_the_figure_and_what_was_not_said_is_null():
    record = to_record(parsed(), "p5")
    summary = record.summary

    assert (record.status, record.instance, record.config) == ("ok", "p5", None)
    assert summary is not None
    assert (summary.step_time_s, summary.units_per_step, summary.unit) == (0.199, 512, "images")
    assert summary.throughput_per_s == pytest.approx(2572.864, abs=1e-3)
    assert summary.step_time_ci_s is summary.flops_per_step is summary.loss_last is summary.data_wait_s is None
    assert record.method_version is record.environment is record.evidence is record.parity is None
    assert record.samples == ()


def test_the_figure_says_what_was_said_of_it():
    record = to_record(parsed(compile="true", attention="sdpa"), "p5")

    assert record.figure is not None
    assert record.figure.model_dump() == {
        "mode": "te-fp8",
        "recipe": "delayed",
        "workload": "vit-huge",
        "batch_size": 64,
        "world_size": 8,
        "compile": True,
        "attention": "sdpa",
    }


def test_a_recipe_that_was_not_said_is_not_made_up():
    record = to_record(parsed(mode="te-fp8"), "p5")

    assert record.figure is not None
    assert (record.figure.recipe, record.figure.compile, record.figure.attention) == (None, None, None)


def test_its_fingerprint_knows_the_workload_and_no_method():
    assert to_record(parsed(), "p5").fingerprint == {"workload": "vit-huge", "method_version": None}


def test_the_record_reads_back_as_it_was_written():
    record = to_record(parsed(), "p5")

    assert Record.model_validate_json(record.model_dump_json()) == record


def test_a_figure_of_a_day_to_come_is_refused():
    with pytest.raises(UsageError, match="--published-on 2999-01-01 is in the future"):
        parsed(published_on="2999-01-01")

"""Figures from elsewhere: refusals that name the flag, records that say where they are from, and step times that an
instance's GPUs cannot have taken.
"""

import re
from datetime import date

import pytest

from fp8bench.config.options import read
from fp8bench.launch.assemble import ImportedFigure, doubts, to_record
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record

CATALOG = load()
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


def figure_of(**words: object) -> ImportedFigure:
    return read(ImportedFigure, {**WORDS, **words}, "results import")


def record_of(**words: object) -> Record:
    return to_record(figure_of(**words), "p5")


WRONG = {
    ("step_time_s", "--step-time"): ["0", "-0.199", "199 ms", "", "nan", "inf", "1e-320"],
    ("batch_size", "--batch-size"): ["0", "-64", "many", "64.5"],
    ("gpus", "--gpus"): ["0", "-8", "eight"],
    ("published_on", "--published-on"): ["last autumn", "2023-11-31"],
}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            ({field: value}, re.escape(f"{flag}: invalid value {value!r}: "))
            for (field, flag), values in WRONG.items()
            for value in values
        ),
        *[({"source": source}, "--source: .* does not say where") for source in ("measured", " MEASURED ", "", "  ")],
        ({"mode": "te-fp9"}, ".*Did you mean 'te-fp8'"),
        ({"workload": "vit-hug"}, ".*Did you mean 'vit-huge'"),
        ({"published_on": "2999-01-01"}, "--published-on: .*2999-01-01.* is in the future"),
    ],
)
def test_a_wrong_number_or_date_and_a_figure_of_nowhere_or_of_nothing_known_are_refused(words, said):
    with pytest.raises(UsageError, match=f"^{said}"):
        record_of(**words)


def test_the_numbers_are_those_of_the_figure_and_what_was_not_said_is_null():
    record = record_of()
    summary = record.summary

    assert (record.status, record.instance, record.config, record.source) == ("ok", "p5", None, "published")
    assert (record.provenance.citation, record.provenance.published_on) == ("an article", date(2023, 11, 15))
    assert (summary.step_time_s, summary.units_per_step, summary.unit) == (0.199, 512, "images")
    assert summary.throughput_per_s == pytest.approx(2572.864, abs=1e-3)
    assert summary.step_time_ci_s is summary.flops_per_step is summary.loss_last is summary.data_wait_s is None
    assert record.method_version is record.environment is record.evidence is record.parity is None
    assert record.samples == ()
    assert record.fingerprint == {"workload": "vit-huge", "method_version": None}
    assert Record.model_validate_json(record.model_dump_json()) == record
    assert record_of(published_on=None).source == "external"
    said, made = record.figure, record_of(mode="te-fp8", compile="true", attention="sdpa").figure
    assert (said.recipe, said.compile, said.attention) == ("delayed", None, None)
    assert (made.mode, made.recipe, made.compile, made.attention) == ("te-fp8", None, True, "sdpa")
    assert (said.workload, said.batch_size, said.world_size) == ("vit-huge", 64, 8)


def figure(step_time_s: float, mode: str = "baseline-bf16", workload: str = "vit-huge"):
    return figure_of(step_time_s=step_time_s, mode=mode, workload=workload)


@pytest.mark.parametrize(
    ("instance", "given", "words"),
    [
        ("p4d", figure(0.41), None),
        *(("p5", can, None) for can in (figure(0.199), figure(0.03, "te-fp8"), figure(9.0))),
        ("p5", figure(150.0), "--step-time is in seconds; 150 ms are 0.15"),
        ("p5", figure(11.0), "uses 0.45 % of what"),
        ("p5", figure(0.04), "uses 124 % of what this instance's GPU can compute in that time: more than it can do"),
        ("p5", figure(0.02, "te-fp8"), "more than it can do"),
    ],
)
def test_what_the_gpu_cannot_do_is_doubted_in_one_line_and_what_it_can_is_not(instance, given, words):
    assert [words in line for line in doubts(given, instance, CATALOG)] == ([] if words is None else [True])


@pytest.mark.parametrize(
    ("instance", "workload"), [("unheard-of", "vit-huge"), ("p5", "vit-huge-256")], ids=["no GPU", "no FLOPs"]
)
def test_of_unknown_work_or_gpu_only_a_very_long_step_is_doubted(instance, workload):
    (line,) = doubts(figure(30.1, workload=workload), instance, CATALOG)

    assert line.startswith("a step of 30.1 s is longer than training steps are")
    assert list(doubts(figure(29.9, workload=workload), instance, CATALOG)) == []

"""From made-up reports of ranks to the record: numbers, the culprit among failures, and what was not alike; and figures
from elsewhere: refusals that name the flag, and step times that an instance's GPUs cannot have taken.
"""

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import PurePath
from typing import Any

import pytest
from builders import (
    OPTIMIZER,
    SIZES,
    config,
    environment,
    evidence,
    machine_called,
    parity,
    proof,
    rank_report,
    replayed,
    telemetry,
    workload_facts,
)

from fp8bench.config.options import read
from fp8bench.launch.assemble import ImportedFigure, assemble, doubts, log_of, new_run_id, new_session_id, to_record
from fp8bench.machine.identity import together
from fp8bench.pricing.catalog import load
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import METHOD_VERSION, SCHEMA_VERSION, Record

NOW = datetime(2026, 11, 21, 10, 15, 0, tzinfo=UTC)
TWO_RANKS = config("te-bf16", world_size=2)


def assembled(*reports: RankReport, settings: RunConfig = TWO_RANKS, **options: Any) -> Record:
    return assemble(settings, reports, "p5", NOW, **options)


def failed(rank: int, reason: str, collateral: bool = False) -> RankReport:
    return RankReport(rank=rank, status="failed", reason=reason, remedy=f"Fix {rank}", collateral=collateral)


def stopped(status: str, **changes: Any) -> RankReport:
    """Of rank 1, with what it had measured by then."""
    return rank_report(1, status=status, reason="why", remedy="What to do", **changes)


def test_ranks_that_finished_make_an_ok_record_of_what_they_reported():
    reports = rank_report(0), rank_report(1)
    record = assembled(*reports)

    assert (record.status, record.reason, record.remedy, record.source) == ("ok", None, None, "measured")
    assert (record.schema_version, record.method_version) == (SCHEMA_VERSION, METHOD_VERSION)
    assert (record.created_utc, record.instance, record.config) == (NOW, "p5", TWO_RANKS)
    assert record.figure is record.provenance is record.session is None
    for name in ("samples", "memory", "telemetry"):
        assert getattr(record, name) == tuple(getattr(report, name) for report in reports)
    assert (record.environment, record.evidence, record.parity) == (environment(), evidence(), parity())
    assert record.evidence.warnings == ()


def test_what_a_reader_must_be_told_joins_the_flags_of_the_gpus_once():
    capped = rank_report(telemetry=telemetry(throttle_reasons=0x4, timed_s=sum((0.1,) * 3)))
    reports = [capped.model_copy(update={"marks": ("a",)}), rank_report(1).model_copy(update={"marks": ("b", "a")})]
    record = assembled(*reports, marks=("a", "busy GPU: 1 other process, 2.0 GiB"))

    assert record.summary.flags[:3] == ("a", "busy GPU: 1 other process, 2.0 GiB", "b")
    assert record.summary.flags.count("a") == 1
    assert "power-capped 100 % of the time" in record.summary.flags[3]


def test_units_that_the_batch_does_not_have_make_no_valid_record():
    lies = workload_facts(units_per_step=64_000)
    record = assembled(rank_report(0, facts=lies), rank_report(1, facts=lies))

    assert (record.status, record.summary, record.samples[0].rank) == ("invalid", None, 0)
    assert "units_per_step is 128,000, and 64 samples on 2 ranks are 128" in (record.reason or "")


def test_the_log_has_what_every_rank_left_behind():
    reports = [failed(0, "lost", collateral=True), failed(1, "died"), rank_report(2)]
    logged = [report.model_copy(update={"log": f"rank {report.rank}: stack"}) for report in reports[:2]]

    assert log_of([*logged, reports[2]]) == "rank 0: stack\n\nrank 1: stack"
    assert log_of(reports) == ""


def test_the_fingerprint_is_of_the_work_and_not_of_the_mode_nor_its_size():
    work = {"workload": "vit-huge", "sizes": SIZES, "optimizer": OPTIMIZER, "accumulation": 1, "data": "loader"}
    other = config("baseline-bf16", world_size=1, batch_size=8, compile="on", te_attention="sdpa")
    for record in (assembled(rank_report(0), rank_report(1)), assembled(rank_report(0), settings=other)):
        assert record.fingerprint == {**work, "method_version": METHOD_VERSION}


@pytest.mark.parametrize(
    ("reports", "status", "reason"),
    [
        # The rank that failed by itself, before those that were ended for it.
        ([failed(0, "ended because rank 1 failed", True), failed(1, "died: SIGKILL")], "failed", "died: SIGKILL"),
        ([failed(0, "ended", True), stopped("invalid")], "invalid", "why"),
        ([rank_report(0), failed(1, "ended because of rank 7", collateral=True)], "failed", "ended because of rank 7"),
        *(([rank_report(0), stopped(status)], status, "why") for status in ("unsupported", "invalid", "failed")),
    ],
)
def test_a_run_that_stopped_has_the_status_and_reason_of_the_culprit_and_no_summary(reports, status, reason):
    record = assembled(*reports)
    assert (record.status, record.reason, record.summary) == (status, reason, None)
    assert len(record.samples) == sum(report.samples is not None for report in reports)


def test_a_run_that_stopped_early_keeps_what_was_known_and_leaves_the_rest_null():
    early = {"status": "unsupported", "reason": "no fp8", "remedy": "Buy", "environment": environment()}
    record = assembled(*(RankReport(rank=rank, **early) for rank in (0, 1)))

    assert (record.status, record.remedy, record.environment) == ("unsupported", "Buy", environment())
    assert record.evidence is record.parity is record.summary is None
    assert record.samples == record.memory == record.telemetry == ()
    assert record.fingerprint["workload"] == "vit-huge"
    assert record.fingerprint["sizes"] is record.fingerprint["optimizer"] is None
    # Of parities that of a rank that failed the gate, and not that of one that passed.
    wrong = parity(passed=False)
    assert assembled(rank_report(0), stopped("invalid", parity=wrong)).parity == wrong


ERRORS = ("loss_error", "gradient_error", "update_error", "state_error", "spread", "bound")


def executed(error, *warnings):
    """What a rank found of its steps as executed; None: nothing."""
    found = None if error is None else proof(**dict.fromkeys(ERRORS, error))
    graph = replayed(capture_s=error or 0.0, pool_bytes=1024 + len(warnings))
    return evidence(executed=found, graph=graph, warnings=warnings)


@pytest.mark.parametrize(
    ("ran", "warnings", "worst"),
    [
        # That rank 0 alone is profiled is no difference.
        ([evidence(executed=None, fp8=True, fp8_kernels=True), evidence(executed=None, fp8=True)], (), None),
        (
            [evidence(executed=None), evidence(executed=None, attention="sdpa:math"), evidence(executed=None)],
            *(("ranks [1] ran something else than rank 0",), None),
        ),
        ([evidence(executed=None, warnings=("fp8 is emulated",))] * 2, ("fp8 is emulated",), None),
        # Of steps as executed the worst errors are kept, and none where a rank has none.
        ([executed(0.01), executed(0.02)], (), 0.02),
        ([executed(0.01), executed(None, "too little memory")], ("too little memory",), None),
    ],
)
def test_what_ranks_ran_differently_is_a_warning(ran, warnings, worst):
    reports = [rank_report(rank, evidence=one) for rank, one in enumerate(ran)]
    record = assembled(*reports, settings=config(world_size=len(reports)))
    assert record.evidence.warnings == warnings
    assert record.evidence.attention == reports[0].evidence.attention
    assert record.evidence.fp8_kernels == reports[0].evidence.fp8_kernels
    reports[1] = rank_report(1, evidence=ran[1], environment=environment("NVIDIA L4"))
    told = "the ranks ran on different GPUs: NVIDIA H100 80GB HBM3, NVIDIA L4"
    assert assembled(*reports).evidence.warnings == (*warnings, told)
    found = record.evidence.executed
    assert (found and {getattr(found, name) for name in ERRORS}) == (worst and {worst})


def test_ids_sort_by_time_are_safe_as_file_names_and_two_of_the_same_second_are_unlike():
    moments = [NOW + timedelta(seconds=seconds) for seconds in (0, 1, 59, 3600, 86_400, 40_000_000)]
    labels = ["te-fp8:delayed", "baseline-bf16", "a", "torchao-float8:rowwise", "Z", "0"]
    ids = [new_run_id(label, moment) for label, moment in zip(labels, moments, strict=True)]

    assert ids == sorted(ids)
    assert ids[0].startswith("20261121T101500Z-te-fp8-delayed-")
    assert new_session_id(NOW) < new_session_id(NOW + timedelta(seconds=1))
    assert len({new_session_id(NOW) for _ in range(50)}) == len({new_run_id("a", NOW) for _ in range(50)}) == 50
    for label in ("te-fp8:delayed", "../../etc/passwd", "a b\tc\n", "naïve/mode", ".hidden", "-x-", ""):
        run_id = new_run_id(label, NOW)
        assert PurePath(run_id).name == run_id
        assert run_id.isascii()
        assert not set(run_id) & set(" :/\\\"'\t\n*?$")
        assert run_id.startswith("20261121T101500Z-")


A, B = machine_called("a"), machine_called("b")


# Over several nodes of which one is unknown it is unknown.
@pytest.mark.parametrize(
    ("machines", "launchers", "expected"),
    [((None, None), A, A), ((None, None), None, None), ((A, B), A, together([A, B])), ((A, None), A, None)],
)
def test_the_machine_is_the_launchers_or_that_of_all_nodes_together(machines, launchers, expected):
    reports = [rank_report(rank, machine=machine) for rank, machine in enumerate(machines)]
    assert assembled(*reports, machine=launchers).machine == expected


def test_of_several_nodes_each_has_its_environment_and_machine_and_a_late_rank_its_node():
    reports = [rank_report(rank, (0.1,) * 12, machine=machine) for rank, machine in enumerate((A, A, B, B))]
    late = reports[3].samples.model_copy(update={"data_wait_s": (0.03,) * 12})
    reports[3] = reports[3].model_copy(update={"samples": late})
    record = assembled(*reports, settings=config(world_size=4, nodes=2))

    assert [(one.node, one.ranks, one.machine) for one in record.environment.nodes] == [(0, (0, 1), A), (1, (2, 3), B)]
    assert record.environment.nodes[1].environment == rank_report(2).environment
    assert record.machine.basis == "nodes"
    assert Record.model_validate_json(record.model_dump_json()) == record
    mark = "straggler: rank 3 on node 1 spends 20 % of a step more than the other ranks waiting for data"
    assert mark in record.summary.flags


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
    ("step_time_s", "--step-time"): ["0", "-0.199", "199 ms", "nan", "inf", "1e-320"],
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
        *[({"source": source}, "--source: .* does not say where") for source in ("measured", " MEASURED ")],
        *[({field: " "}, ".* was given an empty value") for field in ("source", "step_time_s")],
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
        # Of an unknown GPU, or work of unknown FLOPs, a very long step alone is doubted.
        *(
            doubted
            for key, workload in (("unheard-of", "vit-huge"), ("p5", "vit-huge-256"))
            for doubted in (
                (key, figure(30.1, workload=workload), "a step of 30.1 s is longer than training steps are"),
                (key, figure(29.9, workload=workload), None),
            )
        ),
    ],
)
def test_what_the_gpu_cannot_do_is_doubted_in_one_line_and_what_it_can_is_not(instance, given, words):
    assert [words in line for line in doubts(given, instance, CATALOG)] == ([] if words is None else [True])

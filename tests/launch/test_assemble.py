"""From made-up reports of ranks to the record: numbers, the culprit among failures, and what was not alike."""

from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import Any

import pytest
from builders import (
    FLOPS_A_RANK,
    OPTIMIZER,
    SIZES,
    config,
    environment,
    evidence,
    machine_called,
    parity,
    profile,
    proof,
    rank_report,
    replayed,
    telemetry,
    workload_facts,
)

from fp8bench.launch.assemble import assemble, log_of, new_run_id, new_session_id
from fp8bench.machine.identity import together
from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import METHOD_VERSION, SCHEMA_VERSION, Record

NOW = datetime(2026, 11, 21, 10, 15, 0, tzinfo=UTC)
TWO_RANKS = config("te-bf16", world_size=2)


def assembled(*reports: RankReport, settings: RunConfig = TWO_RANKS, **options: Any) -> Record:
    return assemble(settings, reports, "p5", "20261121T101500Z-te-fp8-delayed-3f9a1c", NOW, **options)


def failed(rank: int, reason: str, collateral: bool = False) -> RankReport:
    return RankReport(rank=rank, status="failed", reason=reason, remedy=f"Fix {rank}", collateral=collateral)


def test_ranks_that_finished_make_an_ok_record_of_what_they_reported():
    reports = rank_report(0), rank_report(1)
    record = assembled(*reports)

    assert (record.status, record.reason, record.remedy, record.source) == ("ok", None, None, "measured")
    assert (record.schema_version, record.method_version) == (SCHEMA_VERSION, METHOD_VERSION)
    assert (record.run_id, record.created_utc, record.instance) == (
        "20261121T101500Z-te-fp8-delayed-3f9a1c",
        NOW,
        "p5",
    )
    assert record.config == TWO_RANKS
    assert record.figure is record.provenance is None
    assert record.samples == tuple(report.samples for report in reports)
    assert record.memory == tuple(report.memory for report in reports)
    assert record.telemetry == tuple(report.telemetry for report in reports)
    assert (record.environment, record.evidence, record.parity) == (environment(), evidence(), parity())


def test_the_summary_is_of_the_rank_that_took_longest_and_of_the_units_of_all_ranks():
    record = assembled(rank_report(0, (0.25, 0.1, 0.1)), rank_report(1, (0.2, 0.275, 0.125)))

    assert record.summary is not None
    assert record.summary.step_time_s == pytest.approx(0.2)
    assert (record.summary.median_step_s, record.summary.slow_steps) == (0.2, 1)
    assert record.summary.units_per_step == 128
    assert record.summary.throughput_per_s == pytest.approx(640)
    assert record.summary.flops_per_step == 2 * FLOPS_A_RANK


def test_what_the_gpu_is_idle_is_told_by_the_profile_of_rank_0():
    record = assembled(rank_report(0, (0.15,) * 3, profile=profile(busy_s=0.09)), rank_report(1, (0.15,) * 3))

    assert record.summary is not None
    assert record.summary.idle_share == pytest.approx(0.4)


def test_what_a_reader_must_be_told_of_the_circumstances_joins_the_flags_of_the_gpus():
    capped = rank_report(telemetry=telemetry(throttle_reasons=0x4, timed_s=sum((0.1,) * 3)))
    record = assembled(capped, settings=config(world_size=1), marks=("busy GPU: 1 other process, 2.0 GiB",))

    assert record.summary is not None
    assert record.summary.flags == ("busy GPU: 1 other process, 2.0 GiB", "power-capped 100 % of the time")


def test_units_that_the_batch_does_not_have_make_no_valid_record():
    lies = workload_facts(units_per_step=64_000)
    record = assembled(rank_report(0, facts=lies), rank_report(1, facts=lies))

    assert (record.status, record.summary, record.samples[0].rank) == ("invalid", None, 0)
    assert "units_per_step is 128,000, and 64 samples on 2 ranks are 128" in (record.reason or "")


def test_what_each_rank_found_of_its_own_gpu_joins_them_once():
    marked = [rank_report(rank).model_copy(update={"marks": marks}) for rank, marks in ((0, ("a",)), (1, ("b", "a")))]
    record = assembled(*marked, marks=["a"])

    assert record.summary.flags[:2] == ("a", "b")
    assert record.summary.flags.count("a") == 1


def test_the_log_has_what_every_rank_left_behind():
    reports = [failed(0, "lost", collateral=True), failed(1, "died"), rank_report(2)]
    logged = [report.model_copy(update={"log": f"rank {report.rank}: stack"}) for report in reports[:2]]

    assert log_of([*logged, reports[2]]) == "rank 0: stack\n\nrank 1: stack"
    assert log_of(reports) == ""


def test_the_profile_is_rank_0s_and_that_only_it_was_profiled_is_no_difference():
    seen = evidence(fp8=True, fp8_kernels=True, warnings=("it is hot",))
    record = assembled(rank_report(0, profile=profile(), evidence=seen), rank_report(1, evidence=evidence(fp8=True)))

    assert record.profile == profile()
    assert record.evidence == seen


def test_the_fingerprint_is_of_the_work_and_not_of_the_mode_nor_its_size():
    one = assembled(rank_report(0), rank_report(1))
    other = assembled(
        rank_report(0), settings=config("baseline-bf16", world_size=1, batch_size=8, compile="on", te_attention="sdpa")
    )

    assert one.fingerprint == other.fingerprint
    assert one.fingerprint == {
        "workload": "vit-huge",
        "sizes": SIZES,
        "optimizer": OPTIMIZER,
        "accumulation": 1,
        "data": "loader",
        "method_version": METHOD_VERSION,
    }


def test_the_rank_that_failed_by_itself_gives_the_reason_before_those_that_were_ended_for_it():
    record = assembled(
        failed(0, "rank 0 was ended because rank 1 failed", collateral=True),
        failed(1, "rank 1 died: ended by SIGKILL"),
    )

    assert (record.status, record.reason, record.remedy) == ("failed", "rank 1 died: ended by SIGKILL", "Fix 1")
    assert record.summary is None


def test_if_every_report_is_collateral_the_first_one_is_told():
    record = assembled(rank_report(0), failed(1, "ended because of rank 7", collateral=True))

    assert (record.status, record.reason) == ("failed", "ended because of rank 7")


@pytest.mark.parametrize("status", ["unsupported", "invalid", "failed"])
def test_a_run_that_stopped_has_no_summary_even_where_ranks_have_samples(status):
    record = assembled(rank_report(0), rank_report(1, status=status, reason="why", remedy="What to do"))

    assert (record.status, record.reason, record.remedy, record.summary) == (status, "why", "What to do", None)
    assert len(record.samples) == 2


def test_a_run_that_stopped_early_keeps_what_was_known_and_leaves_the_rest_null():
    early = [
        RankReport(rank=rank, status="unsupported", reason="no fp8", remedy="Buy", environment=environment())
        for rank in (0, 1)
    ]
    record = assembled(*early)

    assert record.status == "unsupported"
    assert record.environment == environment()
    assert record.evidence is record.parity is record.summary is None
    assert record.samples == record.memory == record.telemetry == ()
    assert record.fingerprint["workload"] == "vit-huge"
    assert record.fingerprint["sizes"] is record.fingerprint["optimizer"] is None


def test_ranks_that_ran_something_else_than_rank_0_are_warned_about():
    odd = rank_report(1, evidence=evidence(attention="sdpa:math"))
    record = assembled(rank_report(0), odd, rank_report(2), settings=config(world_size=3))

    assert record.evidence is not None
    assert record.evidence.attention == "sdpa:flash"
    assert record.evidence.warnings == ("ranks [1] ran something else than rank 0",)


def executed(error, *warnings):
    """What a rank found of its steps as executed; None: nothing."""
    names = ("loss_error", "gradient_error", "update_error", "state_error", "spread", "bound")
    found = None if error is None else proof(**dict.fromkeys(names, error))
    graph = replayed(capture_s=error or 0.0, pool_bytes=1024 + len(warnings))
    return evidence(executed=found, graph=graph, warnings=warnings)


def test_of_the_ranks_executed_steps_the_worst_errors_are_kept_and_are_no_difference():
    record = assembled(rank_report(0, evidence=executed(0.01)), rank_report(1, evidence=executed(0.02)))

    assert record.evidence is not None
    found = record.evidence.executed
    assert {found.loss_error, found.gradient_error, found.update_error, found.state_error, found.spread} == {0.02}
    assert found.bound == 0.02
    assert record.evidence.warnings == ()


def test_an_error_that_one_rank_does_not_know_is_not_known_and_its_warning_is_kept():
    record = assembled(
        rank_report(0, evidence=executed(0.01)), rank_report(1, evidence=executed(None, "memory did not suffice"))
    )

    assert record.evidence is not None
    assert record.evidence.executed is None
    assert record.evidence.warnings == ("memory did not suffice",)


def test_ranks_on_unlike_gpus_are_warned_about_after_the_warnings_of_rank_0():
    alike = evidence(warnings=("fp8 is emulated",))
    record = assembled(
        rank_report(0, evidence=alike), rank_report(1, evidence=alike, environment=environment("NVIDIA L4"))
    )

    assert record.evidence is not None
    assert record.evidence.warnings == (
        "fp8 is emulated",
        "the ranks ran on different GPUs: NVIDIA H100 80GB HBM3, NVIDIA L4",
    )


def test_the_parity_of_a_rank_that_failed_the_gate_is_kept_and_not_that_of_one_that_passed():
    record = assembled(
        rank_report(0), rank_report(1, status="invalid", reason="why", remedy="What", parity=parity(passed=False))
    )

    assert record.parity == parity(passed=False)


def test_run_ids_sort_by_time():
    moments = [NOW + timedelta(seconds=seconds) for seconds in (0, 1, 59, 3600, 86_400, 40_000_000)]
    labels = ["te-fp8:delayed", "baseline-bf16", "a", "torchao-float8:rowwise", "Z", "0"]
    ids = [new_run_id(label, moment) for label, moment in zip(labels, moments, strict=True)]

    assert ids == sorted(ids)
    assert ids[0].startswith("20261121T101500Z-te-fp8-delayed-")


def test_sessions_sort_by_time_and_two_of_the_same_second_are_unlike():
    assert new_session_id(NOW).startswith("20261121T101500Z-")
    assert new_session_id(NOW) < new_session_id(NOW + timedelta(seconds=1))
    assert len({new_session_id(NOW) for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "label", ["te-fp8:delayed", "../../etc/passwd", "a b\tc\n", "naïve/mode", ".hidden", "-x-", ""]
)
def test_a_run_id_is_safe_as_a_file_name(label):
    run_id = new_run_id(label, NOW)

    assert PurePath(run_id).name == run_id
    assert run_id.isascii()
    assert not set(run_id) & set(" :/\\\"'\t\n*?$")
    assert run_id.startswith("20261121T101500Z-")


def test_the_machine_is_the_launchers_where_its_own_workers_ran():
    assert assembled(rank_report(0), rank_report(1), machine=machine_called("a")).machine == machine_called("a")
    assert assembled(rank_report(0), rank_report(1)).machine is None


def test_over_several_nodes_it_is_made_of_all_of_theirs():
    nodes = [machine_called("a"), machine_called("b")]
    reports = [rank_report(rank, machine=machine) for rank, machine in enumerate(nodes)]
    found = assembled(*reports, machine=nodes[0]).machine

    assert found == together(nodes)
    assert found not in nodes


def test_over_several_nodes_of_which_one_is_unknown_it_is_unknown():
    reports = rank_report(0, machine=machine_called("a")), rank_report(1)

    assert assembled(*reports, machine=machine_called("a")).machine is None


class TestSeveralNodes:
    RUN = config(world_size=4, nodes=2)

    def reports(self, late=0.0):
        reports = [rank_report(rank, (0.1,) * 12) for rank in range(4)]
        samples = reports[3].samples.model_copy(update={"data_wait_s": (late,) * 12})
        machines = [machine_called(name) for name in "aabb"]
        found = [r.model_copy(update={"machine": m}) for r, m in zip(reports, machines, strict=True)]
        return [*found[:3], found[3].model_copy(update={"samples": samples})]

    def test_the_record_has_every_nodes_environment_and_machine(self):
        record = assemble(self.RUN, self.reports(), "p5", "id", NOW)

        assert [(one.node, one.ranks, one.machine) for one in record.environment.nodes] == [
            (0, (0, 1), machine_called("a")),
            (1, (2, 3), machine_called("b")),
        ]
        assert record.environment.nodes[1].environment == rank_report(2).environment
        assert record.machine.basis == "nodes"
        assert Record.model_validate_json(record.model_dump_json()) == record

    def test_a_rank_that_holds_up_the_others_is_marked_with_its_node(self):
        record = assemble(self.RUN, self.reports(late=0.03), "p5", "id", NOW)

        mark = "straggler: rank 3 on node 1 spends 20 % of a step more than the other ranks waiting for data"
        assert mark in record.summary.flags

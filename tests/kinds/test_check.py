"""A check of what was measured against a reference: which variant is held against which, and how each ends."""

import json

import jsonschema
import junitparser
import pytest
from builders import (
    environment,
    evidence,
    fingerprint,
    invalid,
    machine_called,
    measured,
    place,
    rank_samples,
    replayed,
    rounds,
    steps_about,
    unsupported,
)

from fp8bench.kinds.run.check.document import document, sentence
from fp8bench.kinds.run.check.exports import EXPORTS
from fp8bench.kinds.run.check.result import Check, CheckedRow, CheckOptions, check
from fp8bench.records.select import select
from fp8bench.tables.render import render

OLD, NEW = "20260501T100000Z-aaaaaa", "20260502T100000Z-bbbbbb"
SAME = (0.1, 0.1002, 0.0999, 0.1)
SLOWER = tuple(1.1 * seconds for seconds in SAME)


def old(*times, **changes):
    return rounds(*(times or SAME), session_id=OLD, **changes)


def new(*times, **changes):
    return rounds(*(times or SAME), session_id=NEW, **{"minutes": 600, **changes})


def checked(now, before, **options):
    sides = (tuple(select(list(records), every=False)) for records in (now, before))
    return check(*sides, CheckOptions(**{"max_regression": 0.03, **options}), "a reference")


def only(now, before, **options):
    (row,) = checked(now, before, **options).rows
    return row


def test_a_variant_that_takes_as_long_is_ok_with_its_change_and_both_step_times():
    found = checked(new(), old())
    (row,) = found.rows
    assert (row.outcome, row.reason, found.exit_code) == ("ok", None, 0)
    assert row.change == pytest.approx(0, abs=1e-6)
    assert row.change_ci[0] < 0 < row.change_ci[1] < 0.03
    assert row.step_time_s == pytest.approx(row.reference_step_time_s)
    assert row.throughput_per_s == pytest.approx(512 / row.step_time_s)
    assert (row.rounds, row.reference_rounds) == (4, 4)
    assert found.sessions == (NEW,)


def test_one_that_takes_longer_than_allowed_fails_and_one_that_takes_less_passes():
    assert only(new(*SLOWER), old()).outcome == "regression"
    assert checked(new(*SLOWER), old()).exit_code == 1
    assert only(new(*SLOWER), old(), max_regression=0.15).outcome == "ok"
    assert only(old(), new(*SLOWER)).change == pytest.approx(1 / 1.1 - 1)


def test_what_the_interval_leaves_open_is_undecided_with_what_would_have_been_found():
    found = checked(new(0.1, 0.13, 0.1, 0.13), old())
    (row,) = found.rows
    assert (row.outcome, found.exit_code) == ("inconclusive", 6)
    assert "more rounds" in row.reason
    answer = sentence(found)
    assert answer.startswith("Undecided: p5:baseline-bf16/eager")
    assert f"slow-down of {row.smallest_found * 100:.3g} %" in answer
    assert f"{row.rounds_to_find} on either side" in answer
    assert "Passed" not in answer
    assert checked(new(0.1, 0.13, 0.1, 0.13), old(), strict=True).exit_code == 6


def test_what_is_decided_beside_what_is_not_is_counted():
    now = [*new(0.1, 0.13, 0.1, 0.13), *new(mode="te-bf16", minutes=620)]
    found = checked(now, [*old(), *old(mode="te-bf16", minutes=10)])
    assert found.exit_code == 6
    assert "1 of 2 variants" in sentence(found)


def test_a_step_that_is_longer_by_what_is_found_is_a_regression_and_one_of_less_is_not():
    found = only(new(), old()).smallest_found
    longer, less = (tuple((1 + found) * by * seconds for seconds in SAME) for by in (1.0005, 0.9995))
    assert only(new(*longer), old()).outcome == "regression"
    assert only(new(*less), old()).outcome == "inconclusive"


def test_one_round_finds_nothing_and_plans_nothing():
    found = checked(new(0.1), old(0.1))
    assert (found.rows[0].smallest_found, found.rows[0].rounds_to_find) == (None, None)
    assert (found.exit_code, found.plan_exit_code) == (6, 6)
    assert "--rounds" in sentence(found)
    assert checked(new(), old()).plan_exit_code == 0


def test_slow_steps_that_medians_deny_decide_nothing():
    late = tuple(seconds * (2 if place % 4 == 3 else 1) for place, seconds in enumerate(steps_about(0.1, count=41)))
    row = only(new(samples=tuple(rank_samples(rank, late) for rank in range(8))), old())
    assert row.change_ci[0] > 0.03
    assert (row.outcome, row.reason) == (
        "inconclusive",
        "regression by elapsed time, ok by medians: slow steps decide",
    )


def test_medians_that_cannot_tell_deny_no_regression():
    times = [(*steps_about(seconds), 0.9) for seconds in (0.11, 0.125, 0.11, 0.125)]
    now = [
        record.model_copy(update={"samples": tuple(rank_samples(rank, steps) for rank in range(8))})
        for record, steps in zip(new(), times, strict=True)
    ]
    assert only(now, old(), max_regression=0.1).outcome == "regression"


def test_a_variant_that_is_gone_is_missing_and_one_that_came_is_new():
    found = checked(new(mode="te-bf16"), old())
    assert [(row.mode, row.outcome) for row in found.rows] == [("baseline-bf16", "missing"), ("te-bf16", "new")]
    assert found.exit_code == 1
    came = [*new(), *new(mode="te-bf16", minutes=620)]
    assert checked(came, old()).exit_code == 0
    assert checked(came, old(), strict=True).exit_code == 1
    assert "new: p5:te-bf16/eager" in sentence(checked(came, old(), strict=True))


@pytest.mark.parametrize(
    "settings",
    [{"batch_size": 32}, {"world_size": 4}, {"optimizer": "adamw"}, {"data": "device"}, {"workload": "vit-huge-256"}],
)
def test_other_sizes_and_other_work_are_other_variants(settings):
    found = checked(new(settings=settings), old())
    assert [row.outcome for row in found.rows] == ["missing", "new"]


def test_one_that_is_executed_otherwise_is_missing_with_what_it_is_now():
    eager, graphed = evidence(), evidence(graph=replayed())
    found = checked(new(evidence=eager), old(evidence=graphed))
    assert [(row.execution, row.outcome) for row in found.rows] == [("graphed", "missing"), ("eager", "new")]
    assert found.rows[0].reason == "not measured now; its steps were executed as eager instead"


def test_one_that_took_another_attention_is_the_same_variant_with_a_mark():
    row = only(new(*SLOWER, evidence=evidence(attention="te:unfused")), old(evidence=evidence(attention="te:fused")))
    assert (row.outcome, row.marks) == ("regression", ("attention te:unfused, reference te:fused",))


def test_where_both_attentions_were_measured_each_is_held_against_its_like():
    fused, sdpa = evidence(attention="te:fused"), evidence(attention="sdpa:flash")
    before = [*old(evidence=fused), *old(*SLOWER, evidence=sdpa, minutes=10)]
    now = [*new(*SLOWER, evidence=sdpa), *new(evidence=fused, minutes=610)]
    assert [(row.outcome, row.marks) for row in checked(now, before).rows] == [("ok", ()), ("ok", ())]
    gone = checked(new(*SLOWER, evidence=sdpa), before)
    assert [row.outcome for row in gone.rows] == ["missing", "ok"]


def test_two_attentions_have_names_of_their_own_in_every_export():
    fused, sdpa = evidence(attention="te:fused"), evidence(attention="sdpa:flash")
    found = checked([*new(evidence=fused), *new(evidence=sdpa, minutes=610)], old(evidence=fused))
    assert [row.outcome for row in found.rows] == ["ok", "new"]
    names = list(json.loads(EXPORTS["bencher"](found)))
    assert [name.rpartition(" ")[2] for name in names] == ["[te:fused]", "[sdpa:flash]"]


def test_of_a_reference_of_several_softwares_the_one_that_is_like_ours_counts():
    newer = environment(driver="590.0")
    before = [*old(), *rounds(*SLOWER, session_id="later", minutes=30, environment=newer)]
    row = only(new(), before)
    assert (row.outcome, row.reference_run_ids[0]) == ("ok", before[0].run_id)
    assert only(new(*SLOWER, environment=newer), before).outcome == "ok"
    assert only(new(environment=environment(driver="600.0")), before).reference_run_ids[0] == before[4].run_id


def test_one_that_failed_now_fails_with_its_reason_and_is_named_once():
    before = old(mode="torchao-float8", recipe="tensorwise")
    found = checked([invalid(session=place(1, NEW), minutes=600)], before)
    (row,) = found.rows
    assert (row.outcome, row.reason) == ("failed", "invalid: the gradient at the input is 0")
    assert (row.step_time_s, row.reference_rounds, found.exit_code) == (None, 4, 1)


def test_one_that_did_not_run_in_the_reference_either_passes_and_is_said():
    refused = unsupported(session=place(1, OLD)), unsupported(session=place(1, NEW), minutes=600)
    found = checked([*new(), refused[1]], [*old(), refused[0]])
    assert [row.outcome for row in found.rows] == ["ok", "failed before"]
    assert found.exit_code == 0
    assert checked([*new(), refused[1]], old()).exit_code == 1


def test_a_round_that_failed_beside_others_is_a_mark():
    broken = measured(
        session=place(5, NEW), minutes=610, status="failed", reason="out of memory", samples=(), summary=None
    )
    row = only([*new(), broken], old())
    assert (row.outcome, row.marks) == ("ok", ("1 of 5 rounds failed: out of memory",))


def test_another_machine_or_method_is_not_judged_unless_it_is_asked_for():
    here, there = machine_called("here"), machine_called("there")
    found = checked(new(*SLOWER, machine=here), old(machine=there))
    (row,) = found.rows
    assert (row.outcome, row.change, found.exit_code) == ("not comparable", None, 4)
    assert "machine (here" in row.reason
    row = only(new(*SLOWER, machine=here), old(machine=there), allow_mismatch=True)
    assert row.outcome == "regression"
    assert "machine (here" in row.marks[0]
    method = only(new(), old(fingerprint=fingerprint(method_version=2)))
    assert (method.outcome, "method_version (3, reference 2)" in method.reason) == ("not comparable", True)


def test_a_regression_goes_before_what_was_not_judged():
    here, there = machine_called("here"), machine_called("there")
    now = [*new(machine=here, mode="te-bf16", minutes=620), *new(*SLOWER, machine=there)]
    before = [*old(machine=there, mode="te-bf16", minutes=20), *old(machine=there)]
    assert checked(now, before).exit_code == 1


def of_every_outcome():
    here, there = machine_called("here"), machine_called("there")
    before = [
        *old(),
        *old(mode="te-bf16", minutes=10),
        *old(mode="te-fp8", recipe="delayed", minutes=20),
        *old(mode="baseline-tf32", minutes=30),
        *old(mode="baseline-fp32", minutes=40, machine=there),
        *old(mode="torchao-float8", recipe="tensorwise", minutes=50),
        unsupported(session=place(1, OLD), minutes=60),
    ]
    now = [
        *new(*SLOWER),
        *new(mode="te-fp8", recipe="delayed", minutes=620),
        *new(0.1, 0.13, mode="baseline-tf32", minutes=630),
        *new(mode="baseline-fp32", minutes=640, machine=here),
        invalid(session=place(1, NEW), minutes=650),
        unsupported(session=place(1, NEW), minutes=660),
        *new(mode="te-fp8", recipe="current", minutes=670),
    ]
    return checked(now, before)


def test_rows_stand_with_what_fails_first_and_the_answer_names_it():
    found = of_every_outcome()
    assert [row.outcome for row in found.rows] == [
        *("regression", "missing", "failed", "not comparable", "inconclusive", "ok", "new", "failed before"),
    ]
    answer = sentence(found)
    assert answer.startswith("Failed: regression: p5:baseline-bf16/eager, +10.0 % (+9.")
    assert "missing: p5:te-bf16/eager" in answer
    assert "; undecided: p5:baseline-tf32/eager, +15.0 %" in answer
    assert sentence(checked(new(), old())) == "Passed: 1 of 1 variants take no more than 3 % longer."


def test_two_batches_of_one_mode_are_told_apart_in_the_answer():
    before = [*old(), *old(settings={"batch_size": 32}, minutes=10)]
    now = [*new(*SLOWER), *new(settings={"batch_size": 32}, minutes=620)]
    assert "p5:baseline-bf16/eager at batch 64 x 8, +10" in sentence(checked(now, before))


def test_two_workloads_or_optimizers_of_one_mode_are_told_apart_in_the_answer():
    before = [
        *old(),
        *old(settings={"workload": "vit-huge-256"}, minutes=10),
        *old(settings={"workload": "vit-huge-256", "optimizer": "adamw"}, minutes=20),
    ]
    answer = sentence(checked(new(mode="te-bf16"), before))
    assert "p5:baseline-bf16/eager of vit-huge at batch 64 x 8" in answer
    assert "p5:baseline-bf16/eager of vit-huge-256 with sgd at batch 64 x 8" in answer
    assert "p5:baseline-bf16/eager of vit-huge-256 with adamw at batch 64 x 8" in answer


def test_machines_read_the_check_whole():
    found = of_every_outcome()
    data = json.loads(render(document(found), "json"))
    assert (data["passed"], data["exit_code"]) == (False, 1)
    assert Check.model_validate_json(json.dumps({name: data[name] for name in Check.model_fields})) == found
    lines = EXPORTS["csv"](found).splitlines()
    assert lines[0].split(",") == list(CheckedRow.model_fields)
    assert len(lines) == 9


GITHUB = {
    # README of benchmark-action/github-action-benchmark, "customSmallerIsBetter": what an entry has.
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "unit": {"type": "string", "minLength": 1},
            "value": {"type": "number"},
            # src/extractRangeInfo.ts: what it finds in a range.
            "range": {"type": "string", "pattern": "^(\\+-|\u00b1)\\s*\\d[\\d.]+$"},
            "extra": {"type": "string"},
        },
    },
}

BENCHER = {
    # https://bencher.dev/bmf.json; further, a benchmark's name has at most 1024 characters, a measure's at most 64.
    "$schema": "http://json-schema.org/draft-07/schema",
    "type": "object",
    "propertyNames": {"maxLength": 1024},
    "patternProperties": {
        ".+": {
            "type": "object",
            "propertyNames": {"maxLength": 64},
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "number"},
                        "lower_value": {"type": "number"},
                        "upper_value": {"type": "number"},
                    },
                    "required": ["value"],
                }
            },
        }
    },
}


@pytest.mark.parametrize(("form", "unit"), [("github-smaller", "ms"), ("github-bigger", "images/s")])
def test_github_action_benchmark_reads_each_measured_variant_with_its_range(form, unit):
    entries = json.loads(EXPORTS[form](of_every_outcome()))
    jsonschema.validate(entries, GITHUB)
    assert len({entry["name"] for entry in entries}) == len(entries) == 5
    assert {entry["unit"] for entry in entries} == {unit}
    slow = next(entry for entry in entries if "baseline-bf16" in entry["name"])
    assert slow["value"] == pytest.approx({"ms": 110, "images/s": 512 / 0.11}[unit], rel=0.01)
    assert 0 < float(slow["range"].removeprefix("\u00b1 ")) < 0.02 * slow["value"]
    assert slow["extra"].startswith("regression: step time +10.0 %")


def test_bencher_reads_latency_in_nanoseconds_and_throughput_with_their_ends():
    found = json.loads(EXPORTS["bencher"](of_every_outcome()))
    jsonschema.validate(found, BENCHER)
    slow = next(metrics for name, metrics in found.items() if "baseline-bf16" in name)
    assert slow["latency"]["value"] == pytest.approx(110e6, rel=0.01)
    for metric in slow.values():
        assert metric["lower_value"] < metric["value"] < metric["upper_value"]


def test_junit_has_a_case_a_variant_that_fails_as_the_check_does():
    suites = junitparser.JUnitXml.fromstring(EXPORTS["junit"](of_every_outcome()).encode())
    (suite,) = suites
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (8, 2, 2, 3)
    results = {case.name.split(" ")[0]: [type(one).__name__ for one in case.result] for case in suite}
    assert results["p5:baseline-bf16/eager"] == ["Failure"]
    assert results["p5:te-bf16/eager"] == ["Error"]
    assert results["p5:baseline-tf32/eager"] == ["Skipped"]
    assert results["p5:te-fp8:delayed/eager"] == []
    assert "undecided: step time" in EXPORTS["junit"](of_every_outcome())
    counted = suites.fromstring(EXPORTS["junit"](of_every_outcome()).encode())
    counted.update_statistics()
    assert (counted.tests, counted.failures, counted.errors, counted.skipped) == (8, 2, 2, 3)


def test_text_from_a_record_harms_no_format():
    evil = '<script>alert("&")</script>\x1b[31m]]>\ufffe|'
    broken = measured(session=place(1, NEW), minutes=600, status="failed", reason=evil, samples=(), summary=None)
    found = checked([broken], old())
    (suite,) = junitparser.JUnitXml.fromstring(EXPORTS["junit"](found).encode())
    (case,) = suite
    assert '<script>alert("&")</script>\\x1b[31m' in case.result[0].message
    assert "<script>" not in EXPORTS["markdown"](found)
    assert "\x1b" not in EXPORTS["csv"](found)

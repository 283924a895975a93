"""Machines predicted from one another: which pairs are cases, which count, and those that travel with the program."""

from datetime import date

import pytest
from builders import published
from known import catalog, gpu, records

from fp8bench.cli.output import load_catalog
from fp8bench.predict.document import CHANGES
from fp8bench.predict.held_out import HeldOut, held_out, kept
from fp8bench.predict.model_error import merged, model_error
from fp8bench.records import results
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.files import ROOT
from fp8bench.schema.record import Provenance

RESULTS = ROOT / "results"


def found(*of, known=None):
    return held_out(of, known or catalog(), lambda record: record)


def cases(*of, known=None):
    return found(*of, known=known).cases


def other(key="narrow-1x", step_s=0.12, **changes):
    return records(key, step_s=step_s, **{"session_id": f"of-{key}", "minutes": 30, **changes})


def test_each_machine_is_predicted_from_the_other():
    there, back = cases(*records(), *other(by_category={"gemm_bf16": 0.06, "elementwise": 0.055}))
    assert (there.source, there.target) == ("fast-1x", "narrow-1x")
    assert there.predicted == pytest.approx(0.135)
    assert there.measured == pytest.approx(0.12)
    assert there.error == pytest.approx(0.125)
    assert (back.source, back.target, back.measured) == ("narrow-1x", "fast-1x", pytest.approx(0.1))
    assert there.counted
    assert there.machines == ("Fast", "Narrow")
    assert len(there.run_ids) == 2


@pytest.mark.parametrize(
    "unlike",
    [
        {"mode": "te-bf16"},
        {"settings": {"batch_size": 128}},
        {"settings": {"data": "device"}},
        {"settings": {"workload": "vit-huge-256"}},
        {"compiled": True},
        {"fingerprint": {"workload": "vit-huge", "method_version": 1}},
    ],
)
def test_other_work_is_no_case(unlike):
    assert cases(*records(), *other(**unlike)) == ()


def test_each_part_is_told_as_predicted_and_as_measured():
    there, _ = cases(*records(), *other(by_category={"gemm_bf16": 0.06, "elementwise": 0.05, "copy": 0.004}))
    assert [(part.name, pytest.approx(part.predicted_s), pytest.approx(part.measured_s)) for part in there.parts] == [
        ("gemm_bf16", 0.06, 0.06),
        ("elementwise", 0.07, 0.05),
        ("idle", 0.005, 0.006),
        ("copy", 0.0, 0.004),
    ]


def test_a_measurement_alone_is_none_and_is_not_read():
    def whole(_record):
        raise AssertionError("read")

    assert held_out(records(), catalog(), whole).cases == ()


def test_of_several_sessions_the_latest_counts():
    later = other(step_s=0.14, session_id="later", minutes=60)
    assert [case.measured for case in cases(*records(), *other(), *later) if case.target == "narrow-1x"] == [
        pytest.approx(0.14)
    ]


def test_a_gpu_that_waits_for_its_host_is_shown_and_not_counted():
    waiting = other(by_category={"gemm_bf16": 0.05})
    assert [(case.counted, case.note) for case in cases(*records(), *waiting)] == [
        (False, "the GPU waited for its host, which the model knows nothing of")
    ] * 2


def test_a_pair_that_cannot_be_predicted_says_why():
    known = catalog()
    narrow = gpu("Narrow", memory_bandwidth_gb_s=None)
    known = known.model_copy(update={"gpus": {**known.gpus, "Narrow": narrow}})
    assert found(*records(), *other(), known=known).omitted == (
        "memory_bandwidth_gb_s of Narrow is not known, and a prediction needs it",
    )


def figures(**changes):
    old = published("old-8x", step_time_s=0.5, **changes)
    return old, published("fast-8x", step_time_s=0.2, minutes=-50, **changes)


def test_published_steps_are_shown_and_their_ratio_counts():
    step_old, step_fast, ratio = cases(*figures(), *records())
    assert not step_old.counted
    assert not step_fast.counted
    assert step_old.note.startswith("not comparable: published 2023-11-15")
    assert (ratio.what, ratio.target, ratio.counted) == ("ratio", "old-8x / fast-8x", True)
    assert ratio.measured == pytest.approx(2.5)
    assert ratio.predicted == pytest.approx(step_old.predicted / step_fast.predicted)
    assert ratio.change.words == "another architecture"


def test_figures_of_two_articles_or_of_other_work_make_no_ratio():
    elsewhere = published("fast-8x", step_time_s=0.2, published_on=None)
    assert "ratio" not in [case.what for case in cases(figures()[0], elsewhere, *records())]
    assert cases(*figures(batch_size=8), *records()) == ()


def test_what_is_derived_from_percentages_is_no_step_that_was_published():
    source = Provenance(citation="an article", published_on=date(2023, 11, 15), derivation="0.6 s / 1.2")
    assert cases(*figures(provenance=source), *records()) == ()


def test_an_article_is_predicted_from_what_is_executed_most_like_it():
    compiled = records(compiled=True, session_id="compiled", minutes=20, step_s=0.09)
    found_cases = cases(*figures(), *records(), *compiled)
    assert {case.execution for case in found_cases} == {"eager"}


def test_the_cases_that_travel_give_every_change_an_error():
    cases = kept().cases
    assert all(model_error(cases, change) is not None for change in CHANGES)


def test_a_kept_file_that_was_changed_by_hand_is_named_with_its_remedy(tmp_path):
    file = tmp_path / "errors.json"
    file.write_text('{"cases": [{"source": 3}]}')
    with pytest.raises(RunFailed, match=r"errors.json, field cases.0.source: .*make prediction-errors"):
        kept(file)


@pytest.fixture(scope="module")
def committed() -> HeldOut:
    known = load_catalog(RESULTS)
    there = results.read(RESULTS, {*results.known_instances(RESULTS), *known.instances})
    return results.read_on_demand(there, _nothing_broken, lambda of, whole: held_out(of, known, whole))


def _nothing_broken(broken):
    assert not broken


def test_the_committed_records_predict_one_another(committed):
    for case in committed.cases:
        print(f"{case.source} -> {case.target}, {case.mode}, batch {case.batch_size}: {case.error * 100:+.1f} %")
    counted = [case for case in committed.cases if case.counted]
    assert counted
    # Far more than any was off: a wrong rule, unit or figure shows.
    assert all(case.log_error < 0.5 for case in counted)


def test_kept_cases_are_what_the_records_say_that_are_still_there(committed):
    here = {case.run_ids: case for case in committed.cases}
    again = [(case, here[case.run_ids]) for case in kept().cases if case.run_ids in here]
    for case, now in again:
        assert case.predicted == pytest.approx(now.predicted), case.key
        assert case.measured == pytest.approx(now.measured), case.key
    assert len(merged(kept().cases, committed.cases)) >= len(committed.cases)


def test_kept_pairs_are_what_the_records_say_that_are_still_there(committed):
    here = {pair.key: pair for pair in committed.pairs}
    again = [pair for pair in kept().pairs if pair.key in here]
    assert again
    assert all(here[pair.key] == pair for pair in again)


def test_a_mode_is_predicted_by_what_other_modes_showed():
    """te-bf16 alone tells that norms take no longer on half the bandwidth, so it says so of the baseline, and not of
    itself."""
    of_te = {"mode": "te-bf16", "by_category": {"gemm_bf16": 0.06, "elementwise": 0.035}}
    of_both = [
        *records(),
        *records(**of_te, session_id="te"),
        *other(by_category={"gemm_bf16": 0.06, "elementwise": 0.06}),
    ]
    found_here = found(*of_both, *other(**of_te, step_s=0.1, minutes=90))
    predicted = {case.mode: case.predicted for case in found_here.cases if case.target == "narrow-1x"}
    assert predicted["baseline-bf16"] == pytest.approx(0.1)
    # 35 ms on 4 TB/s were 60 on 2: 25 by memory, 10 by the SMs.
    assert predicted["te-bf16"] == pytest.approx(0.1 + 0.025)
    assert [line.kind for line in found_here.kinds] == ["elementwise"]


def test_pairs_that_are_known_before_count_where_the_records_have_none():
    known_before = found(*records(mode="te-bf16"), *other(mode="te-bf16", step_s=0.1)).pairs
    assert len(known_before) == 1
    of_baseline = (*records(), *other(by_category={"gemm_bf16": 0.06, "elementwise": 0.055}))
    (there, _) = held_out(of_baseline, catalog(), lambda record: record, known_before).cases
    # Of te-bf16 norms took as long on both.
    assert there.predicted == pytest.approx(0.1)

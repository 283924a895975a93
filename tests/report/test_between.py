"""Two instances compared in like modes and at the best of each, where the table alone does not say it."""

from datetime import date

import pytest
from builders import environment, published, rounds

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.document import document
from fp8bench.pricing.catalog import load
from fp8bench.records.named import parse_reference
from fp8bench.report.render import render

CATALOG = load()
P4D = published("p4d", step_time_s=0.41)
P4D_TE = published("p4d", "te-bf16", step_time_s=0.3445)
P5 = published("p5", step_time_s=0.199)
P5_128 = published("p5", step_time_s=0.3567, batch_size=128, minutes=-50)
P5_TE = published("p5", "te-bf16", step_time_s=0.2702, batch_size=128)
P5_FP8 = published("p5", "te-fp8", "delayed", step_time_s=0.2252, batch_size=128)
A100 = environment("NVIDIA A100-SXM4-40GB")
EVERY = [P4D, P4D_TE, P5, P5_128, P5_TE, P5_FP8]


def compared(records, instances=("p4d", "p5"), reference=None):
    options = CompareOptions(instances, date(2023, 11, 15), parse_reference(reference, list(instances)))
    return compare(records, CATALOG, options)


def sentences(records, *instances, **named):
    text = render(document(compared(records, instances or ("p4d", "p5"), **named)), "plain")
    return [line for line in text.splitlines() if line.startswith("What a dollar buys")]


def test_like_modes_and_the_best_of_each_are_set_side_by_side():
    (line,) = sentences(EVERY)
    assert line == (
        "What a dollar buys on p5, against p4d: -31.3 % with baseline-bf16 on both; +2.0 % with the best of each, "
        "te-fp8:delayed (batch 128) against te-bf16 (batch 64)."
    )


def test_the_other_instance_may_have_no_like_batch():
    (line,) = sentences([one for one in EVERY if one is not P5])
    assert "-23.4 % with baseline-bf16 (batch 128 against 64);" in line


def test_other_work_is_not_compared_though_it_is_shown():
    other = published("p5", step_time_s=0.01, minutes=-40)
    figure = other.figure.model_copy(update={"workload": "vit-micro"})
    other = other.model_copy(update={"figure": figure, "fingerprint": {**other.fingerprint, "workload": "vit-micro"}})
    options = CompareOptions(
        ("p4d", "p5"), date(2023, 11, 15), parse_reference(None, ["p4d", "p5"]), allow_mismatch=True
    )
    found = compare([*EVERY, other], CATALOG, options)
    assert other.run_id in {row.run_id for row in found.rows}
    assert (found.between.like.run_id, found.between.best.run_id) == (P5.run_id, P5_FP8.run_id)


@pytest.mark.parametrize(
    "records",
    [
        [P4D, P4D_TE, P5],
        [P4D, P5, P5_FP8],
        [P4D, P4D_TE, P5_TE, P5_FP8],
        [P4D, published("p4d", "te-bf16", step_time_s=0.5), P5, P5_FP8],
    ],
    ids=["one mode there", "one mode here", "no like mode", "the reference is best"],
)
def test_nothing_is_said_that_the_table_says_already(records):
    assert sentences(records) == []


def test_one_instance_has_nothing_to_be_compared_with():
    assert sentences([P4D, P4D_TE], "p4d") == []


def test_the_same_mode_at_the_best_of_each_is_named_once():
    (line,) = sentences([P4D, P4D_TE, P5, published("p5", "te-bf16", step_time_s=0.15)])
    assert line.endswith("with the best of each, te-bf16 (batch 64) on both.")


def test_rows_that_are_not_shown_are_not_spoken_of():
    found = compared(EVERY)
    rows = tuple(row for row in found.rows if row.mode != "te-fp8")
    text = render(document(found.model_copy(update={"rows": rows})), "plain")
    assert "What a dollar buys" not in text


def test_measured_instances_have_an_interval_over_their_processes():
    there = [
        *rounds(0.4, 0.402, 0.398, instance="p4d", environment=A100),
        *rounds(0.3, 0.302, 0.298, instance="p4d", mode="te-bf16", minutes=10, environment=A100),
        *rounds(0.2, 0.201, 0.199, minutes=20),
        *rounds(0.1, 0.101, 0.099, mode="te-fp8", recipe="delayed", minutes=30),
    ]
    (line,) = sentences(there)
    best = compared(there).between.best
    low, high = best.gain_ci_vs_reference
    assert low < best.gain_vs_reference < high
    assert f"({low * 100:+.1f} to {high * 100:+.1f})" in line

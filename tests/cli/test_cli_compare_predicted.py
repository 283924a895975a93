"""Instances without records of their own or of their GPUs get predicted rows, beside published figures."""

import json
import math
from pathlib import Path

import pytest
from cli.calling import call

from fp8bench.predict.prediction import foreseen
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.records.select import select

ROOT = Path(__file__).parents[2]
MEASURED = ("h100-1x", "h100-2x", "h200-1x", "h200-2x")

pytestmark = pytest.mark.slow


def compared(*words):
    done = call(ROOT, "compare", *words, "--workload", "vit-huge", "--batch-size", "64", "--format", "json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def five():
    return compared("p4d", "p5", "p5en", "h100-1x", "h200-1x")


def test_each_of_five_instances_has_a_row(five):
    sources = {(row["instance"], row["source"]) for row in five}
    assert sources == {
        *((name, source) for name in ("p4d", "p5") for source in ("predicted", "published")),
        *(("p5en", "predicted"), ("h100-1x", "measured"), ("h200-1x", "measured")),
    }


def test_a_row_is_predicted_from_the_nearest_and_as_uncertain_as_that(five):
    predicted = {(row["instance"], row["mode"], row["execution"]): row for row in five if row["source"] == "predicted"}
    assert predicted["p5", "te-fp8", "graphed"]["measured_on"] == "h100-2x"
    assert predicted["p5en", "te-fp8", "graphed"]["measured_on"] == "h200-2x"
    assert predicted["p4d", "baseline-bf16", "compiled+graphed"]["measured_on"].startswith("h")
    assert ("p4d", "te-fp8", "graphed") not in predicted
    least = {"p5": 0.05, "p5en": 0.05, "p4d": 0.2}
    for (instance, *_), row in predicted.items():
        (low, high), step_s = row["step_time_ci_s"], row["step_time_s"]
        assert low < step_s < high
        assert math.log(high / step_s) > least[instance]
        assert (row["world_size"], row["joules_per_unit"], row["machine"]) == (8, None, None)
        assert row["throughput_per_s"] == pytest.approx(64 * 8 / step_s)
        assert row["units_per_usd"] == pytest.approx(row["throughput_per_s"] * 3600 / row["usd_per_hour"])


def test_a_mode_has_one_predicted_row_and_none_is_certain_between_two_modes(five):
    predicted = [row for row in five if row["source"] == "predicted"]
    assert len({(row["instance"], row["mode"]) for row in predicted}) == len(predicted) == 10
    assert not any("not comparable" in mark for row in predicted for mark in row["marks"])
    by_id = {row["run_id"]: row for row in five}
    of_one = [row for row in predicted if by_id[row["reference_run_id"]]["instance"] == row["instance"]]
    assert {row["verdict"] for row in of_one if not row["is_reference"]} == {"inconclusive"}


def test_several_nodes_are_projected_from_one_and_cost_as_many():
    rows = compared("p5", "--gpus", "8,16,64,16", "--budget", "100000", "--within", "30d")
    assert len({row["run_id"] for row in rows}) == len(rows)
    assert {row["world_size"] for row in rows} == {8, 16, 64}
    by = {(row["mode"], row["world_size"]): row for row in rows if row["source"] == "predicted"}
    one, two, eight = (by["te-fp8", gpus] for gpus in (8, 16, 64))
    assert (two["nodes"], eight["nodes"]) == (2, 8)
    # 100,000 USD are 75.7 days of one instance: three at once, two pairs, or eight together for 9.5.
    assert [row["budget_instances"] for row in (one, two, eight)] == [3, 4, 8]
    assert two["usd_per_hour"] == pytest.approx(2 * one["usd_per_hour"])
    assert one["step_time_s"] < two["step_time_s"] < eight["step_time_s"] < 1.1 * one["step_time_s"]
    assert one["units_per_usd"] > two["units_per_usd"] > eight["units_per_usd"]
    width = [math.log(row["step_time_ci_s"][1] / row["step_time_s"]) for row in (one, two, eight)]
    assert width[0] < width[1] < width[2]
    words = ("p5", "h200-1x", "--gpus", "16", "--workload", "vit-huge", "--format", "answer")
    (answer,) = json.loads(call(ROOT, "compare", *words).stdout)
    assert answer["sentences"] == ["Which mode? That is decided where it was measured: h200-1x, h100-2x."]


@pytest.mark.parametrize("left_out", MEASURED)
def test_its_interval_holds_what_was_measured(left_out):
    """Each committed instance, as if it had not been measured."""
    catalog = load()
    records = [kept.record for kept in results.read(ROOT / "results", MEASURED)]
    selected = [one for one in select(records, False) if one.latest.status == "ok"]
    others = [one for one in selected if one.latest.instance != left_out]

    def variant(one):
        what = one.latest.what
        return what.workload, what.mode_label, what.batch_size, one.latest.execution

    held = []
    for one in foreseen(others, [left_out], catalog):
        reach, step_s = 1 + one.elsewhere, one.latest.summary.step_time_s
        for each in selected:
            if each.latest.instance == left_out and variant(each) == variant(one):
                held.append(step_s / reach <= each.latest.summary.step_time_s <= step_s * reach)
    assert len(held) >= 4
    assert sum(held) >= 0.9 * len(held)

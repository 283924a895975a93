"""What a user asks to see, from words to rows: filtered, at their best batch, on the front, and grouped."""

import pytest
from pydantic import TypeAdapter
from report import comparing
from report.comparing import row

from fp8bench.kinds.kind import AS_IT_IS, Count, View
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.columns import arranged, holds, with_front


def ran(name, per_usd=None, per_s=100.0, **changes):
    """A row that is known by its run id."""
    known = {"units_per_usd": per_usd, "throughput_per_s": per_s, "step_time_s": 64 / per_s, "unit": "images"}
    return row(run_id=name, **known | changes)


def names(rows):
    return [one.run_id for one in rows]


def asked(job=None, **view):
    options = comparing.asked("p5", view=AS_IT_IS.model_copy(update={"job": job, **view}))
    return lambda *rows: arranged(Comparison(rows=rows), options).rows


def test_the_interval_of_a_job_is_that_of_its_step():
    known = {"step_time_s": 0.1, "step_time_ci_s": (0.09, 0.12), "usd_per_hour": 10.0}
    sure, alone = asked(job=3600e3)(ran("a", 1.0, 1000.0, **known), ran("b", 1.0, **known | {"step_time_ci_s": None}))

    assert (sure.job_hours, sure.job_usd) == pytest.approx((1.0, 10.0))
    assert (sure.job_hours_ci, sure.job_usd_ci) == (pytest.approx((0.9, 1.2)), pytest.approx((9.0, 12.0)))
    assert (alone.job_hours_ci, alone.job_usd_ci) == (None, None)


@pytest.mark.parametrize(
    ("held", "texts"),
    [
        (True, ("mode=te-fp8", "mode=te-fp8/compiled", "mode!=te-bf16", "Mode = te-fp8:delayed/compiled")),
        (True, ("gpus<=8", "gain>10", "step=348.7", "value>=1,000", "verdict=better value")),
        (False, ("mode=te-fp8/eager", "batch!=64", "gain<10", "memory>1", "memory!=1", "step>348.7", "value<1000")),
    ],
)
def test_a_filter_is_in_the_units_of_the_headings(held, texts):
    one = ran("a", 1000.0, step_time_s=0.3487, gain_vs_reference=0.249, verdict="better value")
    assert [holds(condition, one) for condition in View(filter=texts).conditions] == [held] * len(texts)


def test_filters_hold_together_and_ask_for_the_front_of_all_rows():
    rows = ran("a", 2.0, 100.0), ran("b", 1.0, 50.0), ran("c", 3.0, 90.0, mode="te-bf16")
    assert names(asked(filter=("pareto=yes",))(*rows)) == ["a", "c"]
    assert names(asked(filter=("pareto=no",))(*rows)) == ["b"]
    assert names(asked(filter=("pareto=yes", "mode=te-fp8"))(*rows)) == ["a"]


def test_the_best_batch_is_one_of_all_machines_of_an_instance_unless_machines_are_apart():
    rows = [
        ran("small", 5.0, machine="a"),
        ran("large", 7.0, batch_size=256, machine="b"),
        ran("too-large", status="failed", batch_size=512, machine=None),
        ran("eager", 3.0, execution="eager", machine="a"),
    ]
    assert names(asked(best_batch=True)(*rows)) == ["large", "eager"]
    assert names(asked(best_batch=True, group_by="machine")(*rows)) == ["small", "large", "too-large", "eager"]


def test_a_predicted_mode_has_one_best_batch_wherever_its_sizes_were_measured():
    one_gpu = ran("one-gpu", 7.0, joined="none", measured_on="h200-1x", batch_size=256, source="predicted")
    two_gpus = ran("two-gpus", 5.0, joined="ddp", measured_on="h200-2x", source="predicted")
    assert names(asked(best_batch=True)(one_gpu, two_gpus)) == ["one-gpu"]


def test_the_front_is_of_rows_with_a_price_that_count_the_same_on_the_same_device():
    rows = [
        ran("cheap", 9.0, per_s=1.0),
        ran("fast", 3.0, per_s=9.0),
        ran("neither", 2.0, per_s=8.0),
        ran("unpriced", per_s=99.0),
        ran("tokens", 1e6, per_s=1e6, unit="tokens"),
        ran("cpu", 99.0, per_s=99.0, device="cpu"),
    ]
    assert [one.pareto for one in with_front(rows)] == [True, True, False, None, True, True]


@pytest.mark.parametrize(
    ("texts", "units"), [("90M 90m 90,000,000 9e7", 9e7), ("1.5B 1.5G", 1.5e9), ("2T", 2e12), (".5k", 500.0)]
)
def test_a_job_is_a_number_of_units(texts, units):
    for text in (*texts.split(), texts.partition(" ")[0].replace("k", " k")):
        assert TypeAdapter(Count).validate_python(text) == pytest.approx(units)


def test_columns_are_named_once_each():
    assert View().columns == ()
    assert View(columns=("mode, step,mode",)).columns == ("mode", "step")

"""The table that answers: it fits 80 characters, and a row's name says what tells it from others."""

import re
from datetime import date
from pathlib import Path

import pytest
from report.made_rows import made_up_comparison, row

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run import shown as brief
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.marks import Mark, Weight
from fp8bench.kinds.run.shown import document
from fp8bench.kinds.view import AS_IT_IS, View
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.records.named import parse_reference
from fp8bench.records.select import Filter
from fp8bench.tables.render import render


def shown(*rows, form="plain", view=AS_IT_IS, **named):
    return render(document(Comparison(rows=rows, **named), view=view), form)


def judged(**changes):
    known = {
        "step_time_s": 0.3487,
        "step_time_ci_s": (0.3472, 0.3501),
        "throughput_per_s": 734.0,
        "unit": "images",
        "usd_per_hour": 3.99,
        "units_per_usd": 662_458.0,
        "units_per_usd_ci": (659_760.0, 665_178.0),
        "speedup_vs_reference": 1.25,
        "gain_vs_reference": 0.249,
        "verdict": "better value",
    }
    return row(**known | changes)


def cells(line):
    return re.split(r"\s{2,}", line.strip())


STEP, VALUE = "348.7 ms ±0.4 %", "662 k"
UNDECIDED = {"verdict": "inconclusive", "verdict_on": "units_per_usd", "verdict_why": "it is close"}
BY_SPEED = {"verdict": "faster", "verdict_on": "throughput", "gain_vs_reference": None, "units_per_usd": None}
STOPPED = dict.fromkeys(("step_time_s", "speedup_vs_reference", "units_per_usd", "gain_vs_reference", "verdict"))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"verdict_on": "units_per_usd"}, [STEP, "1.25x", VALUE, "+24.9 % *"]),
        ({"is_reference": True, "verdict": None}, [STEP, "1.25x", VALUE, "reference"]),
        (UNDECIDED, [STEP, "1.25x", VALUE, "+24.9 %"]),
        (BY_SPEED, [STEP, "1.25x *", "-", "-"]),
        ({"step_time_ci_s": (0.001, 90.0)}, ["348.7 ms ±>100 %", "1.25x", VALUE, "+24.9 %"]),
        ({"step_time_ci_s": None}, ["348.7 ms", "1.25x", VALUE, "+24.9 %"]),
        ({"status": "failed", "cause": "oom", "reason": "no memory", **STOPPED}, ["failed: oom", "-", "-", "-"]),
    ],
)
def test_it_answers_in_one_line_a_row(changes, wanted):
    found = judged(**changes)
    lines = shown(found).splitlines()
    value = "img/ USD" if found.units_per_usd else "images/ USD"
    assert cells(lines[0]) == ["mode", "step", "faster", value, "per USD"]
    assert cells(lines[2]) == ["te-fp8", *wanted]
    decided = found.verdict not in (None, "inconclusive")
    assert any(line.startswith("* certain: the whole interval on one side") for line in lines) == decided


@pytest.mark.parametrize("form", ["plain", "terminal"])
def test_no_line_of_it_is_wider_than_80_characters(form, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        judged(mode="torchao-float8", recipe="rowwise_with_gw_hp", execution="compiled+graphed", batch_size=512),
        judged(instance="custom-1x-nvidia-h200", execution="blocks+graphed", marks=("published", "a mark " * 9)),
        *made_up_comparison().rows,
    ]
    table = shown(*rows, form=form).partition(" certain")[0]
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80
    assert all(word in table for word in ("step", "faster", "per USD", "custom-1x-", "348.7 ms ±0.4 %"))


@pytest.mark.parametrize("folder", [one.name for one in Path(__file__).parents[2].joinpath("results").iterdir()])
def test_no_dash_stands_where_a_committed_row_has_a_figure(folder):
    shown_fields = {"faster": "speedup_vs_reference", "per USD": "gain_vs_reference", "step": "step_time_s"}
    for comparison in committed(folder):
        for column in brief.brief_columns(comparison.rows):
            field = shown_fields.get(column.heading, "units_per_usd" if "/ USD" in column.heading else None)
            for cell, one in zip(column.texts, comparison.rows, strict=True):
                assert field is None or cell != "-" or getattr(one, field) is None


def committed(folder):
    """A comparison of each workload of a committed folder."""
    root = Path(__file__).parents[2] / "results"
    names = ("p4d", "p5") if folder == "published" else (folder,)
    records = [kept.record for kept in results.read([root], names)]
    for workload in {record.what.workload for record in records}:
        asked = CompareOptions(
            names, date(2026, 11, 24), parse_reference(None, list(names)), wanted=Filter(workload=workload)
        )
        yield compare(records, load(), asked)


def test_executions_are_named_where_a_mode_has_several_by_what_tells_them_apart():
    def names(*executions):
        text = shown(*(judged(execution=one, mode="baseline-bf16", recipe=None) for one in executions))
        return [cells(line)[0] for line in text.splitlines()[2 : 2 + len(executions)]]

    assert names("compiled+graphed") == ["baseline-bf16"]
    assert names("compiled+graphed", "eager") == ["baseline-bf16, compiled", "baseline-bf16, eager"]
    assert names("compiled+graphed", "compiled", "eager") == [
        *("baseline-bf16, CUDA graph", "baseline-bf16, compiled", "baseline-bf16, eager")
    ]
    assert names("graphed", None) == ["baseline-bf16", "baseline-bf16"]


def test_options_in_which_rows_differ_are_part_of_the_name():
    text = shown(judged(te_switches="split-qkv"), judged(grad_accumulation=4), judged(grad_accumulation=1))
    assert "te-fp8+split-qkv" in text
    assert "te-fp8, 4 micro-batches" in text
    assert "te-fp8, published" in shown(judged(source="published"), judged())
    assert "published" not in shown(judged(source="published"), judged(source="published"))


def test_sizes_have_a_column_where_they_differ():
    def sizes(*rows):
        lines = shown(*rows).splitlines()
        return [cells(line)[1] for line in (lines[0], *lines[2 : 2 + len(rows)])]

    assert sizes(judged(), judged()) == ["step", *["348.7 ms ±0.4 %"] * 2]
    assert sizes(judged(), judged(batch_size=256)) == ["batch", "64", "256"]
    assert sizes(judged(), judged(world_size=4)) == ["GPUs", "8", "4"]
    assert sizes(judged(), judged(world_size=4, batch_size=256)) == ["batch", "64 x 8", "256 x 4"]


class TestNotes:
    def test_what_would_change_a_decision_comes_first_and_three_at_most(self):
        marks = (
            *("power-capped 98 % of the time", "machine a"),
            Mark("busy GPU", Weight.DOUBT),
            Mark("not comparable with the reference: machine", Weight.NOT_COMPARED),
        )
        refused = row(status="invalid", reason="the gradient at the input is 0", mode="te-bf16", recipe=None)
        lines = shown(judged(marks=marks), refused).splitlines()[4:]
        assert lines == [
            "* certain: the whole interval on one side, and 4 % more between machines",
            "Which mode? Not decided: there is no other row to compare it with.",
            "te-bf16: the gradient at the input is 0",
            "te-fp8: not comparable with the reference: machine",
            "te-fp8: busy GPU",
            "2 more notes: --notes",
        ]
        every = shown(judged(marks=marks), refused, view=View(notes=True))
        assert "te-fp8: power-capped 98 % of the time" in every
        assert "more note" not in every

    def test_a_note_names_its_rows(self):
        capped = ("power-capped 98 % of the time",)
        text = shown(judged(marks=capped), judged(marks=capped, batch_size=128))
        assert "Every row: power-capped 98 % of the time" in text
        text = shown(judged(marks=capped), judged(batch_size=128), judged(marks=capped, instance="p4d"))
        assert "te-fp8 p5 64 and te-fp8 p4d 64: power-capped 98 % of the time" in text
        many = [judged(marks=capped, batch_size=size) for size in (1, 2, 4)]
        assert "3 rows: power-capped" in shown(*many, judged())


def test_a_job_has_hours_and_usd_instead_of_steps():
    job = {
        "job_units": 9e7,
        "job_hours": 34.05,
        "job_hours_ci": (33.91, 34.19),
        "job_usd": 135.9,
        "job_usd_ci": (135.3, 136.4),
    }
    text = shown(judged(**job))
    assert re.search(r"34\.0 \(33\.9-34\.2\) +136 \(135-136\) +1\.25x", text)
    assert "step" not in text.splitlines()[0]
    assert "training steps alone" in text


def test_every_field_is_in_csv_and_json_whatever_is_shown():
    narrow = View(columns=("mode",))
    assert shown(judged(), form="json", view=narrow) == shown(judged(), form="json")
    assert shown(judged(), form="csv", view=narrow) == shown(judged(), form="csv")

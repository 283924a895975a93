"""The table that answers: it fits 120 characters, says what differs, and says once what all rows have."""

import re

import pytest
from report.made_rows import made_up_comparison, row

from fp8bench.kinds.run.document import document
from fp8bench.kinds.run.row import Comparison
from fp8bench.kinds.view import AS_IT_IS, View
from fp8bench.report.render import render


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


def test_it_answers_in_one_line_a_row():
    lines = shown(judged(pareto=True)).splitlines()

    assert re.split(r"\s{2,}", lines[0].strip()) == [
        *("mode", "instance", "step, ms (95 %)", "speed-up", "k images/USD (95 %)", "gain", "verdict", "notes")
    ]
    assert re.split(r"\s{2,}", lines[2].strip()) == [
        *("te-fp8:delayed/compiled", "p5", "348.7 (347.2-350.1)", "1.25x", "662 (660-665)"),
        *("+24.9 %", "better value", "Pareto"),
    ]


def test_the_reference_says_that_it_is_one_and_has_no_gain():
    assert re.search(r" -  reference", shown(judged(is_reference=True, gain_vs_reference=0.0, verdict=None)))


@pytest.mark.parametrize("form", ["plain", "terminal"])
def test_no_line_of_it_is_wider_than_120_characters(form, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rows = [
        judged(mode="torchao-float8", recipe="rowwise_with_gw_hp", execution="compiled+graphed", batch_size=512),
        judged(instance="an-instance-of-a-long-name", execution="blocks+graphed", marks=("published", "a mark " * 9)),
        *made_up_comparison().rows,
    ]
    table = shown(*rows, form=form).partition("Cheapest")[0].split("\n[a]")[0]

    assert max(len(line.rstrip()) for line in table.splitlines()) <= 120
    assert all(word in table for word in ("step,", "speed-up", "notes", "an-instance-of-a-long-name"))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_never_divides_it_and_names_what_has_no_room(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = shown(*made_up_comparison().rows, form="terminal")

    assert len(re.findall(r"^ *mode\b", text, re.MULTILINE)) == 1
    assert max(map(len, text.splitlines())) <= width
    assert ("No room for: step, ms (95 %), speed-up." in " ".join(text.split())) == (width == 80)


def test_a_default_recipe_is_named_where_there_is_room():
    few, many = judged(), judged(mode="torchao-float8", recipe="tensorwise", execution="compiled+graphed")

    assert "te-fp8:delayed/compiled" in shown(few)
    assert {"te-fp8/compiled", "torchao-float8/compiled+graphed"} <= set(shown(few, many).split())
    assert "te-fp8:current/compiled" in shown(judged(recipe="current"), many)


def test_sizes_have_a_column_where_they_differ():
    def sizes(*rows):
        return [line.split()[2:5] for line in shown(*rows).splitlines() if line.startswith(("mode", "te-fp8"))]

    assert sizes(judged(), judged()) == [["step,", "ms", "(95"], *[["348.7", "(347.2-350.1)", "1.25x"]] * 2]
    assert [line[0] for line in sizes(judged(), judged(batch_size=256))] == ["batch", "64", "256"]
    assert [line[0] for line in sizes(judged(), judged(world_size=4))] == ["GPUs", "8", "4"]
    assert sizes(judged(), judged(world_size=4, batch_size=256))[1:] == [["64", "x", "8"], ["256", "x", "4"]]


def test_a_mark_of_every_measured_row_is_said_once():
    capped = ("power-capped 98 % of the time",)
    text = shown(judged(marks=capped), judged(marks=(*capped, "host-bound (idle 50 %)")), judged(source="published"))

    assert "Every measured row: power-capped 98 % of the time." in text
    assert text.count("power-capped") == 1
    assert "[a] host-bound (idle 50 %)" in text


def test_letters_are_in_order():
    marks = ("mark number one", "mark number two", "mark number three")
    text = shown(judged(marks=marks[:2]), judged(marks=(marks[2], marks[1])), judged())
    assert re.findall(r"\[\w \w\]", text) == ["[a b]", "[b c]"]


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
    assert "step, ms" not in text
    assert "training steps alone" in text


def test_named_columns_stand_in_the_order_named():
    text = shown(judged(peak_memory_bytes=2**33), view=View(columns=("memory", "mode", "pareto", "notes")))

    assert text.splitlines()[0].split() == ["peak", "GiB", "mode", "Pareto", "front", "notes"]
    assert text.splitlines()[2].split() == ["8.0", "te-fp8:delayed", "-"]


def test_groups_have_a_heading_each_and_share_letters():
    one = Comparison(rows=(judged(marks=("a long mark of two groups",)),), name="same batch: 64")
    two = Comparison(rows=(judged(marks=("a long mark of two groups",)),), name="same batch: 256")
    text = render(document(one, two), "plain")

    assert re.findall(r"^same batch: \d+$", text, re.MULTILINE) == ["same batch: 64", "same batch: 256"]
    assert text.count("[a] a long mark of two groups") == 1


def test_every_field_is_in_csv_and_json_whatever_is_shown():
    narrow = View(columns=("mode",))
    assert shown(judged(), form="json", view=narrow) == shown(judged(), form="json")
    assert shown(judged(), form="csv", view=narrow) == shown(judged(), form="csv")
    assert '"units_per_usd_ci": [\n      659760.0,' in shown(judged(), form="json")


def test_rows_that_differ_in_micro_batches_have_a_column_of_them():
    divided = judged(grad_accumulation=4, units_per_usd=7e5, throughput_per_s=1e4, pareto=True)
    text = shown(judged(grad_accumulation=1, pareto=False), divided, row(mode="te-bf16", source="published"))
    assert re.search(r"mode +micro-batches +step", text)
    assert "micro-batches" not in shown(row(grad_accumulation=1), judged(grad_accumulation=1))
    assert shown(row(grad_accumulation=4), view=View(columns=("mode", "micro-batches"))).splitlines()[2].endswith(" 4")

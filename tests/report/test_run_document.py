"""A comparison with every column in every format; test_brief_table.py has the short one.

REGENERATE_GOLDEN=1 writes the files in golden/ anew; only then, and for a change of looks that is meant.
"""

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
from report.made_rows import made_up_comparison, row

from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.shown import document
from fp8bench.kinds.run.shown import wide_columns as columns
from fp8bench.kinds.view import View
from fp8bench.stats.certainty import unseen_share
from fp8bench.tables.render import csv_cell, markdown, render
from fp8bench.tables.written import change, change_low_to_high, low_to_high

GOLDEN = Path(__file__).parent / "golden"
REGENERATE = os.environ.get("REGENERATE_GOLDEN") == "1"
WIDE = View(wide=True)
NUMBER = re.compile(r"-?\b\d+\.\d+(?:e-?\d+)?\b")


def text_in(form: str, comparison: Comparison) -> str:
    return render(document(comparison, view=WIDE), form)


def plain_lines(*rows: Row) -> list[str]:
    return text_in("plain", Comparison(rows=rows)).splitlines()


@pytest.mark.parametrize(
    ("name", "form"), [("comparison.md", "markdown"), ("comparison.txt", "plain"), ("comparison.csv", "csv")]
)
def test_the_text_is_that_of_the_golden_file(name: str, form: str):
    text = text_in(form, made_up_comparison()) + "\n"
    if REGENERATE:
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(text, encoding="utf-8")
    golden = (GOLDEN / name).read_text(encoding="utf-8")
    assert NUMBER.sub("#", text) == NUMBER.sub("#", golden)
    # Another CPU adds in another order, so that the last digits of an interval may differ.
    assert list(map(float, NUMBER.findall(text))) == pytest.approx(list(map(float, NUMBER.findall(golden))), rel=1e-9)


def test_json_has_every_field_of_the_csv_with_its_value():
    heading, *lines = csv.reader(io.StringIO(text_in("csv", made_up_comparison())))
    rows = json.loads(text_in("json", made_up_comparison()))
    assert [list(one) for one in rows] == [heading] * len(lines)
    cells = [[csv_cell(value) for value in one.values()] for one in rows]
    assert [["" if cell is None else str(cell) for cell in line] for line in cells] == lines
    assert {type(value) for one in rows for value in one.values()} == {str, int, float, bool, list, dict, type(None)}


@pytest.mark.parametrize(
    ("rows", "heading"),
    [
        ([{"unit": "tokens"}], "tokens/USD"),
        ([{"unit": "images"}, {"unit": "tokens"}], "units/USD"),
        ([{"joules_per_unit": 1.53, "unit": "images"}, {}], "J/image"),
        *(
            ([{"workload": name, "status": "failed", "unit": None} for name in names], heading)
            for names, heading in (
                (("llm-micro",), "tokens/USD"),
                (("vit-huge", "timm:resnet50"), "images/USD"),
                (("vit-huge", "llm-1b"), "units/USD"),
                (("of-a-plug-in",), "units/USD"),
            )
        ),
    ],
)
def test_headings_name_the_unit_of_the_rows_or_else_of_the_workload(rows, heading):
    assert heading in plain_lines(*(row(**changes) for changes in rows))[0]


RATES = [(0.01234, "0.0123"), (3.14159, "3.14"), (25.0, "25"), (99.44, "99.4"), (100.4, "100"), (12_345.6, "12,346")]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        *(({name: value}, text) for value, text in RATES for name in ("throughput_per_s", "units_per_usd")),
        ({"usd_per_hour": 40.0}, "undated"),
        (
            {"marks": tuple(f"a mark of its own {n}" for n in range(4))},
            "a mark of its own 0, a mark of its own 1 [a] [b]",
        ),
        ({"marks": ("external", "undated price", "a" * 25)}, "external, undated price [a]"),
    ],
)
def test_a_cell(changes, text):
    assert text in re.split(r"\s{2,}", plain_lines(row(**changes))[2])


def test_what_is_unknown_is_a_dash_and_a_silent_column_is_left_out():
    heading, _, line, *_ = plain_lines(row(compile=None, execution=None, attention=None))

    assert line.split() == ["p5", "te-fp8:delayed", "64", "x", "8", "1", *["-"] * 10]
    assert "J/" not in heading


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ((3, 3), "With 3 processes a row, a state that fewer than 63 % of processes have"),
        ((1,), "With 1 process a row, a state that fewer than 95 % of processes have"),
    ],
)
def test_what_so_few_processes_cannot_show_is_said_in_one_line(rounds, words):
    rows = [row(rounds=count, unseen_share=unseen_share(count)) for count in rounds]
    *_, last = plain_lines(*rows, row(status="failed", reason="it broke"))
    assert last.startswith(words)
    assert "--rounds" in last


@pytest.mark.parametrize("width", [80, 120, 160, 240])
def test_the_terminal_table_shows_every_instance_mode_and_footnote(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    comparison = made_up_comparison()
    print(text_in("terminal", comparison))
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines()) <= width
    for one in comparison.rows:
        assert any(one.instance in line and one.mode_label in line for line in printed.splitlines()), one.mode_label
    assert all(column.heading in printed for column in columns(comparison.rows))
    assert "[a] " in printed
    assert "fp8 needs compute capability 8.9" in printed


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", "a\\|b"),
        ("a\\|b", "a\\\\\\|b"),
        ("<b>", "&lt;b>"),
        ("[x](y)", "[x]\\(y)"),
        ("invalid [a], 3 % (standard deviation)", "invalid [a], 3 % (standard deviation)"),
    ],
)
def test_what_markdown_would_read_is_written_out(text, written):
    assert markdown(text) == written


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "\n=1", "\uff1d1"])
def test_a_text_that_a_spreadsheet_would_compute_begins_with_a_quote(text):
    assert csv_cell(text).startswith("'")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-0.5, -0.5),
        (None, None),
        (True, True),
        ("te-fp8", "te-fp8"),
        ((-0.05, -0.03), "-0.05; -0.03"),
        (["=a", "b"], "'=a; b"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_numbers_and_other_texts_are_left_as_they_are(value, written):
    assert csv_cell(value) == written


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((1.0, 2.0), "1.00-2.00"),
        ((0.004, 0.2), "at most 0.20"),
        ((0.0, 2.0), "at most 2.00"),
        ((1e-6, 2.0), "not bounded"),
        ((-0.07, -0.05), "-0.07 to -0.05"),
        ((-0.07, 0.02), "-0.07 to 0.02"),
    ],
)
def test_ends_that_tell_nothing_are_no_ends_but_a_difference_below_0_keeps_both(ends, text):
    assert low_to_high(*ends, "{:.2f}".format) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [((0.2, 0.3), "+20.0 to +30.0"), ((-0.9999, 0.01), "not bounded"), ((-1.0, 0.3), "at most +30.0")],
)
def test_nobody_is_told_of_a_gain_that_few_processes_cannot_bound(ends, text):
    assert change_low_to_high(*ends) == text


def test_a_change_that_reads_as_none_has_no_minus():
    assert change(-0.0002, (-0.0004, 0.012)) == "+0.0 % (+0.0 to +1.2)"
    assert change(-0.0006, None) == "-0.1 %"

"""What a record says does nothing to whoever prints it: a terminal, a pipe, a markdown table, a spreadsheet."""

import csv
import io
import re

import pytest
from report.made_rows import row
from report.test_run_document import text_in

from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.tables import render
from fp8bench.tables.render import csv_cell, markdown

EVIL = "\x1b[2J|=cmd()\u202e<img src=x>![p](http://x)\nsecond"


def of_evil_fields() -> Comparison:
    fields = {"instance": EVIL, "mode": EVIL, "recipe": EVIL, "attention": EVIL, "unit": f"images{EVIL}"}
    noted = {"marks": (EVIL, EVIL * 2), "verdict": "inconclusive", "verdict_why": EVIL}
    rows: tuple[Row, ...] = (row(**fields, **noted), row(status="failed", reason=EVIL))
    return Comparison(rows=rows, warnings=(EVIL,))


def controls(text: str) -> set[str]:
    return set(re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text))


@pytest.mark.parametrize("form", [render.PIPE, *(form for form in render.FORMATS if form != "json")])
def test_no_text_of_a_record_controls_what_prints_it(form):
    text = text_in(form, of_evil_fields())
    assert "\x1b[2J" in EVIL
    assert not controls(text)
    assert "\\x1b[2J" in text.replace("\\\\", "\\")


def test_a_terminal_gets_none_either(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print(text_in("terminal", of_evil_fields()))
    assert not controls(capsys.readouterr().out)


def test_every_line_of_a_markdown_table_has_as_many_cells_as_its_heading():
    table, *notes = text_in("markdown", of_evil_fields()).split("\n\n")
    cells = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table.splitlines()]
    assert len(cells) == 4
    assert len(set(cells)) == 1
    assert not any("<img" in part or "](http" in part for part in (table, *notes))
    assert all("\n" not in note for note in notes)


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


def test_a_csv_of_evil_fields_reads_back_as_one_line_a_row():
    lines = list(csv.DictReader(io.StringIO(text_in("csv", of_evil_fields()))))
    assert len(lines) == 2
    assert {len(line) for line in lines} == {sum(not field.exclude for field in Row.model_fields.values())}

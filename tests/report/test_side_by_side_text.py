"""How a table of records side by side is written: headings, names that are not repeated, and what a terminal gets."""

import pytest
from rich.console import Console

from fp8bench.report.side_by_side import Difference
from fp8bench.report.side_by_side_text import NAMELESS, Column, Table, print_table, said_by, to_text, told

ROWS = [("fc1", "bf16", "1.0"), ("fc1", "fp8", "0.5"), ("fc2", "fp8", "0.7")]
COLUMNS = [
    Column("layer", lambda row: row[0], numeric=False),
    Column("precision", lambda row: row[1], numeric=False),
    Column("time", lambda row: row[2], "p5 2026-05-01 10:00"),
]
TABLE = Table(COLUMNS, ROWS, naming=2, sections=1)


def printed(capsys, table, width):
    print_table(table, Console(width=width))
    return [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_label_stands_over_its_quantity_in_short_lines():
    lines = to_text(TABLE, "simple").splitlines()
    assert [line.split() for line in lines[:4]] == [["p5"], ["2026-05-01"], ["10:00"], ["layer", "precision", "time"]]


def test_markdown_has_its_headings_in_one_line():
    heading, rule, *_ = to_text(TABLE, "github").splitlines()
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [
        *("layer", "precision", "p5 2026-05-01 10:00: time")
    ]
    assert set(rule) == {"|", "-"}


def test_a_name_is_not_repeated_but_the_last_one_always_stands():
    cells = [line.split() for line in to_text(TABLE, "simple").splitlines()[5:]]
    assert cells == [["fc1", "bf16", "1.0"], ["fp8", "0.5"], ["fc2", "fp8", "0.7"]]
    alike = Table(COLUMNS, [ROWS[0], ROWS[0]], naming=2)
    assert [line.split() for line in to_text(alike, "simple").splitlines()[5:]] == [
        ["fc1", "bf16", "1.0"],
        ["bf16", "1.0"],
    ]


def test_an_equal_name_under_another_one_is_repeated():
    columns = [*COLUMNS[:2], Column("casts", lambda row: "free", numeric=False), COLUMNS[2]]
    rows = [("fc1", "fp8", "1"), ("fc2", "fp8", "2")]
    cells = [line.split() for line in to_text(Table(columns, rows, naming=3), "simple").splitlines()[5:]]
    assert cells == [["fc1", "fp8", "free", "1"], ["fc2", "fp8", "free", "2"]]


def test_a_wide_terminal_has_one_table_and_a_narrow_one_a_table_a_section(capsys):
    whole = printed(capsys, TABLE, 80)
    assert [line.split() for line in whole[-3:]] == [["fc1", "bf16", "1.0"], ["fp8", "0.5"], ["fc2", "fp8", "0.7"]]
    apart = printed(capsys, TABLE, 30)
    assert [line for line in apart if line.startswith("fc")] == ["fc1", "fc2"]
    assert [line.split() for line in apart if line.startswith(("bf16", "fp8"))] == [
        *(["bf16", "1.0"], ["fp8", "0.5"], ["fp8", "0.7"])
    ]


def test_a_section_of_rows_without_a_name_says_what_it_is(capsys):
    columns = [*COLUMNS, Column("more", lambda row: "x" * 20)]
    lines = printed(capsys, Table(columns, [ROWS[0], ("-", "fp8", "-")], naming=2, sections=1), 40)
    assert NAMELESS in lines


def test_without_sections_a_narrow_terminal_splits_the_columns(capsys):
    columns = [*COLUMNS, *(Column(name, lambda row: "x" * 20) for name in ("one", "two"))]
    lines = printed(capsys, Table(columns, ROWS[:1], naming=2), 60)
    assert sum("precision" in line for line in lines) == 2
    assert all(any(name in line for line in lines) for name in ("time", "one", "two"))


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_colour_is_a_cells_own_and_only_where_colours_are_wanted(capsys, monkeypatch, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    columns = [*COLUMNS, Column("ratio", lambda row: "2.00x", colour=lambda row: "green" if row[0] == "fc2" else "")]
    print_table(Table(columns, ROWS, naming=2), Console(width=80, force_terminal=True, color_system="standard"))
    lines = capsys.readouterr().out.splitlines()
    assert ["\x1b[32m" in line for line in lines if "2.00x" in line] == [False, False, coloured]


def test_what_differs_is_one_line_record_by_record():
    found = (Difference("", ("NVIDIA H200", "NVIDIA H100")), Difference("torchao", ("0.18", None)))
    assert told(found, ("p5en", "p5")) == ["p5en: NVIDIA H200, torchao 0.18; p5: NVIDIA H100, torchao -."]
    assert told((), ("p5en", "p5")) == []


def test_a_sentence_that_several_say_is_said_once():
    said = said_by(("a", "b", "c"), [["One.", "Two.", "Three."], ["One.", "Two."], ["One.", "Four."]])
    assert said == ["One.", "a, b: Two.", "a: Three.", "c: Four."]

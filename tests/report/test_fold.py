"""A table that is never divided fits its width: cells and headings are folded, then spare columns omitted."""

import pytest

from fp8bench.report.document import Column, Document, Table
from fp8bench.report.render import render
from fp8bench.report.render.fold import folded

MODE = Column("mode", ("torchao-float8/compiled", "te-fp8/eager"), "word")
STEP = Column("step, ms (95 %)", ("349 (347-350)", "-"), "interval", spare=True)
NOTES = Column("notes", ("published Pareto [a b]", ""), "note")
TABLE = Table((MODE, STEP, NOTES), whole=True)


def cells(table):
    return [column.cells[0] for column in table.columns]


def test_what_fits_is_left_as_it_is():
    fitted = folded(TABLE, 23 + 15 + 23 + 4, 2)
    assert (fitted.table, fitted.omitted) == (TABLE, ())


@pytest.mark.parametrize("width", range(35, 64))
def test_what_does_not_is_no_wider_than_asked(width):
    table = folded(TABLE, width, 2).table
    lines = [max(len(line) for text in (c.heading, *c.cells) for line in text.split("\n")) for c in table.columns]
    assert sum(lines) + 2 * (len(lines) - 1) <= width


def test_cells_break_at_spaces_and_after_a_slash_and_within_no_brackets():
    narrow = folded(TABLE, 44, 2)
    assert cells(narrow.table) == ["torchao-float8/\ncompiled", "349 (347-350)", "published\nPareto [a\nb]"]
    assert narrow.omitted == ()


def test_nothing_is_lost_by_folding():
    table = folded(TABLE, 44, 2).table
    for before, after in zip(TABLE.columns, table.columns, strict=True):
        assert [cell.replace("\n", "").replace(" ", "") for cell in after.cells] == [
            cell.replace(" ", "") for cell in before.cells
        ]


def test_a_spare_column_goes_where_there_is_no_room_and_is_named():
    narrow = folded(TABLE, 30, 2)
    assert [column.heading for column in narrow.table.columns] == ["mode", "notes"]
    assert narrow.omitted == ("step, ms (95 %)",)


def test_a_width_that_holds_no_word_still_gives_a_table():
    assert len(folded(TABLE, 5, 2).table.columns) == 2


def test_a_pipe_shows_headings_above_their_rule_and_lines_below_each_other():
    long = Column("a heading of words", ("word " * 24, "y"), "word")
    shown = render(Document((((Table((long, MODE, NOTES), whole=True)),),)), "plain").splitlines()
    assert max(map(len, (line.rstrip() for line in shown))) <= 120
    rule = next(place for place, line in enumerate(shown) if line.startswith("---"))
    assert shown[rule - 1].split() == ["a", "heading", "of", "words", "mode", "notes"]


def test_what_comes_from_a_record_is_inert_there_too():
    evil = Column("mode", ("\x1b[2Jx\ny",), "word")
    for form in ("plain", "terminal"):
        assert "\x1b[2J" not in render(Document(((Table((evil,), whole=True),),)), form)

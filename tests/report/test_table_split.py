"""A table too wide for the terminal is split into several, each naming its rows."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.report.document import Column
from fp8bench.report.render.terminal import PADDING, fits, split


def column(name, characters):
    """Of that width, without rows."""
    return Column(name.ljust(characters, "."), ())


def width_of(table):
    return sum(PADDING + len(one.heading) for one in table)


NAME = column("name", 7)
A, B, C = (column(name, 7) for name in "abc")
WHOLE = [NAME, A, B, C]


def test_what_fits_is_one_table():
    assert split(WHOLE, 1, 40) == [WHOLE]


@pytest.mark.parametrize(
    ("width", "tables"),
    [
        (39, [[NAME, A, B], [NAME, C]]),
        (30, [[NAME, A, B], [NAME, C]]),
        (29, [[NAME, A], [NAME, B], [NAME, C]]),
        (20, [[NAME, A], [NAME, B], [NAME, C]]),
    ],
)
def test_what_does_not_is_several_that_each_begin_with_the_naming_columns(width, tables):
    assert split(WHOLE, 1, width) == tables


def test_a_column_wider_than_the_terminal_still_has_a_table():
    wide = column("wide", 100)
    assert split([NAME, A, wide, B], 1, 40) == [[NAME, A], [NAME, wide], [NAME, B]]


def test_several_tables_are_numbered_and_one_is_not():
    number = column("#", 1)
    assert split(WHOLE, 1, 40, number) == [WHOLE]
    assert split(WHOLE, 1, 39, number) == [[number, NAME, A, B], [number, NAME, C]]
    assert split(WHOLE, 1, 33, number) == [[number, NAME, A], [number, NAME, B], [number, NAME, C]]


def test_the_widest_cell_counts_be_it_the_headings_or_a_rows():
    wide, narrow = Column("n", ("xx", "x" * 7)), Column("n", ("xx", "x"))
    assert split([wide, A], 1, 20) == [[wide, A]]
    assert split([wide, A, B], 1, 29) == [[wide, A], [wide, B]]
    assert split([narrow, A, B], 1, 29) == [[narrow, A, B]]


def test_a_heading_of_several_lines_is_as_wide_as_its_widest():
    folded = Column("ten letter\ntwo", ())
    assert fits([NAME, folded], 23)
    assert not fits([NAME, folded], 22)


@given(st.lists(st.integers(1, 30), min_size=3, max_size=12), st.integers(1, 200), st.integers(0, 2), st.booleans())
def test_each_column_is_shown_once_in_order_and_in_as_few_tables_as_fit(sizes, width, naming, numbered):
    whole = [column(str(place), size) for place, size in enumerate(sizes)]
    number = column("#", 1) if numbered else None
    tables = split(whole, naming, width, number)

    if width_of(whole) <= width:
        assert tables == [whole]
        return
    names = [*([number] if number else []), *whole[:naming]]
    assert all(table[: len(names)] == names for table in tables)
    assert [one for table in tables for one in table[len(names) :]] == whole[naming:]
    assert all(width_of(table) <= width or len(table) == len(names) + 1 for table in tables)
    for table, following in pairwise(tables):
        assert width_of([*table, following[len(names)]]) > width

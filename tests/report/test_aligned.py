"""Tables as text are those of tabulate, which takes too long to import for a program that answers in a moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabulate import tabulate

from fp8bench.report.render.aligned import aligned

WORDS = st.text("abc 1.-|", max_size=8)


@st.composite
def tables(draw):
    """Rows with a cell in each column, which way each is aligned, and headings of as many lines."""
    width = draw(st.integers(1, 4))
    # tabulate omits a last row of nothing.
    row = st.lists(WORDS, min_size=width, max_size=width).filter(lambda cells: any(map(str.strip, cells)))
    rows = draw(st.lists(row, min_size=1, max_size=4))
    height = draw(st.integers(1, 3))
    lines = st.lists(st.text("xyz", min_size=1, max_size=6), min_size=height, max_size=height)
    headings = [draw(lines.map("\n".join)) for _ in range(width)]
    return rows, draw(st.lists(st.booleans(), min_size=width, max_size=width)), headings


def tabulated(rows, right, form, headings=()):
    align = ["right" if ends else "left" for ends in right]
    return tabulate(rows, headers=headings, tablefmt=form, colalign=align, disable_numparse=True)


@pytest.mark.slow
@given(tables())
def test_headings_stand_over_a_line(table):
    rows, right, headings = table

    assert aligned(rows, right, "simple", headings) == tabulated(rows, right, "simple", headings)


@pytest.mark.slow
@given(tables())
def test_rows_stand_by_themselves(table):
    rows, right, _ = table

    assert aligned(rows, right, "plain") == tabulated(rows, right, "plain")


@pytest.mark.slow
@given(tables())
def test_markdown_has_a_line_a_row(table):
    rows, right, headings = table
    flat = [heading.replace("\n", "") for heading in headings]

    assert aligned(rows, right, "github", flat) == tabulated(rows, right, "github", flat)


@pytest.mark.parametrize("form", ["simple", "github"])
def test_without_rows_the_headings_stay(form):
    lines = aligned([], [False, True], form, ["mode", "step"]).splitlines()

    assert len(lines) == 2
    assert "mode" in lines[0]
    assert set(lines[1]) <= set("-| ")

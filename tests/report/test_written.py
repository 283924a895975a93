"""Intervals as a reader sees them: none has an end that no time can have."""

import pytest
from report.made_rows import row
from report.test_run_document import plain_lines

from fp8bench.tables.written import change, change_low_to_high, low_to_high, with_interval


@pytest.mark.parametrize(
    ("low", "text"),
    [(1.0, "1.0-2.0"), (0.04, "at most 2.0"), (0.0, "at most 2.0"), (1e-6, "not bounded")],
)
def test_ends_that_tell_nothing_are_no_ends(low, text):
    assert low_to_high(low, 2.0, "{:.1f}".format) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [((-0.07, -0.05), "-0.07 to -0.05"), ((-0.07, 0.02), "-0.07 to 0.02"), ((0.0, 0.02), "at most 0.02")],
)
def test_a_difference_below_0_keeps_both_ends(ends, text):
    assert low_to_high(*ends, "{:.2f}".format) == text


def test_a_step_and_a_product_show_none():
    (line,) = plain_lines(row(step_time_s=0.2, step_time_ci_s=(0.0, 0.6906)))[2:3]
    assert "200.0 (at most 690.6)" in line
    assert with_interval(1e-4, (0.0, 3e-4), ",.1f", 1e6) == "100.0 (at most 300.0)"


@pytest.mark.parametrize(
    ("ends", "text"),
    [((0.2, 0.3), "+20.0 to +30.0"), ((-0.9999, 0.01), "not bounded"), ((-1.0, 0.3), "at most +30.0")],
)
def test_nobody_is_told_of_a_gain_that_few_processes_cannot_bound(ends, text):
    assert change_low_to_high(*ends) == text


def test_a_change_that_reads_as_none_has_no_minus():
    assert change(-0.0002, (-0.0004, 0.012)) == "+0.0 % (+0.0 to +1.2)"
    assert change(-0.0006, None) == "-0.1 %"

"""Intervals as a reader sees them: none has an end that no time can have."""

import pytest
from report.test_tables import plain_lines, row

from fp8bench.report.bounds import bounds
from fp8bench.report.gemm_text import time_text


@pytest.mark.parametrize(("low", "text"), [(1.0, "1.0-2.0"), (0.04, "0.0-2.0"), (0.0, "at most 2.0")])
def test_a_lower_end_of_nothing_is_no_end(low, text):
    assert bounds(low, 2.0, "{:.1f}".format) == text


def test_a_step_and_a_product_show_none():
    (line,) = plain_lines(row(step_time_s=0.2, step_time_ci_s=(0.0, 0.6906)))[2:3]

    assert "200.0 (at most 690.6)" in line
    assert time_text(1e-4, (0.0, 3e-4)) == "100.0 (at most 300.0)"

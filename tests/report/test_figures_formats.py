"""Formats as number lines: what is drawn, and that it is drawn alike."""

import errno
import math
import os
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fp8bench.numerics.definitions import DEFINITIONS, reach
from fp8bench.report.number_lines import CAST, CHARACTER, LEVELS, NORMAL, SUBNORMAL, levels, number_lines, panels
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.formats import Format, FormatReport, Rounded

pytestmark = pytest.mark.slow

USUAL = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2")
E4M3, E2M1, E8M0 = "float8_e4m3fn", "float4_e2m1fn_x2", "float8_e8m0fnu"


def reaches(*names):
    return [reach(DEFINITIONS[name]) for name in names]


def report(*casts, names=USUAL):
    return FormatReport(tuple(Format(one, None) for one in reaches(*names)), "2.15.0", "cpu", casts)


CASTS = (
    Rounded(2.07, E4M3, 2.0, 0.07, 0.03, "torch"),
    Rounded(-0.78, E4M3, -0.75, 0.03, 0.04, "torch"),
    Rounded(math.inf, E4M3, 448.0, math.inf, math.nan, "torch"),
    Rounded(-0.0, E4M3, -0.0, 0.0, 0.0, "torch"),
    Rounded(1e300, E2M1, None, None, None, None),
)


def texts(path):
    """What an SVG says, in order."""
    return [node.text for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def lines(path, colour):
    """How many vertical ticks of a colour an SVG has: a tick is a path of two points."""
    return len(
        re.findall(rf'<path d="M [\d.]+ [\d.]+ \s*L [\d.]+ [\d.]+ \s*"[^>]*stroke: {colour.lower()}', path.read_text())
    )


def test_every_value_of_a_small_format_is_a_tick(tmp_path):
    number_lines(report(names=(E4M3,)), tmp_path / "one.svg")
    assert (lines(tmp_path / "one.svg", NORMAL), lines(tmp_path / "one.svg", SUBNORMAL)) == (119, 7)
    number_lines(report(names=(E2M1,)), tmp_path / "one.svg")
    assert (lines(tmp_path / "one.svg", NORMAL), lines(tmp_path / "one.svg", SUBNORMAL)) == (6, 1)


def test_all_formats_are_in_the_reach_and_the_small_ones_in_the_close_up():
    wide, close_up = panels(reaches(*USUAL))
    assert [one.name for one in wide.rows] == list(USUAL)
    assert (wide.every_value, close_up.every_value) == (False, True)
    assert [one.name for one in close_up.rows] == [E4M3, "float8_e5m2", E8M0, E2M1]
    assert wide.limits[0] < 2**-149
    assert wide.limits[1] > 3.4e38
    assert (close_up.has_place(2**-16), close_up.has_place(-57344), close_up.has_place(1e6)) == (True, True, False)


@pytest.mark.parametrize(
    ("names", "every_value"),
    [
        ((E4M3,), [True]),
        ((E4M3, E2M1), [True]),
        ((E8M0,), [True]),
        (("float32",), [False]),
        ((E4M3, E8M0), [False, True]),
        (("float16", E4M3), [False, True]),
    ],
)
def test_a_panel_that_would_say_nothing_more_is_not_drawn(names, every_value):
    assert [panel.every_value for panel in panels(reaches(*names))] == every_value


def test_cast_values_are_labelled_and_those_without_a_place_named(tmp_path):
    number_lines(report(*CASTS), tmp_path / "all.svg")
    said = texts(tmp_path / "all.svg")
    assert said.count("2.07") == said.count("-0.78") == 2
    assert "magnitude; not on the axis: inf, -0, 1e+300" in said
    assert {"normal", "subnormal", "value that is cast", "what it becomes", *USUAL} <= set(said)
    assert CAST.lower() in (tmp_path / "all.svg").read_text()


def test_without_casts_nothing_is_said_of_them(tmp_path):
    number_lines(report(names=(E4M3,)), tmp_path / "all.svg")
    said = texts(tmp_path / "all.svg")
    assert "magnitude" in said
    assert not {"value that is cast", "what it becomes"} & set(said)
    assert CAST.lower() not in (tmp_path / "all.svg").read_text()


def test_labels_on_one_line_never_overlap():
    limits = (1e-5, 1e5)
    placed = levels([1.0, 1.1, 1.2, 1.3, 10.0, 1e4], limits)
    assert [value for value, _ in placed] == [1.0, 1.1, 1.2, 10.0, 1e4]
    assert {level for _, level in placed} <= set(range(LEVELS))
    for level in range(LEVELS):
        ends = [
            (math.log10(value / limits[0]) / 10, CHARACTER * len(f"{value:.6g}") / 2)
            for value, on in placed
            if on == level
        ]
        assert all(left + half < right - other for (left, half), (right, other) in pairwise(ends))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["all.svg", "all.png"])
def test_the_same_numbers_give_the_same_bytes_without_their_day_or_what_drew_them(name, tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        number_lines(report(*CASTS, names=(E4M3,)), tmp_path / folder / name)
    drawn = (tmp_path / "one" / name).read_bytes()
    assert drawn == (tmp_path / "other" / name).read_bytes()
    assert not re.search(rb"<dc:date>|Matplotlib v|Software", drawn)
    if name.endswith("png"):
        assert int.from_bytes(drawn[16:20]) == 1800


def test_where_it_cannot_be_drawn(tmp_path):
    with pytest.raises(UsageError, match=r"End it in .png, .svg or .pdf"):
        number_lines(report(), tmp_path / "all.gif")
    with pytest.raises(RunFailed, match="cannot write"):
        number_lines(report(names=(E2M1,)), tmp_path / "none" / "all.svg")


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_plot_that_cannot_be_written_to_its_end_leaves_the_one_that_was_there(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"all{suffix}"
    path.write_text("the older plot")

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match=r"cannot write .*: No space left on device"):
        number_lines(report(names=(E4M3,)), path)
    assert path.read_text() == "the older plot"
    assert list(tmp_path.iterdir()) == [path]


def test_a_plot_at_a_link_replaces_the_file_that_it_leads_to(tmp_path):
    (tmp_path / "there.svg").write_text("the older plot")
    (tmp_path / "link.svg").symlink_to(tmp_path / "there.svg")
    number_lines(report(names=(E4M3,)), tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink()
    assert "<svg" in (tmp_path / "there.svg").read_text()

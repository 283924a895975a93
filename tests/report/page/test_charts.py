"""Charts: what is said stays within its width, places are in proportion, and nothing from elsewhere is markup."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fp8bench.report import paper
from fp8bench.report.page import picture, scatter
from fp8bench.report.page.bars import Bar, Bars, Stack, Stacks
from fp8bench.report.page.drawing import (
    DARK,
    FILE,
    LIGHT,
    NARROW,
    SMALL,
    WIDE,
    Dots,
    Label,
    Line,
    Rect,
    folded,
    shortened,
    svg,
    text_width,
)
from fp8bench.report.page.scatter import Point, Scatter
from fp8bench.report.page.strips import Strip, Strips

HOSTILE = "<script>alert('x')</script>\u202e\x1b[31m & \"quoted\""
LONG = "a-provider-with-a-long-name-8x torchao-float8:rowwise_with_gw_hp"

BARS = Bars(
    "value",
    "Images for a dollar",
    "More is better.",
    (
        Bar(
            1, "p5 te-fp8:delayed", "graphed, batch 64: +20.0 % (+18.0 to +22.0)", 120.0, "120", (118.0, 122.0), "first"
        ),
        Bar(2, LONG, "compiled, batch 64: reference", 100.0, "100", (99.0, 101.0), "reference"),
        Bar(3, "p4d", "batch 64, published", 60.0, "60", None, "reported", "faint"),
    ),
    broken_at=100.0,
)
SCATTER = Scatter(
    "time-cost",
    "Time against cost",
    "",
    "hours",
    "USD",
    (
        Point(1, "cheap", 4.0, 10.0, "4 h, 10 USD", ((3.5, 9.0), (4.5, 11.0)), True),
        Point(2, "quick", 2.0, 12.0, "2 h, 12 USD", None, True),
        Point(3, "neither", 4.1, 12.1, "4.1 h, 12.1 USD"),
    ),
)
STRIPS = Strips("steps", "Steps", "", (Strip(1, "a", "median 100 ms", ((0.1, 0.101, 0.099), (0.1, 0.1, 0.2))),))
STACKS = Stacks(
    "breakdown",
    "Where",
    "",
    (Stack(1, "a", "", "1.00", (("products", 0.6), ("idle", 0.4))), Stack(2, "b", "", "0.50", (("products", 0.5),))),
    (("products", "part-1"), ("casts", "part-5"), ("idle", "idle")),
    lambda value: f"{value:.2f}",
)
ALL = (BARS, SCATTER, STRIPS, STACKS)


def of_kind(drawing, kind):
    return [element for element in drawing.elements if isinstance(element, kind)]


@pytest.mark.parametrize("width", [NARROW, WIDE, FILE])
@pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.name)
def test_every_mark_lies_within_the_drawing(chart, width):
    drawing = chart.draw(width)

    for element in drawing.elements:
        if isinstance(element, Label):
            wide = text_width(element.text, element.size)
            begin = element.x - {"start": 0, "middle": wide / 2, "end": wide}[element.anchor]
            assert begin >= -0.07 * wide - 1
            assert begin + wide <= width + 0.07 * wide + 1
            assert 0 <= element.y <= drawing.height
        elif isinstance(element, Line):
            assert all(-1 <= x <= width for x in (element.x1, element.x2))
            assert all(-1 <= y <= drawing.height for y in (element.y1, element.y2))
        elif isinstance(element, Rect):
            assert element.width >= 0
            assert 0 <= element.x <= element.x + element.width <= width
        else:
            assert all(0 <= x <= width and 0 <= y <= drawing.height for x, y in element.points)


def test_bars_are_as_long_as_their_values_and_begin_at_zero():
    first, second, third = of_kind(BARS.draw(WIDE), Rect)

    assert first.width / second.width == pytest.approx(1.2, rel=0.01)
    assert third.width / second.width == pytest.approx(0.6, rel=0.01)
    assert first.x == second.x == third.x < 1


def test_an_interval_beyond_all_bars_leaves_them_their_length():
    wild = Bars("v", "", "", (Bar(1, "a", "", 10.0, "10", (0.1, 1000.0)), Bar(2, "b", "", 8.0, "8")))

    assert of_kind(wild.draw(WIDE), Rect)[0].width > WIDE / 2


def test_the_front_is_joined_and_full_and_numbers_cover_no_other_point():
    drawing = SCATTER.draw(WIDE)
    full = [element for element in of_kind(drawing, Dots) if element.look == "first"]
    middles = [dots.points[0] for dots in of_kind(drawing, Dots) if dots.radius == scatter.DOT_PX]
    numbers = [
        element for element in of_kind(drawing, Label) if element.text in ("1", "2", "3") and element.size == SMALL
    ]

    assert len(full) == 4  # two points, and each one's mark in the list below
    assert sum(line.look == "first" for line in of_kind(drawing, Line)) == 2
    assert len(numbers) == 3
    for one in numbers:
        assert all((one.x - x) ** 2 + (one.y - 4 - y) ** 2 > 100 for x, y in middles)


def test_ticks_are_round_numbers_within_the_axis():
    axis = scatter._axis([0.98, 4.3], 0, 100)

    assert [text for _, text in axis.ticks] == ["1", "2", "3", "4"]
    assert all(axis.low <= value <= axis.high for value, _ in axis.ticks)
    assert axis.at(axis.low) == 0
    assert axis.at(axis.high) == 100


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e-9, 1e9]])
def test_an_axis_of_any_values_has_a_length(values):
    axis = scatter._axis(values, 0, 100)

    assert axis.low < axis.high
    assert 0 < len(axis.ticks) <= 12


def test_every_step_is_drawn_and_a_late_one_far_out():
    (first, second) = (element.points for element in of_kind(STRIPS.draw(WIDE), Dots))

    assert (len(first), len(second)) == (3, 3)
    assert max(x for x, _ in second) > max(x for x, _ in first) + WIDE / 3


def test_steps_that_are_all_alike_are_drawn_at_the_median():
    alike = Strips("steps", "", "", (Strip(1, "a", "", ((0.1, 0.1),)),))

    (dots,) = of_kind(alike.draw(WIDE), Dots)
    assert len({x for x, _ in dots.points}) == 1


def test_parts_of_a_step_lie_end_to_end_and_the_legend_names_those_there_are():
    drawing = STACKS.draw(WIDE)
    bars = [element for element in of_kind(drawing, Rect) if element.height > 12]

    assert [round(bar.width / bars[0].width, 2) for bar in bars] == [1.0, 0.67, 0.83]
    assert bars[1].x == pytest.approx(bars[0].x + bars[0].width)
    texts = [element.text for element in of_kind(drawing, Label)]
    assert "products" in texts
    assert "casts" not in texts


@pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.name)
def test_a_chart_tells_its_numbers_to_those_who_do_not_see_it(chart):
    root = ElementTree.fromstring(svg(chart.draw(NARROW), "key"))
    described = {child.tag.partition("}")[2]: child.text for child in root[:2]}

    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "key-t key-d"
    assert described["title"] == chart.title
    assert described["desc"].startswith("1 ")


def test_text_from_elsewhere_is_text_in_an_svg():
    hostile = Bars(HOSTILE, HOSTILE, HOSTILE, (Bar(1, HOSTILE, HOSTILE, 1.0, HOSTILE),))
    text = picture.svg_text(hostile)
    root = ElementTree.fromstring(text)

    assert not [child for child in root.iter() if child.tag.endswith("script")]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>alert('x')</script>" in root.findtext("{*}title")


def test_each_look_has_a_colour_on_light_and_on_dark_paper():
    assert LIGHT.keys() == DARK.keys()
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in (*LIGHT.values(), *DARK.values()))
    looks = {element.look for chart in ALL for element in chart.draw(WIDE).elements}
    assert looks <= LIGHT.keys()


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("look", ["ink", "faint", "first", "bad"])
def test_text_can_be_read_on_its_paper(palette, look):
    assert contrast(palette[look], palette["paper"]) >= 4.5


def contrast(one, other):
    """WCAG's ratio."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_a_file_is_drawn_from_the_same_marks_and_the_same_bytes_each_time(suffix, tmp_path):
    paths = [tmp_path / f"{place}{suffix}" for place in (1, 2)]
    for path in paths:
        picture.draw(SCATTER, path)

    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix])
    assert suffix in paper.SUFFIXES


def test_a_long_name_is_shortened_and_a_short_one_is_not():
    assert shortened(LONG, 100).endswith("\u2026")
    assert shortened("p5", 100) == "p5"


GAIN = "compiled+graphed, batch 256: +10.1 % (+9.4 to +10.8)"


def test_a_detail_that_does_not_fit_takes_several_lines_and_loses_nothing():
    assert folded(GAIN, 800, SMALL) == [GAIN]
    assert folded(GAIN, 330, SMALL) == ["compiled+graphed, batch 256:", "+10.1 % (+9.4 to +10.8)"]
    assert folded(GAIN, 120, SMALL) == ["compiled+graphed,", "batch 256:", "+10.1 % (+9.4 to", "+10.8)"]
    assert folded("a" * 99, 100, SMALL) == [shortened("a" * 99, 100, SMALL)]
    assert folded("", 100, SMALL) == [""]


def test_bars_leave_room_for_each_line_of_a_detail():
    bars = Bars("value", "", "", tuple(Bar(one, "p5", GAIN, 1.0, "1") for one in (1, 2)))
    labels = [one for one in bars.draw(330).elements if isinstance(one, Label)]
    said = [one.text for one in labels if one.size == SMALL and one.look == "faint"]
    assert said == 2 * folded(GAIN, 330, SMALL)
    down = [one.y for one in labels]
    assert all(below - above >= 12 for above, below in pairwise(sorted(down)))
    bars_at = [one.y for one in bars.draw(330).elements if isinstance(one, Rect)]
    assert bars_at[0] > labels[2].y
    assert bars.draw(330).height > bars_at[1]


def test_a_file_has_title_and_caption_above_the_marks_of_the_page():
    drawing, bare = picture.titled(BARS), BARS.draw(FILE)
    labels = of_kind(drawing, Label)

    assert [one.text for one in labels[:2]] == [BARS.title, BARS.caption]
    assert [one.text for one in labels[2:]] == [one.text for one in of_kind(bare, Label)]
    assert min(one.y for one in labels[2:]) > labels[1].y
    assert [bar.width for bar in of_kind(drawing, Rect)[1:]] == [bar.width for bar in of_kind(bare, Rect)]
    assert drawing.height > bare.height

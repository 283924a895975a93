"""Charts: text stays within the width, places are in proportion, nothing from elsewhere is markup; files are whole."""

import errno
import os
import re
import sys
from xml.etree import ElementTree

import pytest
from builders import measured, profile, summary
from report.comparing import row

from fp8bench.kinds.run import charts as plots
from fp8bench.kinds.run.explain import COLOURS as OF_PARTS
from fp8bench.kinds.run.explain import explain_steps, step_bars
from fp8bench.profiling.causes import IDLE, PARTS, facts_of
from fp8bench.schema.errors import RunFailed, UsageError, inert
from fp8bench.tables import chart as charts
from fp8bench.tables import row_chart
from fp8bench.tables.chart import PALETTE, Figure, Panel, Series
from fp8bench.tables.row_chart import COLOURS, WIDTH, Bar, Bars, Point, Scatter

pytestmark = pytest.mark.slow
HOSTILE = "<script>alert('x')</script>\u202e\x1b[31m & \"quoted\" $x_1$ </svg>"
LONG = "a-provider-with-a-long-name-8x torchao-float8:rowwise_with_gw_hp"

BARS = Bars(
    "value",
    "Images for a dollar",
    "More is better.",
    (
        Bar(1, "p5 te-fp8", "120", "graphed", "+20 % (+18 to +22)", parts=(("first", 120),), interval=(118, 122)),
        Bar(2, LONG, "100", "compiled, " * 9, "reference", parts=(("reference", 100.0),), interval=(99.0, 101.0)),
        Bar(3, "p4d", "60", "batch 64, published", parts=(("reported", 60.0),)),
    ),
    broken_at=100.0,
)
SCATTER = Scatter(
    "time-cost",
    "Time against cost",
    "",
    (
        Point(1, "cheap", "4 h, 10 USD", x=4.0, y=10.0, ends=((3.5, 9.0), (4.5, 11.0)), front=True),
        Point(2, "quick", "2 h, 12 USD", x=2.0, y=12.0, front=True),
        Point(3, "neither", "4.1 h, 12.1 USD", x=4.1, y=12.1, hollow=True),
    ),
    x_title="hours",
    y_title="USD",
)
STACKS = Bars(
    "breakdown",
    "Where",
    "",
    (Bar(1, "a", "1.00", parts=(("products", 0.6), ("idle", 0.4))), Bar(2, "b", "0.50", parts=(("products", 0.5),))),
    {"products": "#0072b2", "casts": "#d55e00", "idle": "#f2f2f2"},
    write_part="{:.2f}".format,
)
ALL = (BARS, SCATTER, STACKS)
NAMED = pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.name)


def painted(chart):
    """The figure with the chart's marks."""
    with charts.sheet(chart.height / 72, WIDTH / 72) as figure:
        chart.paint(chart._axes(figure, 0.0))
        figure.draw_without_rendering()
    return figure


def filled(chart):
    return [patch for patch in painted(chart).axes[0].patches if patch.get_height() == row_chart.BAR]


@NAMED
def test_every_text_lies_within_the_chart(chart):
    figure = painted(chart)
    width, height = figure.bbox.width, figure.bbox.height
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            assert -1 <= box.x0
            assert box.x1 <= width + 1, text.get_text()
            assert -1 <= box.y0
            assert box.y1 <= height + 1


def test_bars_are_as_long_as_their_values_and_begin_at_zero():
    bars = filled(BARS)
    assert [bar.get_width() / bars[1].get_width() for bar in bars] == pytest.approx([1.2, 1.0, 0.6])
    assert [bar.get_x() for bar in bars] == [2] * 3


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300])
def test_any_value_has_a_bar(value):
    (bar,) = filled(Bars("v", "", "", (Bar(1, "a", "x", parts=(("first", value),)),)))
    assert 0 <= bar.get_width() <= WIDTH


def test_the_front_is_joined_each_point_has_its_number_and_what_was_not_measured_there_is_hollow():
    plot = painted(SCATTER).axes[1]
    steps = next(line for line in plot.lines if line.get_drawstyle() == "steps-post")
    assert list(steps.get_xdata()) == [2.0, 4.0]
    numbers = {text.get_position(): text.get_text() for text in plot.texts}
    assert numbers == {(point.x, point.y): str(point.number) for point in SCATTER.rows}
    faces = {line.get_xdata()[0]: line.get_markerfacecolor() for line in plot.lines if line.get_marker() == "o"}
    assert faces == {4.0: COLOURS["first"], 2.0: COLOURS["first"], 4.1: "white"}


def test_of_several_instances_each_is_a_point_in_its_cheapest_row():
    found = (("p5", 3.0, 3.0, "measured"), ("p5", 2.0, 4.0, "measured"), ("p4d", 1.0, 1.0, "predicted"))
    names = ("instance", "units_per_usd", "throughput_per_s", "source")
    shown = plots.shown_rows(row(**dict(zip(names, values, strict=True))) for values in found)
    both, alone = (plots.charts(some)["time-cost"].rows for some in (shown, shown[:2]))
    assert [(point.number, point.hollow) for point in both] == [(1, False), (3, True)]
    assert [point.number for point in alone] == [1, 2]


def test_parts_of_a_step_lie_end_to_end_in_colours_of_their_own_and_the_legend_names_those_there_are():
    assert list(OF_PARTS) == [*PARTS.values(), IDLE]
    assert len(set(OF_PARTS.values())) == len(OF_PARTS)
    bars = filled(STACKS)
    texts = [text.get_text() for text in painted(STACKS).axes[0].texts]
    assert [round(bar.get_width() / bars[0].get_width(), 2) for bar in bars] == [1.0, 0.67, 0.83]
    assert bars[1].get_x() == pytest.approx(bars[0].get_x() + bars[0].get_width())
    assert "products" in texts
    assert "casts" not in texts
    assert {"0.60", "0.40", "0.50"} <= set(texts)


@NAMED
def test_an_svg_of_a_page_tells_its_numbers_and_has_no_style_address_or_name_of_another_chart(chart):
    text = chart.svg()
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label").startswith(f"{chart.title}. 1  ")
    assert chart.rows[0].value in root.get("aria-label")
    names = {node.get("id") for node in root.iter() if node.get("id")}
    assert {node.tag for node in root.iter()} <= charts.MARKS
    assert not [node for node in root.iter() if node.get("style")]
    assert all(value[1:] in names for node in root.iter() for name, value in node.attrib.items() if name == "href")
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= names
    assert all(names.isdisjoint(re.findall(r'id="([^"]*)"', other.svg())) for other in ALL if other is not chart)
    assert text == chart.svg()


def test_text_from_elsewhere_is_text_in_a_page_and_in_a_file(tmp_path):
    hostile = Bars(HOSTILE, HOSTILE, HOSTILE, (Bar(1, *[HOSTILE] * 4, parts=(("first", 1.0),)),))
    hostile.write(tmp_path / "one.svg")
    for text in (hostile.svg(), (tmp_path / "one.svg").read_text()):
        root = ElementTree.fromstring(text)
        assert not [child for child in root.iter() if child.tag.endswith("script")]
        assert {"\x1b", "\u202e"}.isdisjoint(text)
    assert "<script>alert('x')</script>" in root.findall(".//{*}text")[0].text
    assert "$x_1$" in text


def contrast(one, other):
    """WCAG's, of two colours."""
    dark, bright = sorted(map(charts.luminance, (one, other)))
    return (bright + 0.05) / (dark + 0.05)


def test_no_two_lines_differ_by_colour_alone_and_each_stands_out_from_paper():
    assert len({looks.line for looks in PALETTE}) == len(PALETTE)
    assert min(contrast(looks.colour, "#ffffff") for looks in PALETTE) >= 3


@pytest.mark.parametrize("colour", ["#ffffff", "#777777", "#000000", *COLOURS.values(), *OF_PARTS.values()])
def test_text_can_be_read_on_paper_and_on_every_fill(colour):
    assert contrast(charts.INK, "#ffffff") > contrast(charts.FAINT, "#ffffff") >= 4.5
    assert contrast(colour, {"black": "#000000", "white": "#ffffff"}[charts.on(colour)]) >= 4.5


@pytest.mark.thorough
@NAMED
@pytest.mark.parametrize("suffix", charts.SUFFIXES)
def test_a_file_has_the_title_and_the_same_bytes_each_time_without_their_day_or_what_drew_them(chart, suffix, tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        chart.write(tmp_path / folder / f"all{suffix}")
    drawn = (tmp_path / "one" / f"all{suffix}").read_bytes()
    assert drawn == (tmp_path / "other" / f"all{suffix}").read_bytes()
    assert not re.search(rb"<dc:date>|Matplotlib v|Software", drawn)
    if suffix == ".svg":
        said = [node.text for node in ElementTree.fromstring(drawn).findall(".//{*}text")]
        assert said[0] == chart.title
        assert set(said) >= {node.text for node in ElementTree.fromstring(chart.svg()).iter("text")}


LINE = Panel([Series([(1, 2), (2, 4)], PALETTE[0], HOSTILE, [(1, 3), None]), Series((), PALETTE[1], "alone")], x="step")
LONG_BARS = Series([(9.0, 0), (3.0, 1)], PALETTE[0], "first", bars=["nine", "three"])
SHORT_BARS = Series([(6.0, 0)], PALETTE[1], "alone", bars=["six"])
LINE_AND_BARS = Figure(
    "", [[LINE], [Panel([LONG_BARS, SHORT_BARS], x="step", names=["two", "one\nbar"])]], share_x=True
)


def draw(path):
    charts.draw(LINE_AND_BARS, path)


def made(what, folder, monkeypatch):
    """What matplotlib has of the figure when it is drawn."""
    kept = []
    monkeypatch.setattr(charts, "_drawn", lambda figure, _suffix: kept.append(figure) or b"")
    charts.draw(what, folder / "a.svg")
    kept[0].draw_without_rendering()
    return kept[0]


def test_intervals_and_bars_stand_where_they_belong_and_labels_and_a_shared_axis_are_named_once(tmp_path, monkeypatch):
    figure = made(LINE_AND_BARS, tmp_path, monkeypatch)
    above, below = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [inert(HOSTILE), "alone", "first"]
    assert (above.get_xlabel(), below.get_xlabel(), above.get_xlim()) == ("", "step", below.get_xlim())
    assert [list(line.get_ydata()) for line in above.lines if list(line.get_xdata()) == [1, 1]] == [[1, 3]]
    # Two bars of a name around it, from the top down, and a single one beside it; each with its text at its end.
    bars = [(bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in below.patches]
    assert bars == [text.get_position() for text in below.texts] == [(9.0, -0.2), (3.0, 1.0), (6.0, 0.2)]
    assert [text.get_text() for text in below.texts] == [" nine", " three", " six"]
    assert ([text.get_text() for text in below.get_yticklabels()], below.get_ylim()) == (
        ["two", "one\nbar"],
        (1.5, -0.5),
    )


@pytest.mark.parametrize("letters", [0, 3, 20, 35, 70])
def test_a_legend_of_any_labels_lies_within_the_figure_and_takes_no_room_from_panels(letters, tmp_path, monkeypatch):
    series = [Series((), looks, f"{place}{'n' * letters}") for place, looks in enumerate(PALETTE) if letters]
    figure = made(Figure("", [[Panel(series, log="x")]]), tmp_path, monkeypatch)
    boxes = [legend.get_window_extent() for legend in figure.legends]
    assert all(0 <= box.x0 < box.x1 <= figure.bbox.width for box in boxes)
    assert figure.axes[0].get_window_extent().height > 2.4 * figure.dpi


def test_where_it_cannot_be_drawn(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"End it in .png, .svg or .pdf"):
        draw(tmp_path / "all.gif")
    with pytest.raises(RunFailed, match="cannot write"):
        draw(tmp_path / "none" / "all.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        charts.require_drawable(tmp_path / "steps.png")


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_plot_at_a_link_replaces_the_file_that_it_leads_to_whole_or_not_at_all(suffix, tmp_path, monkeypatch):
    path, link = tmp_path / f"there{suffix}", tmp_path / f"link{suffix}"
    path.write_text("the older plot")
    link.symlink_to(path)

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(RunFailed, match=r"cannot write .*: No space left on device"):
            draw(link)
    assert path.read_text() == "the older plot"
    draw(link)
    assert link.is_symlink()
    assert b"the older plot" not in path.read_bytes()
    assert {*tmp_path.iterdir()} == {path, link}


FP8 = {"gemm_fp8": 0.0352, "gemm_bf16": 0.0008, "attention": 0.0116, "cast": 0.0158, "elementwise": 0.0401}


def test_a_steps_svg_tells_each_large_part_and_the_whole_and_its_png_is_wide_enough_for_a_readme(tmp_path):
    shape = profile(by_category=FP8, busy_s=sum(FP8.values()))
    fp8 = measured("p5", "te-fp8", "delayed", summary=summary(0.1411), profile=shape)
    bars = step_bars(explain_steps(facts_of(fp8), facts_of(measured(profile=profile(), summary=summary(0.0937)))).modes)
    bars.write(tmp_path / "steps.svg")
    said = {node.text for node in ElementTree.parse(tmp_path / "steps.svg").findall(".//{*}text")}
    assert {"35.2", "11.6", "15.8", "40.1", "37.6", "60.0", "20.0", "10.0"} <= said
    assert {"141.1 ms", "93.7 ms", "te-fp8:delayed", "baseline-bf16"} <= said
    assert "0.8" not in said
    # Whatever the case of its suffix.
    bars.write(tmp_path / "STEPS.PNG")
    header = (tmp_path / "STEPS.PNG").read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert int.from_bytes(header[16:20]) == 1800

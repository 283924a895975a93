"""Steps as bars: what is drawn, and that it is drawn alike."""

import re
import sys
from xml.etree import ElementTree

import pytest
from builders import measured, profile, summary

from fp8bench.kinds.run.explain.document import COLOURS, step_bars
from fp8bench.kinds.run.explain.steps import IDLE, PARTS, explain_steps
from fp8bench.profiling.facts import StepFacts, facts_of
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.tables.chart import require_drawable

pytestmark = pytest.mark.slow

FP8 = {"gemm_fp8": 0.0352, "gemm_bf16": 0.0008, "attention": 0.0116, "cast": 0.0158, "elementwise": 0.0401}


def steps():
    fp8 = measured(
        "p5",
        "te-fp8",
        "delayed",
        summary=summary(0.1411),
        profile=profile(by_category=FP8, busy_s=sum(FP8.values())),
    )
    return explain_steps(facts_of(fp8), facts_of(measured(profile=profile(), summary=summary(0.0937)))).modes


def texts(path):
    """What an SVG says, in order."""
    return [node.text for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_an_svg_tells_each_large_part_and_the_whole(tmp_path):
    step_bars(steps()).write(tmp_path / "steps.svg")
    said = texts(tmp_path / "steps.svg")
    assert {"35.2", "11.6", "15.8", "40.1", "37.6"} <= set(said)
    assert {"60.0", "20.0", "10.0"} <= set(said)
    assert {"141.1 ms", "93.7 ms", "te-fp8:delayed", "baseline-bf16"} <= set(said)
    assert "0.8" not in said


def test_the_legend_names_what_is_drawn_and_nothing_else(tmp_path):
    step_bars(steps()).write(tmp_path / "steps.svg")
    drawn = {*(PARTS[category] for category in FP8), IDLE}
    assert set(texts(tmp_path / "steps.svg")) & set(COLOURS) == drawn


def test_every_part_has_a_colour_of_its_own():
    assert list(COLOURS) == [*PARTS.values(), IDLE]
    assert len(set(COLOURS.values())) == len(COLOURS)


@pytest.mark.parametrize("name", ["steps.svg", "steps.png"])
def test_the_same_steps_give_the_same_bytes_without_their_day_or_what_drew_them(name, tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        step_bars(steps()).write(tmp_path / folder / name)
    drawn = (tmp_path / "one" / name).read_bytes()
    assert drawn == (tmp_path / "other" / name).read_bytes()
    assert not re.search(rb"<dc:date>|Matplotlib v|Software", drawn)


def test_a_png_is_wide_enough_for_a_readme_whatever_the_case_of_its_suffix(tmp_path):
    step_bars(steps()).write(tmp_path / "STEPS.PNG")
    header = (tmp_path / "STEPS.PNG").read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert int.from_bytes(header[16:20]) == 1800


def test_a_step_that_was_not_timed_ends_with_its_kernels(tmp_path):
    untimed = StepFacts(label="te-fp8", profile=profile(), step_time_s=None, source="a trace", fp8=False)
    step_bars(explain_steps(untimed, None).modes).write(tmp_path / "steps.svg")
    assert {"90.0 ms", "of kernels"} <= set(texts(tmp_path / "steps.svg"))
    assert IDLE not in texts(tmp_path / "steps.svg")


@pytest.mark.parametrize("name", ["steps.gif", "steps", "steps.gz"])
def test_another_suffix_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match=r"End it in .png, .svg or .pdf"):
        step_bars(steps()).write(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_without_matplotlib_the_remedy_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        require_drawable(tmp_path / "steps.png")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RunFailed, match="cannot write"):
        step_bars(steps()).write(tmp_path / "none" / "steps.svg")

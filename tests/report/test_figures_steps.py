"""Steps as bars: what is drawn, and that it is drawn alike."""

import sys
from xml.etree import ElementTree

import pytest
from builders import measured, profile, summary

from fp8bench.kinds.run.explain import COLOURS, IDLE, PARTS, explain_steps, step_bars
from fp8bench.profiling.facts import StepFacts, facts_of
from fp8bench.schema.errors import UsageError
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


def test_every_part_has_a_colour_of_its_own():
    assert list(COLOURS) == [*PARTS.values(), IDLE]
    assert len(set(COLOURS.values())) == len(COLOURS)


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


def test_without_matplotlib_the_remedy_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        require_drawable(tmp_path / "steps.png")

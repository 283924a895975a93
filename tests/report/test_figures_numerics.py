"""The two pictures: what is drawn, and that it is drawn alike."""

import re
from xml.etree import ElementTree

import pytest
from report.made_numerics import record, row

from fp8bench.kinds.numerics.figures import LEAST, MARKS, STRIP, error_dots, jump_lines
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.numerics import INPUTS, TENSORS

pytestmark = pytest.mark.slow

DRAWERS = [error_dots, jump_lines]


def texts(path):
    """What an SVG says, in order."""
    return [node.text for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_every_panel_mode_and_input_is_named(tmp_path):
    error_dots(record(), tmp_path / "errors.svg")
    said = texts(tmp_path / "errors.svg")
    assert {"linear: output", "linear: input gradient", "block: weight gradient"} <= set(said)
    assert {"baseline-bf16", "te-fp8:delayed", "torchao-float8", "tensorwise"} <= set(said)
    assert {"normal", "heavy-tailed", "outlier", "hollow: the same, moved to values that fp8 has"} <= set(said)
    assert "te-fp8:mxfp8" not in said


def test_what_was_left_out_has_neither_panel_nor_place_in_the_legend(tmp_path):
    error_dots(record(*(row(tensor=tensor) for tensor in TENSORS)), tmp_path / "errors.svg")
    said = texts(tmp_path / "errors.svg")
    assert "block: output" not in said
    assert "outlier" not in said
    assert not any(one and one.startswith("hollow") for one in said)


def test_every_distribution_has_a_mark_of_its_own():
    assert set(MARKS) == {name.removesuffix("-exact") for name in INPUTS}
    assert len({colour for colour, _ in MARKS.values()}) == len({marker for _, marker in MARKS.values()}) == 3


@pytest.mark.parametrize("error", [0.0, 1e-9, LEAST * 0.99, LEAST, 0.4, 1.3])
def test_any_error_has_a_place(error, tmp_path):
    made = record(*(row(tensor=tensor, relative_error=error) for tensor in TENSORS))
    error_dots(made, tmp_path / "errors.svg")
    said = texts(tmp_path / "errors.svg")
    assert {"less", "0.001", "0.01", "0.1"} <= set(said)
    assert ("1" in said) == (error > 0.7)
    assert STRIP[1] == LEAST


def test_the_jump_names_its_scalings_and_its_size(tmp_path):
    jump_lines(record(), tmp_path / "jump.svg")
    said = texts(tmp_path / "jump.svg")
    assert {"delayed, max of 1024", "delayed, max of 16", "delayed, most recent", "current"} <= set(said)
    assert {"values 100 times as large", "values that saturate, %", "relative error of the cast", "step"} <= set(said)
    assert {"the tensor", "Scaling of a tensor whose values are 100 times as large for some steps"} <= set(said)
    assert "dots: Transformer Engine" not in said
    jump_lines(record(measured=True), tmp_path / "both.svg")
    assert "dots: Transformer Engine" in texts(tmp_path / "both.svg")


@pytest.mark.thorough
@pytest.mark.parametrize("draw", DRAWERS)
@pytest.mark.parametrize("name", ["one.svg", "one.png"])
def test_the_same_numbers_give_the_same_bytes_and_a_png_is_wide_enough_for_a_readme(draw, name, tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        draw(record(measured=True), tmp_path / folder / name)
    drawn = (tmp_path / "one" / name).read_bytes()
    assert drawn == (tmp_path / "other" / name).read_bytes()
    if name.endswith("svg"):
        assert not re.search(rb"<dc:date>|Matplotlib v", drawn)
    else:
        assert drawn.startswith(b"\x89PNG")
        assert int.from_bytes(drawn[16:20]) == 1800


@pytest.mark.parametrize("draw", DRAWERS)
def test_what_cannot_be_drawn_or_written(draw, tmp_path):
    with pytest.raises(UsageError, match=r"End it in .png, .svg or .pdf"):
        draw(record(), tmp_path / "one.gif")
    with pytest.raises(RunFailed, match="cannot write"):
        draw(record(), tmp_path / "none" / "one.svg")

"""What claims about block formats are tested on."""

import math

import pytest

from fp8bench.kinds.run.claims.scalings import E4M3, FLOAT32, SCALINGS, SIDE, Scaling, cast, found, sample


def test_every_way_has_an_answer_that_follows_from_its_format():
    fp8, mxfp8, squares = found("fp8"), found("mxfp8"), found("nvfp4-2d")
    assert mxfp8.zeroed < fp8.zeroed
    assert (fp8.differing, squares.differing) == (0, 0)
    assert squares.error == squares.transposed_error == pytest.approx(squares.requantized_error)
    assert fp8.error == pytest.approx(0.026, rel=0.1)


def test_the_values_are_the_same_everywhere():
    assert len(sample()) == SIDE
    assert sample()[0][0] == pytest.approx(0.9417, abs=1e-4)


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="fp9 is not a way to scale"):
        found("fp9")


def test_zeros_are_cast_to_zeros():
    mxfp8 = next(one for one in SCALINGS if one.name == "mxfp8")
    assert cast([[0.0] * 32], Scaling(E4M3, FLOAT32, 32)) == [[0.0] * 32]
    assert math.isfinite(cast([[1e-300, *[0.0] * 31]], mxfp8)[0][0])

"""Formats by definition: what torch decodes, casts and knows of them is what their definitions say."""

import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.numerics.definitions import DEFINITIONS, bits, decode

HERE = {name: definition for name, definition in DEFINITIONS.items() if hasattr(torch, name)}
BYTES = [name for name, definition in HERE.items() if definition.bits == 8]
WORDS = [name for name, definition in HERE.items() if definition.bits == 16]
E2M1 = DEFINITIONS["float4_e2m1fn_x2"]
E8M0 = "float8_e8m0fnu"


def same(one, other):
    """Equal to the sign of a zero, nan equal to nan."""
    return (math.isnan(one) and math.isnan(other)) or (
        one == other and math.copysign(1, one) == math.copysign(1, other)
    )


@pytest.mark.parametrize("name", [*BYTES, *WORDS])
def test_every_pattern_is_decoded_as_torch_decodes_it(name):
    integers = {8: torch.uint8, 16: torch.int16}[HERE[name].bits]
    patterns = range(1 << HERE[name].bits)
    by_torch = torch.tensor(patterns).to(integers).view(getattr(torch, name)).to(torch.float64).tolist()
    assert all(map(same, [decode(HERE[name], pattern) for pattern in patterns], by_torch))


@given(st.integers(0, 2**32 - 1))
def test_patterns_of_float32_are_decoded_as_c_decodes_them(pattern):
    (by_c,) = struct.unpack("f", struct.pack("I", pattern))
    assert same(decode(DEFINITIONS["float32"], pattern), by_c) or math.isnan(by_c)


@pytest.mark.parametrize("name", [name for name in HERE if name != E2M1.name])
def test_limits_are_those_of_finfo_exactly(name):
    ours, torchs = HERE[name], torch.finfo(getattr(torch, name))
    assert (ours.bits, ours.max, ours.min) == (torchs.bits, torchs.max, torchs.min)
    assert ours.smallest_normal == torchs.smallest_normal
    assert ours.eps == torchs.eps


@pytest.mark.parametrize(
    ("name", "largest", "smallest_normal", "smallest_subnormal", "eps"),
    [
        ("float8_e4m3fn", 448, 0.015625, 2**-9, 0.125),
        ("float8_e5m2", 57344, 6.10352e-05, 2**-16, 0.25),
        ("float16", 65504, 6.10352e-05, 2**-24, 2**-10),
        ("bfloat16", 3.38953e38, 1.17549e-38, 2**-133, 0.0078125),
        ("float32", 3.40282e38, 1.17549e-38, 2**-149, 2**-23),
        ("float4_e2m1fn_x2", 6, 1, 0.5, 0.5),
    ],
)
def test_limits_as_they_are_published(name, largest, smallest_normal, smallest_subnormal, eps):
    ours = DEFINITIONS[name]
    assert (ours.max, ours.min) == (pytest.approx(largest, rel=1e-5), pytest.approx(-largest, rel=1e-5))
    assert ours.smallest_normal == pytest.approx(smallest_normal, rel=1e-5)
    assert (ours.smallest_subnormal, ours.eps) == (smallest_subnormal, eps)


@pytest.mark.parametrize("name", BYTES)
def test_the_smallest_subnormal_is_the_smallest_that_torch_decodes(name):
    values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).to(torch.float64).tolist()
    limits = HERE[name]
    positive = sorted(value for value in values if 0 < value < math.inf)
    assert (limits.smallest_subnormal or limits.smallest_normal) == positive[0]


def test_e2m1_has_eight_magnitudes_and_no_special():
    assert [decode(E2M1, pattern) for pattern in range(8)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert [decode(E2M1, pattern) for pattern in range(8, 16)] == [-0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert E2M1.bits == 4


def test_e8m0_is_the_powers_of_two_without_a_zero():
    e8m0 = DEFINITIONS["float8_e8m0fnu"]
    assert [decode(e8m0, pattern) for pattern in range(255)] == [2.0**power for power in range(-127, 128)]
    assert math.isnan(decode(e8m0, 255))
    limits = e8m0
    assert (limits.sign_bits, limits.mantissa_bits, limits.smallest_subnormal) == (0, 0, None)
    assert (limits.min, limits.max, limits.eps) == (2.0**-127, 2.0**127, 1)


@pytest.mark.parametrize("pattern", [-1, 16])
def test_a_pattern_of_too_many_bits_is_none(pattern):
    with pytest.raises(ValueError, match="has 4 bits"):
        decode(E2M1, pattern)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.25, 0.0),
        (0.75, 1),
        (1.25, 1),
        (1.75, 2),
        (2.5, 2),
        (3.5, 4),
        (5, 4),
        (5.001, 6),
        (7, 6),
        (1e30, 6),
        (0.0, 0.0),
    ],
)
def test_ties_of_e2m1_go_to_the_even_and_what_is_too_large_saturates(value, expected):
    assert same(bits(E2M1, value).becomes, float(expected))
    assert same(bits(E2M1, -value).becomes, -float(expected))


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("name", [*BYTES, E2M1.name])
@given(value=FINITE | st.floats(-8, 8, width=32) | st.floats(-600, 600, width=32))
def test_nothing_is_nearer_than_the_nearest(name, value):
    definition = DEFINITIONS[name]
    values = [decode(definition, pattern) for pattern in range(definition.largest + 1)]
    becomes = bits(definition, value).becomes
    if becomes is None:
        assert value < 0
        assert definition.sign_bits == 0
        return
    assert not definition.sign_bits or math.copysign(1, becomes) == math.copysign(1, value)
    if math.isinf(becomes):
        assert abs(value) >= values[-1] + (values[-1] - values[-2]) / 2
        return
    distances = [abs(Fraction(abs(value)) - Fraction(one)) for one in values]
    least = [place for place, distance in enumerate(distances) if distance == min(distances)]
    # Of two, the even pattern; of e8m0's, which has no mantissa, the larger value.
    (place,) = least if len(least) == 1 else least[1:] if name == E8M0 else [one for one in least if one % 2 == 0]
    assert abs(becomes) == values[place]


@pytest.mark.parametrize("name", ["float32", *WORDS, *BYTES])
@given(value=FINITE | st.floats(-400, 400, width=32))
def test_torch_casts_to_the_same_value(name, value):
    limits = HERE[name]
    if not limits.min <= value <= limits.max:
        return
    by_torch = torch.tensor([value]).to(getattr(torch, name)).double().item()
    assert same(bits(HERE[name], value).becomes, by_torch)

"""The bits of values: held against ml_dtypes, which has every format here, and against struct."""

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.numerics.definitions import DEFINITIONS, bits, decode, encode, named, reaches

ML_DTYPES = {
    "bfloat16": (ml_dtypes.bfloat16, np.uint16),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, np.uint8),
    "float8_e5m2": (ml_dtypes.float8_e5m2, np.uint8),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, np.uint8),
    "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, np.uint8),
    "float8_e8m0fnu": (ml_dtypes.float8_e8m0fnu, np.uint8),
    "float4_e2m1fn_x2": (ml_dtypes.float4_e2m1fn, np.uint8),
    "float16": (np.float16, np.uint16),
}
SIGNED = [name for name in ML_DTYPES if name != "float8_e8m0fnu"]


def pattern(value, name):
    """The bits that ml_dtypes, or numpy, has for the value."""
    dtype, integers = ML_DTYPES[name]
    return int(np.asarray([value], dtype=np.float32).astype(dtype).view(integers)[0])


def digits(one):
    return one.sign + one.exponent + one.mantissa


@pytest.mark.parametrize("name", ML_DTYPES)
def test_limits_are_those_of_ml_dtypes(name):
    ours, theirs = reaches([name]).formats[0].reach, ml_dtypes.finfo(ML_DTYPES[name][0])
    assert (ours.max, ours.min, ours.smallest_normal) == (theirs.max, theirs.min, theirs.smallest_normal)
    assert (ours.exponent_bits, ours.mantissa_bits) == (theirs.nexp, theirs.nmant)
    if ours.smallest_subnormal is not None:
        assert ours.smallest_subnormal == theirs.smallest_subnormal


@pytest.mark.parametrize("name", SIGNED)
@settings(max_examples=60)
@given(value=st.floats(-1, 1, width=32) | st.sampled_from([0.3952, -0.78, 2**-9, 2**-10, 1.5 * 2**-9, 0.0, -0.0]))
def test_bits_are_those_of_ml_dtypes(name, value):
    """Within every format's range; a number is a float32 first."""
    scaled = value * min(decode(DEFINITIONS[name], DEFINITIONS[name].largest), 1e30)
    assert int(digits(bits(DEFINITIONS[name], scaled)), 2) == pattern(scaled, name)


@given(power=st.integers(-126, 126), mantissa=st.floats(1, 1.49) | st.floats(1.51, 1.99))
def test_bits_of_e8m0_are_those_of_ml_dtypes_but_for_ties(power, mantissa):
    value = math.ldexp(mantissa, power)
    assert int(digits(bits(DEFINITIONS["float8_e8m0fnu"], value)), 2) == pattern(value, "float8_e8m0fnu")


@given(st.floats(width=32, allow_nan=False))
def test_bits_of_float32_are_those_of_c(value):
    (by_c,) = struct.unpack("I", struct.pack("f", value))
    assert int(digits(bits(DEFINITIONS["float32"], value)), 2) == by_c


@pytest.mark.parametrize("name", [*ML_DTYPES, "float32"])
def test_what_is_decoded_is_encoded_again(name):
    definition = DEFINITIONS[name]
    every = range(0, 1 << definition.bits, {8: 1, 4: 1, 16: 17, 32: 104_729 * 97}[definition.bits])
    for one in every:
        value = decode(definition, one)
        if not math.isnan(value):
            assert encode(definition, value) == one


def test_the_tutorials_value_in_every_format():
    (drawn,) = [reaches(named(every=False), [0.3952]).bits]
    assert [(one.dtype, one.sign, one.exponent, one.mantissa, one.becomes) for one in drawn[:5]] == [
        ("float32", "0", "01111101", "10010100101011110101000", pytest.approx(0.3952)),
        ("bfloat16", "0", "01111101", "1001010", 0.39453125),
        ("float16", "0", "01101", "1001010011", 0.395263671875),
        ("float8_e4m3fn", "0", "0101", "101", 0.40625),
        ("float8_e5m2", "0", "01101", "10", 0.375),
    ]


@pytest.mark.parametrize("name", named(every=True))
@given(value=st.floats(-1e6, 1e6))
def test_significand_and_power_make_the_value(name, value):
    one = bits(DEFINITIONS[name], value)
    if one.power is not None:
        assert abs(one.becomes) == math.ldexp(one.significand, one.power)


@pytest.mark.parametrize(
    ("name", "value", "becomes", "saturated"),
    [
        ("float8_e4m3fn", 464, 448, False),
        ("float8_e4m3fn", 464.5, 448, True),
        ("float8_e4m3fn", -1e9, -448, True),
        ("float8_e5m2", 1e9, math.inf, False),
        ("float8_e5m2", 61439, 57344, False),
        ("float8_e5m2", 61440, math.inf, False),
        ("float8_e4m3fn", math.inf, None, False),
        ("float8_e8m0fnu", -1, None, False),
        ("float4_e2m1fn_x2", math.nan, None, False),
        ("float8_e4m3fnuz", -1e-9, 0, False),
        ("float16", 1e300, math.inf, False),
    ],
)
def test_what_is_too_large_becomes_inf_or_max_and_what_has_no_bits_none(name, value, becomes, saturated):
    one = bits(DEFINITIONS[name], value)
    assert (one.becomes, one.saturated) == (becomes, saturated)


def test_a_value_that_the_format_lacks_has_no_pattern():
    with pytest.raises(ValueError, match=r"float8_e4m3fn has no 0\.3952"):
        encode(DEFINITIONS["float8_e4m3fn"], 0.3952)


def test_specials_are_told_of_each_format():
    specials = {one.reach.name: one.reach.specials for one in reaches(named(every=True)).formats}
    assert specials["float8_e5m2"] == ("inf", "nan")
    assert specials["float8_e4m3fn"] == specials["float8_e8m0fnu"] == specials["float8_e5m2fnuz"] == ("nan",)
    assert specials["float4_e2m1fn_x2"] == ()

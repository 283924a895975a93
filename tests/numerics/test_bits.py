"""The bits of values: held against ml_dtypes, which has every format here, and against struct."""

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.numerics.definitions import DEFINITIONS, bits, decode, encode

ML_DTYPES = {
    "bfloat16": (ml_dtypes.bfloat16, np.uint16),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, np.uint8),
    "float8_e5m2": (ml_dtypes.float8_e5m2, np.uint8),
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
    ours, theirs = DEFINITIONS[name], ml_dtypes.finfo(ML_DTYPES[name][0])
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
    drawn = [bits(definition, 0.3952) for definition in DEFINITIONS.values()][:5]
    assert [(one.dtype, one.sign, one.exponent, one.mantissa, one.becomes) for one in drawn] == [
        ("float32", "0", "01111101", "10010100101011110101000", pytest.approx(0.3952)),
        ("bfloat16", "0", "01111101", "1001010", 0.39453125),
        ("float16", "0", "01101", "1001010011", 0.395263671875),
        ("float8_e4m3fn", "0", "0101", "101", 0.40625),
        ("float8_e5m2", "0", "01101", "10", 0.375),
    ]


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
        ("float16", 1e300, math.inf, False),
    ],
)
def test_what_is_too_large_becomes_inf_or_max_and_what_has_no_bits_none(name, value, becomes, saturated):
    one = bits(DEFINITIONS[name], value)
    assert (one.becomes, one.saturated) == (becomes, saturated)


def test_errors_are_taken_from_the_value_as_given():
    one, other = (bits(DEFINITIONS["float8_e4m3fn"], value) for value in (2.07, -0.78))
    assert (one.becomes, one.absolute_error, one.relative_error) == (2, 2.07 - 2, (2.07 - 2) / 2.07)
    assert (other.becomes, other.absolute_error, other.relative_error) == (-0.75, 0.78 - 0.75, (0.78 - 0.75) / 0.78)


@pytest.mark.parametrize(
    ("name", "value", "errors"),
    [
        ("float32", math.inf, (0, 0)),
        ("float8_e4m3fn", math.nan, (0, 0)),
        ("float8_e4m3fn", math.inf, (None, None)),
        ("float32", 1e39, (math.inf, math.inf)),
        ("float8_e4m3fn", 0.0, (0, 0)),
        ("float8_e8m0fnu", -0.0, (2**-127, math.inf)),
    ],
)
def test_errors_of_what_is_no_number(name, value, errors):
    one = bits(DEFINITIONS[name], value)
    assert (one.absolute_error, one.relative_error) == errors


def test_specials_are_told_of_each_format():
    specials = {name: definition.specials for name, definition in DEFINITIONS.items()}
    assert specials["float8_e5m2"] == ("inf", "nan")
    assert specials["float8_e4m3fn"] == specials["float8_e8m0fnu"] == ("nan",)
    assert specials["float4_e2m1fn_x2"] == ()

"""Casts: held against a search through every value of a format, and against torch's own answers."""

import math
import struct
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.numerics import formats
from fp8bench.numerics.definitions import DEFINITIONS, decode, named, nearest
from fp8bench.numerics.formats import behaviour, cast, examine
from fp8bench.schema.formats import CastBehaviour

CASTABLE = [name for name in named(every=True) if name != "float4_e2m1fn_x2"]
SIGNED_BYTES = [name for name in CASTABLE if name.startswith("float8") and name != "float8_e8m0fnu"]
E4M3, E2M1, E8M0 = "float8_e4m3fn", "float4_e2m1fn_x2", "float8_e8m0fnu"

# Values of float32 around the range of fp8, where random ones of its whole range seldom are.
NEAR_FP8 = st.builds(
    lambda mantissa, power, sign: sign * math.ldexp(mantissa, power),
    st.floats(1, 2, width=32),
    st.integers(-20, 18),
    st.sampled_from((-1, 1)),
)
FINITE = st.lists(NEAR_FP8 | st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40)


def magnitudes(name):
    """Every value that a magnitude is rounded to, in order of patterns, and what would be next above max."""
    definition = DEFINITIONS[name]
    values = [decode(definition, pattern) for pattern in range(definition.largest + 1)]
    return [*values, values[-1] + (values[-1] - values[-2]) * (1 if definition.mantissa_bits else 2)]


def searched(value, values):
    """The place of the nearest magnitude, found by looking at each; of two, the even place. values: fractions."""
    exact = Fraction(abs(value))
    distances = [abs(exact - one) for one in values]
    least = min(distances)
    places = [place for place, distance in enumerate(distances) if distance == least]
    return next((place for place in places if place % 2 == 0), places[0])


def overflows_to(name, largest):
    return {"saturate": largest, "inf": math.inf, "nan": math.nan}[behaviour(DEFINITIONS[name]).above_max]


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNED_BYTES)
@settings(max_examples=40)
@given(values=FINITE)
def test_a_cast_takes_the_nearest_of_all_values(name, values):
    choices = magnitudes(name)
    exact = [Fraction(one) for one in choices]
    for value, became in zip(values, cast(values, name), strict=True):
        place = searched(value, exact)
        expected = overflows_to(name, choices[-2]) if place == len(choices) - 1 else choices[place]
        assert math.isnan(became) == math.isnan(expected)
        assert math.isnan(became) or became == math.copysign(expected, value), value


@pytest.mark.parametrize("name", SIGNED_BYTES)
def test_every_tie_goes_to_the_even_value(name):
    values = magnitudes(name)[:-1]
    ties = [(low + high) / 2 for low, high in pairwise(values)]
    expected = [values[place + place % 2] for place in range(len(ties))]
    assert cast(ties, name) == expected


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@given(value=st.floats(-65504, 65504, width=32))
def test_sixteen_bits_round_as_defined(name, value):
    assert cast([value], name) == [nearest(DEFINITIONS[name], value)]


@given(st.floats(-3e38, 3e38))
def test_float32_rounds_as_c_does(value):
    assert cast([value], "float32") == list(struct.unpack("f", struct.pack("f", value)))


@given(st.floats(2**-126, 2**127, width=32))
def test_e8m0_takes_the_nearest_power_of_two_and_the_larger_of_two(value):
    below = 2.0 ** (math.frexp(value)[1] - 1)
    assert cast([value], E8M0) == [below if value < 1.5 * below else 2 * below]


@pytest.mark.parametrize("name", CASTABLE)
def test_the_overflow_columns_are_what_torch_does(name):
    largest = torch.finfo(getattr(torch, name)).max
    known = behaviour(DEFINITIONS[name])
    source = torch.float64 if name == "float32" else torch.float32
    above = largest * 2 if name == "float32" else min(largest * 1000, torch.finfo(torch.float32).max)
    for value, said in ((above, known.above_max), (math.inf, known.inf)):
        became = torch.tensor([value], dtype=source).to(getattr(torch, name)).to(torch.float64).item()
        assert said == ("nan" if math.isnan(became) else "inf" if math.isinf(became) else "saturate")
        assert said != "saturate" or became == largest


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e5m2"])
def test_what_has_an_infinity_overflows_to_it_and_rounds_to_even(name):
    assert behaviour(DEFINITIONS[name]) == CastBehaviour("inf", "inf", "to nearest, ties to even")


@pytest.mark.parametrize(
    ("becomes", "said"), [(448.0, "saturate"), (math.inf, "inf"), (math.nan, "nan"), (-448.0, "other")]
)
def test_overflow_is_measured_and_not_known(becomes, said, monkeypatch):
    honest = formats._through

    def another_torch(source, name):
        return [
            becomes if abs(was) > 464 else now for was, now in zip(source.tolist(), honest(source, name), strict=True)
        ]

    monkeypatch.setattr(formats, "_through", another_torch)
    assert (behaviour(DEFINITIONS[E4M3]).above_max, behaviour(DEFINITIONS[E4M3]).inf) == (said, said)


@pytest.mark.parametrize(
    ("round_steps", "said"),
    [
        (round, "to nearest, ties to even"),
        (lambda steps: math.floor(steps + 0.5), "to nearest, ties away from zero"),
        (lambda steps: math.ceil(steps - 0.5), "to nearest, ties toward zero"),
        (math.floor, "in another way"),
        (math.ceil, "in another way"),
    ],
)
def test_rounding_is_measured_and_not_known(round_steps, said, monkeypatch):
    def another_torch(source, name):
        return [round_steps(value * 8) / 8 if value < 2 else 448.0 for value in source.tolist()]

    monkeypatch.setattr(formats, "_through", another_torch)
    assert behaviour(DEFINITIONS[E4M3]).rounding == said


def test_how_many_are_cast_does_not_matter():
    """Long tensors are cast by vector instructions, short ones need not be."""
    values = [2.07, -0.78, 1e6, math.inf, 500.0, 1e-9]
    for name in CASTABLE:
        assert str(cast(values * 500, name)) == str(cast(values, name) * 500)


def test_errors_are_taken_from_the_value_as_given():
    ((one,), (other,)) = (examine([E4M3], [value]).casts for value in (2.07, -0.78))
    assert (one.becomes, one.absolute_error, one.relative_error) == (2, 2.07 - 2, (2.07 - 2) / 2.07)
    assert (other.becomes, other.absolute_error, other.relative_error) == (-0.75, 0.78 - 0.75, (0.78 - 0.75) / 0.78)
    assert one.by == "torch"


def test_errors_of_what_is_no_number():
    report = examine(["float32", E4M3], [math.inf, math.nan, 1e39, 0.0])
    errors = {(one.value, one.dtype): (one.absolute_error, one.relative_error) for one in report.casts[:2]}
    assert errors[math.inf, "float32"] == (0, 0)
    assert all(one.absolute_error == one.relative_error == 0 for one in report.casts[2:4])
    beyond = report.casts[4]
    assert (beyond.becomes, beyond.absolute_error, beyond.relative_error) == (math.inf, math.inf, math.inf)
    assert all(one.absolute_error == one.relative_error == 0 for one in report.casts[6:])


def test_the_sign_of_zero_is_kept_by_what_has_one():
    assert math.copysign(1, cast([-0.0], E4M3)[0]) == -1
    if hasattr(torch, E8M0):
        (one,) = examine([E8M0], [-0.0]).casts
        assert (one.becomes, one.absolute_error, one.relative_error) == (2**-127, 2**-127, math.inf)


@pytest.mark.skipif(not hasattr(torch, E2M1), reason="this torch has no float4_e2m1fn_x2")
def test_what_cannot_be_cast_is_rounded_by_its_definition_and_says_so():
    if cast([1.0], E2M1) is not None:
        pytest.skip("this torch casts to float4_e2m1fn_x2")
    report = examine([E2M1], [2.07, 7, math.inf])
    assert report.formats[0].behaviour is None
    assert [one.becomes for one in report.casts] == [2, 6, None]
    assert [one.by for one in report.casts] == ["definition", "definition", None]
    assert report.casts[2].absolute_error is None


def test_a_report_is_value_by_value_in_the_order_of_names():
    report = examine(["float16", E4M3], [3.0, 1.0, 3.0])
    assert [(one.value, one.dtype) for one in report.casts] == [
        (value, name) for value in (3, 1, 3) for name in ("float16", E4M3)
    ]
    assert (report.torch, report.device) == (torch.__version__, "cpu")


def test_rare_formats_are_told_only_when_asked_for():
    usual = named(every=False)
    assert usual[:5] == ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
    assert set(named(every=True)) - set(usual) == {"float8_e4m3fnuz", "float8_e5m2fnuz"}


def test_a_torch_without_a_format_does_without(monkeypatch):
    monkeypatch.delattr(torch, "float8_e5m2")
    report = examine(["float8_e5m2"], [2.07])
    assert report.formats[0].behaviour is None
    assert [(one.becomes, one.by) for one in report.casts] == [(2, "definition")]

"""Formats by definition, held against ml_dtypes, which has all of them, torch, C's floats, and torchao's blocks."""

import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.numerics.definitions import DEFINITIONS, E2M1, E8M0, bits, decode, encode
from fp8bench.numerics.definitions import in_blocks as cast_in_blocks

ML_DTYPES = {
    "bfloat16": (ml_dtypes.bfloat16, np.uint16),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, np.uint8),
    "float8_e5m2": (ml_dtypes.float8_e5m2, np.uint8),
    "float8_e8m0fnu": (ml_dtypes.float8_e8m0fnu, np.uint8),
    "float4_e2m1fn_x2": (ml_dtypes.float4_e2m1fn, np.uint8),
    "float16": (np.float16, np.uint16),
}
SIGNED = [name for name in ML_DTYPES if name != E8M0.name]
BYTES = [name for name, definition in DEFINITIONS.items() if definition.bits == 8]
WORDS = [name for name, definition in DEFINITIONS.items() if definition.bits == 16]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def same(one, other):
    """Equal to the sign of a zero, nan equal to nan."""
    return (math.isnan(one) and math.isnan(other)) or (
        one == other and math.copysign(1, one) == math.copysign(1, other)
    )


def pattern_by_ml_dtypes(value, name):
    dtype, integers = ML_DTYPES[name]
    return int(np.asarray([value], dtype=np.float32).astype(dtype).view(integers)[0])


def pattern(name, value):
    one = bits(DEFINITIONS[name], value)
    return int(one.sign + one.exponent + one.mantissa, 2)


class TestLimits:
    @pytest.mark.parametrize("name", ML_DTYPES)
    def test_are_those_of_ml_dtypes(self, name):
        ours, theirs = DEFINITIONS[name].limits, ml_dtypes.finfo(ML_DTYPES[name][0])
        for field in ("bits", "max", "min", "smallest_normal", "eps"):
            assert ours[field] == getattr(theirs, field)
        assert (ours["exponent_bits"], ours["mantissa_bits"]) == (theirs.nexp, theirs.nmant)
        assert ours["smallest_subnormal"] == (None if name == E8M0.name else theirs.smallest_subnormal)
        float32 = DEFINITIONS["float32"].limits
        assert (float32["max"], float32["smallest_subnormal"]) == (torch.finfo(torch.float32).max, 2**-149)


class TestDecode:
    @pytest.mark.parametrize("name", [*BYTES, *WORDS])
    def test_every_pattern_as_torch(self, name):
        definition = DEFINITIONS[name]
        patterns = range(1 << definition.bits)
        integers = {8: torch.uint8, 16: torch.int16}[definition.bits]
        by_torch = torch.tensor(patterns).to(integers).view(getattr(torch, name)).to(torch.float64).tolist()
        assert all(map(same, [decode(definition, one) for one in patterns], by_torch))

    @given(st.integers(0, 2**32 - 1))
    def test_float32_as_c(self, pattern):
        (by_c,) = struct.unpack("f", struct.pack("I", pattern))
        assert same(decode(DEFINITIONS["float32"], pattern), by_c) or math.isnan(by_c)

    @pytest.mark.parametrize("pattern", [-1, 16])
    def test_a_pattern_of_too_many_bits_is_none(self, pattern):
        with pytest.raises(ValueError, match="has 4 bits"):
            decode(E2M1, pattern)

    @pytest.mark.parametrize("name", DEFINITIONS)
    def test_what_is_decoded_is_encoded_again(self, name):
        definition = DEFINITIONS[name]
        for one in range(0, 1 << definition.bits, {8: 1, 4: 1, 16: 17, 32: 104_729 * 97}[definition.bits]):
            value = decode(definition, one)
            assert math.isnan(value) or encode(definition, value) == one


class TestBits:
    @pytest.mark.parametrize("name", SIGNED)
    @settings(max_examples=60)
    @given(value=st.floats(-1, 1, width=32) | st.sampled_from([0.3952, -0.78, 2**-9, 2**-10, 1.5 * 2**-9, 0.0, -0.0]))
    def test_are_those_of_ml_dtypes(self, name, value):
        """Within every format's range; a number is a float32 first."""
        scaled = value * min(DEFINITIONS[name].max, 1e30)
        assert pattern(name, scaled) == pattern_by_ml_dtypes(scaled, name)

    @pytest.mark.parametrize("name", [*BYTES, E2M1.name])
    @given(value=FINITE | st.floats(-8, 8, width=32) | st.floats(-600, 600, width=32))
    def test_nothing_is_nearer_than_the_nearest(self, name, value):
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

        def distance(place):
            # Of two, the even pattern; of e8m0's, which has no mantissa, the larger value.
            return abs(Fraction(abs(value)) - Fraction(values[place])), -place if name == E8M0.name else place % 2

        assert abs(becomes) == values[min(range(len(values)), key=distance)]

    @pytest.mark.parametrize(
        ("name", "value", "becomes", "saturated", "errors"),
        [
            ("float8_e4m3fn", 464, 448, False, (16, 16 / 464)),
            ("float8_e4m3fn", 464.5, 448, True, (16.5, 16.5 / 464.5)),
            ("float8_e4m3fn", -1e9, -448, True, (1e9 - 448, (1e9 - 448) / 1e9)),
            ("float8_e5m2", 61439, 57344, False, (4095, 4095 / 61439)),
            ("float8_e5m2", 61440, math.inf, False, (math.inf, math.inf)),
            ("float8_e4m3fn", math.inf, None, False, (None, None)),
            ("float8_e4m3fn", math.nan, math.nan, False, (0, 0)),
            ("float8_e8m0fnu", -1, None, False, (None, None)),
            ("float8_e8m0fnu", -0.0, 2**-127, False, (2**-127, math.inf)),
            ("float4_e2m1fn_x2", math.nan, None, False, (None, None)),
            ("float4_e2m1fn_x2", -1e30, -6, True, (1e30, 1)),
            ("float16", 1e300, math.inf, False, (math.inf, math.inf)),
            ("float32", 1e39, math.inf, False, (math.inf, math.inf)),
            ("float32", math.inf, math.inf, False, (0, 0)),
            ("float8_e4m3fn", -0.78, -0.75, False, (0.78 - 0.75, (0.78 - 0.75) / 0.78)),
            ("float8_e4m3fn", 0.0, 0, False, (0, 0)),
        ],
    )
    def test_what_is_too_large_becomes_inf_or_max_what_has_no_bits_none_and_errors_are_of_the_value_as_given(
        self, name, value, becomes, saturated, errors
    ):
        one = bits(DEFINITIONS[name], value)
        assert one.becomes is becomes is None or same(one.becomes, becomes)
        assert (one.saturated, one.absolute_error, one.relative_error) == (saturated, *errors)


def in_blocks(values):
    """The values after the cast, and the scale of each."""
    found = cast_in_blocks(values)
    return [one.becomes for one in found], [one.scale for one in found]


def drawn(rows=8, columns=128, spread=3.0):
    by = torch.Generator().manual_seed(1)
    sizes = torch.exp2(torch.randn(rows, columns // 16, generator=by) * spread).repeat_interleave(16, 1)
    return torch.randn(rows, columns, generator=by) * sizes


@pytest.mark.usefixtures("one_thread")
class TestBlocks:
    @pytest.mark.slow
    def test_mxfp8_is_torchaos_with_scales_rounded_up(self):
        mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
        scales, values = mx.to_mx(drawn(), torch.float8_e4m3fn, 32, mx.ScaleCalculationMode.RCEIL)
        theirs = values.float().view(8, 4, 32) * scales.float().unsqueeze(-1)
        for row, becomes, scale in zip(drawn(), theirs.view(8, 128), scales.float(), strict=True):
            assert in_blocks(row.tolist()) == (becomes.tolist(), scale.repeat_interleave(32).tolist())

    def test_one_scale_serves_a_block_alone_in_which_nothing_saturates_and_zeros_stay_zeros(self):
        values = [0.0] * 100
        values[0], values[1], values[32], values[69] = 448.0, 1e-4, 1.0, 3e-4
        becomes, scales = in_blocks(values)
        assert scales[::32] == [1.0, 2.0**-8, 2.0**-20, 2.0**-127]
        assert becomes[:2] == [448, 0], "beside an outlier"
        assert (becomes[32], becomes[69]) == (1, pytest.approx(3e-4, rel=0.04))
        becomes, _ = in_blocks([0.0] * 40 + [1e-44] + [0.0] * 7)
        assert all(map(math.isfinite, becomes))
        assert not any(becomes[:32])
        assert in_blocks([0.0] * 3)[0] == [0.0] * 3
        found = cast_in_blocks([460.0, -700.0, math.inf, 1.0])
        assert not any(one.saturated for one in found)
        assert (found[0].scale, found[2].becomes, found[3].becomes) == (2, None, 1)

"""Block formats: held against torchao's casts to the same formats."""

import math

import pytest
import torch

from fp8bench.numerics.block_formats import BLOCK_FORMATS, in_blocks

pytestmark = pytest.mark.usefixtures("one_thread")
NVFP4 = BLOCK_FORMATS["nvfp4"]


def drawn(rows=8, columns=128, spread=3.0):
    by = torch.Generator().manual_seed(1)
    sizes = torch.exp2(torch.randn(rows, columns // 16, generator=by) * spread).repeat_interleave(16, 1)
    return torch.randn(rows, columns, generator=by) * sizes


def made(name, values):
    """The values after the cast, and the scale of each."""
    found = in_blocks(BLOCK_FORMATS[name], values)
    return [one.becomes for one in found], [one.scale for one in found]


@pytest.mark.slow
class TestTorchao:
    """Its prototype of MX formats and of NVFP4, in plain torch."""

    def test_mxfp8_is_its_mxfp8_with_scales_rounded_up(self):
        mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
        scales, values = mx.to_mx(drawn(), torch.float8_e4m3fn, 32, mx.ScaleCalculationMode.RCEIL)
        theirs = values.float().view(8, 4, 32) * scales.float().unsqueeze(-1)
        for row, becomes, scale in zip(drawn(), theirs.view(8, 128), scales.float(), strict=True):
            ours = made("mxfp8", row.tolist())
            assert ours == (becomes.tolist(), scale.repeat_interleave(32).tolist())

    def test_nvfp4_is_its_nvfp4_with_a_tensors_scale(self):
        nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
        values = drawn(spread=1.0).view(1, -1)
        tensor_scale = nvfp4.per_tensor_amax_to_scale(values.abs().amax())
        scales, packed = nvfp4.nvfp4_quantize(values, 16, tensor_scale)
        ours, our_scales = (torch.tensor(one).view(-1, 16) for one in made("nvfp4", values[0].tolist()))
        # torchao has no scale below e4m3's smallest normal one.
        normal = (scales.float() > 2.0**-6).view(-1)
        assert normal.double().mean() > 0.9
        assert torch.allclose(our_scales[normal, 0], (scales.float() * tensor_scale).view(-1)[normal], rtol=1e-6)
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
        nibbles = torch.stack((packed & 15, packed >> 4), -1).reshape(-1, 16)
        theirs = grid[nibbles.long()] * (scales.float() * tensor_scale).view(-1, 1)
        # It multiplies by reciprocals, so that a tie in ten thousand values may go the other way.
        assert torch.isclose(ours, theirs, rtol=1e-6, atol=0)[normal].double().mean() > 0.999


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_cast_changes_nothing_the_second_time(name):
    values, _ = made(name, drawn(1)[0].tolist())
    again, _ = made(name, values)
    assert again == pytest.approx(values, rel=1e-6) or name == "nvfp4"


def test_one_scale_serves_a_block_and_its_own_alone():
    values = [0.0] * 100
    values[0], values[32], values[69] = 448.0, 1.0, 3e-4
    becomes, scales = made("mxfp8", values)
    assert scales[::32] == [1.0, 2.0**-8, 2.0**-20, 2.0**-127]
    assert (becomes[0], becomes[32], becomes[69]) == (448, 1, pytest.approx(3e-4, rel=0.04))


def test_a_small_value_beside_an_outlier_becomes_zero_and_in_a_block_of_its_own_does_not():
    becomes, _ = made("mxfp8", [448.0, *[1e-4] * 63])
    assert becomes[1:32] == [0.0] * 31
    assert becomes[32:] == pytest.approx([1e-4] * 32, rel=0.04)


def test_zeros_stay_zeros_and_tiny_blocks_have_no_nan():
    for name in BLOCK_FORMATS:
        becomes, _ = made(name, [0.0] * 40 + [1e-44] + [0.0] * 7)
        assert all(map(math.isfinite, becomes))
        assert not any(becomes[:32])
        assert made(name, [0.0] * 3)[0] == [0.0] * 3


def test_nothing_saturates_under_a_power_of_two_and_an_infinity_has_no_bits():
    found = in_blocks(BLOCK_FORMATS["mxfp4"], [6.1, -9.9, math.inf, 1.0])
    assert not any(one.saturated for one in found)
    assert (found[0].scale, found[2].becomes, found[3].becomes) == (2, None, 1)


@pytest.mark.parametrize(("name", "bits"), [("mxfp8", 8.25), ("mxfp4", 4.25), ("nvfp4", 4.5)])
def test_a_value_has_its_bits_and_its_share_of_the_scale(name, bits):
    assert BLOCK_FORMATS[name].bits == bits

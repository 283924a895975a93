"""Block scales: held against torchao's casts to the same formats, and against Python's, value by value."""

import math

import pytest
import torch

from fp8bench.numerics.blocks import block_cast, examine_blocks, power_of_two_above
from fp8bench.numerics.scalings import E4M3, E8M0, FLOAT32, SCALINGS, SIDE, Scaling, cast, found, sample

BY_NAME = {one.name: one for one in SCALINGS}
pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(rows=32, columns=128, spread=3.0):
    by = torch.Generator().manual_seed(1)
    sizes = torch.exp2(torch.randn(rows, columns // 16, generator=by) * spread).repeat_interleave(16, 1)
    return torch.randn(rows, columns, generator=by) * sizes


@pytest.fixture(scope="module")
def report():
    return examine_blocks(rows=128, columns=128)


@pytest.mark.slow
class TestTorchao:
    """Its prototype of MX formats and of NVFP4, in plain torch."""

    def test_mxfp8_is_its_mxfp8_with_scales_rounded_up(self):
        mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
        scales, values = mx.to_mx(drawn(), torch.float8_e4m3fn, 32, mx.ScaleCalculationMode.RCEIL)
        ours = block_cast(drawn(), BY_NAME["mxfp8"])
        assert torch.equal(ours.scales, scales.float())
        theirs = values.float().view(32, 4, 32) * scales.float().unsqueeze(-1)
        assert torch.equal(ours.values, theirs.view(32, 128))

    def test_nvfp4_is_its_nvfp4_with_a_tensors_scale(self):
        nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
        values = drawn(spread=1.0)
        tensor_scale = nvfp4.per_tensor_amax_to_scale(values.abs().amax())
        scales, packed = nvfp4.nvfp4_quantize(values, 16, tensor_scale)
        ours = block_cast(values, BY_NAME["nvfp4"])
        # torchao has no scale below e4m3's smallest normal one.
        normal = scales.float() > 2.0**-6
        assert normal.double().mean() > 0.9
        assert torch.allclose(ours.scales[normal], (scales.float() * tensor_scale)[normal], rtol=1e-6)
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
        nibbles = torch.stack((packed & 15, packed >> 4), -1).reshape(32, 8, 16)
        theirs = grid[nibbles.long()] * (scales.float() * tensor_scale).unsqueeze(-1)
        alike = torch.isclose(ours.values.view(32, 8, 16), theirs, rtol=1e-6, atol=0)[normal]
        # It multiplies by reciprocals, so that a tie in ten thousand values may go the other way.
        assert alike.double().mean() > 0.999


@pytest.mark.parametrize("name", [one.name for one in SCALINGS])
def test_the_emulation_is_what_python_makes_of_each_value(name):
    values = torch.tensor(sample(), dtype=torch.float64)
    by_python = torch.tensor(cast(sample(), BY_NAME[name]), dtype=torch.float64)
    by_torch = block_cast(values.float(), BY_NAME[name]).values.double()
    # A float32 may be rounded to the other neighbour than the float64 beside it.
    assert torch.isclose(by_torch, by_python, rtol=1e-6).double().mean() > 0.999


@pytest.mark.parametrize("name", [one.name for one in SCALINGS])
def test_a_cast_changes_nothing_the_second_time(name):
    first = block_cast(drawn(128, 128), BY_NAME[name]).values
    again = block_cast(first, BY_NAME[name]).values
    assert torch.allclose(again, first, rtol=1e-6) or name.startswith("nvfp4")


def test_one_scale_serves_a_block_and_its_own_alone():
    values = torch.zeros(2, 64)
    values[0, 0], values[0, 32], values[1, 5] = 448.0, 1.0, 3e-4
    made = block_cast(values, BY_NAME["mxfp8"])
    assert made.scales.tolist() == [[1.0, 2.0**-8], [2.0**-20, 2.0**-127]]
    assert made.values[0, 0] == 448
    assert made.values[0, 32] == 1
    assert made.values[1, 5] == pytest.approx(3e-4, rel=0.04)
    assert (made.saturated, made.flushed) == (0, 0)


def test_a_tensors_one_scale_flushes_what_blocks_keep():
    values = torch.full((1, 64), 1e-4)
    values[0, 0] = 448.0
    assert block_cast(values, BY_NAME["fp8"]).flushed == pytest.approx(63 / 64)
    assert block_cast(values, BY_NAME["mxfp8"]).flushed == pytest.approx(31 / 64)


def test_zeros_stay_zeros_and_tiny_blocks_have_no_nan():
    values = torch.zeros(16, 128)
    values[3, 100] = 1e-44
    for scaling in SCALINGS[:1] + SCALINGS[3:6]:
        made = block_cast(values, scaling)
        assert torch.isfinite(made.values).all()
        assert not made.values[:3].any()


def test_powers_of_two_are_rounded_up_and_stay_in_e8m0():
    values = torch.tensor([1.0, 1.0000001, 0.75, 3.0, 0.0, 1e-45, 3e38])
    assert power_of_two_above(values).tolist() == [1, 2, 1, 4, 2**-127, 2**-127, 2.0**127]


def test_squares_are_transposed_without_another_cast():
    values = drawn(128, 128)
    square = BY_NAME["nvfp4-2d"]
    assert torch.equal(block_cast(values, square).values, block_cast(values.t().contiguous(), square).values.t())
    assert not torch.equal(
        block_cast(values, BY_NAME["nvfp4"]).values, block_cast(values.t().contiguous(), BY_NAME["nvfp4"]).values.t()
    )


def test_a_matrix_that_is_no_multiple_of_the_block_is_refused():
    with pytest.raises(ValueError, match="2 x 40 has no blocks of 32"):
        block_cast(torch.ones(2, 40), BY_NAME["mxfp8"])
    with pytest.raises(ValueError, match="has no blocks of 16"):
        block_cast(torch.ones(8, 32), BY_NAME["nvfp4-2d"])


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp8", 8),
        ("te-block", 8.25),
        ("te-block-2d", 8 + 32 / 128**2),
        ("mxfp8", 8.25),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
    ],
)
def test_a_value_has_its_bits_and_its_share_of_the_scale(name, bits):
    assert BY_NAME[name].bits_per_value == bits


class TestTheReport:
    def test_names_and_sizes_are_all_there(self, report):
        assert [one.scaling for one in report.named][:7] == list(BY_NAME)
        assert {one.input for one in report.named} == {"normal", "heavy-tailed", "outlier"}
        sizes = [one.block for one in report.errors if (one.scaling, one.element, one.scale) == (None, E4M3, E8M0)]
        assert sizes == [16, 32, 64, 128, None]

    def test_smaller_blocks_err_less_in_e2m1(self, report):
        of_e2m1 = [one for one in report.errors if one.scaling is None and one.scale == E4M3]
        errors = [one.relative_error for one in of_e2m1]
        assert errors == sorted(errors)
        assert errors[-1] > 1.3 * errors[0]

    def test_only_scales_with_a_mantissa_lose_by_a_second_cast(self, report):
        rows = {one.scaling: one for one in report.named if one.input == "normal"}
        assert rows["mxfp8"].requantized_error == pytest.approx(rows["mxfp8"].transposed_error, rel=1e-3)
        assert rows["nvfp4"].requantized_error > 1.2 * rows["nvfp4"].transposed_error

    def test_one_scale_and_squares_need_no_second_copy(self, report):
        alike = [one.scaling for one in report.named if one.input == "outlier" and one.differing == 0]
        assert alike == ["fp8", "te-block-2d", "nvfp4-2d"]

    def test_the_same_seed_gives_the_same_report(self, report):
        assert examine_blocks(rows=128, columns=128) == report
        assert examine_blocks(seed=1, rows=128, columns=128) != report


class TestWhatClaimsAreTestedOn:
    def test_every_way_has_an_answer_that_follows_from_its_format(self):
        fp8, mxfp8, squares = found("fp8"), found("mxfp8"), found("nvfp4-2d")
        assert mxfp8.zeroed < fp8.zeroed
        assert (fp8.differing, squares.differing) == (0, 0)
        assert squares.error == squares.transposed_error == pytest.approx(squares.requantized_error)
        assert fp8.error == pytest.approx(0.026, rel=0.1)

    def test_the_values_are_the_same_everywhere(self):
        assert len(sample()) == SIDE
        assert sample()[0][0] == pytest.approx(0.9417, abs=1e-4)

    def test_an_unknown_way_is_refused(self):
        with pytest.raises(ValueError, match="fp9 is not a way to scale"):
            found("fp9")

    def test_zeros_are_cast_to_zeros(self):
        assert cast([[0.0] * 32], Scaling(E4M3, FLOAT32, 32)) == [[0.0] * 32]
        assert math.isfinite(cast([[1e-300, *[0.0] * 31]], BY_NAME["mxfp8"])[0][0])

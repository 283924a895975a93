"""Layers through modes on a CPU: what fp8 adds, what it does not, and what a mode that fails leaves behind."""

import math
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from numerics import te_delayed_stand_in

from fp8bench.modes.transformer_engine import DELAYED_SETTLE_PASSES, TEBF16, TEFP8
from fp8bench.numerics import examination, memory
from fp8bench.numerics.examination import errors, examine, make_case, make_mode, refusal_of, run_mode, shares
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS, NumericsConfig

CPU = torch.device("cpu")
FP8 = ("torchao-float8:tensorwise", "torchao-float8:rowwise")
RAN = ("baseline-fp32", "baseline-bf16", *FP8)
MODES = (*RAN, "torchao-float8:rowwise_with_gw_hp", "te-fp8:delayed")
SMALL = {"device": "cpu", "layers": ("linear",), "inputs": ("normal",), "width": 32, "tokens": 32, "seed": 0}
EXACT_INPUTS = [name for name in INPUTS if name.endswith("exact")]


def config(*modes, **changes):
    return NumericsConfig(modes=modes, **{**SMALL, **changes})


def silent(_stage):
    pass


class TestErrors:
    """On numbers that can be reckoned by hand."""

    def test_by_hand_no_error_has_no_decibels_and_the_cosine_is_blind_to_size(self):
        found = errors(torch.tensor([3.0, 4.0, 1.0]), torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64))
        assert found["relative_error"] == pytest.approx(0.2)
        assert found["sqnr_db"] == pytest.approx(20 * math.log10(5))
        assert found["cosine"] == pytest.approx(25 / (5 * math.sqrt(26)))
        assert found["max_abs_error"] == 1
        values = torch.randn(8, 4)
        same, twice = errors(values, values.double()), errors(values * 2, values.double())
        assert (same["relative_error"], same["sqnr_db"], same["max_abs_error"]) == (0, None, 0)
        assert same["cosine"] == pytest.approx(1)
        assert (twice["cosine"], twice["relative_error"]) == (pytest.approx(1), pytest.approx(1))

    def test_rounding_is_judged_by_the_values_and_not_by_the_dtype_that_holds_them(self):
        exact = torch.randn(10_000, dtype=torch.float64)
        for found in (exact.bfloat16(), exact.bfloat16().float()):
            result = errors(found, exact)
            assert result["held_in"] == "bfloat16"
            assert result["rounding_error"] == result["relative_error"]
            assert 1.4e-3 < result["rounding_error"] < 2e-3
        assert errors(exact.float(), exact)["held_in"] == "float32"

    @pytest.mark.parametrize(
        ("found", "reference"), [([math.nan, 1.0], [1, 1]), ([math.inf, 1.0], [1, 1]), ([0, 0], [0, 0]), ([1], [0])]
    )
    def test_what_is_not_finite_is_none(self, found, reference):
        found, reference = torch.tensor(found, dtype=torch.float32), torch.tensor(reference, dtype=torch.float64)
        assert errors(found, reference)["relative_error"] is None


@pytest.fixture(scope="module")
def rows():
    whole = NumericsConfig(device="cpu", modes=MODES, layers=LAYERS, inputs=INPUTS, width=64, tokens=64, seed=0)
    return examine(whole, silent).rows


@pytest.fixture(scope="module")
def found(rows):
    return {(row.mode, row.layer, row.input, row.tensor): row for row in rows if row.status == "ok"}


@pytest.mark.slow
class TestOnACPU:
    def test_every_mode_that_runs_has_a_row_for_each_layer_input_and_tensor_and_another_one_that_says_why(
        self, rows, found
    ):
        every = product(RAN, LAYERS, INPUTS, TENSORS)
        assert set(found) == {one for one in every if one[1] == "linear" or one[2] not in EXACT_INPUTS}
        ran = [(LAYERS.index(row.layer), MODES.index(row.mode)) for row in rows if row.layer]
        assert ran == sorted(ran)
        refused = [row for row in rows if row.status != "ok"]
        assert {row.mode for row in refused} == set(MODES) - set(RAN)
        assert {(row.status, row.layer, row.relative_error) for row in refused} == {("unsupported", None, None)}
        assert all(row.reason and row.remedy for row in refused)

    @pytest.mark.parametrize("layer", LAYERS)
    @pytest.mark.parametrize("tensor", TENSORS)
    def test_float32_is_nearer_than_bfloat16_and_bfloat16_than_fp8(self, found, layer, tensor):
        error = {mode: found[mode, layer, "normal", tensor].relative_error for mode in RAN}
        assert error["baseline-fp32"] < 1e-6
        assert 1e-3 < error["baseline-bf16"] < 1e-2
        assert all(1e-2 < error[mode] < 0.15 for mode in FP8)

    def test_e4m3_costs_what_its_three_bits_of_mantissa_must_and_rowwise_keeps_it_for_gradients(self, found):
        whole, row = (
            {tensor: found[mode, "linear", "normal", tensor].relative_error for tensor in TENSORS} for mode in FP8
        )
        assert whole["output"] == pytest.approx(0.037, rel=0.1)
        assert whole["input_gradient"] == pytest.approx((0.053**2 + 0.026**2) ** 0.5, rel=0.1)
        assert all(row[tensor] < 0.75 * whole[tensor] for tensor in TENSORS[1:])

    @pytest.mark.parametrize("mode", FP8)
    @pytest.mark.parametrize("name", EXACT_INPUTS)
    def test_exact_operands_leave_only_the_error_of_the_sums(self, found, mode, name):
        for tensor in TENSORS:
            row = found[mode, "linear", name, tensor]
            assert row.relative_error < 1e-6
            assert (row.saturated, row.flushed, row.cosine) == (0, 0, pytest.approx(1))

    def test_shares_are_of_the_casts_of_the_linear_layer(self, found):
        outlier = found[FP8[0], "linear", "outlier", "output"]
        assert outlier.saturated == 0
        assert 0 < outlier.flushed < 0.01
        assert found[FP8[0], "block", "outlier", "output"].flushed is None
        assert found["baseline-bf16", "linear", "outlier", "output"].flushed is None

    def test_a_seed_says_it_all_and_torchs_matrix_precision_is_left_as_it_was(self):
        five, again, six = (examine(config(FP8[1], seed=seed), silent) for seed in (5, 5, 6))
        assert five == again
        assert five.rows != six.rows
        torch.set_float32_matmul_precision("medium")
        try:
            examine(config("baseline-fp32"), silent)
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision("highest")


class TestRefusals:
    def test_blocks_of_32_need_a_width_of_as_many_and_torch_must_be_able_to_use_the_gpu(self, monkeypatch):
        monkeypatch.setattr(examination, "ALIGNMENTS", {"baseline-bf16": 32})
        assert refusal_of("baseline-bf16", CPU, 64) is None
        assert refusal_of("baseline-bf16", CPU, 80).remedy == "Use 96"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ModeUnavailable, match="torch cannot use it"):
            memory.device_for("cuda")

    @pytest.mark.parametrize(
        ("layers", "width", "mib"),
        [(LAYERS[:1], 2048, 747), (LAYERS[:1], 4096, 3025), (LAYERS[1:], 2048, 2322), (LAYERS, 2048, 2322)],
    )
    def test_the_memory_needed_is_what_was_read_and_little_more(self, layers, width, mib):
        assert mib < examination.layers_bytes(layers, width, tokens=64) / 2**20 < 1.25 * mib

    def test_a_width_beyond_memory_is_refused_before_anything_is_drawn(self, monkeypatch):
        monkeypatch.setattr(memory, "free_host_bytes", lambda: 100 * 2**30)
        with pytest.raises(UsageError, match=r"a width of 65536 needs .* GiB, and 100\.0 GiB are free .*--width"):
            examine(config("baseline-bf16", width=2**16), lambda _stage: pytest.fail("began"))


@pytest.mark.slow
class TestTransformerEnginesPath:
    """On a stand-in: what is converted, copied, settled and read. tests/gpu has the real one."""

    @pytest.fixture(autouse=True)
    def stand_in(self, monkeypatch):
        te_delayed_stand_in.install(monkeypatch)

    def settled(self, name):
        """A case of delayed scaling, and its errors by tensor."""
        case = make_case(config("te-fp8:delayed"), "linear", name, DELAYED_SETTLE_PASSES, CPU)
        found = run_mode(TEFP8("delayed"), case)
        return case, {tensor: errors(found[tensor], case.reference[tensor]) for tensor in TENSORS}

    @pytest.mark.parametrize("layer", LAYERS)
    def test_layers_are_converted_with_their_weights(self, layer):
        case = make_case(config("te-bf16"), layer, "normal", 0, CPU)
        for tensor, values in run_mode(TEBF16(), case).items():
            assert 1e-4 < errors(values, case.reference[tensor])["relative_error"] < 2e-2

    def test_delayed_scaling_settles_on_other_draws_first(self):
        case, found = self.settled("normal")
        assert all(1e-2 < one["relative_error"] < 0.1 for one in found.values())
        [layer] = te_delayed_stand_in.LAYERS
        amaxes = [float(draw.input.bfloat16().abs().amax()) for draw in case.draws]
        assert layer.fp8_meta["scaling_fwd"].amax_history[-4:, 0].tolist() == amaxes[1:] + amaxes[:1]

    @pytest.mark.parametrize("name", EXACT_INPUTS)
    def test_settled_on_exact_operands_only_bfloat16s_rounding_is_left(self, name):
        for one in self.settled(name)[1].values():
            assert one["relative_error"] == pytest.approx(one["rounding_error"], rel=1e-3)

    def test_shares_of_delayed_scaling_are_under_the_scale_of_the_draws_before(self):
        case, _ = self.settled("heavy-tailed")
        amax = [float(draw.input.abs().amax()) for draw in case.draws]
        beyond = (case.draws[0].input.abs() > max(amax[1:]) * 464 / 448).double().mean()
        assert shares("te-fp8:delayed", case, "output")[0] == pytest.approx(float(beyond))


@pytest.mark.slow
def test_a_complaint_is_a_row_memory_that_runs_out_ends_it_and_what_is_not_finite_is_invalid(monkeypatch):
    def rows(**running):
        monkeypatch.setattr(examination, "run_mode", Mock(**running))
        return examine(config("baseline-bf16"), silent).rows

    for error, status, reason in (
        (RuntimeError("needs 128 columns.\nmore"), "failed", "needs 128 columns"),
        (ModeUnavailable("no such layer", "Use another"), "unsupported", "no such layer"),
    ):
        [row] = rows(side_effect=error)
        assert (row.status, row.reason, row.layer, row.input) == (status, reason, "linear", "normal")
    with pytest.raises(RunFailed, match="ran out of memory on linear"):
        rows(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    found = rows(side_effect=lambda *given: {**run_mode(*given), "output": torch.full((32, 128), torch.nan)})
    assert [row.status for row in found] == ["invalid", "ok", "ok"]
    assert make_mode("baseline-bf16") is not make_mode("baseline-bf16")

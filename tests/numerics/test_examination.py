"""Layers through modes on a CPU: what fp8 adds, what it does not, and what a mode that fails leaves behind."""

import pytest
import torch
from numerics import te_delayed_stand_in

from fp8bench.modes.te_article import TEBF16Article
from fp8bench.modes.transformer_engine import DELAYED_SETTLE_PASSES, TEBF16, TEFP8
from fp8bench.numerics import examination as module
from fp8bench.numerics.examination import device_for, errors, examine, open_mode
from fp8bench.numerics.layers import convert, heads, is_exact, plain_layer, shapes, weights
from fp8bench.schema.errors import ModeUnavailable, RunFailed
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS, NumericsConfig

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FP8 = ("torchao-float8:tensorwise", "torchao-float8:rowwise")
MODES = ("baseline-fp32", "baseline-bf16", *FP8, "torchao-float8:rowwise_with_gw_hp", "te-fp8:delayed")
SMALL = {"device": "cpu", "layers": ("linear",), "inputs": ("normal",), "width": 32, "tokens": 32, "seed": 0}


def config(*modes, **changes):
    return NumericsConfig(modes=modes, **{**SMALL, **changes})


@pytest.fixture(scope="module")
def rows():
    whole = NumericsConfig(device="cpu", modes=MODES, layers=LAYERS, inputs=INPUTS, width=64, tokens=64, seed=0)
    return examine(whole, lambda _stage: None).rows


@pytest.fixture(scope="module")
def found(rows):
    return {(row.mode, row.layer, row.input, row.tensor): row for row in rows}


class TestOnACPU:
    def test_every_mode_that_runs_has_a_row_for_each_layer_input_and_tensor(self, found):
        for mode in ("baseline-fp32", "baseline-bf16", *FP8):
            for layer in LAYERS:
                for name in INPUTS:
                    for tensor in TENSORS:
                        exists = (mode, layer, name, tensor) in found
                        assert exists == (layer == "linear" or not is_exact(name))

    def test_a_mode_that_does_not_run_has_one_row_that_says_why(self, rows):
        refused = {row.mode: row for row in rows if row.status != "ok"}
        assert set(refused) == {"torchao-float8:rowwise_with_gw_hp", "te-fp8:delayed"}
        for row in refused.values():
            assert row.status == "unsupported"
            assert row.reason
            assert row.remedy
            assert (row.layer, row.relative_error) == (None, None)

    @pytest.mark.parametrize("tensor", TENSORS)
    def test_float32_is_nearer_than_bfloat16_and_bfloat16_than_fp8(self, found, tensor):
        for layer in LAYERS:
            error = {
                mode: found[mode, layer, "normal", tensor].relative_error
                for mode in ("baseline-fp32", "baseline-bf16", *FP8)
            }
            assert error["baseline-fp32"] < 1e-6
            assert 1e-3 < error["baseline-bf16"] < 1e-2
            assert all(1e-2 < error[mode] < 0.15 for mode in FP8)

    def test_e4m3_costs_what_its_three_bits_of_mantissa_must(self, found):
        assert found["torchao-float8:tensorwise", "linear", "normal", "output"].relative_error == pytest.approx(
            0.037, rel=0.1
        )
        gradient = found["torchao-float8:tensorwise", "linear", "normal", "input_gradient"].relative_error
        assert gradient == pytest.approx((0.053**2 + 0.026**2) ** 0.5, rel=0.1)

    def test_rowwise_keeps_e4m3_for_gradients_and_is_nearer(self, found):
        for tensor in ("input_gradient", "weight_gradient"):
            row, whole = (found[mode, "linear", "normal", tensor] for mode in reversed(FP8))
            assert row.relative_error < 0.75 * whole.relative_error

    @pytest.mark.parametrize("mode", FP8)
    @pytest.mark.parametrize("name", [name for name in INPUTS if is_exact(name)])
    def test_exact_operands_leave_only_the_error_of_the_sums(self, found, mode, name):
        for tensor in TENSORS:
            row = found[mode, "linear", name, tensor]
            assert row.relative_error < 1e-6
            assert (row.saturated, row.flushed) == (0, 0)
            assert row.cosine == pytest.approx(1)

    def test_exact_operands_are_bfloat16s_too_and_only_its_output_is_rounded(self, found):
        for tensor in TENSORS:
            row = found["baseline-bf16", "linear", "normal-exact", tensor]
            assert row.held_in == "bfloat16"
            assert row.relative_error == pytest.approx(row.rounding_error, rel=1e-3)

    def test_shares_are_of_the_casts_of_the_linear_layer(self, found):
        outlier = found["torchao-float8:tensorwise", "linear", "outlier", "output"]
        assert outlier.saturated == 0
        assert 0 < outlier.flushed < 0.01
        assert found["torchao-float8:tensorwise", "block", "outlier", "output"].flushed is None
        assert found["baseline-bf16", "linear", "outlier", "output"].flushed is None

    def test_decibels_go_with_the_error(self, rows):
        for row in rows:
            if row.status == "ok":
                assert row.sqnr_db == pytest.approx(
                    -20 * torch.log10(torch.tensor(row.relative_error)).item(), abs=1e-3
                )

    def test_rows_come_in_the_order_of_layers_and_modes(self, rows):
        ran = [(LAYERS.index(row.layer), MODES.index(row.mode)) for row in rows if row.layer]
        assert ran == sorted(ran)

    def test_a_seed_says_it_all(self):
        def errors_of(seed):
            return examine(config("torchao-float8:rowwise", seed=seed), lambda _stage: None)

        assert errors_of(5) == errors_of(5)
        assert errors_of(5).rows != errors_of(6).rows

    def test_it_leaves_torchs_matrix_precision_as_it_was(self):
        torch.set_float32_matmul_precision("medium")
        try:
            examine(config("baseline-fp32"), lambda _stage: None)
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision("highest")

    def test_a_gpu_that_torch_cannot_use_is_unavailable(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ModeUnavailable, match="torch cannot use it"):
            device_for(config("baseline-bf16", device="cuda"))


class TestTheReference:
    @pytest.mark.parametrize("layer", LAYERS)
    def test_is_the_plain_layers_own_in_float64(self, layer):
        case = module._case(config("baseline-fp32"), layer, "normal", 0, CPU)
        for tensor, values in module.run_mode(open_mode("baseline-fp32", CPU, 32).make(), case, CPU).items():
            assert case.reference[tensor].dtype == torch.float64
            assert errors(values, case.reference[tensor]).relative_error < 1e-6

    def test_a_linear_layers_is_three_products(self):
        case = module._case(config("baseline-fp32"), "linear", "normal", 0, CPU)
        x, gradient = case.draws[0].input.double(), case.draws[0].output_gradient.double()
        weight = case.plain.linear.weight.double()
        assert torch.allclose(case.reference["output"], x @ weight.t())
        assert torch.allclose(case.reference["input_gradient"], gradient @ weight)
        assert torch.allclose(case.reference["weight_gradient"], (gradient.t() @ x).flatten())


class TestLayers:
    def test_shapes(self):
        assert shapes("linear", 64, 48).output == (48, 256)
        assert shapes("block", 64, 48).input == (8, 6, 64)
        assert shapes("block", 64, 7).input == (1, 7, 64)

    @pytest.mark.parametrize(("width", "count"), [(1280, 16), (64, 4), (16, 1), (48, 1), (1024, 16), (96, 2)])
    def test_heads_are_multiples_of_16_wide(self, width, count):
        assert heads(width) == count

    def test_a_blocks_weights_are_those_of_its_four_linear_layers(self):
        found = weights(plain_layer("block", 32, 0, exact=False))
        assert [tuple(weight.shape) for weight in found] == [(96, 32), (32, 32), (128, 32), (32, 128)]


@pytest.fixture
def stand_in(monkeypatch):
    te_delayed_stand_in.install(monkeypatch)


@pytest.mark.usefixtures("stand_in")
class TestTransformerEnginesPath:
    """On a stand-in: what is converted, copied, settled and read. tests/gpu has the real one."""

    @pytest.mark.parametrize("layer", LAYERS)
    def test_layers_are_converted_with_their_weights(self, layer):
        case = module._case(config("te-bf16"), layer, "normal", 0, CPU)
        for tensor, values in module.run_mode(TEBF16(), case, CPU).items():
            assert 1e-4 < errors(values, case.reference[tensor]).relative_error < 2e-2

    def test_delayed_scaling_settles_on_other_draws_first(self):
        case = module._case(config("te-fp8:delayed"), "linear", "normal", DELAYED_SETTLE_PASSES, CPU)
        found = module.run_mode(TEFP8("delayed"), case, CPU)
        for tensor in TENSORS:
            assert 1e-2 < errors(found[tensor], case.reference[tensor]).relative_error < 0.1
        [layer] = te_delayed_stand_in.LAYERS
        amaxes = [float(draw.input.bfloat16().abs().amax()) for draw in case.draws]
        assert layer.fp8_meta["scaling_fwd"].amax_history[-4:, 0].tolist() == amaxes[1:] + amaxes[:1]

    @pytest.mark.parametrize("name", [name for name in INPUTS if is_exact(name)])
    def test_settled_on_exact_operands_only_bfloat16s_rounding_is_left(self, name):
        case = module._case(config("te-fp8:delayed"), "linear", name, DELAYED_SETTLE_PASSES, CPU)
        found = module.run_mode(TEFP8("delayed"), case, CPU)
        for tensor in TENSORS:
            result = errors(found[tensor], case.reference[tensor])
            assert result.relative_error == pytest.approx(result.rounding_error, rel=1e-3)

    def test_shares_of_delayed_scaling_are_under_the_scale_of_the_draws_before(self):
        case = module._case(config("te-fp8:delayed"), "linear", "heavy-tailed", DELAYED_SETTLE_PASSES, CPU)
        amax = [float(draw.input.abs().amax()) for draw in case.draws]
        saturated, _ = module._shares("te-fp8:delayed", case, "output")
        beyond = (case.draws[0].input.abs() > max(amax[1:]) * 464 / 448).double().mean()
        assert saturated == pytest.approx(float(beyond))

    def test_a_block_of_an_unknown_kind_is_refused(self):
        plain = plain_layer("block", 32, 0, exact=False)
        with pytest.raises(ModeUnavailable, match="ArticleBlock"):
            weights(convert(TEBF16Article(), plain))


class TestModesThatFail:
    @pytest.fixture
    def opened(self):
        return open_mode("baseline-bf16", CPU, 32)

    def _rows(self, opened, monkeypatch, error):
        def fails(*_):
            raise error

        monkeypatch.setattr(module, "run_mode", fails)
        return module.layer_errors(config("baseline-bf16"), [opened], CPU, lambda _stage: None)

    def test_a_librarys_complaint_is_a_row(self, opened, monkeypatch):
        [row] = self._rows(opened, monkeypatch, RuntimeError("needs 128 columns.\nmore"))
        assert (row.status, row.reason, row.layer, row.input) == ("failed", "needs 128 columns", "linear", "normal")

    def test_a_refusal_is_a_row(self, opened, monkeypatch):
        [row] = self._rows(opened, monkeypatch, ModeUnavailable("no such layer", "Use another"))
        assert (row.status, row.reason) == ("unsupported", "no such layer")

    def test_running_out_of_memory_ends_it(self, opened, monkeypatch):
        with pytest.raises(RunFailed, match="ran out of memory on linear"):
            self._rows(opened, monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))

    def test_what_is_not_finite_is_invalid(self, opened, monkeypatch):
        whole = module.run_mode

        def lost(mode, case, device):
            return {**whole(mode, case, device), "output": torch.full((32, 128), torch.nan)}

        monkeypatch.setattr(module, "run_mode", lost)
        rows = module.layer_errors(config("baseline-bf16"), [opened], CPU, lambda _stage: None)
        assert [(row.tensor, row.status) for row in rows] == [
            ("output", "invalid"),
            ("input_gradient", "ok"),
            ("weight_gradient", "ok"),
        ]

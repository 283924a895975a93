"""What only a GPU can show of `fp8bench numerics`: real fp8 products, and Transformer Engine's own amax history.

Bounds on exact inputs are of what is left when the casts change nothing. Outputs in bfloat16 are rounded by about
1.7e-3, whatever came before; `beyond_rounding` takes that off. The rest is the sums': products that fp8's matrix units
add up with fast accumulation (forwards, but not under te-fp8:block) keep some 14 bits on Hopper (DeepSeek-V3,
arXiv:2412.19437, section 3.3.2): imitated, that gives 0.6e-3 to 2e-3 for sums of 1280. Others are carried over to
float32 every 128 terms; but a library may split a sum over several blocks of threads, and bf16 parts of it are rounded.
"""

import json
import math
import subprocess
import sys

import pytest
import torch
from gpu.this_gpu import ON_GPU, needs_fp8, needs_te

from fp8bench.kinds.numerics import MODES, NumericsRequest, prepare
from fp8bench.registry import find_mode
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS

pytestmark = ON_GPU


TE_FP8 = ("te-fp8:delayed", "te-fp8:current", "te-fp8:block", "te-fp8:mxfp8")
TORCHAO = ("torchao-float8:tensorwise", "torchao-float8:rowwise", "torchao-float8:rowwise_with_gw_hp")
HIGH_PRECISION = ("torchao-float8:rowwise_with_gw_hp", "weight_gradient")
"""Computed in bfloat16, by intention."""

FORWARD_SUMS = 4e-3
BACKWARD_SUMS = 2e-3
BFLOAT16_SUMS = 3e-3


@pytest.fixture(scope="module")
def examined(tmp_path_factory):
    """Everything that the command examines by default on this GPU, in this process."""
    from fp8bench.numerics.examination import examine

    config = prepare(NumericsRequest(results_dir=tmp_path_factory.mktemp("results")), {}).config
    assert (config.device, config.width) == ("cuda", 1280)
    return examine(config, lambda _stage: None)


@pytest.fixture(scope="module")
def found(examined):
    return {(row.mode, row.layer, row.input, row.tensor): row for row in examined.rows}


@pytest.fixture(scope="module")
def ran(examined):
    return {row.mode for row in examined.rows if row.status == "ok"}


def beyond_rounding(row):
    """The error of a tensor without the rounding to the dtype that holds it: the two are independent."""
    return math.sqrt(max(row.relative_error**2 - row.rounding_error**2, 0.0))


@needs_fp8
def test_every_mode_has_its_rows_or_says_why_not(examined, found, ran):
    failed = [
        (row.mode, row.layer, row.input, row.reason) for row in examined.rows if row.status in ("failed", "invalid")
    ]
    assert failed == []
    refused = {row.mode: row for row in examined.rows if row.status == "unsupported"}
    entries = [find_mode(name)[0] for name in MODES]
    labels = {
        f"{entry.name}:{recipe}" if recipe else entry.name for entry in entries for recipe in entry.recipes or ("",)
    }
    assert ran | set(refused) == labels
    assert all(row.reason and row.remedy and row.layer is None for row in refused.values())
    for mode in ran:
        for layer in LAYERS:
            for name in INPUTS:
                if layer == "linear" or not name.endswith("exact"):
                    assert all((mode, layer, name, tensor) in found for tensor in TENSORS)


@needs_fp8
def test_what_this_gpu_can_run_ran(ran):
    assert {"baseline-fp32", "baseline-bf16", *TORCHAO} <= ran
    te = pytest.importorskip("transformer_engine.pytorch")
    assert {"te-fp8:delayed", "te-fp8:current"} <= ran
    assert ("te-fp8:block" in ran) == te.is_fp8_block_scaling_available()
    assert ("te-fp8:mxfp8" in ran) == te.is_mxfp8_available()


def test_yardsticks_are_where_they_must_be(found):
    for tensor in TENSORS:
        assert found["baseline-fp32", "linear", "normal", tensor].relative_error < 5e-6
        assert 1e-3 < found["baseline-bf16", "linear", "normal", tensor].relative_error < 1e-2
        exact = found["baseline-bf16", "linear", "normal-exact", tensor]
        assert exact.held_in == "bfloat16"
        assert beyond_rounding(exact) < BFLOAT16_SUMS


@needs_fp8
def test_fp8_adds_what_its_mantissa_must(found, ran):
    for mode in (*TE_FP8, *TORCHAO):
        if mode not in ran:
            continue
        for layer in LAYERS:
            for tensor in TENSORS:
                if layer == "linear" and (mode, tensor) == HIGH_PRECISION:
                    continue
                assert 1e-2 < found[mode, layer, "normal", tensor].relative_error < 0.15, (mode, layer, tensor)
        assert 1e-2 < found[mode, "linear", "normal", "output"].relative_error < 1e-1


@needs_fp8
def test_exact_operands_leave_rounding_and_sums(found, ran):
    for mode in (*TE_FP8, *TORCHAO):
        if mode not in ran:
            continue
        for tensor in TENSORS:
            row = found[mode, "linear", "normal-exact", tensor]
            if (mode, tensor) == HIGH_PRECISION:
                assert beyond_rounding(row) < BFLOAT16_SUMS
                continue
            bound = FORWARD_SUMS if tensor == "output" else BACKWARD_SUMS
            assert beyond_rounding(row) < bound, (mode, tensor, row.relative_error, row.rounding_error)
            plain = found[mode, "linear", "normal", tensor]
            assert row.relative_error < plain.relative_error / 5, (mode, tensor)


@needs_fp8
@pytest.mark.parametrize("name", [name for name in INPUTS if name.endswith("exact")])
def test_whatever_was_moved_to_the_grid_stays_near_it(found, ran, name):
    for mode in (*TE_FP8, *TORCHAO):
        if mode in ran:
            errors = [found[mode, "linear", name, tensor].relative_error for tensor in TENSORS]
            assert max(errors) < 1e-2, (mode, errors)


@needs_fp8
@needs_te
def test_the_simulated_amax_history_is_transformer_engines(examined):
    traces = {(trace.source, trace.algo, trace.history_len): trace for trace in examined.history.traces}
    read = {key: trace for key, trace in traces.items() if key[0] == "transformer_engine"}
    assert len(read) == 3
    for (_, algo, length), trace in read.items():
        simulated = traces["simulated", algo, length]
        assert trace.amax == simulated.amax, (algo, length)
        assert trace.scale == pytest.approx(simulated.scale, rel=1e-6), (algo, length)
        assert trace.saturated[examined.history.up_at] > 0.9


@needs_fp8
def test_the_command(tmp_path):
    command = [sys.executable, "-m", "fp8bench", "numerics", "--results-dir", str(tmp_path), "--format", "json"]
    command += ["--layer", "linear", "--input", "normal", "--input", "normal-exact", "--width", "256"]
    command += ["--mode", "baseline-bf16", "--mode", "te-fp8:delayed", "--mode", "torchao-float8:rowwise"]
    command += ["--plot", str(tmp_path / "errors.png"), "--history-plot", str(tmp_path / "jump.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)
    assert record["status"] == "ok"
    assert record["environment"]["device_name"] == torch.cuda.get_device_name()
    assert (tmp_path / record["instance"] / f"{record['run_id']}.json").is_file()
    assert (tmp_path / "errors.png").stat().st_size > 10_000
    assert (tmp_path / "jump.png").stat().st_size > 10_000

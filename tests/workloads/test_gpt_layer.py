"""The layer of a GPT by its published sizes, its loss, and what it refuses."""

import pytest
import torch
from builders import config

from fp8bench.modes.baseline import BaselineBF16, BaselineFP32
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import ChosenOptimizer
from fp8bench.worker.execution.optimizers import make_optimizer
from fp8bench.worker.parity import prove
from fp8bench.worker.subject import check_workload
from fp8bench.workloads.gpt_layer import GPTLayerMicro, GPTLayerWorkload

CPU = torch.device("cpu")


def test_the_sizes_are_the_tutorials_and_the_loss_is_what_the_given_gradient_is_the_gradient_of():
    workload = GPTLayerWorkload()
    hidden, ffn = 4096, 16384
    linear = 4 * hidden * hidden + 2 * hidden * ffn
    assert workload.parameters() == linear + (3 + 1 + 1) * hidden + ffn + 4 * hidden
    # Six operations a weight and token, and two GEMMs of attention, forward and twice backward.
    assert workload.flops_per_step(4) == 4 * 2048 * (6 * linear + 12 * 2048 * hidden)
    assert workload.units_per_step(4) == 8192
    workload = GPTLayerMicro(weight_dtype="float32")
    model, batch = workload.build(CPU), next(workload.batches(4, 0, CPU))
    outputs = []
    model.register_forward_hook(lambda _module, _inputs, output: (output.retain_grad(), outputs.append(output))[1])
    workload.loss(model, batch).backward()
    torch.testing.assert_close(outputs[0].grad, batch.targets / 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_of_it_is_in_the_dtype_of_its_weights_whatever_autocast_says(dtype):
    workload = GPTLayerMicro(weight_dtype=dtype)
    model, batch = workload.build(CPU), next(workload.batches(2, 0, CPU))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(batch.inputs)
    assert {weight.dtype for weight in model.parameters()} == {batch.inputs.dtype} == {out.dtype}
    assert str(out.dtype) == f"torch.{dtype}"
    assert workload.sizes()["weight_dtype"] == dtype
    run = config("torchao-float8", workload="gpt-layer-micro", weight_dtype=dtype, data="device")
    check_workload(workload, run, TorchAOFloat8())


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("mode", [BaselineBF16, TorchAOFloat8])
def test_the_gate_compares_every_weights_gradient(mode):
    found = prove(mode(), GPTLayerMicro(), 0, CPU).parity
    assert found.passed, found.reason
    assert found.weight_gradient_error == (0 if mode is BaselineBF16 else pytest.approx(0.2, abs=0.2))
    assert (found.leakage, found.later_leakage) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "mode", "why"),
    [
        ({"data": "loader"}, BaselineBF16, "which a loader cannot provide"),
        ({"sequence_length": 33, "batch_size": 1}, TorchAOFloat8, "batch 1 x sequence 33 are 33"),
        ({"weight_dtype": "bfloat16"}, BaselineFP32, "computes in float32"),
        ({"weight_dtype": "float16"}, BaselineBF16, "computes in bfloat16"),
    ],
)
def test_what_it_cannot_be_trained_with_is_refused(settings, mode, why):
    values = {"workload": "gpt-layer-micro", "data": "device", "weight_dtype": "float32", **settings}
    run = config(mode.name, **values)
    workload = GPTLayerMicro(data=run.data, sequence_length=run.sequence_length or 64, weight_dtype=run.weight_dtype)
    with pytest.raises(ModeUnavailable, match=why):
        check_workload(workload, run, mode())


def test_without_an_optimizer_a_step_ends_with_its_gradients():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make_optimizer(ChosenOptimizer("none"), [weight], CPU)
    weight.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(weight, torch.ones(3))
    optimizer.zero_grad(set_to_none=True)
    assert weight.grad is None

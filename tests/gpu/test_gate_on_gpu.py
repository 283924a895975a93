"""The gate with Transformer Engine itself: its state is what training alone would have made of it, what it costs in
time and memory, and faults in one of many blocks.
"""

import time

import pytest
import torch
from gpu.this_gpu import needs_fp8, needs_gpu

from fp8bench.modes.transformer_engine import TEBF16, TEFP8, own_state
from fp8bench.worker import parity
from fp8bench.workloads.vit import ViTHuge, ViTMicro

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.timeout(900), pytest.mark.usefixtures("process_group")]


@pytest.fixture(autouse=True)
def transformer_engine():
    pytest.importorskip("transformer_engine.pytorch")


def device():
    return torch.device("cuda", 0)


def globals_of_te():
    """What Transformer Engine's state of this process says of the passes to come."""
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as Manager

    state = Manager.quantization_state
    names = ("fp8_enabled", "fp8_calibration", "fp8_parameters", "fp8_graph_capturing", "autocast_depth")
    return {name: getattr(state, name) for name in names}


@needs_fp8
@pytest.mark.parametrize("relies", [False, True], ids=["by itself", "relying on another process"])
def test_scales_and_histories_are_those_of_a_model_that_was_never_proved(relies):
    workload = ViTMicro(data="device")
    mode, alone = TEFP8("delayed"), TEFP8("delayed")
    with own_state():
        earlier = parity.prove(TEFP8("delayed"), workload, 0, device()).parity if relies else None
    before = globals_of_te()
    proof = parity.prove(mode, workload, 0, device(), earlier=earlier)
    assert proof.parity.passed, proof.parity.reason
    assert globals_of_te() == before
    with own_state():
        model = alone.convert(workload.build(device()))
        batch = next(workload.batches(16, 0, device()))
        parity._settle(alone, model, workload, batch)
        expected = [one.clone() for one in alone.step_state(model)]
    found = mode.step_state(proof.model)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    initial = workload.build(device())
    assert torch.equal(proof.model.blocks[1].layer.layernorm_mlp.fc1_weight, initial.blocks[1].mlp.fc1.weight)


@needs_fp8
def test_a_second_state_leaves_the_first_as_it_was():
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as Manager

    first = Manager.quantization_state
    with own_state():
        assert Manager.quantization_state is not first
    assert Manager.quantization_state is first


def nothing_of(output):
    """Zeros in the form of a module's output: a tensor, or a tuple of some."""
    if isinstance(output, tuple):
        return tuple(map(nothing_of, output))
    return None if output is None else 0 * output


@pytest.mark.parametrize("mode", [TEBF16, pytest.param(TEFP8, marks=needs_fp8)])
def test_one_block_of_32_without_its_mlp_is_named(mode):
    class Faulty(mode):
        def convert(self, model):
            model = super().convert(model)
            mlp = model.blocks[17].layer.layernorm_mlp
            mlp.register_forward_hook(lambda _module, _inputs, output: nothing_of(output))
            return model

    found = parity.prove(Faulty(), ViTHuge(data="device"), 0, device()).parity
    assert not found.passed
    assert "blocks.17" in found.reason


@needs_fp8
def test_the_gate_of_vit_huge_takes_seconds_and_little_memory():
    workload = ViTHuge(data="device")
    # A process's first pass of these sizes loads kernels and compiles Transformer Engine's own small functions.
    mode, batch = TEFP8("delayed"), next(workload.batches(16, 0, device()))
    model = mode.convert(workload.build(device()))
    with torch.autocast("cuda", torch.bfloat16), mode.forward_context():
        loss = workload.loss(model, batch)
    loss.backward()
    del model, loss
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begun = time.monotonic()
    assert parity.prove(TEFP8("delayed"), workload, 0, device()).parity.passed
    torch.cuda.synchronize()
    assert time.monotonic() - begun < 8
    assert torch.cuda.max_memory_allocated() < 1.2 * 22.3 * 2**30, "a step at batch 64 takes 22.3 GiB"

"""Activations that are computed again: the same gradients, on record, and refused where a model or a mode cannot."""

import pytest
import torch
from outside.outside_plugins import Polite, TinyLinear
from torch.utils.flop_counter import FlopCounterMode
from worker.execution.executing import CPU, some_parts

from fp8bench.modes.transformer_engine import TEFP8
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.execution import checkpointing
from fp8bench.worker.execution.step import forward

pytestmark = pytest.mark.usefixtures("process_group")


def gradients(parts, batch):
    with FlopCounterMode(display=False) as counter:
        loss = forward(parts, parts.model, batch)
        loss.backward()
    return loss.item(), [weight.grad for weight in parts.plain.parameters()], counter.get_total_flops()


def test_gradients_are_the_same_and_work_is_done_again_and_selective_does_less_than_full():
    plain, batches = some_parts(warm=0)
    batch = next(batches)
    loss, expected, flops = gradients(plain, batch)
    work = {"none": flops}
    for kind in ("selective", "full"):
        parts, _ = some_parts(warm=0, activation_checkpointing=kind)
        again_loss, found, work[kind] = gradients(parts, batch)
        assert (parts.checkpoints.kind, len(parts.checkpoints.blocks)) == (kind, 2)
        assert again_loss == loss
        assert all(map(torch.equal, found, expected))
    assert work["none"] < work["selective"] < work["full"]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_checkpointed_block_is_compiled_into_one_graph():
    torch._dynamo.reset()
    plain, batches = some_parts(warm=0)
    batch = next(batches)
    _, expected, _ = gradients(plain, batch)
    parts, _ = some_parts(warm=0, activation_checkpointing="selective")
    for block in parts.checkpoints.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    loss = forward(parts, parts.model, batch)
    loss.backward()
    for weight, gradient in zip(parts.plain.parameters(), expected, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-4)
    torch._dynamo.reset()


def test_a_model_without_blocks_has_nothing_to_checkpoint():
    with pytest.raises(ModeUnavailable, match="no list of identical blocks to checkpoint"):
        checkpointing.apply("full", TinyLinear().build(CPU), Polite())


def test_gemms_that_torch_does_not_see_cannot_be_selected():
    with pytest.raises(ModeUnavailable, match="not operations of torch"):
        checkpointing.require("selective", TEFP8())
    checkpointing.require("full", TEFP8())


def test_a_mode_brings_a_checkpoint_of_its_own():
    mode, calls = Polite(), []
    mode.checkpoint = lambda function, *args, **kwargs: calls.append(function) or function(*args, **kwargs)
    parts, batches = some_parts(mode, warm=0, activation_checkpointing="full")
    forward(parts, parts.model, next(batches))
    assert len(calls) == 2

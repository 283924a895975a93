"""The switch split-qkv on Transformer Engine itself: the same gradients, and none of them copied."""

import pytest
import torch
from gpu.this_gpu import needs_fp8, needs_te
from torch.profiler import ProfilerActivity, profile

from fp8bench.modes.transformer_engine import TEBF16, TEFP8
from fp8bench.worker.view import look
from fp8bench.workloads.vit import ViTHuge

pytestmark = [pytest.mark.gpu, needs_fp8, pytest.mark.timeout(300)]

GPU = torch.device("cuda", 0)
BLOCKS = 2


class Shallow(ViTHuge):
    """Blocks of ViT-Huge's sizes, with heads of 80."""

    architecture = {**ViTHuge.architecture, "depth": BLOCKS}  # noqa: RUF012


def passes(mode):
    """The gradient at the input, and the operations of a forward and backward pass, after two to settle."""
    workload = Shallow(data="device")
    model = mode.convert(workload.build(GPU))
    batch = next(workload.batches(16, 0, GPU))
    for _ in range(2):
        look(model, workload, batch, mode.forward_context())
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        found = look(model, workload, batch, mode.forward_context())
        torch.cuda.synchronize()
    return found.input_gradient, {one.key: one.count for one in profiled.key_averages()}


@pytest.mark.parametrize("mode", [TEBF16, TEFP8])
@needs_te
def test_the_gradient_is_the_same_and_no_slice_of_it_is_filled_copied_and_added(mode):
    plain, of_plain = passes(mode())
    split, of_split = passes(mode(te_switches="split-qkv"))
    assert torch.isfinite(split).all()
    # cuDNN's backward pass adds up in any order, and fp8 rounds what differs by a bit.
    assert ((split - plain).norm() / plain.norm()).item() < 0.1
    # The class token is taken by a select too.
    assert of_plain["aten::select_backward"] - of_split["aten::select_backward"] == 3 * BLOCKS
    assert of_split.get("aten::stack", 0) == of_plain.get("aten::stack", 0), "the three lay side by side"

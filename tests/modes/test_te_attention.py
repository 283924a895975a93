"""Transformer Engine's attention. What it says about its choice is kept, and not printed; a stand-in says it here. With
the switch split-qkv, queries, keys and values are the same, and their gradient is the tensor that holds them.
"""

import logging
import sys
import types

import pytest
import torch

from fp8bench.modes.te_block import LOGGER, AttentionLog, listen
from fp8bench.modes.te_gpt import Split, whole_of
from fp8bench.modes.transformer_engine import TEBF16
from fp8bench.worker.parity import prove
from fp8bench.worker.view import look
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
PACKAGE = "transformer_engine.pytorch.attention.dot_product_attention"
SAID = [
    "Running with config={'transformer_engine_version': '2.20.2', 'flash_attn_version': '2.8.3', "
    "'flash_attn_3_version': 'not installed', 'device_compute_capability': 'sm90'}",
    "Disabling FlashAttention 3 due to: not installed",
    "Available backends = {FlashAttention=True (2.8.3), FusedAttention=True (sub-backend 1), UnfusedDotProduct=True}",
    "Selected backend = FusedAttention (sub-backend 1)",
]


@pytest.fixture
def choose(monkeypatch):
    """Chooses as the real one does at the first forward pass of a shape: it sets its logger's level, and tells why."""
    utils = types.ModuleType(f"{PACKAGE}.utils")
    utils.AttentionLogging = types.SimpleNamespace(_log_level=logging.WARNING)
    names = PACKAGE.split(".")
    for end in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), types.ModuleType(".".join(names[:end])))
    sys.modules[PACKAGE].utils = utils
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.utils", utils)
    logger = logging.getLogger(LOGGER)
    before = logger.level, logger.propagate

    def choosing():
        logger.setLevel(utils.AttentionLogging._log_level)
        for line in SAID:
            logger.debug(line)
        logger.info("Attention runs")

    yield choosing
    logger.level, logger.propagate = before
    logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, AttentionLog)]


def test_what_tells_about_the_choice_is_kept_once_and_not_printed_and_other_loggers_are_heard(
    choose, capsys, monkeypatch
):
    heard, handler = [], logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log = listen()
    assert log.said == []
    assert listen() is log
    for _shape_that_is_chosen_alike in range(2):
        choose()
    assert log.said == SAID[1:]
    logging.getLogger("another").warning("something")
    assert (capsys.readouterr().err, heard) == ("", ["something"])
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    assert listen() is None, "of a version without that logger"


class Attention(torch.autograd.Function):
    """Its backward writes the gradients of its inputs side by side, as cuDNN's kernels do, or each by itself."""

    whole = torch.empty(0)

    @staticmethod
    def forward(ctx, dim, side_by_side, *parts):
        ctx.dim, ctx.side_by_side = dim, side_by_side
        ctx.save_for_backward(*parts)
        return parts[0] * parts[1] * parts[2]

    @staticmethod
    def backward(ctx, gradient):
        q, k, v = ctx.saved_tensors
        found = [gradient * k * v, gradient * q * v, gradient * q * k]
        if ctx.side_by_side:
            Attention.whole = torch.stack(found, ctx.dim)
            found = Attention.whole.unbind(ctx.dim)
        return None, None, *found


@pytest.mark.parametrize("dim", [-3, -2, 0])
@pytest.mark.parametrize("side_by_side", [True, False])
def test_the_gradient_is_that_of_slices_and_is_not_copied_where_its_parts_lie_side_by_side(dim, side_by_side):
    shape = [2, 5, 4, 8]
    shape.insert(dim % 5, 3)
    packed, seen = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_(), []
    Attention.apply(dim, side_by_side, *(packed.select(dim, place) for place in range(3))).sum().backward()
    expected, packed.grad = packed.grad, None
    projected = packed * 1
    projected.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    Attention.apply(dim, side_by_side, *Split.apply(projected, dim)).sum().backward()
    assert torch.equal(packed.grad, expected)
    assert (seen == [Attention.whole.data_ptr()]) is side_by_side


def test_only_the_parts_of_one_contiguous_tensor_in_their_order_are_a_whole():
    whole = torch.randn(2, 3, 4)
    first, second, third = whole.unbind(1)
    found = whole_of((first, second, third), 1)
    assert found is not None
    assert (found.data_ptr(), found.shape, found.stride()) == (whole.data_ptr(), whole.shape, whole.stride())
    assert whole_of((second, first, third), 1) is None
    assert whole_of((first, second), 1) is None
    assert whole_of((first, second, third.clone()), 1) is None
    assert whole_of((first, second, third), 0) is None
    assert whole_of(tuple(part.clone() for part in (first, second, third)), 1) is None
    assert whole_of(tuple(torch.randn(4, 3, 2).transpose(0, 2).unbind(1)), 1) is None, "not contiguous"


def given_to_attention(model):
    """(arguments, keywords) of each call of the stand-in's attention, which takes slices as 2.20 does."""
    given = []
    for module in model.modules():
        if type(module).__name__ == "DotProductAttention":
            module.register_forward_pre_hook(lambda _, *given_: given.append(given_), with_kwargs=True)
    return given


@pytest.mark.slow
@pytest.mark.usefixtures("process_group", "stand_in")
class TestConverted:
    @pytest.mark.parametrize("workload", [ViTMicro, GPTLayerMicro])
    @pytest.mark.parametrize(("switches", "packed"), [(None, True), ("split-qkv", False)])
    def test_attention_is_given_three_tensors_and_computes_the_same(self, workload, switches, packed):
        of = workload(data="device")
        proof = prove(TEBF16(te_switches=switches), of, 0, CPU)
        assert proof.parity.passed, proof.parity.reason
        given = given_to_attention(proof.model)
        look(proof.model, of, next(of.batches(2, 0, CPU)))
        assert given
        assert all((named["qkv_layer"] is not None) is packed for _args, named in given)
        assert all((args[0] is None) is packed for args, _named in given)

    def test_while_torch_compiles_the_packed_tensor_is_left(self, monkeypatch):
        workload = ViTMicro(data="device")
        model = TEBF16(te_switches="split-qkv").convert(workload.build(CPU))
        given = given_to_attention(model)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        look(model, workload, next(workload.batches(2, 0, CPU)))
        assert given[0][1]["qkv_layer"] is not None

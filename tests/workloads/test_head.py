"""The loss that never holds all logits, against plain cross entropy."""

import pytest
import torch
from torch import nn

from fp8bench.workloads import head
from fp8bench.workloads.head import Head

WORDS, WIDTH, TOKENS = 48, 16, 37


@pytest.fixture
def parts():
    torch.manual_seed(0)
    return Head(WIDTH, WORDS, bias=False), torch.randn(1, TOKENS, WIDTH), torch.randint(WORDS, (1, TOKENS))


def computed(layer, x, targets, chunked):
    """(loss, gradient at the input, at the weight), the loss scaled as pieces of a batch are."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    if chunked:
        loss = layer(x, targets)
    else:
        loss = nn.functional.cross_entropy(layer(x).float().flatten(0, -2), targets.flatten())
    (loss * 0.25).backward()
    return loss.detach(), x.grad, layer.weight.grad.clone()


def apart(one, other):
    return float((one.float() - other.float()).norm() / other.float().norm())


@pytest.mark.parametrize("at_once", [2**27, 10 * WORDS, WORDS, 1], ids=["whole", "four chunks", "a token", "too few"])
def test_it_is_the_cross_entropy_whatever_the_chunk(at_once, parts, monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", at_once)
    found, expected = computed(*parts, chunked=True), computed(*parts, chunked=False)
    assert all(apart(one, other) < 1e-5 for one, other in zip(found, expected, strict=True))
    with torch.no_grad():
        loss = parts[0](*parts[1:])
    assert (loss.grad_fn, loss.item()) == (None, pytest.approx(found[0].item(), rel=1e-6))


def test_under_autocast_its_gemms_are_bf16_and_its_sums_float32(parts, monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 10 * WORDS)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = computed(*parts, chunked=True), computed(*parts, chunked=False)
        assert parts[0](parts[1]).dtype == torch.bfloat16
    assert (found[0].dtype, found[1].dtype, found[2].dtype) == (torch.float32,) * 3
    assert apart(found[0], expected[0]) < 1e-3
    assert all(apart(one, other) < 1e-2 for one, other in zip(found, expected, strict=True))


@pytest.mark.thorough
def test_torch_compile_takes_it_whole(parts, monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 10 * WORDS)
    layer, x, targets = parts
    expected = computed(layer, x, targets, chunked=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = computed(compiled, x, targets, chunked=True)
    assert all(apart(one, other) < 1e-5 for one, other in zip(found, expected, strict=True))

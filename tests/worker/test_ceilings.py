"""What is counted of a model for its floor: attention and norms."""

import pytest
import torch

from fp8bench import registry
from fp8bench.worker.ceilings import Attention, counted


@pytest.mark.parametrize(
    ("name", "attention", "normed"),
    [
        # 2 samples, 4 heads, 16 patches and a class token, 16 channels; 5 norms.
        ("vit-micro", Attention((2, 4, 17, 16), (2, 4, 17, 16), False, False), 5 * 2 * 17 * 64),
        ("llm-micro", Attention((2, 4, 64, 16), (2, 2, 64, 16), True, True), 5 * 2 * 64 * 64),
    ],
)
def test_attention_and_norms_of_a_model_are_counted_and_nothing_stays_hooked(name, attention, normed):
    workload = registry.load(registry.find_workload(name))(data="device")
    for _ in range(2):
        _, calls = counted(workload, 2)
        assert (calls.attention, calls.normed) == ({attention: 2}, normed)
    torch.nn.LayerNorm(8)(torch.ones(8))
    assert calls.normed == normed

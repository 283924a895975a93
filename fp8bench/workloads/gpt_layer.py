"""One layer of a GPT, forward and backward: the workload of Transformer Engine's performance tutorial.

    y = x + proj(attention(qkv(ln1(x))))        causal, heads of 128
    z = y + fc2(gelu(fc1(ln2(y))))              GELU in its tanh form, as in Transformer Engine

Hidden width 4096, MLP 16384, 32 heads, 2048 tokens, batch 4: 201,379,840 parameters. As in the tutorial, weights and
activations have the same 16-bit dtype, without autocast (`--weight-dtype`; float16 there, bfloat16 by default here);
with float32 weights, the loop's autocast applies. Inputs and the gradient at the output are uniform in [0, 1). That
gradient is the target of a batch, and the loss has it: the sum of output times target, as a mean over samples. Dropout
is 0 (0.1 in the tutorial), because two models with dropout cannot be proved equal.

Weights are normal, with a deviation of 0.023 at this width as in Transformer Engine, and a larger one in a narrower
layer, so that attention is as sharp: otherwise the gate would not notice its faults.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import repeat
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fp8bench.schema.config import WeightDtype
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.workloads.base import TokenWorkload
from fp8bench.workloads.protocol import Batch

STD, STD_WIDTH = 0.023, 4096  # the standard deviation of weights, and the width at which it applies

EPSILON = 1e-5


class GPTLayer(nn.Module):
    """The layer. Rows of qkv are all queries, keys, values, heads in order. heads: in this layer, maybe shared."""

    def __init__(self, hidden: int, ffn: int, heads: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = hidden // heads
        self.ln1 = nn.LayerNorm(hidden, EPSILON, dtype=dtype)
        self.qkv = nn.Linear(hidden, 3 * hidden, dtype=dtype)
        self.proj = nn.Linear(hidden, hidden, dtype=dtype)
        self.ln2 = nn.LayerNorm(hidden, EPSILON, dtype=dtype)
        self.fc1 = nn.Linear(hidden, ffn, dtype=dtype)
        self.fc2 = nn.Linear(ffn, hidden, dtype=dtype)
        for linear in (self.qkv, self.proj, self.fc1, self.fc2):
            nn.init.normal_(linear.weight, std=STD * sqrt(STD_WIDTH / hidden))
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result: [batch, sequence, hidden]."""
        qkv = self.qkv(self.ln1(x)).unflatten(-1, (3, self.heads, self.head_dim))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(-2))
        hidden = nn.functional.gelu(self.fc1(self.ln2(x)), approximate="tanh")
        out: Tensor = x + self.fc2(hidden)
        return out


class GPTModel(nn.Module):
    """The layer, computed in the dtype of its weights."""

    block_names: ClassVar[tuple[str, ...]] = ("layer",)

    def __init__(self, hidden: int, ffn: int, heads: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.autocast = dtype in (None, torch.float32)
        self.layer = GPTLayer(hidden, ffn, heads, dtype)

    def forward(self, x: Tensor) -> Tensor:
        # The meta device, on which layers are counted, has no autocast.
        with nullcontext() if self.autocast or x.is_meta else torch.autocast(x.device.type, enabled=False):
            out: Tensor = self.layer(x)
        return out


class GPTLayerWorkload(TokenWorkload):
    """The workload with the tutorial's sizes."""

    name = "gpt-layer"
    config_fields: ClassVar[tuple[str, ...]] = ("sequence_length", "weight_dtype")
    multiples = (("hidden", 1, "heads"),)
    architecture: ClassVar[Mapping[str, Any]] = dict(hidden=4096, ffn=16384, heads=32)

    def __init__(
        self, sequence_length: int | None = None, weight_dtype: WeightDtype = "bfloat16", **settings: Any
    ) -> None:
        super().__init__(sequence_length, **{"data": "device", **settings})
        self.weight_dtype = weight_dtype
        self.dtype: torch.dtype = getattr(torch, weight_dtype)

    def check(self, batch_size: int, fp8: bool) -> None:
        """Raise ModeUnavailable for a loader, or if the number of tokens does not suit fp8's GEMMs."""
        if self.data == "loader":
            what = f"a batch of {self.name} consists of activations, which a loader cannot provide"
            raise ModeUnavailable(what, "Omit --data: it is `device` for this workload")
        super().check(batch_size, fp8)

    def model(self) -> nn.Module:
        return GPTModel(**self.architecture, dtype=self.dtype)

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        """Return one batch, which stays on the device, forever: (x, the gradient at the output)."""
        generator = torch.Generator(device).manual_seed(self.seed * 1_000_003 + rank)
        shape = (batch_size, self.sequence_length, self.architecture["hidden"])
        x, gradient = (torch.rand(shape, generator=generator, device=device, dtype=self.dtype) for _ in range(2))
        return repeat(Batch(x, gradient))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return a mean over samples, in float32. Its gradient at the output is the target over the samples."""
        weighted: Tensor = model(batch.inputs) * batch.targets
        return weighted.sum(dtype=torch.float32) / len(batch.inputs)

    def sample(self) -> Tensor:
        return torch.empty(1, self.sequence_length, self.architecture["hidden"], dtype=self.dtype)

    def sizes(self) -> dict[str, int | str]:
        return {**super().sizes(), "weight_dtype": self.weight_dtype}


class GPTLayerMicro(GPTLayerWorkload):
    """A layer that is small enough for two CPU cores, with widths in multiples of 16 so that float8 can be emulated."""

    name = "gpt-layer-micro"
    usual_length: ClassVar[int] = 64
    architecture: ClassVar[Mapping[str, Any]] = dict(hidden=64, ffn=256, heads=4)

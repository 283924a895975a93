"""Llama with transformers' own classes, on random tokens: three sizes of published studies, and a tiny one for CPUs.

`CausalLM` calls transformers' embedding, layers and norm directly: before torch 2.14 LlamaModel.forward builds a causal
mask under torch.compile, so that attention loses its fast kernels, and it inspects the positions on the host, which is
impossible in a CUDA graph. Attention is torch's scaled_dot_product_attention with is_causal, and counts as if it were
not.

llm-1b has 1,225,861,120 parameters, llm-7b (Llama 2 7B's sizes) 6,738,415,616, llm-8b (Llama 3 8B's) 8,030,261,248.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.workloads.base import TokenWorkload
from fp8bench.workloads.fake_data import Drawn, draw_tokens, endless_batches
from fp8bench.workloads.head import Head
from fp8bench.workloads.protocol import Batch

INITIAL_STD = 0.02
"""The standard deviation of weights, as in Llama's configuration. The last projections of attention and MLP have less
the deeper they are, by sqrt(2 x depth), as in torchtitan's models. With the same for all, rounding to bf16 or fp8 grows
from layer to layer until it hides what a fault would do: after 18 layers fp8's rounding alone turns 0.5 of the gradient
at the embedding, and 0.3 so; after 32 layers 1.05 and 0.5 (emulated, 128 wide, weights scaled to the gains of 2048 and
4096).
"""


class CausalLM(nn.Module):
    """The language model. Its parameters have the names of transformers' LlamaForCausalLM."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.model = _llama().LlamaModel(config)
        for depth, layer in enumerate(self.model.layers, 1):
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                nn.init.normal_(last.weight, std=INITIAL_STD / math.sqrt(2 * depth))
        self.lm_head = Head(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.lm_head.weight, std=INITIAL_STD)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """[batch, sequence] int64. Returns the mean loss, or without targets logits [batch, sequence, words]."""
        x = self.model.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        rotary = self.model.rotary_emb(x, positions)
        for layer in self.model.layers:
            x = layer(x, position_embeddings=rotary)
        output: Tensor = self.lm_head(self.model.norm(x), targets)
        return output


class LLM1B(TokenWorkload):
    """A model whose layers have Llama 3.2 1B's sizes: grouped-query attention, 4 query heads per group."""

    name = "llm-1b"
    packages: ClassVar[tuple[str, ...]] = ("transformers",)
    depth_size: ClassVar[str | None] = "num_hidden_layers"
    # Rotary embeddings turn pairs.
    multiples = (("hidden_size", 2, "num_attention_heads"), ("num_attention_heads", 1, "num_key_value_heads"))
    architecture: ClassVar[dict[str, Any]] = dict(
        hidden_size=2048, num_hidden_layers=18, num_attention_heads=32, num_key_value_heads=8, intermediate_size=8192,
        vocab_size=32000, rope_theta=500_000,
    )  # fmt: skip

    def check(self, batch_size: int, fp8: bool) -> None:
        """Raise ModeUnavailable also if transformers is missing."""
        _llama()
        super().check(batch_size, fp8)

    def model(self) -> nn.Module:
        sizes = dict(self.architecture)
        rope = {"rope_type": "default", "rope_theta": float(sizes.pop("rope_theta"))}
        config = _llama().LlamaConfig(
            **sizes,
            max_position_embeddings=self.sequence_length,
            rope_parameters=rope,
            initializer_range=INITIAL_STD,
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation="sdpa",
        )
        return CausalLM(config)

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        dataset = Drawn(partial(draw_tokens, self.sequence_length, self.architecture["vocab_size"]), self.seed)
        return endless_batches(dataset, batch_size, rank, device, self.data, self.workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        # Computed by the model's head within the forward pass (see `workloads.head`).
        loss: Tensor = model(batch.inputs, batch.targets)
        return loss

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch.inputs)
        return logits

    def sample(self) -> Tensor:
        return torch.empty(1, self.sequence_length, dtype=torch.int64)


class LLM7B(LLM1B):
    """A model with Llama 2 7B's sizes: every query head has its own key and value head."""

    name = "llm-7b"
    architecture: ClassVar[dict[str, Any]] = LLM1B.architecture | dict(
        hidden_size=4096, num_hidden_layers=32, num_key_value_heads=32, intermediate_size=11008, rope_theta=10_000
    )


class LLM8B(LLM1B):
    """A model with Llama 3 8B's sizes, its vocabulary and its 8192 tokens."""

    name = "llm-8b"
    usual_length: ClassVar[int] = 8192
    architecture: ClassVar[dict[str, Any]] = LLM1B.architecture | dict(
        hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, vocab_size=128_256
    )


class LLMMicro(LLM1B):
    """Small enough for two CPU cores. Words are bytes, widths multiples of 16, so that float8 can be emulated."""

    name = "llm-micro"
    usual_length: ClassVar[int] = 64
    architecture: ClassVar[dict[str, Any]] = dict(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
        vocab_size=256, rope_theta=10_000,
    )  # fmt: skip


def _llama() -> Any:
    try:
        from transformers.models.llama import modeling_llama
    except ImportError as error:
        what = f"language models need transformers, which cannot be imported: {error}"
        raise ModeUnavailable(what, "Install it with `pip install 'fp8bench[llm]'`") from error
    return modeling_llama

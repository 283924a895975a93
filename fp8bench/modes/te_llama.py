"""Transformer Engine in transformers' Llama, with Llama's weights.

There are two ways, so that attention and fusion can be the same when precisions are compared:

  te    te.TransformerLayer for each layer: norms, attention, MLP and residuals in Transformer Engine's own kernels.
  sdpa  te.Linear for each linear layer; everything else is unchanged, with torch's scaled_dot_product_attention.

The arguments that make te.TransformerLayer compute Llama's layer, because its defaults do not:

  normalization="RMSNorm"               the default is LayerNorm; the epsilon is the model's
  activation="swiglu", bias=False       the first half of fc1's rows is the gate, the second the factor that it scales
  num_gqa_groups                        the default gives every query head a key of its own
  rotary_pos_emb                        none by default; the model's own frequencies, with the halves of a head as pairs
  attn_input_format="bshd"              the default reads [sequence, batch, width]
  hidden_dropout, attention_dropout     the model's, not 0.1
  fuse_qkv_params, not interleaved      rows are all queries, all keys, all values, heads in order

The mask is causal by default, and is set explicitly nevertheless. One difference remains: under autocast the layer's
residual stream is bf16, and the plain model's is float32. The head and the embedding are unchanged.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from fp8bench.modes.llama_block import Layer, LayerShape, llama_models, read_shape, rotation
from fp8bench.modes.te_block import copy_weight
from fp8bench.modes.te_layers import swap_linears
from fp8bench.modes.te_parallel import (
    SUMMED,
    Group,
    Share,
    gathered,
    mean_over,
    require_divisible,
    scattered,
    shares_of_layer,
    take_parts,
)
from fp8bench.schema.config import TEAttention
from fp8bench.schema.errors import ModeUnavailable

GEMMS = {"Linear": 1, "LayerNormLinear": 3, "LayerNormMLP": 3}
"""The number of the plain model's linear layers in each Transformer Engine module: q, k and v are one module, and gate,
up and down are one.
"""


def convert_llama(
    te: Any, model: nn.Module, te_attention: TEAttention, is_first: Callable[[], bool | None] = lambda: None
) -> nn.Module:
    """Replace the layers of every LlamaModel, or their linear layers, in place. Layers are replaced one at a time, so
    that memory never holds two copies of all weights. is_first: see TELlamaLayer. Raises ModeUnavailable for layers
    that Transformer Engine would not compute the same.
    """
    llamas = llama_models(model)
    if not llamas:
        raise ModeUnavailable(
            "the model has Llama's layers outside of a LlamaModel, whose positions this mode needs",
            "Use an llm workload, or write a mode for this model",
        )
    for _, llama in llamas:
        angles = rotation(llama) if te_attention == "te" else None
        for number in range(len(llama.layers)):
            layer = llama.layers[number]
            shape = read_shape(layer)
            if angles is None:
                swap_linears(te, layer)
            else:
                llama.layers[number] = TELlamaLayer(te, shape, layer, angles, is_first).train(layer.training)
    return model


class TELlamaLayer(nn.Module):
    """te.TransformerLayer with the call signature of LlamaDecoderLayer."""

    plain_weights: ClassVar[dict[str, tuple[str, ...]]] = {
        "layer.self_attention.layernorm_qkv.layer_norm_weight": ("input_layernorm.weight",),
        "layer.self_attention.layernorm_qkv.weight": tuple(f"self_attn.{one}_proj.weight" for one in "qkv"),
        "layer.self_attention.proj.weight": ("self_attn.o_proj.weight",),
        "layer.layernorm_mlp.layer_norm_weight": ("post_attention_layernorm.weight",),
        "layer.layernorm_mlp.fc1_weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "layer.layernorm_mlp.fc2_weight": ("mlp.down_proj.weight",),
    }
    """The plain layer's names of each weight."""

    residual_dtype: torch.dtype | None = None
    shares: dict[str, Share]

    def __init__(
        self,
        te: Any,
        shape: LayerShape,
        layer: Layer,
        angles: torch.Tensor,
        is_first: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """angles: [positions, 1, 1, head width] float32, one tensor for all layers. is_first: whether the next pass is
        the first of a step, whose fp8 weights later passes reuse; None if each pass casts the weights.
        """
        super().__init__()
        self.te, self.shape, self.is_first = te, shape, is_first
        # Not a buffer, because DDP would broadcast it to all ranks before every step.
        self.angles = angles
        self.device = layer.self_attn.q_proj.weight.device
        self.layer = self._made(attn_input_format="bshd")
        self._copy(layer)

    def divide(self, group: Group) -> None:
        """Share the layer among the ranks of a group. It then takes this rank's [sequence / size, batch, width]. Raises
        ModeUnavailable if its sizes cannot be divided.
        """
        shape, size = self.shape, torch.distributed.get_world_size(group)
        for what, number in (("query heads", shape.heads), ("key and value heads", shape.groups)):
            require_divisible(what, number, size)
        require_divisible("MLP columns", shape.mlp_dim, size)
        rows = shape.groups * shape.head_dim
        qkv = (shape.heads * shape.head_dim, rows, rows)
        self.shares = shares_of_layer(self.layer, qkv, (shape.mlp_dim, shape.mlp_dim), True, size)
        whole = self.layer
        self.layer = self._made(
            attn_input_format="sbhd", set_parallel_mode=True, sequence_parallel=True, tp_group=group
        ).train(whole.training)
        take_parts(self.layer, whole, self.shares, group)

    def _made(self, **options: Any) -> Any:
        shape = self.shape
        return self.te.TransformerLayer(
            hidden_size=shape.dim,
            ffn_hidden_size=shape.mlp_dim,
            num_attention_heads=shape.heads,
            num_gqa_groups=shape.groups,
            kv_channels=shape.head_dim,
            layernorm_epsilon=shape.norm_epsilon,
            hidden_dropout=0.0,
            attention_dropout=shape.attention_dropout,
            self_attn_mask_type="causal",
            fuse_qkv_params=True,
            qkv_weight_interleaved=False,
            normalization="RMSNorm",
            activation="swiglu",
            bias=False,
            params_dtype=torch.float32,
            device=self.device,
            **options,
        )

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **_of_the_plain_layer: Any
    ) -> torch.Tensor:
        """hidden_states: [batch, sequence, width]. A mask is refused, because it would be ignored. The other arguments
        of the plain layer are ignored, among them positions as precomputed sines and cosines.
        """
        if attention_mask is not None:
            raise ModeUnavailable(
                "the model passes an attention mask to a layer that was converted without one",
                "Use a workload whose attention is causal and has no mask beside",
            )
        y: torch.Tensor = self.layer(hidden_states, rotary_pos_emb=self.angles, is_first_microbatch=self.is_first())
        self.residual_dtype = y.dtype
        return y

    def _copy(self, layer: Layer) -> None:
        attention, mlp = self.layer.self_attention, self.layer.layernorm_mlp
        plain = layer.self_attn
        qkv = torch.cat([plain.q_proj.weight, plain.k_proj.weight, plain.v_proj.weight])
        copy_weight(attention.layernorm_qkv.layer_norm_weight, layer.input_layernorm.weight)
        copy_weight(attention.layernorm_qkv.weight, qkv)
        copy_weight(attention.proj.weight, plain.o_proj.weight)
        copy_weight(mlp.layer_norm_weight, layer.post_attention_layernorm.weight)
        copy_weight(mlp.fc1_weight, torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]))
        copy_weight(mlp.fc2_weight, layer.mlp.down_proj.weight)


def divide_llama(model: nn.Module, group: Group) -> dict[str, Share]:
    """Share every converted layer of the LlamaModel among the ranks of a group, in place. Embeddings are scattered over
    the sequence, and the norm after the last layer and the head process this rank's tokens. Returns, by name, the
    shares of the weights outside of the layers.

    Raises ModeUnavailable for a model whose head does not compute the loss itself (see workloads.head), and for sizes
    that cannot be divided.
    """
    head: Any = getattr(model, "lm_head", None)
    llamas = [llama for _, llama in llama_models(model)]
    if len(llamas) != 1 or not hasattr(head, "weight"):
        raise ModeUnavailable(
            "ranks share a language model whose head gives the loss of its tokens, and this one has another",
            "Omit --tensor-parallel: --parallel fsdp shards any model",
        )
    [llama] = llamas
    for layer in llama.layers:
        layer.divide(group)
    llama.embed_tokens.register_forward_hook(lambda _module, _inputs, output: scattered(output, group))
    head.forward = _of_own_tokens(head.forward, group)
    of_own_tokens = (llama.norm.weight, head.weight)
    return {name: SUMMED for name, weight in model.named_parameters() if any(weight is one for one in of_own_tokens)}


def _of_own_tokens(plain: Callable[..., torch.Tensor], group: Group) -> Callable[..., torch.Tensor]:
    """Return a forward function of the head that takes this rank's tokens. plain: the head's forward. The new function
    takes [sequence / size, batch, width] and returns the mean loss over all tokens; without targets, the logits of all.
    """
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)

    def forward(hidden: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        if targets is None:
            return plain(gathered(hidden, group))
        return mean_over(plain(hidden.transpose(0, 1).contiguous(), targets.chunk(size, 1)[rank]), group)

    return forward

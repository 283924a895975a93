"""Reads what a timm `Block` computes from its modules, and refuses any part that another library could not reproduce.

timm's Block is pre-norm: x + proj(attention(norm1(x))), then x + fc2(gelu(fc1(norm2(x)))). Its constructor's signature
changes between versions, so parts are matched by name, never positional arguments. A conversion would silently lose any
part that is not on the list below, so such a part is refused.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fp8bench.schema.errors import ModeUnavailable

Block = Any
"""timm's Block. nn.Module does not type its parts. The rows of its qkv weight are queries, then keys, then values, with
heads in order.
"""


@dataclass(frozen=True)
class BlockShape:
    """Sizes and rates of one block. attention_dropout, hidden_dropout: probabilities."""

    dim: int
    num_heads: int
    mlp_dim: int
    norm_epsilon: float
    bias: bool
    attention_dropout: float
    hidden_dropout: float


def find_timm_blocks(model: nn.Module) -> list[tuple[str, Block]]:
    """Return every timm Block in the model with its dotted name. The class is recognized by module and name, so that
    timm is not imported for another kind of model.
    """
    kind = ("timm.models.vision_transformer", "Block")
    named = model.named_modules()
    return [(name, part) for name, part in named if (type(part).__module__, type(part).__name__) == kind]


def timm_blocks(model: nn.Module) -> list[tuple[str, Block]]:
    """Return every timm Block with its dotted name. Raises ModeUnavailable if there are none."""
    found = find_timm_blocks(model)
    if not found:
        raise ModeUnavailable(
            "the model has no timm Block and no Llama layer, which are what this mode knows how to convert",
            "Use a vit or an llm workload, or write a mode for this model",
        )
    return found


def read_shape(block: Block) -> BlockShape:
    """Return the block's shape. Raises ModeUnavailable that names each part that only timm computes."""
    attn, mlp = block.attn, block.mlp
    odd = odd_parts(block)
    if odd:
        raise ModeUnavailable(
            f"the model's blocks use {', '.join(odd)}, which the converted block would not compute",
            "Use a workload without it, or baseline and torchao modes, which keep the model's own blocks",
        )
    return BlockShape(
        dim=attn.qkv.in_features,
        num_heads=attn.num_heads,
        mlp_dim=mlp.fc1.out_features,
        norm_epsilon=block.norm1.eps,
        bias=attn.qkv.bias is not None,
        attention_dropout=attn.attn_drop.p,
        hidden_dropout=attn.proj_drop.p,
    )


def odd_parts(block: Block) -> list[str]:
    """Return the parts that only timm computes, in words; empty if the complete block can be converted."""
    found = [*_odd_block_parts(block), *_odd_attention_parts(block.attn), *_odd_mlp_parts(block.mlp)]
    return [*found, *_odd_dropouts(block)]


def _odd_block_parts(block: Block) -> list[str]:
    odd = [
        label
        for label, names in (
            ("LayerScale (init_values)", ("ls1", "ls2")),
            ("stochastic depth (drop_path)", ("drop_path1", "drop_path2")),
        )
        if not all(isinstance(getattr(block, name, None), nn.Identity) for name in names)
    ]
    if not all(isinstance(norm, nn.LayerNorm) and norm.elementwise_affine for norm in (block.norm1, block.norm2)):
        odd.append("a norm that is not an affine LayerNorm")
    elif block.norm1.eps != block.norm2.eps:
        odd.append("two different layer norm epsilons")
    return odd


def _odd_attention_parts(attn: Any) -> list[str]:
    odd = []
    if not (isinstance(attn.q_norm, nn.Identity) and isinstance(attn.k_norm, nn.Identity)):
        odd.append("query and key norms (qk_norm)")
    if not isinstance(getattr(attn, "norm", nn.Identity()), nn.Identity):
        odd.append("an attention output norm (scale_attn_norm)")
    if getattr(attn, "gate", None) is not None:
        odd.append("gated attention")
    if attn.qkv.out_features != 3 * attn.qkv.in_features or attn.proj.out_features != attn.qkv.in_features:
        odd.append("heads that do not add up to the model's width")
    return odd


def _odd_mlp_parts(mlp: Any) -> list[str]:
    odd = []
    if not isinstance(mlp.act, nn.GELU):
        odd.append(f"the activation {type(mlp.act).__name__}")
    if not isinstance(getattr(mlp, "norm", nn.Identity()), nn.Identity):
        odd.append("an MLP norm (scale_mlp_norm)")
    if mlp.drop1.p > 0:
        odd.append("dropout inside the MLP")
    return odd


def _odd_dropouts(block: Block) -> list[str]:
    differ = block.attn.proj_drop.p != block.mlp.drop2.p
    return ["different dropouts after attention and after the MLP"] if differ else []

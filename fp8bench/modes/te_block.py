"""Transformer Engine in any model: blocks that compute timm's Block with timm's weights, single layers, and the base of
all converted layers.

timm's Block is pre-norm: x + proj(attention(norm1(x))), then x + fc2(gelu(fc1(norm2(x)))). Its constructor's signature
changes between versions, so parts are matched by name. A part that a conversion would lose is refused.

There are two blocks, so that attention can be the same when precisions are compared:

  te    te.TransformerLayer: attention, MLP and residuals in Transformer Engine's own kernels.
  sdpa  LayerNormLinear, Linear and LayerNormMLP around torch's scaled_dot_product_attention, as in the plain model.

The arguments that make te.TransformerLayer compute timm's Block, because its defaults do not:

  attn_input_format="bshd"            the default reads [sequence, batch, width], so a batch-first model would attend
                                      across the images of its batch
  self_attn_mask_type="no_mask"       the default is causal
  layernorm_epsilon                   timm's 1e-6, not 1e-5
  attention_dropout, hidden_dropout   the model's, not 0.1
  fuse_qkv_params, not interleaved    so that timm's qkv weight (all queries, all keys, all values) fits unchanged

Two differences remain, inside the gate's tolerance and stated in the evidence: GELU is the tanh form and timm's the erf
form, and under autocast the residual stream of the TransformerLayer is bf16 and timm's is float32.

Which attention Transformer Engine chose is found from its module's state and its log. It chooses a backend once per
shape, and logs the reasons (`DotProductAttention`) at a level that is off by default: `listen` enables it and stores
the lines.

In a model whose blocks have no equivalent, te.Linear and te.LayerNorm replace single layers. A linear layer is swapped
if fp8 can take it, by the rule of every fp8 mode (`modes.torchao`), so that modes differ in how they compute and not in
what they convert. A subclass of a plain layer may compute something else, and is unchanged.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import named_exactly
from fp8bench.modes.torchao import convertible, why_none
from fp8bench.schema.errors import ModeUnavailable

Block = Any
"""timm's Block. nn.Module does not type its parts. The rows of its qkv weight are queries, then keys, then values, with
heads in order.
"""

TIMM_NAMES = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
"""The parts of a block with weights, in the order in which every pre-norm layer has them."""

LAYER = (
    *("layer.self_attention.layernorm_qkv.layer_norm_", "layer.self_attention.layernorm_qkv."),
    *("layer.self_attention.proj.", "layer.layernorm_mlp.layer_norm_"),
    *("layer.layernorm_mlp.fc1_", "layer.layernorm_mlp.fc2_"),
)
MODULES = ("qkv.layer_norm_", "qkv.", "proj.", "mlp.layer_norm_", "mlp.fc1_", "mlp.fc2_")
"""What the names of the same parts' weights begin with, in a te.TransformerLayer and in TESDPABlock."""


class ConvertedLayer(nn.Module):
    """The base of converted layers, with a plain layer's weights. own: what names begin with here. plain: the parts of
    the plain layer, several for a fused weight. fused_qkv: whether queries, keys and values are one weight here.
    """

    residual_dtype: torch.dtype | None = None

    def __init__(
        self, plain: Sequence[str | tuple[str, ...]], own: Sequence[str] = LAYER, fused_qkv: bool = True
    ) -> None:
        super().__init__()
        self._pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for here, there in zip(own, plain, strict=True):
            roles = ("",) if fused_qkv or not here.endswith("qkv.") else ("query_", "key_", "value_")
            for what in ("weight", "bias"):
                names = (there,) if isinstance(there, str) else there
                self._pairs.append((tuple(here + role + what for role in roles), tuple(f"{n}.{what}" for n in names)))

    @property
    def plain_weights(self) -> dict[str, tuple[str, ...]]:
        return {own: plain for here, plain in self._pairs for own in here}

    def copy_from(self, plain: nn.Module) -> None:
        """Copy the plain layer's weights. Raises ModeUnavailable if Transformer Engine's have other names or shapes."""
        given, taken = dict(plain.named_parameters()), dict(self.named_parameters())
        for own, names in self._pairs:
            sources = [given[name] for name in names if name in given]
            if not sources:
                continue
            targets = [taken[name] for name in own if name in taken]
            if len(targets) < len(own):
                raise ModeUnavailable(
                    f"this Transformer Engine keeps {', '.join(names)} under other names",
                    "Use the Transformer Engine version in constraints.txt",
                )
            whole = sources[0] if len(sources) == 1 else torch.cat(tuple(sources))
            parts = [whole] if len(targets) == 1 else whole.split([len(target) for target in targets])
            for target, part in zip(targets, parts, strict=True):
                copy_weight(target, part)

    def noted(self, y: Tensor) -> Tensor:
        self.residual_dtype = y.dtype
        return y


@torch.no_grad()
def copy_weight(target: Any, source: Tensor) -> None:
    if target.shape != source.shape:
        raise ModeUnavailable(
            f"this Transformer Engine keeps a weight as {list(target.shape)} where the model has {list(source.shape)}",
            "Use the Transformer Engine version in constraints.txt",
        )
    target.copy_(source)


class _TimmBlock(ConvertedLayer):
    compute: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x: [batch, tokens, dim]. A mask is refused, because a block converted without one would ignore it."""
        if attn_mask is not None or is_causal:
            raise ModeUnavailable(
                "the model passes an attention mask to a block that was converted without one",
                "Use a workload that attends without a mask",
            )
        return self.noted(self.compute(x))


class TEBlock(_TimmBlock):
    def __init__(self, te: Any, block: Block) -> None:
        super().__init__(TIMM_NAMES)
        self.layer = te.TransformerLayer(
            **layer_sizes(block),
            layernorm_epsilon=block.norm1.eps,
            self_attn_mask_type="no_mask",
            attn_input_format="bshd",
            fuse_qkv_params=True,
            qkv_weight_interleaved=False,
            bias=block.attn.qkv.bias is not None,
            activation="gelu",
            params_dtype=torch.float32,
        )
        self.copy_from(block)

    def compute(self, x: Tensor) -> Any:
        return self.layer(x)


class TESDPABlock(_TimmBlock):
    def __init__(self, te: Any, block: Block) -> None:
        super().__init__(TIMM_NAMES, MODULES)
        attn, dim, eps = block.attn, block.attn.qkv.in_features, block.norm1.eps
        options = {"bias": attn.qkv.bias is not None, "params_dtype": torch.float32, "device": attn.qkv.weight.device}
        self.heads, self.attention_dropout = attn.num_heads, attn.attn_drop.p
        self.qkv = te.LayerNormLinear(dim, 3 * dim, eps=eps, **options)
        self.proj = te.Linear(dim, dim, **options)
        self.mlp = te.LayerNormMLP(dim, block.mlp.fc1.out_features, eps=eps, activation="gelu", **options)
        self.dropout = nn.Dropout(attn.proj_drop.p)
        self.copy_from(block)

    def compute(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.attention_dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        x = x + self.dropout(self.proj(attended.transpose(1, 2).reshape(batch, tokens, dim)))
        x = x + self.dropout(self.mlp(x))
        return x


def layer_sizes(block: Block) -> dict[str, Any]:
    attn = block.attn
    return {
        "hidden_size": attn.qkv.in_features,
        "ffn_hidden_size": block.mlp.fc1.out_features,
        "num_attention_heads": attn.num_heads,
        "hidden_dropout": attn.proj_drop.p,
        "attention_dropout": attn.attn_drop.p,
        "device": attn.qkv.weight.device,
    }


TIMM_BLOCK = ("timm.models.vision_transformer", "Block")


def timm_blocks(model: nn.Module) -> dict[str, Block]:
    """Return timm's Blocks by dotted name. Raises ModeUnavailable without any, or for parts only timm computes."""
    found = named_exactly(model, TIMM_BLOCK)
    if not found:
        raise ModeUnavailable(
            "the model has no timm Block and no Llama layer, which are what this mode knows how to convert",
            "Use a vit or an llm workload, or write a mode for this model",
        )
    for block in found.values():
        require_none(odd_parts(block), "block")
    return found


def require_none(odd: str, kind: str) -> None:
    """Raise ModeUnavailable for parts of a block or a layer, in words, that the converted one would not compute."""
    if odd:
        raise ModeUnavailable(
            f"the model's {kind}s use {odd}, which the converted {kind} would not compute",
            f"Use a workload without it, or baseline and torchao modes, which keep the model's own {kind}s",
        )


def odd_parts(block: Block) -> str:
    """Return the parts that only timm computes, in words; empty if the complete block can be converted."""
    attn, mlp, norms = block.attn, block.mlp, (block.norm1, block.norm2)
    affine = all(isinstance(norm, nn.LayerNorm) and norm.elementwise_affine for norm in norms)
    dim = attn.qkv.in_features
    faults = {
        "LayerScale (init_values)": not _absent(block, "ls1", "ls2"),
        "stochastic depth (drop_path)": not _absent(block, "drop_path1", "drop_path2"),
        "a norm that is not an affine LayerNorm": not affine,
        "two different layer norm epsilons": affine and norms[0].eps != norms[1].eps,
        "query and key norms (qk_norm)": not _absent(attn, "q_norm", "k_norm"),
        "an attention output norm (scale_attn_norm)": hasattr(attn, "norm") and not _absent(attn, "norm"),
        "gated attention": getattr(attn, "gate", None) is not None,
        "heads that do not add up to the model's width": (attn.qkv.out_features, attn.proj.out_features)
        != (3 * dim, dim),
        f"the activation {type(mlp.act).__name__}": not isinstance(mlp.act, nn.GELU),
        "an MLP norm (scale_mlp_norm)": hasattr(mlp, "norm") and not _absent(mlp, "norm"),
        "dropout inside the MLP": mlp.drop1.p > 0,
        "different dropouts after attention and after the MLP": attn.proj_drop.p != mlp.drop2.p,
    }
    return ", ".join(words for words, fault in faults.items() if fault)


def _absent(module: nn.Module, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Identity) for name in names)


_LINEARS = {("torch.nn.modules.linear", "Linear"), ("timm.layers.linear", "Linear")}
_NORMS = {("torch.nn.modules.normalization", "LayerNorm"), ("timm.layers.norm", "LayerNorm")}
"""By module and class name, so that timm is not imported for another kind of model. timm's layers equal torch's."""


@dataclass(frozen=True)
class Swaps:
    """What is replaced, by dotted names: timm's Blocks, and layers outside. why: why Blocks are not replaced whole."""

    blocks: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    why: str | None = None

    def evidence(self) -> dict[str, Any]:
        if not self.linears and not self.norms:
            return {}
        swapped = {"te_blocks": len(self.blocks), "te_linears": len(self.linears), "te_norms": len(self.norms)}
        return swapped | ({"te_blocks_refused": self.why} if self.why else {})


def plan_swaps(model: nn.Module) -> Swaps:
    """Plan to replace complete blocks if all can be converted, otherwise layers. Raises ModeUnavailable without any."""
    blocks = named_exactly(model, TIMM_BLOCK)
    why = next((f"{name} uses {odd}" for name, block in blocks.items() if (odd := odd_parts(block))), None)
    whole = () if why else tuple(blocks)
    inside = tuple(f"{block}." for block in whole)
    plain = {name: one for name, one in named_exactly(model, *_LINEARS).items() if not name.startswith(inside)}
    linears = tuple(name for name, layer in plain.items() if convertible(layer, name))
    if not whole and not linears:
        exactly = set(map(id, plain.values()))
        raise ModeUnavailable(
            "Transformer Engine can take none of the model's layers: "
            + why_none(model, lambda layer: id(layer) in exactly),
            "Use a model whose linear layers have widths that are multiples of 16, or baseline modes",
        )
    # Around complete blocks the model is unchanged, except for layers that are worth an fp8 GEMM. te.LayerNorm has one
    # axis, a weight and a bias.
    norms = tuple(
        name
        for name, norm in named_exactly(model, *_NORMS).items()
        if not whole and len(norm.normalized_shape) == 1 and norm.weight is not None and norm.bias is not None
    )
    return Swaps(whole, linears, norms, why)


def swap_layers(te: Any, model: nn.Module, names: Iterable[str]) -> None:
    """Swap layers in place and one at a time: memory never holds two copies of all weights."""
    for name in names:
        plain = model.get_submodule(name)
        model.set_submodule(name, te_layer(te, plain).train(plain.training))


def te_layer(te: Any, plain: Any) -> nn.Module:
    """Return a te.Linear, or a te.LayerNorm, with the layer's weights. Under autocast the output of a te.LayerNorm is
    bf16; torch's is float32.
    """
    if isinstance(plain, nn.LayerNorm):
        kind, sizes, options = te.LayerNorm, plain.normalized_shape, {"eps": plain.eps}
    else:
        kind, sizes, options = te.Linear, (plain.in_features, plain.out_features), {"bias": plain.bias is not None}
    made: nn.Module = kind(*sizes, **options, params_dtype=plain.weight.dtype, device=plain.weight.device)
    for name, weight in plain.named_parameters():
        copy_weight(getattr(made, name), weight)
    return made


LOGGER = "DotProductAttention"

UNFUSED = (
    "Transformer Engine fell back to unfused attention, which is far slower: often two cuDNN versions are mixed. "
    "Point CUDNN_HOME at the cuDNN that torch brings, and see NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 for the reason"
)
"""The warning about that backend in a record."""


def attention_backend() -> str | None:
    """Return the backend of Transformer Engine's last attention: fused, flash or unfused; None if unknown."""
    try:
        from transformer_engine.pytorch.attention.dot_product_attention import dot_product_attention
    except ImportError:
        return None
    chosen = getattr(dot_product_attention, "_attention_backends", {})
    return next((one for one in ("fused", "flash", "unfused") if chosen.get(f"use_{one}_attention")), None)


class AttentionLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if re.match("Disabling|Available backends|Selected backend", line) and line not in self.said:
            self.said.append(line)


def listen() -> AttentionLog | None:
    """Start to listen, once per process; a second call returns the same log. None if this version has no logger."""
    try:
        from transformer_engine.pytorch.attention.dot_product_attention import utils
    except ImportError:
        return None
    logger = logging.getLogger(LOGGER)
    if own := [handler for handler in logger.handlers if isinstance(handler, AttentionLog)]:
        return own[0]
    log = AttentionLog()
    logger.addHandler(log)
    logger.propagate = False
    # Transformer Engine sets its logger to this level whenever it chooses.
    utils.AttentionLogging._log_level = logging.DEBUG
    logger.setLevel(logging.DEBUG)
    return log

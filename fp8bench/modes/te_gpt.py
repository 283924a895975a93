"""Transformer Engine in the layer of a GPT (see workloads/gpt_layer.py), with the layer's weights, and with the options
of Transformer Engine's performance tutorial, each a switch:

  parallel-setup  set_parallel_mode, sequence_parallel and a tp_group of only this rank: the cost of being ready for
                  tensor parallel
  fused-qkv       fuse_qkv_params: one weight for queries, keys and values; the default has three
  fused-wgrad     fuse_wgrad_accumulation: GEMMs add weight gradients to main_grad, a float32 tensor attached to the
                  weight; the first micro-batch of a step overwrites it (overwrite_main_grad), so nothing is zeroed
  weight-cache    is_first_microbatch: the first micro-batch of a step casts weights to fp8, and later ones reuse them
  fp8-weights     quantized_model_init: weights exist only in fp8, and nothing is cast
  split-qkv       queries, keys and values split without copies of their gradient (see te_split.py)

The arguments that make te.TransformerLayer compute the layer, because its defaults do not: attn_input_format="bshd"
(the default reads [sequence, batch, width]), hidden_dropout and attention_dropout of 0 (the defaults are 0.1), and
qkv_weight_interleaved=False. By default its mask is causal, its GELU the tanh form and its epsilon 1e-5.

Ranks share the layer by Transformer Engine's own arguments (see te_parallel.py).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.te_block import copy_weight
from fp8bench.modes.te_layers import swap_linears
from fp8bench.modes.te_parallel import (
    Group,
    Share,
    gathered,
    require_divisible,
    scattered,
    shares_of_layer,
    take_parts,
)
from fp8bench.modes.te_split import SWITCH, split_packed
from fp8bench.schema.config import TEAttention
from fp8bench.schema.errors import ModeUnavailable

_MODULE = "fp8bench.workloads.gpt_layer"
_QKV = ("query", "key", "value")


@dataclass
class Beat:
    """Which forward pass of a step comes next. Layers read it."""

    first: bool = True

    def begin(self, first: bool) -> None:
        """Begin a forward pass; first: of its step."""
        self.first = first


@dataclass(frozen=True)
class Options:
    """switches: their names. beat: the mode's beat. alone: the process group of only this rank. fp8_weights: returns
    the context in which a layer is created whose weights exist only in fp8.
    """

    switches: frozenset[str] = frozenset()
    beat: Beat = field(default_factory=Beat)
    alone: Group = None
    fp8_weights: Callable[[], AbstractContextManager[Any]] = nullcontext

    def of_layer(self) -> dict[str, Any]:
        """Return the arguments of te.TransformerLayer."""
        found: dict[str, Any] = {"fuse_qkv_params": "fused-qkv" in self.switches}
        if "fused-wgrad" in self.switches:
            found["fuse_wgrad_accumulation"] = True
        if "parallel-setup" in self.switches:
            found |= {"set_parallel_mode": True, "sequence_parallel": True, "tp_group": self.alone}
        return found

    @property
    def is_first_microbatch(self) -> bool | None:
        """The argument of the layer's forward pass; None if every pass casts the weights."""
        return self.beat.first if "weight-cache" in self.switches else None


def gpt_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Return every plain layer with its dotted name. The class is recognized by name, so its module is not imported."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__module__ == _MODULE and type(module).__name__ == "GPTLayer"
    ]


def convert_gpt(te: Any, model: nn.Module, te_attention: TEAttention, options: Options) -> nn.Module:
    """Replace each layer, or its linear layers, in place."""
    for name, layer in gpt_layers(model):
        if te_attention == "te":
            model.set_submodule(name, TEGPTLayer(te, layer, options).train(layer.training))
        else:
            swap_linears(te, layer)
    return model


class TEGPTLayer(nn.Module):
    """te.TransformerLayer as a replacement of GPTLayer."""

    residual_dtype: torch.dtype | None = None

    def __init__(self, te: Any, plain: Any, options: Options) -> None:
        super().__init__()
        self.te, self.options = te, options
        weight = plain.qkv.weight
        self.sizes: dict[str, Any] = {
            "hidden_size": weight.shape[1],
            "ffn_hidden_size": plain.fc1.out_features,
            "num_attention_heads": plain.heads,
            "layernorm_epsilon": plain.ln1.eps,
            "params_dtype": weight.dtype,
            "device": weight.device,
        }
        self.group: Group = None
        self.shares: dict[str, Share] = {}
        with options.fp8_weights():
            self.layer = self._made(attn_input_format="bshd", **options.of_layer())
        for name, target in self._weights():
            self._copy(target, plain.get_parameter(name))
        self._accumulate()

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, sequence, width]."""
        for weight in self.accumulated():
            weight.overwrite_main_grad = self.options.beat.first
        # A divided layer takes the sequence as the first dimension; each rank has a part of it.
        inner = x if self.group is None else scattered(x, self.group)
        y: Tensor = self.layer(inner, is_first_microbatch=self.options.is_first_microbatch)
        self.residual_dtype = y.dtype
        return y if self.group is None else gathered(y, self.group)

    def divide(self, group: Group) -> None:
        """Share the layer among the ranks of a group. Raises ModeUnavailable if its sizes cannot be divided."""
        size = torch.distributed.get_world_size(group)
        hidden, ffn = self.sizes["hidden_size"], self.sizes["ffn_hidden_size"]
        require_divisible("attention heads", self.sizes["num_attention_heads"], size)
        require_divisible("MLP columns", ffn, size)
        fused = "fused-qkv" in self.options.switches
        self.shares = shares_of_layer(self.layer, (hidden, hidden, hidden), (ffn,), fused, size)
        own = {**self.options.of_layer(), "set_parallel_mode": True, "sequence_parallel": True, "tp_group": group}
        whole, self.group = self.layer, group
        self.layer = self._made(attn_input_format="sbhd", **own).train(whole.training)
        take_parts(self.layer, whole, self.shares, group)
        self._accumulate()

    def accumulated(self) -> Iterator[Any]:
        """Return the weights whose gradient is stored separately."""
        return (weight for weight in self.layer.parameters() if hasattr(weight, "main_grad"))

    def clear_gradients(self) -> None:
        """Clear the gradients that zero_grad does not clear."""
        for weight in self.accumulated():
            weight.main_grad.zero_()

    @property
    def plain_weights(self) -> dict[str, str]:
        """The plain layer's name of each weight; a divided layer's are parts of them."""
        names = {id(weight): f"layer.{name}" for name, weight in self.layer.named_parameters()}
        return {names[id(weight)]: of for of, target in self._weights() for weight in target}

    def _made(self, **options: Any) -> Any:
        layer = self.te.TransformerLayer(
            **self.sizes,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            self_attn_mask_type="causal",
            qkv_weight_interleaved=False,
            activation="gelu",
            bias=True,
            **options,
        )
        if SWITCH in self.options.switches:
            split_packed(layer)
        return layer

    def _weights(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each weight's name in the plain layer, with the weights here that form it, in the order of its rows."""
        attention, mlp = self.layer.self_attention, self.layer.layernorm_mlp
        qkv = attention.layernorm_qkv
        for what in ("weight", "bias"):
            yield f"ln1.{what}", [getattr(qkv, f"layer_norm_{what}")]
            split = [getattr(qkv, f"{role}_{what}", None) for role in _QKV]
            yield f"qkv.{what}", [getattr(qkv, what)] if "fused-qkv" in self.options.switches else split
            yield f"proj.{what}", [getattr(attention.proj, what)]
            yield f"ln2.{what}", [getattr(mlp, f"layer_norm_{what}")]
            for linear in ("fc1", "fc2"):
                yield f"{linear}.{what}", [getattr(mlp, f"{linear}_{what}")]

    def _copy(self, targets: list[Any], source: Tensor) -> None:
        if any(target is None for target in targets):
            raise ModeUnavailable(
                "this Transformer Engine keeps queries, keys and values under other names",
                "Use the Transformer Engine version in constraints.txt, or --te-switch fused-qkv",
            )
        for target, part in zip(targets, source.split([len(target) for target in targets]), strict=True):
            copy_weight(target, part)

    def _accumulate(self) -> None:
        """Attach float32 gradients to the weights of GEMMs. Norms and biases get none, because no GEMM makes theirs."""
        if "fused-wgrad" in self.options.switches:
            weight: Any
            for weight in self.layer.parameters():
                if weight.dim() > 1:
                    weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)

"""Transformer Engine in the layer of a GPT (see workloads/gpt_layer.py), with its weights, and the options of its
performance tutorial, each a switch:

  parallel-setup  set_parallel_mode, sequence_parallel and a tp_group of only this rank: the cost of being ready for
                  tensor parallel
  fused-qkv       fuse_qkv_params: one weight for queries, keys and values; the default has three
  fused-wgrad     fuse_wgrad_accumulation: GEMMs add weight gradients to main_grad, a float32 tensor attached to the
                  weight; the first micro-batch of a step overwrites it (overwrite_main_grad), so nothing is zeroed
  weight-cache    is_first_microbatch: the first micro-batch of a step casts weights to fp8, and later ones reuse them
  fp8-weights     quantized_model_init: weights exist only in fp8, and nothing is cast
  split-qkv       queries, keys and values are split without copies of their gradient (timm's blocks have it too)

About split-qkv: from 2.19 on, te.MultiheadAttention passes the output of its projection to attention as one tensor
(`qkv_layer`), and attention takes three slices of it. The gradient of a slice is a tensor of the whole's size: zeros,
into which the slice's gradient is copied. Three of these are filled, and added up: 50 of 388 ms a step in ViT-Huge at
batch 256 on an H100. Yet attention's backward pass writes the three gradients side by side into one tensor, which
already is the whole's gradient; the function here returns it, as one of Transformer Engine's did up to 2.18. A hook on
attention replaces the packed tensor by its three parts; Transformer Engine then finds out from addresses that they are
packed, and runs the same kernels. Under torch.compile the hook does nothing, because there Transformer Engine refuses
to look at addresses.

te.TransformerLayer computes the layer with the arguments that timm's Block needs too (te_block.py), and causally.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp8bench.modes.protocol import named, named_exactly
from fp8bench.modes.te_block import swap_layers
from fp8bench.modes.te_parallel import SharedLayer, gathered, scattered
from fp8bench.schema.config import TEAttention

SPLIT_QKV = "split-qkv"

PACKED = "qkv_layer"
"""The keyword of te.DotProductAttention under which a packed tensor comes."""


@dataclass
class Options:
    """switches: their names. fp8_weights: the context in which weights are made in fp8 alone. first: whether the next
    forward pass is the first of a step; layers read it.
    """

    switches: frozenset[str] = frozenset()
    fp8_weights: Callable[[], AbstractContextManager[Any]] = nullcontext
    first: bool = True

    def begin(self, first: bool) -> None:
        self.first = first

    @property
    def is_first_microbatch(self) -> bool | None:
        """The argument of the layer's forward pass; None if every pass casts the weights."""
        return self.first if "weight-cache" in self.switches else None


def split_packed(layer: Any) -> None:
    """Let a te.TransformerLayer's attention split what it is given. Once for each layer."""

    def with_parts(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        packed = kwargs.get(PACKED)
        if packed is None or torch.compiler.is_compiling():
            return args, kwargs
        parts = Split.apply(packed, kwargs.get("qkv_interleave_dim", -3))
        # Queries, keys and values are the first three arguments, and None beside a packed tensor.
        return (*parts, *args[3:]), {**kwargs, PACKED: None}

    layer.self_attention.core_attention.register_forward_pre_hook(with_parts, with_kwargs=True)


class Split(torch.autograd.Function):
    """packed: [..., 3, ...], with queries, keys and values along `dim`. Returns the three, views of it."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, dim: int) -> tuple[Tensor, ...]:
        ctx.dim = dim % packed.ndim
        return packed.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = whole_of(gradients, ctx.dim)
        return torch.stack(gradients, ctx.dim) if whole is None else whole, None


def whole_of(parts: tuple[Tensor, ...], dim: int) -> Tensor | None:
    """Return the contiguous tensor of which these are the slices along `dim`, in order; None if they are not."""
    first, shape = parts[0], list(parts[0].shape)
    shape.insert(dim, len(parts))
    strides = torch.empty(shape, device="meta").stride()
    alike = all(
        part.shape == first.shape
        and part.dtype == first.dtype
        and part.stride() == (*strides[:dim], *strides[dim + 1 :])
        and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and part.storage_offset() == first.storage_offset() + place * strides[dim]
        for place, part in enumerate(parts)
    )
    return first.as_strided(shape, strides) if alike else None


def gpt_layers(model: nn.Module) -> dict[str, Any]:
    return named_exactly(model, ("fp8bench.workloads.gpt_layer", "GPTLayer"))


def convert_gpt(te: Any, model: nn.Module, te_attention: TEAttention, options: Options) -> nn.Module:
    for name, layer in gpt_layers(model).items():
        if te_attention == "te":
            model.set_submodule(name, TEGPTLayer(te, layer, options).train(layer.training))
        else:
            swap_layers(te, layer, list(named(layer, nn.Linear)))
    return model


class TEGPTLayer(SharedLayer):
    def __init__(self, te: Any, plain: Any, options: Options) -> None:
        weight = plain.qkv.weight
        sizes = {
            "hidden_size": weight.shape[1],
            "ffn_hidden_size": plain.fc1.out_features,
            "num_attention_heads": plain.heads,
            "layernorm_epsilon": plain.ln1.eps,
            "attention_dropout": 0.0,
            "activation": "gelu",
            "bias": True,
            "params_dtype": weight.dtype,
            "device": weight.device,
            "fuse_qkv_params": "fused-qkv" in options.switches,
        }
        if "fused-wgrad" in options.switches:
            sizes["fuse_wgrad_accumulation"] = True
        if "parallel-setup" in options.switches:
            alone = dist.group.WORLD if dist.is_initialized() else None
            sizes |= {"set_parallel_mode": True, "sequence_parallel": True, "tp_group": alone}
        super().__init__(te, ("ln1", "qkv", "proj", "ln2", "fc1", "fc2"), sizes)
        self.options = options
        with options.fp8_weights():
            self.layer = self.made()
        self.copy_from(plain)

    def made(self, **options: Any) -> Any:
        layer = super().made(**options)
        if SPLIT_QKV in self.options.switches:
            split_packed(layer)
        # The weights of GEMMs alone.
        for weight in layer.parameters() if "fused-wgrad" in self.options.switches else ():
            if weight.dim() > 1:
                weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.accumulated():
            weight.overwrite_main_grad = self.options.first
        # A divided layer takes the sequence as the first dimension; each rank has a part of it.
        inner = x if self.group is None else scattered(x, self.group)
        y = self.noted(self.layer(inner, is_first_microbatch=self.options.is_first_microbatch))
        return y if self.group is None else gathered(y, self.group)

    def accumulated(self) -> Iterator[Any]:
        return (weight for weight in self.layer.parameters() if hasattr(weight, "main_grad"))

    def clear_gradients(self) -> None:
        for weight in self.accumulated():
            weight.main_grad.zero_()

"""Transformer Engine in the layer of a GPT (see workloads/gpt_layer.py), with the layer's weights and the switches of
te_switches.py.

The arguments that make te.TransformerLayer compute the layer, because its defaults do not: attn_input_format="bshd"
(the default reads [sequence, batch, width]), hidden_dropout and attention_dropout of 0 (the defaults are 0.1), and
qkv_weight_interleaved=False. By default its mask is causal, its GELU the tanh form and its epsilon 1e-5.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.te_layers import swap_linears
from fp8bench.modes.te_parallel import Group, SharedLayer, gathered, scattered
from fp8bench.modes.te_switches import SPLIT_QKV, Options, split_packed
from fp8bench.schema.config import TEAttention

_CLASS = ("fp8bench.workloads.gpt_layer", "GPTLayer")


def gpt_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Return every plain layer with its dotted name. The class is recognized by name, so its module is not imported."""
    named = model.named_modules()
    return [(name, part) for name, part in named if (type(part).__module__, type(part).__name__) == _CLASS]


def convert_gpt(te: Any, model: nn.Module, te_attention: TEAttention, options: Options) -> nn.Module:
    """Replace each layer, or its linear layers, in place."""
    for name, layer in gpt_layers(model):
        if te_attention == "te":
            model.set_submodule(name, TEGPTLayer(te, layer, options).train(layer.training))
        else:
            swap_linears(te, layer)
    return model


class TEGPTLayer(SharedLayer):
    """te.TransformerLayer as a replacement of GPTLayer."""

    def __init__(self, te: Any, plain: Any, options: Options) -> None:
        weight = plain.qkv.weight
        sizes = {
            "hidden_size": weight.shape[1],
            "ffn_hidden_size": plain.fc1.out_features,
            "num_attention_heads": plain.heads,
            "layernorm_epsilon": plain.ln1.eps,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "self_attn_mask_type": "causal",
            "qkv_weight_interleaved": False,
            "activation": "gelu",
            "bias": True,
            "params_dtype": weight.dtype,
            "device": weight.device,
        }
        super().__init__(te, ("ln1", "qkv", "proj", "ln2", "fc1", "fc2"), sizes | options.of_layer())
        self.options = options
        with options.fp8_weights():
            self.layer = self.made(attn_input_format="bshd")
        self.copy_from(plain)
        self._accumulate()

    def made(self, **options: Any) -> Any:
        """Return a new te.TransformerLayer, with its attention split if that is switched on."""
        layer = super().made(**options)
        if SPLIT_QKV in self.options.switches:
            split_packed(layer)
        return layer

    def divide(self, group: Group) -> None:
        """Share the layer among the ranks of a group, with new gradients beside its weights."""
        super().divide(group)
        self._accumulate()

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, sequence, width]."""
        for weight in self.accumulated():
            weight.overwrite_main_grad = self.options.beat.first
        # A divided layer takes the sequence as the first dimension; each rank has a part of it.
        inner = x if self.group is None else scattered(x, self.group)
        y = self.noted(self.layer(inner, is_first_microbatch=self.options.is_first_microbatch))
        return y if self.group is None else gathered(y, self.group)

    def accumulated(self) -> Iterator[Any]:
        """Return the weights whose gradient is stored separately."""
        return (weight for weight in self.layer.parameters() if hasattr(weight, "main_grad"))

    def clear_gradients(self) -> None:
        """Clear the gradients that zero_grad does not clear."""
        for weight in self.accumulated():
            weight.main_grad.zero_()

    def _accumulate(self) -> None:
        """Attach float32 gradients to the weights of GEMMs. Norms and biases get none, because no GEMM makes theirs."""
        for weight in self.layer.parameters() if "fused-wgrad" in self.options.switches else ():
            if weight.dim() > 1:
                weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)

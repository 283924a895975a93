"""What both modes of Transformer Engine have in common when they use its complete layer: they apply its switches (see
te_gpt.py), and share the layer among ranks (see te_parallel.py).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import nn

from fp8bench.modes.te_gpt import Beat, Options, TEGPTLayer
from fp8bench.modes.te_llama import TELlamaLayer, divide_llama
from fp8bench.modes.te_parallel import Group, Share
from fp8bench.schema.config import TEAttention
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.switches import split


class Switched:
    """The base class of both modes. te_switches: the names of the switches that are on."""

    te_attention: TEAttention
    te_switches: tuple[str, ...]

    def switch_on(self, te_switches: str | None) -> None:
        """Set the switches as in a configuration. Must be called once, before any other method of this class."""
        self.te_switches = split(te_switches)
        self._beat = Beat()

    def options(self) -> Options:
        """Return the options of the mode's layers."""
        alone = dist.group.WORLD if dist.is_initialized() else None
        return Options(frozenset(self.te_switches), self._beat, alone, self.fp8_weights)

    def fp8_weights(self) -> AbstractContextManager[Any]:
        """Return the context in which a layer is created."""
        return nullcontext()

    @property
    def reuses(self) -> bool:
        """Whether later micro-batches of a step use weights that the first one cast."""
        return "weight-cache" in self.te_switches

    @property
    def joined_alone(self) -> bool:
        """Whether DDP also wraps a single rank."""
        return "parallel-setup" in self.te_switches

    @property
    def tensor_parallel_refusal(self) -> str | None:
        """Why layers cannot be shared among ranks, or None. Only complete layers of Transformer Engine can."""
        if self.te_attention == "te":
            return None
        return "Transformer Engine shares its whole layer among ranks, and with --te-attention sdpa there is none"

    @property
    def micro_batch(self) -> Callable[[bool], None] | None:
        """Sets whether the next forward pass is the first of its step; None if no switch makes a difference of it."""
        return self._beat.begin if self.te_switches else None

    def clear_gradients(self, model: nn.Module) -> None:
        """Clear the gradients that are stored separately from their weights."""
        for _, layer in _named(model, TEGPTLayer):
            layer.clear_gradients()

    def divide(self, model: nn.Module, group: Group) -> dict[str, Share]:
        """Share the converted layers among the ranks of a group, in place. Returns, by name, this rank's share of each
        weight that is divided, or whose gradient must be summed over the group.

        Raises ModeUnavailable for a model whose layers cannot be shared.
        """
        found: dict[str, Share] = {}
        layers = _named(model, TEGPTLayer)
        if layers:
            for _, layer in layers:
                layer.divide(group)
        elif layers := _named(model, TELlamaLayer):
            found = divide_llama(model, group)
        else:
            raise ModeUnavailable(
                "Transformer Engine's layers are shared in gpt-layer and in language models, and this is neither",
                "Omit --tensor-parallel, or use baseline-bf16",
            )
        return found | {f"{name}.layer.{of}": share for name, layer in layers for of, share in layer.shares.items()}


def _named(model: nn.Module, kind: type) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kind)]

"""Everything that a step changes: taken down on the host, and put back where it was.

Weights, buffers, the optimizer's state, what the mode keeps (fp8's scales), and the GPU's generator. Put back in place,
since a CUDA graph and DDP's buckets hold addresses. On the host, since a copy on the GPU would count in its peak.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fp8bench.worker.execution.step import Parts


def weights(parts: Parts) -> list[Tensor]:
    """The trained weights, in a fixed order."""
    return [weight for weight in parts.plain.parameters() if weight.requires_grad]


def gradients(parts: Parts) -> list[Tensor]:
    """Of those weights; zero where none came."""
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights(parts)]


def scales(parts: Parts) -> list[Tensor]:
    """What the mode keeps from step to step, in a fixed order; see `Mode.step_state`."""
    state = getattr(parts.mode, "step_state", None)
    return list(state(parts.plain)) if state is not None else []


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies."""
    return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


@dataclass(frozen=True)
class Snapshot:
    """The state of training at one moment. others: buffers and the optimizer's state."""

    weights: list[Tensor]
    others: list[Tensor]
    scales: list[Tensor]
    optimizer_had: frozenset[Tensor]
    generator: Tensor | None

    @classmethod
    def of(cls, parts: Parts) -> "Snapshot":
        """Taken now."""
        return cls(
            weights=on_host(weights(parts)),
            others=on_host(_others(parts)),
            scales=on_host(scales(parts)),
            optimizer_had=frozenset(parts.optimizer.state),
            generator=torch.cuda.get_rng_state(parts.device) if parts.device.type == "cuda" else None,
        )

    def restore(self, parts: Parts) -> None:
        """Put it back. What the optimizer has made since of weights that it had no state of is dropped."""
        for weight in [weight for weight in parts.optimizer.state if weight not in self.optimizer_had]:
            del parts.optimizer.state[weight]
        now = [*weights(parts), *_others(parts), *scales(parts)]
        with torch.no_grad():
            for tensor, then in zip(now, [*self.weights, *self.others, *self.scales], strict=True):
                tensor.copy_(then)
        if self.generator is not None:
            torch.cuda.set_rng_state(self.generator, parts.device)
        parts.optimizer.zero_grad(set_to_none=True)


def _others(parts: Parts) -> list[Tensor]:
    states = parts.optimizer.state.values()
    held = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    return [*parts.plain.buffers(), *held]

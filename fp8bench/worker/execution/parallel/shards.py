"""Parts of weights: what this rank holds of a tensor, and the tensor that the ranks hold together."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of the tensor, with the same storage; all of it if it is not sharded."""
    held = tensor.detach()
    if isinstance(tensor, DTensor):
        held = tensor._local_tensor.detach()
    # torchao's weights that are gathered in float8 are float32 underneath.
    inner = getattr(held, "_tensor", held)
    return inner if isinstance(inner, Tensor) else held


def reduced(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient, sharded as the weight is. Every rank calls this: ranks that share layers may each hold all
    of it, or a summand.
    """
    if isinstance(gradient, DTensor) and isinstance(weight, DTensor) and gradient.placements != weight.placements:
        return gradient.redistribute(placements=weight.placements)
    return gradient


def whole(tensor: Tensor) -> Tensor:
    """Return the complete tensor on every rank. Every rank calls this."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    inner = getattr(found, "_tensor", found)
    return (inner if isinstance(inner, Tensor) else found).detach()


def part_of(full: Tensor, like: Tensor) -> Tensor:
    """Return what this rank holds of a complete tensor, sharded as `like` is. No rank waits for another.

    FSDP2 shards what a rank has of a layer that it shares with others, so the mesh is cut from its last dimension on.
    """
    if not isinstance(like, DTensor):
        return full
    place = like.device_mesh.get_coordinate()
    assert place is not None
    for size, index, placement in reversed(list(zip(like.device_mesh.shape, place, like.placements, strict=True))):
        if placement.is_shard() or type(placement).__name__ == "_StridedShard":
            dim: int = placement.dim  # type: ignore[attr-defined]
            parts = torch.chunk(full, size, dim)
            full = parts[index] if index < len(parts) else full.narrow(dim, 0, 0)
    return full

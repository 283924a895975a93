"""Tensors within containers and dataclasses: the arguments and outputs of modules."""

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def mapped(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Return the same containers and dataclasses with other tensors in them; anything else stays."""

    def at_leaf(one: Any) -> Any:
        if isinstance(one, Tensor):
            return function(one)
        if not is_dataclass(one) or isinstance(one, type):
            return one
        other = copy(one)
        for own in fields(one):
            object.__setattr__(other, own.name, mapped(function, getattr(one, own.name)))
        return other

    return tree_map(at_leaf, values)


def leaves(values: Any) -> list[Any]:
    """Return what is in containers and dataclasses, in order."""
    found: list[Any] = []
    for one in tree_leaves(values):
        is_data = is_dataclass(one) and not isinstance(one, type)
        found += leaves([getattr(one, own.name) for own in fields(one)]) if is_data else [one]
    return found


def differentiable(values: Any) -> list[Tensor]:
    """Return the tensors that take a gradient."""
    return [one for one in leaves(values) if isinstance(one, Tensor) and one.requires_grad]


def copied(values: Any) -> Any:
    """Return the same with copies of the tensors that take a gradient, which may then be changed in place."""
    return mapped(lambda one: one.clone() if one.requires_grad else one, values)


def leaf(value: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy that takes a gradient if the tensor does. dtype: of floats other than float64."""
    to = dtype if value.is_floating_point() and value.dtype != torch.float64 else None
    copied = value.detach().to(device=device, dtype=to or value.dtype, copy=True)
    return copied.requires_grad_(value.requires_grad)


def gradient_at(tensor: Tensor) -> Tensor:
    """Return the gradient of a tensor that takes one, zero if none came."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def numbers(tensor: Tensor) -> Tensor:
    """Return a tensor as real floating-point numbers of at least 32 bits."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor.double()


def opaque(values: Any) -> bool:
    """Return whether tensors with a gradient are hidden in an object."""
    objects = [vars(one) for one in leaves(values) if not isinstance(one, Tensor) and hasattr(one, "__dict__")]
    return any(isinstance(one, Tensor) and one.requires_grad for held in objects for one in held.values())

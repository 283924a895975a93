"""Whether a mode leaves the plain model alone.

A mode of another package may replace functions or methods that the plain model is made of too, as packages of fused
kernels do (`apply_..._to_llama()`). Then the plain model, from which everything is proved, computes the same as the
converted one, whatever that is. So what the names of these modules and classes stand for is noted before the mode is
imported, and looked at again after the gate and after timing. What a mode replaces within its `forward_context` alone
is its own business.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from fp8bench.workloads.protocol import Workload

ALWAYS = ("torch", "torch.nn.functional")
"""Modules whose functions any model may call."""

INSTEAD = "Replace modules of the model that `convert` is given (model.set_submodule), or patch within forward_context"


@dataclass(frozen=True)
class Bindings:
    """What the functions and methods of a model are, by the module or class that holds them and their name there."""

    noted: Mapping[tuple[int, str], tuple[ModuleType | type, Any]]

    @classmethod
    def of(cls, model: nn.Module, workload: Workload) -> "Bindings":
        """Note those of the model's classes, of the modules that define them, of the workload's, and of torch."""
        classes = {base for one in model.modules() for base in type(one).__mro__ if base is not object}
        names = {*ALWAYS, hooks.__name__, type(workload).__module__, *(one.__module__ for one in classes)}
        modules = [sys.modules[name] for name in sorted(names) if name in sys.modules]
        holders: list[ModuleType | type] = [*modules, *classes]
        return cls({(id(one), name): (one, held) for one in holders for name, held in _held(one)})

    def replaced(self) -> str | None:
        """Return in words the first that is another one now; None if none is."""
        for (_, name), (holder, held) in self.noted.items():
            now = vars(holder).get(name)
            if (now is not held and not _of_torch(now)) or (isinstance(held, dict) and held):
                where = holder.__name__ if isinstance(holder, ModuleType) else f"{holder.__module__}.{holder.__name__}"
                return f"it replaces {where}.{name}, of which the plain model is made too"
        return None


def _of_torch(held: Any) -> bool:
    """Return whether it is a function of torch, which replaces some of its own when its compiler is imported."""
    code = getattr(held, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(Path(torch.__file__).parent)


def _held(one: ModuleType | type) -> Iterator[tuple[str, Any]]:
    """Yield what can be called, and torch's hooks of all modules, which are none as long as nobody registers any."""
    for name, held in list(vars(one).items()):
        descriptor = isinstance(held, staticmethod | classmethod | property)
        if callable(held) or descriptor or (one is hooks and name.startswith("_global_") and held == {}):
            yield name, held

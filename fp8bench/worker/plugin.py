"""Checks what a mode or a workload of another package gives, so that a wrong value is one line that names the method,
its file and its line, and not the error of whatever meets it later: what its methods return at their first call, its
batches, and whether it leaves the plain model alone.

A mode may replace functions or methods that the plain model is made of too, as packages of fused kernels do
(`apply_..._to_llama()`). Then the plain model, from which everything is proved, computes the same as the converted one,
whatever that is. So what the names of its modules and classes stand for is noted before the mode is imported, and
looked at again after the gate and after timing. What is replaced within `forward_context` alone is the mode's business.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE, Mode, Rounding, stated
from fp8bench.schema.errors import RunFailed, in_words, place_in
from fp8bench.schema.rank import Tolerance
from fp8bench.workloads.protocol import Batch, Workload, prefetched

Plugin = TypeVar("Plugin")


def _are_names(value: object) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(of, Sequence) for of in value.values()):
        return False
    several = [(of,) if isinstance(of, str) else of for of in value.values()]
    return all(isinstance(name, str) for names in (value, *several) for name in names)


# What methods return, in words and as a type or a predicate:
Returns = Mapping[str, tuple[str, type | Callable[[Any], bool]]]

OF_MODE: Returns = {
    "check": ("nothing", object),
    "convert": ("a torch.nn.Module", nn.Module),
    "forward_context": ("a context manager", AbstractContextManager),
    "evidence": ("a dict", dict),
}
# The same of methods of a mode that it may have:
IF_THERE: Returns = {
    "plain_weights": ("a dict of a weight's name to plain names", _are_names),
    "rounds": (
        "a Rounding whose gradient is in e4m3 or e5m2",
        lambda value: isinstance(value, Rounding) and value.gradient in (torch.float8_e4m3fn, torch.float8_e5m2),
    ),
}

OF_WORKLOAD: Returns = {
    "build": ("a torch.nn.Module", nn.Module),
    "batches": ("an iterator", Iterator),
    "loss": ("a scalar tensor", lambda value: isinstance(value, Tensor) and value.numel() == 1),
    "units_per_step": ("a number", object),
    "flops_per_step": ("a number", object),
    "sizes": ("a dict", dict),
}


def require_stated(mode: Mode) -> None:
    """Raise RunFailed if a mode states bounds wider than its kind's, rounding without fp8, or no gate_scales."""
    tolerance, fp8 = stated(mode, "tolerance"), bool(stated(mode, "fp8"))
    widest = FP8_TOLERANCE if fp8 else BF16_TOLERANCE
    if not isinstance(tolerance, Tolerance):
        raise wrong(mode, "tolerance", f"is {_shown(tolerance)}, and not a Tolerance")
    for name in ("logits", "loss", "input_gradient", "max_leakage"):
        own, limit = getattr(tolerance, name), getattr(widest, name)
        if own > limit:
            kind = "an fp8 mode" if fp8 else "a mode without fp8"
            says = f"has {name}={own:g}, and {kind} may have {limit:g} at most"
            raise wrong(mode, "tolerance", says, "State no wider bound: what rounding explains is added to it")
    if tolerance.min_separation < widest.min_separation:
        raise wrong(mode, "tolerance", f"allows a separation below {widest.min_separation:g}")
    if not fp8 and callable(getattr(mode, "rounds", None)):
        raise wrong(mode, "rounds", "says what is rounded to fp8, and its fp8 is False")
    scales = stated(mode, "gate_scales")
    if not scales or not all(isinstance(one, int | float) and 0 < one < math.inf for one in scales):
        raise wrong(mode, "gate_scales", f"is {scales!r}, and not a tuple of positive numbers")


def require_scaling(mode: Mode) -> None:
    """Raise RunFailed if a mode has, once it has converted a model, a loss scale that cannot scale or step."""
    scaling = getattr(mode, "loss_scaling", None)
    if scaling is not None and not all(callable(getattr(scaling, name, None)) for name in ("scaled", "step")):
        raise wrong(mode, "loss_scaling", f"is {_shown(scaling)}, without methods scaled(loss) and step(optimizer)")


def made(kind: str, name: str, found: type[Plugin], returns: Returns, *values: Any, **options: Any) -> Plugin:
    """Return an object of the class, whose methods are checked at their first call. kind: `mode` or `workload`. Raises
    RunFailed if the class does not take the values and options, or lacks a method.
    """
    what = f"{kind} {name!r}"
    try:
        # A class that is written in C may have no signature.
        with suppress(ValueError):
            inspect.signature(found).bind(*values, **options)
    except TypeError as error:
        raise _wrong(f"{what} cannot be made: its __init__ does not take what it is given ({error})", found) from error
    missing = next((method for method in returns if not callable(getattr(found, method, None))), None)
    if missing is not None:
        raise _wrong(f"{what} has no method {missing}", found)
    known = {**returns, **(IF_THERE if kind == "mode" else {})}
    checked = [name for name, of in known.items() if of[1] is not object and callable(getattr(found, name, None))]
    checks = {name: _checked(found, name, *known[name]) for name in checked}
    # A class of its own, and no attributes of the object: a copy of that must call its own methods.
    own = type(found.__name__, (found,), {"__module__": found.__module__, "__doc__": found.__doc__, **checks})
    plugin: Plugin = own(*values, **options)
    return plugin


def _checked(found: type, method: str, words: str, expected: type | Callable[[Any], bool]) -> Callable[..., Any]:
    original, seen = getattr(found, method), f"_{method}_was_checked"

    @wraps(original)
    def call(self: Any, *values: Any, **options: Any) -> Any:
        value = original(self, *values, **options)
        if seen not in self.__dict__:
            require(self, method, value, words, expected)
            self.__dict__[seen] = True
        return value

    return call


def require(plugin: Any, method: str, value: object, words: str, expected: type | Callable[[Any], bool]) -> None:
    if not (isinstance(value, expected) if isinstance(expected, type) else expected(value)):
        raise wrong(plugin, method, f"returned {_shown(value)}, and not {words}")


def wrong(plugin: Any, method: str, does: str, remedy: str | None = None) -> RunFailed:
    """Return the error for a method of a mode or a workload. does: what it does wrong, after its name."""
    of = type(plugin)
    name, found = getattr(plugin, "name", of.__name__), getattr(of, method, of)
    return _wrong(f"{of.__name__}.{method} of {name!r} {does}", found if callable(found) else of, remedy)


def _wrong(what: str, found: Any, remedy: str | None = None) -> RunFailed:
    place, found = "", inspect.unwrap(found)
    # Not everything has a source.
    with suppress(OSError, TypeError):
        file, (_, line) = inspect.getsourcefile(found) or "", inspect.getsourcelines(found)
        # The end of the path: a record need not reveal whose home folder this was.
        place = f", at {place_in(file, line)}"
    return RunFailed(in_words(what + place), remedy or "Correct it there")


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


class Batches(Iterator[Batch]):
    """taken: their number. size: samples requested of each. shape: of the last inputs. shapes: of all, in order, with
    the step at which each came first. Raises RunFailed where the workload gives no more, or no batch.
    """

    def __init__(self, workload: Workload, batch_size: int, rank: int, device: torch.device) -> None:
        self._wrong = partial(wrong, workload, "batches")
        self._made = workload.batches(batch_size, rank, device)
        require(workload, "batches", self._made, "an iterator", Iterator)
        self.taken, self.size = 0, batch_size
        self.shape = torch.Size()
        self.shapes: dict[torch.Size, int] = {}

    def __next__(self) -> Batch:
        try:
            batch = next(self._made)
        except StopIteration:
            remedy = "Let it go on without end: begin anew after the last sample"
            raise self._wrong(f"ended at step {self.taken} (warm-up and proofs included)", remedy) from None
        if not isinstance(batch, Batch) or not all(isinstance(part, Tensor) for part in batch):
            raise self._wrong(f"gave a {type(batch).__name__} at step {self.taken}, and not a Batch of two tensors")
        self.shape = batch.inputs.shape
        self.shapes.setdefault(self.shape, self.taken)
        if not len(batch.inputs):
            remedy = "Give as many samples as requested: leave an incomplete last batch out (drop_last)"
            raise self._wrong(f"gave an empty batch at step {self.taken}", remedy)
        self.taken += 1
        return batch

    @property
    def prefetched(self) -> int:
        return prefetched(self._made)

    def close(self) -> None:
        getattr(self._made, "close", lambda: None)()


INSTEAD = "Replace modules of the model that `convert` is given (model.set_submodule), or patch within forward_context"


class Bindings(NamedTuple):
    """What the functions and methods of a model are, by the module or class that holds them and their name there."""

    noted: Mapping[tuple[int, str], tuple[ModuleType | type, Any]]

    @classmethod
    def of(cls, model: nn.Module, workload: Workload) -> "Bindings":
        classes = {base for one in model.modules() for base in type(one).__mro__ if base is not object}
        # Functions that any model may call, hooks of all modules, and what this one is made of.
        names = {
            "torch",
            "torch.nn.functional",
            hooks.__name__,
            type(workload).__module__,
            *(one.__module__ for one in classes),
        }
        modules = [sys.modules[name] for name in sorted(names) if name in sys.modules]
        holders: list[ModuleType | type] = [*modules, *classes]
        return cls({(id(one), name): (one, held) for one in holders for name, held in _held(one)})

    def replaced(self) -> str | None:
        for (_, name), (holder, held) in self.noted.items():
            now = vars(holder).get(name)
            # torch replaces some functions of its own when its compiler is imported.
            code = getattr(now, "__code__", None)
            of_torch = code is not None and Path(code.co_filename).is_relative_to(Path(torch.__file__).parent)
            if (now is not held and not of_torch) or (isinstance(held, dict) and held):
                where = holder.__name__ if isinstance(holder, ModuleType) else f"{holder.__module__}.{holder.__name__}"
                return f"it replaces {where}.{name}, of which the plain model is made too"
        return None


def _held(one: ModuleType | type) -> Iterator[tuple[str, Any]]:
    # What can be called, and torch's hooks of all modules, which are none as long as nobody registers any.
    for name, held in list(vars(one).items()):
        descriptor = isinstance(held, staticmethod | classmethod | property)
        if callable(held) or descriptor or (one is hooks and name.startswith("_global_") and held == {}):
            yield name, held

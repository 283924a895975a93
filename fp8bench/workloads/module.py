"""A plain torch.nn.Module of the user's own, named as `package.module:Class`:

    class Net(nn.Module):
        def forward(self, inputs): ...        # gives logits: [batch, classes], or [batch, tokens, classes]
        @staticmethod
        def example(batch_size): ...          # gives (inputs, labels), of that many samples

The class is made without arguments. The loss is the cross entropy. Batches have the shapes and dtypes of the example:
floating-point inputs are drawn from a normal distribution, tokens up to the example's largest, and labels among the
classes of the logits; labels that are no classes (probabilities, -100) stay those of the example. The class may state
`unit` (else "samples" are counted; with "tokens", each label), `causal` and `block_names` as a `Workload` does.

Before a rank starts, one pass on the meta device shows what is wrong: a line with the file and line of the statement.
"""

import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fp8bench.schema.config import DataSource
from fp8bench.schema.errors import UsageError, did_you_mean, first_line, in_words, nearest, place_in
from fp8bench.workloads.base import flops_of
from fp8bench.workloads.fake_data import Drawn, draw_example, endless_batches
from fp8bench.workloads.protocol import Batch

SAMPLES = 16
INPUTS = (torch.float32, torch.int64)
FORM = "Return (inputs, labels), two tensors of batch_size samples, inputs float32 or int64"
CLASS = "a torch.nn.Module, made without arguments, whose forward(inputs) gives logits, with an example(batch_size)"
META = torch.device("meta")


class ModuleWorkload:
    """A workload around one class; `of` makes its own class, which counts as one of the user's module. inputs, labels:
    of the example, of SAMPLES. drawn: whether labels are, among the classes. flops: of SAMPLES. source: a digest of the
    class's file.
    """

    name = "module"
    unit = "samples"
    made: ClassVar[type[nn.Module]]
    inputs: ClassVar[Tensor]
    labels: ClassVar[Tensor]
    classes: ClassVar[int]
    drawn: ClassVar[bool]
    parameter_count: ClassVar[int]
    flops: ClassVar[int]
    source: ClassVar[str]

    def __init__(self, data: DataSource = "loader", workers: int = 0, seed: int = 0) -> None:
        self.data, self.workers, self.seed = data, workers, seed

    @classmethod
    def of(cls, member: str) -> "type[ModuleWorkload]":
        """Return the workload's class. Raises UsageError for whatever is wrong with the user's."""
        found = _looked_at(member)
        made = found["made"]
        stated = {name: getattr(made, name) for name in ("unit", "causal", "block_names") if hasattr(made, name)}
        return type(made.__name__, (cls,), {**found, **stated, "name": member, "__module__": made.__module__})

    def build(self, device: torch.device) -> nn.Module:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            return _built(self.made, device)

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        words = None if self.inputs.is_floating_point() else int(self.inputs.max()) + 1
        draw = partial(draw_example, self.inputs[0].shape, words, self.labels, self.classes if self.drawn else None)
        return endless_batches(Drawn(draw, self.seed), batch_size, rank, device, self.data, self.workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return _loss(model(batch.inputs), batch.targets)

    def units_per_step(self, batch_size: int) -> int:
        return batch_size * (self.labels[0].numel() if self.unit == "tokens" else 1)

    def flops_per_step(self, batch_size: int) -> int:
        return batch_size * self.flops // SAMPLES

    def parameters(self) -> int:
        return self.parameter_count

    def sizes(self) -> dict[str, int | str]:
        """Return the sizes, and a digest of the class's file: after a change it is other work."""
        inputs = f"{'x'.join(map(str, self.inputs.shape[1:]))} {str(self.inputs.dtype).removeprefix('torch.')}"
        return {"inputs": inputs, "classes": self.classes, "parameters": self.parameter_count, "source": self.source}


@cache
def _looked_at(member: str) -> dict[str, Any]:
    name, _, called = member.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    with _told(member, here, "", "its module cannot be imported", "Run this where the module is found, or correct it"):
        module: Any = import_module(name)
    made, file = getattr(module, called, None), str(getattr(module, "__file__", name))
    if not isinstance(made, type) or not issubclass(made, nn.Module):
        classes = [one for one, held in vars(module).items() if isinstance(held, type) and issubclass(held, nn.Module)]
        remedy = f"{did_you_mean(nearest(called, classes)[:1])}Name a class of it: {CLASS}"
        raise _wrong(member, f"{called} is no torch.nn.Module of {name}", place_in(file, 1), remedy)
    at = place_in(file, inspect.getsourcelines(made)[1])
    told = partial(_told, member, str(Path(file).parent), at)
    if not callable(getattr(made, "example", None)):
        raise _wrong(member, f"{called} has no method example(batch_size)", at, f"Add one. {FORM}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with told(f"{called}() fails", "Give its arguments defaults, or correct it"):
            model: Any = _built(made, META)
        with told(f"{called}.example({SAMPLES}) fails"):
            found = model.example(SAMPLES)
    pair: Any = found if isinstance(found, tuple | list) and len(found) == 2 else (found, None)
    shapes = [(list(one.shape), one.dtype) if isinstance(one, Tensor) else type(one).__name__ for one in pair]
    if not all(isinstance(one, Tensor) and one.shape[:1] == (SAMPLES,) for one in pair) or pair[0].dtype not in INPUTS:
        raise _wrong(member, f"{called}.example({SAMPLES}) gives {shapes[0]} and {shapes[1]}", at, FORM)
    inputs, labels = (one.detach().cpu() for one in pair)
    with told(f"{called}.forward fails on {shapes[0]}"):
        logits = model(inputs.to(META))
    form = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(form, list) or len(form) < 2 or form[0] != SAMPLES:
        raise _wrong(member, f"{called}.forward gives {form}, and not logits", at, "Return [batch, ..., classes]")
    classes = logits.shape[-1 if logits.shape[:-1] == labels.shape else 1]
    drawn = labels.dtype == torch.int64 and 0 <= int(labels.min()) <= int(labels.max()) < classes
    with told(f"the cross entropy of its logits {list(logits.shape)} and labels {shapes[1]} fails"):
        flops = flops_of(lambda: _loss(model(inputs.to(META)), labels.to(META)))
    parameters = sum(one.numel() for one in model.parameters())
    found = {"made": made, "inputs": inputs, "labels": labels, "classes": classes, "drawn": drawn, "flops": flops}
    source = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return {**found, "parameter_count": parameters, "source": source}


def _built(made: type[nn.Module], device: torch.device) -> nn.Module:
    # On the device itself, or on the CPU if it cannot be made there (`.item()` of a meta tensor).
    try:
        with device:
            return made().to(device).train()
    except (RuntimeError, TypeError):
        return made().to(device).train()


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[:-1] == labels.shape:
        logits, labels = logits.flatten(0, -2), labels.flatten()
    return nn.functional.cross_entropy(logits, labels)


@contextmanager
def _told(member: str, folder: str, at: str, what: str, remedy: str = "Correct it there") -> Iterator[None]:
    """Turn an error of the user's code into a line with its place, the last one in the folder; else `at`."""
    try:
        yield
    except Exception as error:
        frames = [(one.filename, one.lineno or 0) for one in traceback.extract_tb(error.__traceback__)]
        own = [one for one in frames if one[0].startswith(folder) and "-packages" not in one[0].removeprefix(folder)]
        place = place_in(*own[-1]) if own else at
        raise _wrong(member, f"{what}: {type(error).__name__}: {first_line(error)}", place, remedy) from error


def _wrong(member: str, what: str, place: str, remedy: str) -> UsageError:
    return UsageError(in_words(f"workload {member!r}: {what}{f', at {place}' if place else ''}"), remedy)

"""Determines which operations this torch runs on tensors of a format, and which it refuses, by trying each one.

fp8 is a format for storing values and for the operands of GEMMs. torch supports only some arithmetic on it, which
differs between CPU and GPU and from version to version. Otherwise a tensor must first be cast to bfloat16 or float32.

Each operation takes a matrix of `VALUE`, SIZE x SIZE, and is also run on float32. Every result is a power of two that
all formats here hold exactly, so a result that differs is wrong, and not rounded.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fp8bench.schema.errors import first_line
from fp8bench.schema.formats import Outcome, Tried

SIZE = 16
"""A multiple of 16, as every dimension of an fp8 GEMM must be."""

VALUE = 0.5
PACKED = "_x2"
"""The suffix of a format with two values in a byte. torch cannot compute with its values."""

USUAL = ("float8_e4m3fn", "float8_e5m2")
"""The formats that are tried if none is named."""


def _scaled_mm(x: Tensor) -> Tensor:
    """Multiply as in `gemm`, the only way that uses fp8 units; float32, which that does not accept, plainly."""
    if x.dtype == torch.float32:
        return torch.mm(x, x.t())
    one = torch.ones((), device=x.device)
    output: Tensor = torch._scaled_mm(x, x.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return output


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cast to float32": lambda x: x.to(torch.float32),
    "transpose, copy": lambda x: x.t().contiguous(),
    "concatenate": lambda x: torch.cat([x, x]),
    "x == x": lambda x: x == x,
    "x < x": lambda x: x < x,
    "abs(x)": torch.abs,
    "-x": torch.neg,
    "x + x": lambda x: x + x,
    "x * x": lambda x: x * x,
    "x + float32": lambda x: x + torch.full((SIZE, SIZE), VALUE, device=x.device),
    "sum(x)": torch.sum,
    "amax(x)": torch.amax,
    "relu(x)": torch.relu,
    "softmax(x)": lambda x: torch.softmax(x, -1),
    "x @ x.T": lambda x: x @ x.t(),
    "linear(x, x)": lambda x: functional.linear(x, x),
    "scaled_mm to bf16": _scaled_mm,
}
"""The operations by name, from those that move values to those that multiply them."""


def devices() -> tuple[str, ...]:
    """Return the devices of this machine: the CPU, and the first GPU that torch can use."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def torch_version() -> str:
    """Return torch's version as torch reports it."""
    return str(torch.__version__)


def triable(name: str) -> bool:
    """Return whether this torch has tensors with single values of the format."""
    return hasattr(torch, name) and not name.endswith(PACKED)


def try_all(names: Sequence[str], places: Iterable[str] = ("cpu",)) -> tuple[Tried, ...]:
    """Try every operation on every format whose values this torch has. names: formats. places: some of `devices`."""
    known = list(filter(triable, names))
    where = tuple(places)
    return tuple(_tried(operation, name, place) for operation in OPERATIONS for place in where for name in known)


def _tried(operation: str, name: str, place: str) -> Tried:
    function, dtype = OPERATIONS[operation], getattr(torch, name)
    expected = function(torch.full((SIZE, SIZE), VALUE)).float()
    try:
        found = function(torch.full((SIZE, SIZE), VALUE, device=place).to(dtype))
        # A GPU may report its error only now.
        outcome: Outcome = "runs" if torch.equal(found.cpu().float(), expected) else "wrong"
    except (RuntimeError, TypeError, ValueError) as error:
        return Tried(operation, name, place, "refused", reason=first_line(error))
    return Tried(operation, name, place, outcome, gives=str(found.dtype).removeprefix("torch."))

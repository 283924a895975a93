"""Which operations this torch runs on tensors of a format, and which it refuses: each is tried, and none looked up.

fp8 is a format to store values in and to give to a GEMM; of arithmetic torch has only some, other operations on a CPU
than on a GPU, and other ones from version to version. What it refuses must be cast to bfloat16 or float32 first.

Each operation takes a matrix of `VALUE`, SIZE x SIZE, and is tried on float32 too. Every result is a power of two that
all formats here hold exactly, so that a result that differs is wrong, and not rounded.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fp8bench.schema.errors import first_line
from fp8bench.schema.formats import Outcome, Tried

SIZE = 16
"""Every dimension of an fp8 GEMM is a multiple of it."""

VALUE = 0.5
PACKED = "_x2"
"""Ends the name of a format of which a byte holds two values: torch has no value of it to compute with."""

USUAL = ("float8_e4m3fn", "float8_e5m2")
"""What is tried where no format is named."""


def _scaled_mm(x: Tensor) -> Tensor:
    """As in `gemm`: the one way to multiply that uses fp8 units. Of float32, which it does not take, a plain one."""
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
"""By what they are called, from what moves values to what multiplies them."""


def devices() -> tuple[str, ...]:
    """Those of this machine: the CPU, and the first GPU that torch can use."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def torch_version() -> str:
    """As torch says it."""
    return str(torch.__version__)


def triable(name: str) -> bool:
    """Whether this torch has tensors of the format's values, one by one."""
    return hasattr(torch, name) and not name.endswith(PACKED)


def try_all(names: Sequence[str], places: Iterable[str] = ("cpu",)) -> tuple[Tried, ...]:
    """Every operation on every format that this torch has values of. names: of formats. places: of `devices`."""
    known = list(filter(triable, names))
    where = tuple(places)
    return tuple(_tried(operation, name, place) for operation in OPERATIONS for place in where for name in known)


def _tried(operation: str, name: str, place: str) -> Tried:
    function, dtype = OPERATIONS[operation], getattr(torch, name)
    expected = function(torch.full((SIZE, SIZE), VALUE)).float()
    try:
        found = function(torch.full((SIZE, SIZE), VALUE, device=place).to(dtype))
        # A GPU's error may come only now.
        outcome: Outcome = "runs" if torch.equal(found.cpu().float(), expected) else "wrong"
    except (RuntimeError, TypeError, ValueError) as error:
        return Tried(operation, name, place, "refused", reason=first_line(error))
    return Tried(operation, name, place, outcome, gives=str(found.dtype).removeprefix("torch."))

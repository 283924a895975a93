"""The modes that are examined, opened or refused, and which operands each recipe casts to fp8, and how.

A linear layer has three matrix products, each of two operands:

    output           input            x  weight
    input_gradient   output gradient  x  weight
    weight_gradient  output gradient  x  input

  tensorwise, current  one scale a tensor, from the tensor itself; output gradients in e5m2, the others in e4m3.
  delayed              the same formats; the scale comes from the tensors of earlier passes.
  rowwise              e4m3 throughout; a scale for each row or column that is summed over, a power of two.
  rowwise_with_gw_hp   the same, but the weight gradient is computed in bfloat16, and the weight has one scale in the
                       product that gives the input gradient.

Sources: torchao 0.18, float8/float8_linear.py and config.py; Transformer Engine 2.20, common/recipe. Blocks of 128 and
of 32 values (te-fp8:block and te-fp8:mxfp8) are not imitated here, and their shares are left unknown.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from fp8bench import registry
from fp8bench.modes.protocol import Mode
from fp8bench.numerics.quantiser import E4M3, E5M2, Grid
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.formats import padded
from fp8bench.schema.numerics import TensorName

Operand = Literal["input", "weight", "output_gradient"]
DELAYED = "te-fp8:delayed"
ALIGNMENTS = {"te-fp8:mxfp8": 32}
"""Widths must be multiples of these where they must be of more than 16."""


@dataclass(frozen=True)
class OperandCast:
    """How an operand is cast for one product. across: the dimension that shares a scale, of input [tokens, in], weight
    [out, in] or output gradient [tokens, out]; None: the whole tensor does.
    """

    operand: Operand
    grid: Grid
    across: int | None = None
    power_of_2: bool = False


Casts = dict[TensorName, tuple[OperandCast, ...]]

PER_TENSOR: Casts = {
    "output": (OperandCast("input", E4M3), OperandCast("weight", E4M3)),
    "input_gradient": (OperandCast("output_gradient", E5M2), OperandCast("weight", E4M3)),
    "weight_gradient": (OperandCast("output_gradient", E5M2), OperandCast("input", E4M3)),
}
ROWWISE: Casts = {
    "output": (OperandCast("input", E4M3, -1, True), OperandCast("weight", E4M3, -1, True)),
    "input_gradient": (OperandCast("output_gradient", E4M3, -1, True), OperandCast("weight", E4M3, 0, True)),
    "weight_gradient": (OperandCast("output_gradient", E4M3, 0, True), OperandCast("input", E4M3, 0, True)),
}
ROWWISE_WITH_GW_HP: Casts = {
    "output": ROWWISE["output"],
    "input_gradient": (OperandCast("output_gradient", E4M3, -1, True), OperandCast("weight", E4M3, None, True)),
}
CASTS: dict[str, Casts] = {
    "torchao-float8:tensorwise": PER_TENSOR,
    "torchao-float8:rowwise": ROWWISE,
    "torchao-float8:rowwise_with_gw_hp": ROWWISE_WITH_GW_HP,
    DELAYED: PER_TENSOR,
    "te-fp8:current": PER_TENSOR,
}
"""By mode label. A mode or a tensor that is not here is not cast, or not in a way that is imitated."""


@dataclass(frozen=True)
class Opened:
    """A mode that can run here, or why it cannot. A mode is made anew for every layer: some keep state."""

    label: str
    refusal: ModeUnavailable | None

    def make(self) -> Mode:
        """A fresh one."""
        entry, recipe = registry.find_mode(self.label)
        mode: Mode = registry.load(entry)(recipe)
        return mode


def open_mode(label: str, device: torch.device, width: int) -> Opened:
    """Ask the mode itself. Raises UsageError as registry.find_mode."""
    opened = Opened(label, None)
    try:
        opened.make().check(device)
    except ModeUnavailable as refusal:
        return Opened(label, refusal)
    multiple = ALIGNMENTS.get(label, 1)
    if width % multiple:
        why = f"{label} scales blocks of {multiple}, and {width} is no multiple"
        return Opened(label, ModeUnavailable(why, f"Use {padded(width, multiple)}"))
    return opened


def casts(label: str, tensor: TensorName) -> tuple[OperandCast, ...]:
    """The casts of the product that gives the tensor; empty where nothing is known of them."""
    return CASTS.get(label, {}).get(tensor, ())

"""The FLOPs of a forward and a backward pass, as torch's FlopCounterMode counts them, with one formula corrected."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

Sizes = Sequence[int]


def flops_of(forward: Callable[[], object]) -> int:
    """Return the FLOPs of `forward`, and of the backward pass from its output if that is a tensor."""
    formulas: dict[Any, Any] = {torch.ops.aten.convolution_backward: _convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        output = forward()
        if isinstance(output, Tensor):
            output.sum().backward()
    return int(counter.get_total_flops())


def _convolution_backward(gradient: Sizes, inputs: Sizes, weight: Sizes, *arguments: Any, **_others: Any) -> int:
    """Return the FLOPs of a convolution's gradients, each of which costs as much as its forward pass. torch's formula
    for the weight's gradient ignores groups, and multiplies the work of a depthwise convolution by its channels.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = arguments
    places = prod((inputs if transposed else gradient)[2:])
    return int(2 * gradient[0] * places * prod(weight) * sum(wanted[:2]))

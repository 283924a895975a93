"""The work of a model: its parameters, and the FLOPs of a forward and a backward pass, as torch's FlopCounterMode
counts them (a multiply-add is two operations), with one formula corrected.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

Sizes = Sequence[int]
Work = tuple[int, int]
"""Parameters, and FLOPs of a sample's step."""


def work_of(build: Callable[[], nn.Module], sample: Callable[[], Tensor]) -> Work:
    """Return the work of one sample, both made on the meta device, where nothing is computed. Attention takes the plain
    path there, and all its GEMMs are counted once.
    """
    with torch.device("meta"):
        model, inputs = build(), sample()
    return sum(parameter.numel() for parameter in model.parameters()), flops_of(lambda: model(inputs))


def work_of_blocks(work_at: Callable[[int], Work], depth: int) -> Work:
    """Return the work of a model of `depth` equal blocks. work_at: counts one of as many blocks. The first one is
    counted with all around the blocks, a second one separately.
    """
    parameters, flops = (one + (two - one) * (depth - 1) for one, two in zip(work_at(1), work_at(2), strict=True))
    return parameters, flops


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

"""What a layer is given: its input, and the gradient at its output.

  normal        what initialisation and layer norms make: nearly all values within a factor of 8 of each other.
  heavy-tailed  Student's t with 3 degrees of freedom: a few values far out set the scale for all the others.
  outlier       normal, with a few channels 100 times as large, as large transformers grow them (Dettmers et al. 2022,
                LLM.int8(), arXiv:2208.07339).

The same with `-exact` after its name: each operand, the weight too, is moved to values that fp8 has (see
quantiser.representable), so that what error remains is none of the casts'. One set serves every recipe: the output
gradient keeps to values that e4m3 and e5m2 both have, and its largest, 448 times a power of two, is 57344 times
another.

Everything is drawn on the CPU from a seed of its own, made of the call's seed and of what is drawn: the same numbers
come on every machine, and for one mode as for another.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fp8bench.numerics.quantiser import BOTH, E4M3, representable
from fp8bench.schema.numerics import EXACT, Distribution, InputName

DEGREES_OF_FREEDOM = 3
OUTLIER_FACTOR = 100.0
CHANNELS_AN_OUTLIER = 128
LEAST_OUTLIERS = 2
"""Channels are made outliers one in so many, but so many at least."""

GRADIENT_SIZE = 1e-4
"""Standard deviation of a normal output gradient: as small as in training, where e5m2 without a scale has few values
left (its smallest is 1.5e-5).
"""


@dataclass(frozen=True)
class Operands:
    """input: [..., in]; output_gradient: [..., out]; float32."""

    input: Tensor
    output_gradient: Tensor

    def to(self, device: torch.device) -> "Operands":
        """The same on a device."""
        return Operands(self.input.to(device), self.output_gradient.to(device))


def is_exact(name: InputName) -> bool:
    """Whether its operands are moved to fp8's grid."""
    return name.endswith(EXACT)


def distribution(name: InputName) -> Distribution:
    """The distribution that is drawn from."""
    return cast(Distribution, name.removesuffix(EXACT))


def draw(name: InputName, input_shape: Sequence[int], output_shape: Sequence[int], seed: int, number: int) -> Operands:
    """The `number`th draw, on the CPU. Draws of unlike numbers are independent."""
    kind = distribution(name)
    given = _draw(kind, input_shape, generator(seed, kind, "input", number))
    gradient = _draw(kind, output_shape, generator(seed, kind, "gradient", number)) * GRADIENT_SIZE
    if is_exact(name):
        return Operands(representable(given, E4M3), representable(gradient, BOTH))
    return Operands(given, gradient)


def draw_weight(shape: Sequence[int], seed: int, what: str) -> Tensor:
    """[out, in] normal, of standard deviation in^-1/2: what comes out is then about as large as what goes in."""
    return torch.randn(tuple(shape), generator=generator(seed, "weight", what)) / math.sqrt(shape[-1])


def generator(seed: int, *what: object) -> torch.Generator:
    """A CPU generator that is this call's and this purpose's own."""
    digest = hashlib.sha256("/".join(map(str, (seed, *what))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _draw(kind: Distribution, shape: Sequence[int], by: torch.Generator) -> Tensor:
    values = torch.randn(tuple(shape), generator=by)
    if kind == "heavy-tailed":
        squares = [torch.randn(tuple(shape), generator=by).square() for _ in range(DEGREES_OF_FREEDOM)]
        # By definition: a normal over the root of the mean of so many other normals' squares.
        values /= torch.stack(squares).mean(0).sqrt()
    if kind == "outlier":
        channels = shape[-1]
        count = max(LEAST_OUTLIERS, channels // CHANNELS_AN_OUTLIER)
        values[..., torch.randperm(channels, generator=by)[:count]] *= OUTLIER_FACTOR
    return values

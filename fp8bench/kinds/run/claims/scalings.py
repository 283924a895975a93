"""Ways to scale, and what each does to a small matrix, value by value in Python, without torch. Claims are tested with
this module. `numerics.block_formats` has the rules of scales. Every number is a float64.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from fp8bench.numerics.definitions import DEFINITIONS, decode

E4M3, E2M1, E8M0, FLOAT32 = "float8_e4m3fn", "float4_e2m1fn_x2", "float8_e8m0fnu", "float32"
POWER_OF_TWO = "float32, a power of two"

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Scaling:
    """A way to scale. element, scale: formats. block: values that share a scale; None for all. square: as a square."""

    element: str
    scale: str
    block: int | None
    square: bool = False
    name: str | None = None

    @property
    def bits_per_value(self) -> float:
        """The bits of a value with its share of the blocks' scales. A single scale of a tensor counts as nothing."""
        shared = self.block**2 if self.block and self.square else self.block
        scale_bits = DEFINITIONS[FLOAT32 if self.scale == POWER_OF_TWO else self.scale].bits
        return DEFINITIONS[self.element].bits + (scale_bits / shared if shared else 0.0)

    @property
    def largest(self) -> float:
        """The largest value of the element's format."""
        return largest(self.element)


SCALINGS = (
    Scaling(E4M3, FLOAT32, None, name="fp8"),
    Scaling(E4M3, POWER_OF_TWO, 128, name="te-block"),
    Scaling(E4M3, POWER_OF_TWO, 128, square=True, name="te-block-2d"),
    Scaling(E4M3, E8M0, 32, name="mxfp8"),
    Scaling(E2M1, E8M0, 32, name="mxfp4"),
    Scaling(E2M1, E4M3, 16, name="nvfp4"),
    Scaling(E2M1, E4M3, 16, square=True, name="nvfp4-2d"),
)
"""Formats that exist, from one scale to many."""

SIDE = 128
"""The side of the matrix that claims are tested on: a multiple of every block."""

OUTLIER_FACTOR = 100.0
CHANNELS_AN_OUTLIER = 64
"""One column out of this many is an outlier."""


def largest(name: str) -> float:
    """Return the largest value of a format."""
    return decode(DEFINITIONS[name], DEFINITIONS[name].largest)


def cast(matrix: Matrix, scaling: Scaling) -> list[list[float]]:
    """Return the values after the cast. Blocks run along a row. Rows and columns must be multiples of the block."""
    made = [list(row) for row in matrix]
    rounded = _rounding(scaling.element)
    tensor_scale = max(abs(value) for row in matrix for value in row) / scaling.largest / largest(E4M3)
    for places in _blocks(len(matrix), len(matrix[0]), scaling):
        scale = _scale(max(abs(matrix[row][column]) for row, column in places) / scaling.largest, scaling, tensor_scale)
        for row, column in places:
            made[row][column] = rounded(matrix[row][column] / scale) * scale if scale else 0.0
    return made


def _blocks(rows: int, columns: int, scaling: Scaling) -> Iterator[list[tuple[int, int]]]:
    """Yield the positions of each block's values."""
    tall, wide = (scaling.block, scaling.block) if scaling.square else (1, scaling.block)
    if tall is None or wide is None:
        tall, wide = rows, columns
    for top in range(0, rows, tall):
        for left in range(0, columns, wide):
            yield [(top + row, left + column) for row in range(tall) for column in range(wide)]


def _scale(exact: float, scaling: Scaling, tensor_scale: float) -> float:
    """Return the scale of a block. exact: the block's amax over the element's largest value."""
    if exact == 0:
        return 0.0
    if scaling.scale in (E8M0, POWER_OF_TWO):
        mantissa, exponent = math.frexp(exact)
        return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)
    if scaling.scale == E4M3:
        return _rounding(E4M3)(exact / tensor_scale) * tensor_scale
    return exact


@cache
def _rounding(name: str) -> Callable[[float], float]:
    """Return a function that rounds like `definitions.bits`, which looks everything up for each value."""
    lowest = 1 - DEFINITIONS[name].bias
    mantissa_bits, most = DEFINITIONS[name].mantissa_bits, largest(name)

    def rounded(value: float) -> float:
        exponent = max(math.frexp(value)[1] - 1, lowest) - mantissa_bits
        magnitude = math.ldexp(round(math.ldexp(abs(value), -exponent)), exponent)
        return math.copysign(min(magnitude, most), value)

    return rounded


def transposed(matrix: Matrix) -> list[list[float]]:
    """Return the matrix with columns as rows."""
    return [list(column) for column in zip(*matrix, strict=True)]


@cache
def sample(seed: int = 0) -> Matrix:
    """Return SIDE x SIDE normal values, with a few columns that are OUTLIER_FACTOR times as large, as in large
    transformers. Python's own generator draws them, so they are the same everywhere.
    """
    drawn = random.Random(seed)
    rows = [[drawn.gauss(0.0, 1.0) for _ in range(SIDE)] for _ in range(SIDE)]
    outliers = drawn.sample(range(SIDE), SIDE // CHANNELS_AN_OUTLIER)
    return tuple(tuple(v * OUTLIER_FACTOR if at in outliers else v for at, v in enumerate(row)) for row in rows)


@dataclass(frozen=True)
class Found:
    """What a way to scale does to `sample`. Errors are relative, Euclidean. zeroed: share of values that became zero.

    transposed_error: of the transpose, cast from the values. requantized_error: of the transpose, cast from the first
    cast. differing: share of the values that the first cast and the transpose hold as different numbers.
    """

    error: float
    zeroed: float
    transposed_error: float
    requantized_error: float
    differing: float


@cache
def found(name: str) -> Found:
    """Return the results of a way to scale. name: a name in SCALINGS. Raises ValueError for any other."""
    way = next((one for one in SCALINGS if one.name == name), None)
    if way is None:
        raise ValueError(f"{name} is not a way to scale")
    values = sample()
    first = cast(values, way)
    second = transposed(cast(transposed(values), way))
    again = transposed(cast(transposed(first), way))
    pairs = [(value, made) for row, of in zip(values, first, strict=True) for value, made in zip(row, of, strict=True)]
    unlike = sum(a != b for row, of in zip(first, second, strict=True) for a, b in zip(row, of, strict=True))
    return Found(
        error=_off(first, values),
        zeroed=sum(made == 0 != value for value, made in pairs) / len(pairs),
        transposed_error=_off(second, values),
        requantized_error=_off(again, values),
        differing=unlike / len(pairs),
    )


def _off(made: Matrix, values: Matrix) -> float:
    wrong = math.dist([v for row in made for v in row], [v for row in values for v in row])
    return wrong / math.hypot(*(v for row in values for v in row))

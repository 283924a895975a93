"""Block scales: the error of values if each block of them has its own scale, as emulated in torch.

An emulation computes what a GPU's casts would return. Its time is meaningless, and its results hold for any machine.
"""

from pydantic import Field, PositiveInt

from fp8bench.schema.files import Frozen
from fp8bench.schema.numerics import Distribution


class BlockErrors(Frozen):
    """The errors of one way to scale one kind of values. Errors are relative, Euclidean, of the values after the cast.

    A block is `block` consecutive values along the dimension that a GEMM sums over, or a square of values. The blocks
    of the transpose run along the other dimension.
    """

    scaling: str | None = Field(
        description="its name; null: of the comparison of block sizes alone, without transposes"
    )
    element: str = Field(description="format of the values")
    scale: str = Field(description="format of a block's scale")
    block: PositiveInt | None = Field(description="values that share a scale; null: the whole tensor")
    square: bool = Field(default=False, description="a block is a square of `block` x `block` values")
    bits_per_value: float = Field(description="with its share of the scales")
    input: Distribution
    relative_error: float
    flushed: float = Field(description="share of the values that were not zero and became zero")
    saturated: float = Field(description="share of the values beyond the largest that their block can hold")
    transposed_error: float | None = Field(
        default=None, description="of the transpose, cast from the values: a second copy"
    )
    requantized_error: float | None = Field(default=None, description="of the transpose, cast from the first copy")
    differing: float | None = Field(
        default=None, description="share of the values that the two copies hold as different numbers"
    )


class BlockScales(Frozen):
    """Every way to scale every kind of values, which are matrices of rows x columns drawn from the seed."""

    rows: PositiveInt
    columns: PositiveInt
    seed: int = Field(ge=0)
    errors: tuple[BlockErrors, ...]

    @property
    def named(self) -> tuple[BlockErrors, ...]:
        """The errors of formats that exist."""
        return tuple(one for one in self.errors if one.scaling is not None)

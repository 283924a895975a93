"""Block scales: what is left of values when each block of them has a scale of its own, as emulated in torch.

An emulation computes what a GPU's casts would give and takes no time that means anything: it is of any machine.
"""

from pydantic import Field, PositiveInt

from fp8bench.schema.files import Frozen
from fp8bench.schema.numerics import Distribution


class BlockErrors(Frozen):
    """One way to scale, on one kind of values. Errors are relative, Euclidean, of what the cast makes of the values.

    A block is `block` consecutive values along the dimension that a GEMM sums over, or a square of them. The transpose
    has its blocks along the other dimension.
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
    """Every way to scale on every kind of values: matrices of rows x columns, drawn from the seed."""

    rows: PositiveInt
    columns: PositiveInt
    seed: int = Field(ge=0)
    errors: tuple[BlockErrors, ...]

    @property
    def named(self) -> tuple[BlockErrors, ...]:
        """Those of formats that exist."""
        return tuple(one for one in self.errors if one.scaling is not None)

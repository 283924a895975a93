"""What follows from the definitions of number formats and ways to scale: the same on every machine."""

import math
from collections.abc import Sequence

from fp8bench.kinds.run.claims.expression import Operand, Value
from fp8bench.kinds.run.claims.scalings import found
from fp8bench.numerics.definitions import DEFINITIONS, bits
from fp8bench.schema.errors import UsageError

LIMITS = {"largest": "max", "smallest_normal": "smallest_normal", "eps": "eps"}
"""Functions of a format, with the property of `Definition`."""

SCALED = {
    "block_error": "error",
    "zeroed": "zeroed",
    "transposed_error": "transposed_error",
    "requantized_error": "requantized_error",
    "differing": "differing",
}
"""Functions of a way to scale, with the field of `Found`."""


def by_definition(function: str, operands: Sequence[Operand]) -> Value:
    """Return the value of a function of `BY_DEFINITION`. Raises UsageError for a cast that has no finite result."""
    name = operands[-1].variant or ""
    if function in LIMITS:
        return _exact(getattr(DEFINITIONS[name], LIMITS[function]))
    if function in SCALED:
        return _exact(getattr(found(name), SCALED[function]))
    made = bits(DEFINITIONS[name], operands[0].number or 0.0)
    if made.becomes is None or not math.isfinite(made.becomes):
        raise UsageError(f"{operands[0].number} has no finite value in {name}", "Cast another number")
    return _exact(made.becomes)


def _exact(value: float) -> Value:
    return Value.exact(float(value), origin="definition")

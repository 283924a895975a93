"""Sizes that must be a multiple of another, as those of a GEMM's operands in fp8."""

ALIGNMENT = 16
"""Every dimension of an fp8 GEMM is a multiple of this number: cuBLASLt and CUTLASS read operands in pieces of 16
bytes, and an fp8 value is one byte.
"""


def padded(size: int, multiple: int = ALIGNMENT) -> int:
    """Return the smallest multiple that is not less than `size`."""
    return -(-size // multiple) * multiple

"""The multiple that every dimension of an fp8 product must be of."""

ALIGNMENT = 16
"""cuBLASLt and CUTLASS read operands in pieces of 16 bytes, and an fp8 value is one."""


def padded(size: int) -> int:
    """The next size that would do; `size` itself where it does."""
    return -(-size // ALIGNMENT) * ALIGNMENT

"""The multiple that every dimension of an fp8 product must be of."""

ALIGNMENT = 16
"""cuBLASLt and CUTLASS read operands in pieces of 16 bytes, and an fp8 value is one."""


def padded(size: int, multiple: int = ALIGNMENT) -> int:
    """The next size that is a multiple; `size` itself where it is one."""
    return -(-size // multiple) * multiple

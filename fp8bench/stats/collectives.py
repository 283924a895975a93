"""Bandwidths of collectives, as defined by nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""

from fp8bench.schema.collectives import Operation

GB = 1e9


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return the bytes that must travel over each rank's link with any algorithm, relative to the array's: 2 (n - 1) /
    n in an all-reduce, (n - 1) / n in the others. Raises ValueError for fewer than two ranks.
    """
    if ranks < 2:
        raise ValueError("a collective has at least two ranks")
    return (2 if operation == "all-reduce" else 1) * (ranks - 1) / ranks


def algorithm_gb_s(size_bytes: float, time_s: float) -> float:
    """Return the algorithm bandwidth, S / t, in GB/s."""
    return size_bytes / time_s / GB


def bus_gb_s(operation: Operation, size_bytes: float, time_s: float, ranks: int) -> float:
    """Return the bus bandwidth, S / t times the factor of the operation, in GB/s."""
    return algorithm_gb_s(size_bytes, time_s) * bus_factor(operation, ranks)

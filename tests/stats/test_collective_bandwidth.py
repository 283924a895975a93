"""Bandwidths of collectives follow nccl-tests' definitions."""

import pytest

from fp8bench.stats.collectives import bus_factor, bus_gb_s


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all-reduce", 2, 1.0),
        ("all-reduce", 8, 1.75),
        ("all-gather", 2, 0.5),
        ("all-gather", 8, 0.875),
        ("reduce-scatter", 4, 0.75),
    ],
)
def test_the_bus_carries_what_the_definition_says(operation, ranks, factor):
    assert bus_factor(operation, ranks) == factor
    assert bus_gb_s(operation, 10**9, 0.5, ranks) == pytest.approx(2 * factor)


def test_nccl_tests_own_line_is_reproduced_and_one_rank_has_no_collective():
    # 33554432 B in 0.768 ms on two ranks: algbw 43.69, busbw 43.69 (an all-reduce of two has a factor of 1).
    assert bus_gb_s("all-reduce", 33_554_432, 768e-6, 2) == pytest.approx(43.69, abs=0.005)
    with pytest.raises(ValueError, match="at least two ranks"):
        bus_factor("all-reduce", 1)

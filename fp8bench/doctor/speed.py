"""How fast, and how evenly, this host runs Python: a fixed loop, timed many times.

Why it matters: te-fp8 on an H200 at batch 64 was launch-bound; the same code took 126 ms a step in one process and
100 ms in the next. A host that swings gives numbers that swing, unless each step is replayed as a CUDA graph.
"""

import time
from collections.abc import Callable
from statistics import median

from fp8bench.schema.files import Frozen

TURNS = 400_000
REPEATS = 15


class SpeedFacts(Frozen):
    """Times of one and the same loop."""

    loop_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The typical time."""
        return median(self.loop_s)

    @property
    def swing(self) -> float:
        """Slowest by fastest."""
        return max(self.loop_s) / min(self.loop_s)


def measure(clock: Callable[[], float] = time.perf_counter, turns: int = TURNS, repeats: int = REPEATS) -> SpeedFacts:
    """About half a second on a host of today. The first loop warms the interpreter and is left out."""
    times = []
    for _ in range(repeats + 1):
        start = clock()
        _loop(turns)
        times.append(clock() - start)
    return SpeedFacts(loop_s=tuple(times[1:]))


def _loop(turns: int) -> int:
    total = 0
    for number in range(turns):
        total += number & 7
    return total

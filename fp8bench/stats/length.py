"""How many steps a rank times, and how many it runs around them. Timed steps must be as many, and last as long, as
requested, so their number follows from warm-up's pace.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

LEAD_IN = 5
"""Steps between the emptied queue and the first timed step: a loader that keeps up has caught up after the first of
them, and the host is as far ahead as it gets after one or two.
"""

PACE_STEPS = 5
"""The last steps of warm-up whose median is the pace: the first few compile, allocate and tune. If what is timed is
decided after warm-up, as it is in a measurement, as many are run again.
"""

SPLIT_STEPS = 10  # from which the split of a replayed step is read

PROOF_STEPS = 3
"""Steps that are compared with the same steps plainly eager. One would not show a batch that is read again, nor scales
that follow from the step before.
"""

PROFILED_STEPS = 3  # show what every other step does, in a trace of some tens of megabytes
SPARE = 1.1  # timed steps may be a little faster than warm-up's, but must last
MOST_STEPS = 100_000  # even if warm-up's steps took next to nothing


class Length(NamedTuple):
    """What is requested: the steps of warm-up, and the minimum number and time of the timed steps."""

    warmup: int
    steps: int
    min_time_s: float = 0.0


def timed_steps(length: Length, warmup_step_s: Sequence[float], queue: int = 0) -> int:
    """Return how many steps to time: as many as requested, and as many as last as long as requested at warm-up's pace
    (unknown without warm-up), rounded up to complete queues. queue: how many batches the loader makes ahead; its
    processes deliver in bursts, and part of a queue may contain a burst without the wait before it.
    """
    pace = pace_s(warmup_step_s)
    for_time = min(MOST_STEPS, math.ceil(length.min_time_s * SPARE / pace)) if pace > 0 else 0
    steps = max(length.steps, for_time)
    return -(-steps // queue) * queue if queue else steps


def pace_s(warmup_step_s: Sequence[float]) -> float:
    """Return the seconds of a step at the end of warm-up; 0 without warm-up."""
    paces = (warmup_step_s[1:] or warmup_step_s)[-PACE_STEPS:]
    return median(paces) if paces else 0.0


def steps_in_all(length: Length, step_s: float, queue: int, replayed: bool) -> int:
    """Return how many steps a process runs, timed ones and those around them. step_s: expected seconds of a step.
    replayed: whether the step is a captured graph, which is split in steps of its own.
    """
    around = PACE_STEPS + 2 * PROOF_STEPS + 1 + (SPLIT_STEPS if replayed else 0)
    return length.warmup + LEAD_IN + timed_steps(length, (step_s,), queue) + PROFILED_STEPS + around

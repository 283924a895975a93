"""What torch.compile has done so far in this process, counted by torch itself (torch._dynamo.utils.counters).

A step that compiles takes seconds, so compilations after the first step are counted apart, and those among timed steps
make a run unsteady. Transformer Engine compiles small functions of its own, which count too.
"""

import sys
from dataclasses import dataclass

PHASES = ("entire_frame_compile", "entire_backward_compile")
"""torch's own clocks that together count all of the time, and none of it twice."""

MAX_REASONS = 5
REASON_LENGTH = 160


@dataclass(frozen=True)
class Compilations:
    """frames: functions compiled, each time anew. graphs: what dynamo captured. split_graphs: what was compiled of
    them, after DDP's buckets. seconds: that all of it took.
    """

    frames: int = 0
    graphs: int = 0
    split_graphs: int = 0
    graph_breaks: int = 0
    graph_break_reasons: tuple[str, ...] = ()
    seconds: float = 0.0


def compilations() -> Compilations:
    """So far; all zero where torch.compile was never loaded."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return Compilations()
    counters = dynamo.counters
    spent = dynamo.calculate_time_spent()
    breaks = counters["graph_break"]
    return Compilations(
        frames=counters["frames"]["total"],
        graphs=counters["stats"]["unique_graphs"],
        split_graphs=counters["aot_autograd"]["total"],
        graph_breaks=sum(breaks.values()),
        graph_break_reasons=tuple(str(reason).split("\n")[0][:REASON_LENGTH] for reason in list(breaks)[:MAX_REASONS]),
        seconds=sum(spent.get(phase, 0.0) for phase in PHASES),
    )

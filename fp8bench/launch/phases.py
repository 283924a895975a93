"""Where the seconds of a measurement went, by phase.

A rank says in which stage it is, and how long it was in each (`worker.progress`); what comes before and after, the
launcher sees. All of it is by the monotonic clock, which the processes of a machine share. The phases of a session's
records follow one another without a gap, so that they add up to the time from its beginning to its last record.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping

from fp8bench.launch.processes import Watch
from fp8bench.launch.signals import process
from fp8bench.schema.record import Phase
from fp8bench.worker.progress import Progress, Stage

OF_STAGES: Mapping[Stage, Phase] = {
    "starting": "start",
    "building": "build",
    "proving": "proof",
    "warming up": "warm_up",
    "capturing": "capture",
    "comparing": "compare",
    "timing": "timed",
    "profiling": "profile",
    "done": "write",
}


class Timing:
    """The phases of one record after the other. since_s: when the first one's time began, by the monotonic clock."""

    def __init__(self, since_s: float) -> None:
        self._since_s = self._begun_s = self._ended_s = since_s
        self._seen: Progress | None = None

    def begins(self, watch: Watch) -> Watch:
        """Note that ranks begin; return `watch` so that their progress is noted too."""
        self._begun_s, self._seen = time.monotonic(), None

        def noted(progress: Progress) -> None:
            self._seen = progress
            watch(progress)

        return noted

    def ranks_ended(self) -> None:
        self._ended_s = time.monotonic()

    def phases(self) -> dict[Phase, float]:
        """Return the seconds of the record that is written now. The next one's time begins."""
        since_s, self._since_s = self._since_s, time.monotonic()
        return phases(since_s, self._begun_s, self._seen, self._ended_s, self._since_s)


def phases(since_s: float, begun_s: float, seen: Progress | None, ended_s: float, now_s: float) -> dict[Phase, float]:
    """Return seconds by phase. All times are of the monotonic clock. since_s: the record before this one was written,
    or the command began. begun_s, ended_s: of the ranks' processes. seen: how far rank 0 came; None: it said nothing.
    """
    found: dict[Phase, float] = {"prepare": begun_s - since_s, "start": ended_s - begun_s}
    if seen is not None:
        found["start"] = seen.began_s - begun_s
        stages = Counter(seen.seconds) + Counter({seen.stage: ended_s - seen.since_s})
        for stage, seconds in stages.items():
            found[OF_STAGES[stage]] = found.get(OF_STAGES[stage], 0.0) + seconds
    found["write"] = found.get("write", 0.0) + now_s - ended_s
    return {phase: round(max(0.0, seconds), 3) for phase, seconds in found.items()}


def process_began_s() -> float:
    """Return when this process began, by the monotonic clock, to a hundredth of a second; now, if that is unknown."""
    this = process(os.getpid())
    if this is None:
        return time.monotonic()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - this.began / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s

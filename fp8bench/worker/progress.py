"""Shows the progress of a rank without disturbing it, by a few bytes in a file that both sides map into memory.

No pipe can fill, no reader can be late, and a stamp costs about a microsecond. The step times shown live are the host's
pace, which equals the GPU's as long as the launch queue is full. perf_counter and monotonic are the same clock on
Linux, shared by all processes of a machine. This module imports no torch, because the launcher uses it.
"""

import mmap
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Literal, get_args

Stage = Literal[
    "starting", "building", "proving", "warming up", "capturing", "comparing", "timing", "profiling", "done"
]
STAGES: tuple[Stage, ...] = get_args(Stage)
RECENT = 40  # steps whose median is shown live
# The file is an array of doubles: these, the seconds of each stage, and the latest stamps, overwriting the oldest: far
# more than are read, so none changes while it is read.
_STAGE, _STEP, _STEPS, _PACE, _AT, _BEGAN, _SINCE, _SECONDS = range(8)
_STAMPS, _KEPT = _SECONDS + len(STAGES), 4 * RECENT
_SIZE = 8 * (_STAMPS + _KEPT)


@dataclass(frozen=True)
class Progress:
    """How far a rank has come. step: steps begun, including warm-up. median_s: of the latest steps, of timed ones alone
    while they are timed. steps: the total, and pace_s by the device's clock, once known. at_s, began_s, since_s: when
    the rank last moved, began, and came to its stage, in monotonic seconds. seconds: of each earlier stage.
    """

    stage: Stage
    step: int
    median_s: float | None
    steps: int | None = None
    pace_s: float | None = field(default=None, compare=False)
    at_s: float = field(default=0.0, compare=False)
    began_s: float = field(default=0.0, compare=False)
    since_s: float = field(default=0.0, compare=False)
    seconds: Mapping[Stage, float] = field(default_factory=dict, compare=False)


class ProgressFile:
    """The rank's side. If path is None, nobody sees it."""

    def __init__(self, path: Path | None) -> None:
        self._values = memoryview(bytearray(_SIZE)).cast("d")
        if path is not None:
            with open(path, "wb+") as file:
                # Reserve its room on disk: a page that cannot be written back ends the process.
                os.posix_fallocate(file.fileno(), 0, _SIZE)
                self._values = memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("d")
        self._values[_AT] = self._values[_BEGAN] = self._values[_SINCE] = monotonic()

    def stage(self, stage: Stage) -> None:
        values, now = self._values, monotonic()
        values[_SECONDS + int(values[_STAGE])] += now - values[_SINCE]
        values[_SINCE] = values[_AT] = now
        values[_STAGE] = STAGES.index(stage)

    def announce(self, steps: int, pace_s: float | None = None) -> None:
        """Announce the total number of steps, including those begun. pace_s: the expected seconds per step."""
        self._values[_STEPS], self._values[_PACE] = steps, pace_s or 0.0

    def step(self) -> None:
        step = int(self._values[_STEP])
        self._values[_STAMPS + step % _KEPT] = self._values[_AT] = perf_counter()
        self._values[_STEP] = step + 1


def read_progress(path: Path) -> Progress | None:
    """Read the file as the launcher; return None before the rank has written all of it."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _SIZE:
        return None
    values = array("d", data[:_SIZE])
    place, step, steps, pace_s, at_s, began_s, since_s, *seconds = values[:_STAMPS]
    stage = STAGES[int(place)]
    latest = range(max(0, int(step) - RECENT - 1), int(step))
    stamps = [values[_STAMPS + number % _KEPT] for number in latest]
    # A timed step is not paced like those of the warm-up, which may be eager.
    own = [stamp for stamp in stamps if stamp >= since_s] if stage == "timing" else stamps
    paces = [later - earlier for earlier, later in pairwise(own)]
    each = {name: spent for name, spent in zip(STAGES, seconds, strict=True) if spent}
    latest_s = median(paces) if paces else None
    return Progress(stage, int(step), latest_s, int(steps) or None, pace_s or None, at_s, began_s, since_s, each)

"""How far a rank has come, told without disturbing it: a few bytes in a file that both sides map into memory.

The rank writes a number where the launcher looks from time to time. No pipe can fill, no reader can be late, and
stamping a step costs about a microsecond. The steps' times shown live are the host's pace, which is the GPU's as long
as the launch queue is full; what is recorded comes from the clock.

This module imports no torch, since the launcher reads with it.
"""

import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Literal, get_args

Stage = Literal["starting", "proving", "warming up", "timing", "profiling", "done"]
STAGES: tuple[Stage, ...] = get_args(Stage)
_HEAD = struct.Struct("<qq")
_STAMP = struct.Struct("<d")
RECENT = 40
"""Steps of which the live median is taken: as many as are timed by default."""


@dataclass(frozen=True)
class Progress:
    """step: steps begun, warm-up among them. median_s: of the latest steps; None before there are any."""

    stage: Stage
    step: int
    median_s: float | None


class ProgressFile:
    """The rank's side. With path None it does nothing."""

    def __init__(self, path: Path | None, steps: int) -> None:
        self._map: mmap.mmap | None = None
        self._step = 0
        self._steps = steps
        if path is not None:
            size = _HEAD.size + _STAMP.size * steps
            with open(path, "wb+") as file:
                file.truncate(size)
                self._map = mmap.mmap(file.fileno(), size)

    def stage(self, stage: Stage) -> None:
        """The rank has come to `stage`."""
        if self._map is not None:
            struct.pack_into("<q", self._map, 0, STAGES.index(stage))

    def step(self) -> None:
        """A step begins."""
        if self._map is not None and self._step < self._steps:
            _STAMP.pack_into(self._map, _HEAD.size + _STAMP.size * self._step, perf_counter())
            self._step += 1
            struct.pack_into("<q", self._map, 8, self._step)


def read_progress(path: Path) -> Progress | None:
    """The launcher's side; None before the rank has made the whole file."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    stage, step = _HEAD.unpack_from(data)
    if len(data) < _HEAD.size + _STAMP.size * step:
        return None
    first = max(0, step - RECENT - 1)
    stamps = [_STAMP.unpack_from(data, _HEAD.size + _STAMP.size * place)[0] for place in range(first, step)]
    paces = [later - earlier for earlier, later in pairwise(stamps)]
    return Progress(STAGES[stage], step, median(paces) if paces else None)

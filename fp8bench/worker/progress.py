"""How far a rank has come, shown without disturbing it: a few bytes in a file that both sides map into memory.

The rank writes a number where the launcher looks from time to time. No pipe can fill, no reader can be late, and
stamping a step costs about a microsecond. How many steps there will be is known only after warm-up, so the file holds
the latest stamps alone, and the number when it is announced. The steps' times shown live are the host's pace, which is
the GPU's as long as the launch queue is full; what is recorded comes from the clock.

Every rank has such a file, so that the launcher sees which of them no longer moves. perf_counter and monotonic are the
same clock on Linux, one for all processes of a machine. This module imports no torch, since the launcher reads with it.
"""

import mmap
import os
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Literal, get_args

Stage = Literal["starting", "proving", "warming up", "capturing", "comparing", "timing", "profiling", "done"]
STAGES: tuple[Stage, ...] = get_args(Stage)
_HEAD = struct.Struct("<qqqdd")
_STAGE, _STEP, _STEPS, _PACE, _AT = 0, 8, 16, 24, 32
_STAMP = struct.Struct("<d")
RECENT = 40
"""Steps of which the live median is taken."""

_KEPT = 4 * RECENT
"""Stamps that the file holds, the oldest overwritten: far more than are read, so that none changes under the reader."""


@dataclass(frozen=True)
class Progress:
    """step: steps begun, warm-up among them. median_s: of the latest steps; None before there are any. steps: how many
    there will be, warm-up among them; None while that is unknown. pace_s: seconds a step, as the device's clock had it
    when `steps` was announced. at_s: when the rank last moved, in seconds of the monotonic clock.
    """

    stage: Stage
    step: int
    median_s: float | None
    steps: int | None = None
    pace_s: float | None = field(default=None, compare=False)
    at_s: float = field(default=0.0, compare=False)


class ProgressFile:
    """The rank's side. With path None it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._map: mmap.mmap | None = None
        self._step = 0
        if path is not None:
            size = _HEAD.size + _STAMP.size * _KEPT
            with open(path, "wb+") as file:
                # With its room on disk: a page that cannot be written back ends the process.
                os.posix_fallocate(file.fileno(), 0, size)
                self._map = mmap.mmap(file.fileno(), size)
            struct.pack_into("<d", self._map, _AT, monotonic())

    def stage(self, stage: Stage) -> None:
        if self._map is not None:
            struct.pack_into("<d", self._map, _AT, monotonic())
            struct.pack_into("<q", self._map, _STAGE, STAGES.index(stage))

    def announce(self, steps: int, pace_s: float | None = None) -> None:
        """How many steps there will be, those already begun among them. pace_s: how long one is expected to take."""
        if self._map is not None:
            struct.pack_into("<qd", self._map, _STEPS, steps, pace_s or 0.0)

    def step(self) -> None:
        """A step begins."""
        if self._map is not None:
            now = perf_counter()
            _STAMP.pack_into(self._map, _HEAD.size + _STAMP.size * (self._step % _KEPT), now)
            struct.pack_into("<d", self._map, _AT, now)
            self._step += 1
            struct.pack_into("<q", self._map, _STEP, self._step)


def read_progress(path: Path) -> Progress | None:
    """The launcher's side; None before the rank has made the whole file."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size + _STAMP.size * _KEPT:
        return None
    stage, step, steps, pace_s, at_s = _HEAD.unpack_from(data)
    latest = range(max(0, step - RECENT - 1), step)
    stamps = [_STAMP.unpack_from(data, _HEAD.size + _STAMP.size * (place % _KEPT))[0] for place in latest]
    paces = [later - earlier for earlier, later in pairwise(stamps)]
    return Progress(STAGES[stage], step, median(paces) if paces else None, steps or None, pace_s or None, at_s)

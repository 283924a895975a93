"""Shows the progress of a rank without disturbing it, by a few bytes in a file that both sides map into memory.

No pipe can fill, no reader can be late, and a stamp costs about a microsecond. The step times shown live are the host's
pace, which equals the GPU's as long as the launch queue is full. perf_counter and monotonic are the same clock on
Linux, shared by all processes of a machine. This module imports no torch, because the launcher uses it.
"""

import mmap
import os
import struct
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
_HEAD = struct.Struct(f"<qqqdddd{len(STAGES)}d")
_STAGE, _STEP, _STEPS, _PACE, _AT, _BEGAN, _SINCE, _SECONDS = range(0, 64, 8)
_STAMP = struct.Struct("<d")
RECENT = 40
"""The number of steps whose median is shown live."""

_KEPT = 4 * RECENT
"""Stamps that the file holds, overwriting the oldest: far more than are read, so none changes while it is read."""


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
    """The rank's side. If path is None, it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._map: mmap.mmap | None = None
        self._step = 0
        self._place = 0
        self._since_s = monotonic()
        if path is not None:
            size = _HEAD.size + _STAMP.size * _KEPT
            with open(path, "wb+") as file:
                # Reserve its room on disk: a page that cannot be written back ends the process.
                os.posix_fallocate(file.fileno(), 0, size)
                self._map = mmap.mmap(file.fileno(), size)
            struct.pack_into("<ddd", self._map, _AT, *[self._since_s] * 3)

    def stage(self, stage: Stage) -> None:
        if self._map is None:
            return
        now, place = monotonic(), _SECONDS + 8 * self._place
        (before,) = _STAMP.unpack_from(self._map, place)
        _STAMP.pack_into(self._map, place, before + now - self._since_s)
        self._since_s, self._place = now, STAGES.index(stage)
        for written in (_SINCE, _AT):
            _STAMP.pack_into(self._map, written, now)
        struct.pack_into("<q", self._map, _STAGE, self._place)

    def announce(self, steps: int, pace_s: float | None = None) -> None:
        """Announce the total number of steps, including those begun. pace_s: the expected seconds per step."""
        if self._map is not None:
            struct.pack_into("<qd", self._map, _STEPS, steps, pace_s or 0.0)

    def step(self) -> None:
        if self._map is not None:
            now = perf_counter()
            _STAMP.pack_into(self._map, _HEAD.size + _STAMP.size * (self._step % _KEPT), now)
            struct.pack_into("<d", self._map, _AT, now)
            self._step += 1
            struct.pack_into("<q", self._map, _STEP, self._step)


def read_progress(path: Path) -> Progress | None:
    """Read the file as the launcher; return None before the rank has written all of it."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size + _STAMP.size * _KEPT:
        return None
    stage, step, steps, pace_s, at_s, began_s, since_s, *seconds = _HEAD.unpack_from(data)
    latest = range(max(0, step - RECENT - 1), step)
    stamps = [_STAMP.unpack_from(data, _HEAD.size + _STAMP.size * (place % _KEPT))[0] for place in latest]
    # A timed step is not paced like those of the warm-up, which may be eager.
    own = [stamp for stamp in stamps if stamp >= since_s] if STAGES[stage] == "timing" else stamps
    paces = [later - earlier for earlier, later in pairwise(own)]
    each = {name: spent for name, spent in zip(STAGES, seconds, strict=True) if spent}
    latest_s = median(paces) if paces else None
    return Progress(STAGES[stage], step, latest_s, steps or None, pace_s or None, at_s, began_s, since_s, each)

"""How far a rank has come, told without disturbing it: a few bytes in a file that both sides map into memory.

The rank writes a number where the launcher looks from time to time. No pipe can fill, no reader can be late, and
stamping a step costs about a microsecond. How many steps there will be is known only after warm-up, so the file holds
the latest stamps alone, and the number when it is announced. The steps' times shown live are the host's pace, which is
the GPU's as long as the launch queue is full; what is recorded comes from the clock.

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

Stage = Literal["starting", "proving", "warming up", "comparing", "capturing", "timing", "profiling", "done"]
STAGES: tuple[Stage, ...] = get_args(Stage)
_HEAD = struct.Struct("<qqq")
_STAMP = struct.Struct("<d")
RECENT = 40
"""Steps of which the live median is taken."""

_KEPT = 4 * RECENT
"""Stamps that the file holds, the oldest overwritten: far more than are read, so that none changes under the reader."""


@dataclass(frozen=True)
class Progress:
    """step: steps begun, warm-up among them. median_s: of the latest steps; None before there are any. steps: how many
    there will be, warm-up among them; None while that is unknown.
    """

    stage: Stage
    step: int
    median_s: float | None
    steps: int | None = None


class ProgressFile:
    """The rank's side. With path None it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._map: mmap.mmap | None = None
        self._step = 0
        if path is not None:
            size = _HEAD.size + _STAMP.size * _KEPT
            with open(path, "wb+") as file:
                file.truncate(size)
                self._map = mmap.mmap(file.fileno(), size)

    def stage(self, stage: Stage) -> None:
        """The rank has come to `stage`."""
        if self._map is not None:
            struct.pack_into("<q", self._map, 0, STAGES.index(stage))

    def announce(self, steps: int) -> None:
        """How many steps there will be, those already begun among them."""
        if self._map is not None:
            struct.pack_into("<q", self._map, 16, steps)

    def step(self) -> None:
        """A step begins."""
        if self._map is not None:
            _STAMP.pack_into(self._map, _HEAD.size + _STAMP.size * (self._step % _KEPT), perf_counter())
            self._step += 1
            struct.pack_into("<q", self._map, 8, self._step)


def read_progress(path: Path) -> Progress | None:
    """The launcher's side; None before the rank has made the whole file."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size + _STAMP.size * _KEPT:
        return None
    stage, step, steps = _HEAD.unpack_from(data)
    latest = range(max(0, step - RECENT - 1), step)
    stamps = [_STAMP.unpack_from(data, _HEAD.size + _STAMP.size * (place % _KEPT))[0] for place in latest]
    paces = [later - earlier for earlier, later in pairwise(stamps)]
    return Progress(STAGES[stage], step, median(paces) if paces else None, steps or None)

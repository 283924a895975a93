"""Times repeated calls on the device, each from a cold cache, as training finds it: before each repetition a buffer
several times the size of the L2 cache is written, and operands rotate among several sets.

On a GPU a repetition is between two CUDA events, and all are queued before any is read. The buffer is written often
enough to take LEAD times as long as a launch; a repetition whose first event has passed when it is queued is late and
not counted, and if more than MOST_LATE of them are, all are repeated with twice the lead.

Repetitions fill a budget of time after a warm-up. A GEMM above the power limit runs at full clock for a while (70 ms of
ViT-Huge's fc1 on an H200), and slower from then on, which is the state of a training step: so a timing starts after
SETTLE_S of its own load, and only a ceiling without that (evidence/README.md). A CPU is timed with warm caches, which
only shows that the command works.
"""

import math
import time
from collections.abc import Callable

import torch

Call = Callable[[int], object]
"""Does the work once. The argument is the number of the repetition, which selects a set of operands."""

FEWEST = 20
MOST = 200
"""More repetitions do not make the interval narrower than the variation between processes."""

FEWEST_WARM = 3
WARM_SHARE = 0.25
SETTLE_S = 0.3
"""An H200's clock fell within 60 to 400 ms of a steady load. Rounds average over its later changes (`bench`)."""

SMALLEST_FLUSH = 256 * 2**20
MOST_FLUSHES = 32
LEAD = 1.5
"""How many times as long the flush should take the GPU as launching the work after it takes the host."""

MOST_LATE = 0.1
"""The largest share of late repetitions."""


def repetitions(seconds: float, each_s: float) -> int:
    """Return how many repetitions fill the budget, within FEWEST and MOST."""
    return min(MOST, max(FEWEST, int(seconds / each_s) if each_s > 0 else MOST))


class HostTimer:
    """Times by perf_counter. On a CPU the work is done when the call returns."""

    flush_bytes: int | None = None
    """The bytes written before each repetition; None if nothing is written."""

    def samples(self, call: Call, seconds: float, settled: bool = True) -> list[float]:
        """Return seconds per repetition, in order. seconds: the budget. settled: of no meaning on a CPU."""
        warm = self._timed(call, FEWEST_WARM)
        return self._timed(call, repetitions(seconds, min(warm)))

    def _timed(self, call: Call, count: int) -> list[float]:
        taken = []
        for number in range(count):
            began = time.perf_counter()
            call(number)
            taken.append(time.perf_counter() - began)
        return taken


class CudaTimer:
    """Times by events on the current stream, each repetition from a cold L2 cache."""

    def __init__(self, device: torch.device) -> None:
        cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        self.flush_bytes: int | None = max(SMALLEST_FLUSH, 2 * cache)
        self._device = device
        self._buffer = torch.empty(self.flush_bytes, dtype=torch.uint8, device=device)
        # The quickest of several, after others: the first loads the kernel, and a single one would wait for its launch.
        self._flush_s = min(seconds for seconds, _ in self._elapsed(lambda _: self._buffer.zero_(), FEWEST_WARM, 2))

    def samples(self, call: Call, seconds: float, settled: bool = True) -> list[float]:
        """Return seconds per repetition, in order. seconds: the budget. settled: only after SETTLE_S under load. Waits
        for the device before and after. Raises RuntimeError if the host is too slow.
        """
        flushes = self._flushes(call)
        while True:
            found = self._loaded(call, seconds, settled, flushes)
            kept = [seconds for seconds, late in found if not late]
            if len(kept) >= (1 - MOST_LATE) * len(found):
                return kept
            if flushes == MOST_FLUSHES:
                break
            flushes = min(MOST_FLUSHES, 2 * flushes)
        if len(kept) < FEWEST:
            raise RuntimeError(
                f"the host launches this more slowly than the GPU runs it: {len(found) - len(kept)} of {len(found)} "
                "repetitions waited for it"
            )
        return kept

    def _loaded(self, call: Call, seconds: float, settled: bool, flushes: int) -> list[tuple[float, bool]]:
        pilot = sorted(seconds for seconds, _ in self._elapsed(call, FEWEST_WARM, flushes))
        each_s = pilot[len(pilot) // 2] + flushes * self._flush_s
        count = repetitions(seconds, each_s)
        warm = math.ceil(SETTLE_S / each_s) if settled else math.ceil(WARM_SHARE * count)
        for number in range(max(FEWEST_WARM, warm)):
            self._flush(flushes)
            call(number)
        return self._elapsed(call, count, flushes)

    def _flushes(self, call: Call) -> int:
        """Return how often the buffer must be written for the host to stay ahead."""
        launches = []
        for number in range(1 + FEWEST_WARM):
            torch.cuda.synchronize(self._device)
            began = time.perf_counter()
            call(number)
            launches.append(time.perf_counter() - began)
        torch.cuda.synchronize(self._device)
        # The first call chooses and loads kernels. The slowest of the others counts: one late repetition is a bad
        # sample.
        return min(MOST_FLUSHES, max(1, math.ceil(LEAD * max(launches[1:]) / self._flush_s)))

    def _elapsed(self, call: Call, count: int, flushes: int) -> list[tuple[float, bool]]:
        """Return the seconds of `count` repetitions, queued without waiting; and for each whether the GPU began before
        all of it was queued, so that it may have waited for the host.
        """
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        late = []
        torch.cuda.synchronize(self._device)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            self._flush(flushes)
            start.record()
            call(number)
            end.record()
            late.append(start.query())
        torch.cuda.synchronize(self._device)
        times = [start.elapsed_time(end) / 1e3 for start, end in zip(starts, ends, strict=True)]
        return list(zip(times, late, strict=True))

    def _flush(self, times: int) -> None:
        for _ in range(times):
            self._buffer.zero_()


Timer = HostTimer | CudaTimer


def timer_for(device: torch.device) -> Timer:
    return CudaTimer(device) if device.type == "cuda" else HostTimer()

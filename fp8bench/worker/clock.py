"""Measures when steps begin and end: on a GPU with CUDA events, on a CPU with perf_counter.

A step's time runs from its start to the start of the next, so nothing between steps escapes it. On a GPU the starts are
events on the compute stream, whose difference is the device's time for a step, idle time included; no step waits for
the device. Two more events split it into forward (with the copy of the batch), backward (with what it cannot hide of
the all-reduce) and optimizer; micro-batches are added up.

The host's lead is how much later the GPU reached the start of a step than the host recorded it. A faster host runs
ahead until the launch queue is full, at about 1,024 launches, so the lead is the depth of that queue in time: a
diagnostic. GPU idle time shows whether the GPU waits for the host.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar

import torch


@dataclass(frozen=True)
class StepTimes:
    """Seconds, one value per step, in order; the parts of a step by the device's clock.

    began_s: perf_counter when the first step began, with the device idle. host_s: the host's time without the wait for
    data. forward_s also excludes that wait on a CPU. forward_s, backward_s and optimizer_s are None if Python does not
    see the passes (a replay). host_lead_s is None on a CPU.
    """

    began_s: float
    step_s: list[float]
    host_s: list[float]
    data_wait_s: list[float]
    forward_s: list[float] | None = None
    backward_s: list[float] | None = None
    optimizer_s: list[float] | None = None
    host_lead_s: list[float] | None = None


class Marks:
    """Told when a step reaches the end of a pass, for each micro-batch in turn. These do nothing."""

    def forward_done(self) -> None: ...

    def backward_done(self) -> None: ...


class HostClock(Marks):
    """Uses perf_counter alone: on a CPU the work is done when the call returns. Call methods in this order: `finish`
    once, forward_done and backward_done alternately for each micro-batch, or never, if Python sees no pass end.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ready: list[float] = []
        self._passes: list[list[float]] = []

    def start_step(self) -> None:
        self._starts.append(perf_counter())
        self._passes.append([])

    def data_ready(self) -> None:
        self._ready.append(perf_counter())

    def forward_done(self) -> None:
        self._passes[-1].append(perf_counter())

    backward_done = forward_done

    def finish(self) -> StepTimes:
        self._starts.append(perf_counter())
        starts, ends = self._starts[:-1], self._starts[1:]
        steps, waits, host = (
            [end - start for start, end in zip(*pair, strict=True)]
            for pair in ((starts, ends), (starts, self._ready), (self._ready, ends))
        )
        split = passes(self._ready, self._passes, ends, lambda start, end: end - start)
        return StepTimes(self._starts[0], steps, host, waits, **split)


class CudaClock(HostClock):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._started: list[torch.cuda.Event] = []
        self._ended: list[list[torch.cuda.Event]] = []

    def start_step(self) -> None:
        """Begin a step. Before the first one the device is idle, so that both clocks begin together."""
        if not self._started:
            torch.cuda.synchronize(self._device)
        super().start_step()
        self._started.append(_record())
        self._ended.append([])

    def forward_done(self) -> None:
        super().forward_done()
        self._ended[-1].append(_record())

    backward_done = forward_done

    def finish(self) -> StepTimes:
        self._started.append(_record())
        host = super().finish()
        torch.cuda.synchronize(self._device)
        starts, ends = self._started[:-1], self._started[1:]
        reached = [between(starts[0], event) for event in starts]
        return replace(
            host,
            step_s=[between(start, end) for start, end in zip(starts, ends, strict=True)],
            host_lead_s=[device - (at - host.began_s) for device, at in zip(reached, self._starts, strict=False)],
            **passes(starts, self._ended, ends, between),  # type: ignore[arg-type]
        )


def clock_for(device: torch.device) -> HostClock:
    return CudaClock(device) if device.type == "cuda" else HostClock()


def _record() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) / 1e3


Moment = TypeVar("Moment")
Passes = dict[str, list[float]]
"""The seconds of passes in each step, by their names in StepTimes."""


def passes(
    begun: Sequence[Moment],
    ends_of_passes: Sequence[Sequence[Moment]],
    ended: Sequence[Moment],
    between: Callable[[Moment, Moment], float],
) -> Passes:
    """Return the split of each step, from the ends of its passes; nothing without any."""
    if not any(ends_of_passes):
        return {}
    found: Passes = {"forward_s": [], "backward_s": [], "optimizer_s": []}
    for begin, ends, end in zip(begun, ends_of_passes, ended, strict=True):
        parts = [between(one, other) for one, other in zip([begin, *ends], [*ends, end], strict=True)]
        found["forward_s"].append(sum(parts[0:-1:2]))
        found["backward_s"].append(sum(parts[1:-1:2]))
        found["optimizer_s"].append(parts[-1])
    return found

"""What time is it: on a GPU by CUDA events, on a CPU by perf_counter.

A step's time runs from its start to the start of the next one, so nothing between steps escapes it. On a GPU the starts
are events on the compute stream: the host records them and goes on, and no step waits for the device. An event is
reached when the work queued before it is done, so the difference of two is the device's time for a step, idle time
included.

Whether the GPU waits for the host shows in the host's lead: how much later than the host recorded it the GPU reached
the start of a step. A host that is faster than the GPU runs ahead until the launch queue is full, tens of
milliseconds; a lead near zero means that kernels are launched only just in time, and that a faster GPU would not
help.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch


@dataclass(frozen=True)
class StepTimes:
    """Seconds, one value a step, in order. host_s is without the wait for data; host_lead_s is None on a CPU."""

    step_s: list[float]
    host_s: list[float]
    data_wait_s: list[float]
    host_lead_s: list[float] | None


class Clock(Protocol):
    """Call start_step, then data_ready, in every step, and finish once after the last."""

    def start_step(self) -> None: ...

    def data_ready(self) -> None: ...

    def finish(self) -> StepTimes: ...


class HostClock:
    """perf_counter alone: on a CPU the work is done when the call returns."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ready: list[float] = []

    def start_step(self) -> None:
        """A step begins (and the one before it ends)."""
        self._starts.append(perf_counter())

    def data_ready(self) -> None:
        """The batch is here."""
        self._ready.append(perf_counter())

    def finish(self) -> StepTimes:
        """The last step has ended."""
        self._starts.append(perf_counter())
        steps = [end - start for start, end in zip(self._starts, self._starts[1:], strict=False)]
        waits = [ready - start for start, ready in zip(self._starts, self._ready, strict=False)]
        hosts = [step - wait for step, wait in zip(steps, waits, strict=True)]
        return StepTimes(step_s=steps, host_s=hosts, data_wait_s=waits, host_lead_s=None)

    def since_first_step(self) -> list[float]:
        """When each step started, seconds after the first one did."""
        return [start - self._starts[0] for start in self._starts]


class CudaClock:
    """Events for the steps, the host clock for what the host did meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = HostClock()
        self._events: list[torch.cuda.Event] = []

    def start_step(self) -> None:
        """A step begins: an event on the current stream, and the host's time.

        Before the first one the device is idle, so that both clocks begin together.
        """
        if not self._events:
            torch.cuda.synchronize(self._device)
        self._host.start_step()
        self._record()

    def data_ready(self) -> None:
        """The batch is here, as far as the host knows."""
        self._host.data_ready()

    def finish(self) -> StepTimes:
        """The last step has been queued: record its end, then wait for the device, once."""
        self._record()
        host = self._host.finish()
        torch.cuda.synchronize(self._device)
        steps = [start.elapsed_time(end) / 1e3 for start, end in zip(self._events, self._events[1:], strict=False)]
        reached = [self._events[0].elapsed_time(event) / 1e3 for event in self._events]
        leads = [device - recorded for device, recorded in zip(reached, self._host.since_first_step(), strict=True)]
        return StepTimes(step_s=steps, host_s=host.host_s, data_wait_s=host.data_wait_s, host_lead_s=leads[:-1])

    def _record(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)


def clock_for(device: torch.device) -> Clock:
    """The right clock for the device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()

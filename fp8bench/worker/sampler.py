"""The process that watches a rank's GPU: `python -m fp8bench.worker.sampler UUID PERIOD_S FILE`.

It is a process because one NVML call takes up to 3 ms, and a thread would take the interpreter's lock from a training
loop that the GPU may be waiting for. It imports neither torch nor pydantic because it must run before the first step.

It writes a header, a JSON object (`Header`), then samples, one JSON array per line in the order of `Sample`'s fields,
each flushed at once. Times are time.monotonic(), on Linux the clock of the rank's perf_counter(). It ends at the end of
its standard input, which comes when the rank closes it or dies, even by SIGKILL; when its parent has changed, because
processes that the rank forked keep the input open; and on SIGTERM: each time after one more sample, so that the energy
counter is known after the last step too.
"""

import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from fp8bench.machine import nvml
from fp8bench.machine.nvml import pynvml

# NVML's power and utilisation are means over up to a second (nvml.h); more samples would add little.
PERIOD_S = 0.2
_LASTING = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


class Header(NamedTuple):
    """Written once. error: why there are no samples at all. denied: NVML's messages, by the column it refused."""

    power_limit_w: float | None
    max_sm_clock_mhz: int | None
    denied: dict[str, str]
    error: str | None


class Sample(NamedTuple):
    """One look at the GPU. at_s: monotonic seconds when energy_j was read. None is what NVML did not report."""

    at_s: float
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    utilization_percent: int | None
    throttle_reasons: int | None
    energy_j: float | None


def next_due(due: float, now: float, period_s: float) -> float:
    """Return when to sample after the sample that was due at `due`. Periods that a slow call overran are skipped."""
    return due + period_s * max(1, math.ceil((now - due) / period_s))


_COLUMNS: dict[str, Callable[[Any], float]] = {
    "sm_clock_mhz": lambda gpu: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": lambda gpu: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM)),
    "power_w": lambda gpu: float(pynvml.nvmlDeviceGetPowerUsage(gpu)) / 1e3,
    "temperature_c": lambda gpu: int(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),
    "utilization_percent": lambda gpu: int(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    "throttle_reasons": nvml.throttle_reasons,
    "energy_j": lambda gpu: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1e3,
}
_ONCE: dict[str, Callable[[Any], float]] = {
    "power_limit_w": lambda gpu: float(pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu)) / 1e3,
    "max_sm_clock_mhz": lambda gpu: int(pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
}


def _asked(gpu: Any, query: Callable[[Any], float]) -> tuple[float | None, str | None]:
    # The value, and a refusal that will last.
    try:
        return query(gpu), None
    except pynvml.NVMLError as error:
        return None, str(error) if error.value in _LASTING else None


def _sample(gpu: Any, denied: dict[str, str]) -> Sample:
    def column(name: str) -> Any:
        return None if name in denied else _asked(gpu, _COLUMNS[name])[0]

    before = time.monotonic()
    energy = column("energy_j")
    # The counter was read between the two times: the middle is wrong by at most half the call.
    at_s = (before + time.monotonic()) / 2
    return Sample(at_s=at_s, energy_j=energy, **{name: column(name) for name in _COLUMNS if name != "energy_j"})


class _Ending:
    """Tells when it is time to end. Created first, so that SIGTERM finds the process prepared."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        # A signal makes the pipe readable and so ends a wait at once; otherwise Python would resume the wait.
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def within(self, seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin.fileno(), self._woken], [], [], max(0.0, seconds))
        if self._woken in ready or os.getppid() != self._parent:
            return True
        return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def sample_all(uuid: str, period_s: float, file: IO[str]) -> None:
    """Sample the GPU with this UUID into `file` until it is time to end. A refusal by NVML is written as the error."""

    def write(value: Any) -> None:
        # One call per line: whoever reads meanwhile, or after a SIGKILL, finds complete lines.
        file.write(json.dumps(value) + "\n")
        file.flush()

    ending = _Ending()
    try:
        with nvml.opened():
            gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            # What it refuses permanently now is not queried again: each call costs time.
            asked = {name: _asked(gpu, query) for name, query in (_COLUMNS | _ONCE).items()}
            denied = {name: words for name, (_, words) in asked.items() if words}
            write({**{name: asked[name][0] for name in _ONCE}, "denied": denied, "error": None})
            due = time.monotonic()
            while True:
                write(_sample(gpu, denied))
                now = time.monotonic()
                due = next_due(due, now, period_s)
                if ending.within(due - now):
                    break
            write(_sample(gpu, denied))
    except pynvml.NVMLError as error:
        # NVML did not start, or knows no such GPU: what a card refuses later is written as null.
        write(Header(None, None, denied={}, error=str(error))._asdict())


if __name__ == "__main__":
    with open(sys.argv[3], "w", encoding="utf-8") as opened:
        sample_all(sys.argv[1], float(sys.argv[2]), opened)

"""Records what a rank's GPU did while steps were timed: starts the sampler (see `worker.sampler`), ends it, and reads
what it saw. Nothing here disturbs a measurement: what goes wrong becomes a null and one line of warning, every wait
ends, and nothing is left behind: the sampler's file has no name on any disk. `stats.telemetry` judges it, from all
ranks.
"""

import io
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from typing import IO

import torch
from pydantic import TypeAdapter

from fp8bench.schema.errors import in_words
from fp8bench.schema.rank import RankTelemetry, TelemetrySeries
from fp8bench.stats.telemetry import drawn_between
from fp8bench.worker.sampler import PERIOD_S, Header, Sample

# What of the series is kept before the first timed step: enough to see the GPU's state when timing began.
BEFORE_S = 1.0
END_S, POLL_S = 2.0, 0.01


class Sampler:
    """The sampler of one rank's GPU, within the context. On a CPU it does nothing."""

    def __init__(self, device: torch.device, rank: int, period_s: float = PERIOD_S) -> None:
        self._device, self._rank, self._period_s = device, rank, period_s
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] = io.BytesIO()
        self._trouble: str | None = None

    def __enter__(self) -> "Sampler":
        if self._device.type == "cuda":
            try:
                self._file = tempfile.TemporaryFile(prefix="fp8bench-sampler-")
                number = self._file.fileno()
                given = (_uuid(self._device), str(self._period_s), f"/proc/self/fd/{number}")
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "fp8bench.worker.sampler", *given],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(number,),
                    # A separate session: an interrupt from the terminal goes to the rank, which then ends the sampler.
                    start_new_session=True,
                )
            except (OSError, RuntimeError) as error:
                self._trouble = f"the sampler did not start: {in_words(str(error))}"
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()
        self._file.close()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the first sample, and return whether it came in time. Measure even if it did not."""
        deadline = time.monotonic() + timeout_s
        while self._process is not None:
            # The header is one line, a sample another.
            if self._read().count(b"\n") >= 2:
                return True
            if self._process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        return False

    def pause(self, paused: bool) -> None:
        """Stop sampling for a while, or continue: this lets the cost of the sampler itself be measured."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def telemetry(self, timed_from_s: float, timed_to_s: float) -> RankTelemetry | None:
        """End the sampler, and return what it saw between two times of perf_counter; None on a CPU."""
        if self._device.type != "cuda":
            return None
        self._end()
        return read(self._read(), self._rank, timed_from_s, timed_to_s, self._period_s, self._trouble)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        code = process.poll()
        if process.stdin is not None:
            process.stdin.close()
        if code is not None:
            self._trouble = f"the sampler ended early, with exit code {code}"
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            # A process that hangs inside a driver cannot even be killed. Do not wait for it.
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            self._trouble = f"the sampler did not end within {END_S:g} s"

    def _read(self) -> bytes:
        self._file.seek(0)
        return self._file.read()


def _uuid(device: torch.device) -> str:
    """Return the GPU's name in NVML, which ignores CUDA_VISIBLE_DEVICES and numbers GPUs differently from CUDA."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def read(
    content: bytes, rank: int, timed_from_s: float, timed_to_s: float, period_s: float, trouble: str | None = None
) -> RankTelemetry:
    """Return telemetry from a sampler's file. trouble: what is already known to be wrong; it goes into the warning."""
    timed_s = timed_to_s - timed_from_s
    telemetry = partial(RankTelemetry, rank=rank, timed_s=timed_s)
    # What follows the last line break was not completely written.
    lines = content.split(b"\n")[:-1]
    if not lines:
        return telemetry(warning=trouble or "the sampler had not begun")
    try:
        header = TypeAdapter(Header).validate_json(lines[0], strict=True)
        if header.error is not None:
            return telemetry(warning=f"NVML: {in_words(header.error)}")
        a_sample = TypeAdapter(Sample)
        samples = [a_sample.validate_json(line, strict=True) for line in lines[1:]]
        series = _series(samples, timed_from_s, timed_to_s)
        at_s, energy_j = [sample.at_s for sample in samples], [sample.energy_j for sample in samples]
        drawn = drawn_between(at_s, energy_j, timed_from_s, timed_to_s, reach_s=period_s)
        parts = [trouble] if trouble else []
        parts += [f"NVML denies {name} ({in_words(words)})" for name, words in header.denied.items()]
        if series is None or not any(0 <= at_s <= timed_s for at_s in series.at_s):
            parts.append("no sample fell into the timed steps")
        if drawn is None and "energy_j" not in header.denied:
            parts.append("the energy counter does not enclose the timed steps")
        return telemetry(
            power_limit_w=header.power_limit_w,
            max_sm_clock_mhz=header.max_sm_clock_mhz,
            energy_j=drawn,
            series=series,
            warning="; ".join(parts) or None,
        )
    except ValueError as error:
        return telemetry(warning=trouble or f"the sampler's file is damaged: {in_words(str(error))}")


def _series(samples: list[Sample], timed_from_s: float, timed_to_s: float) -> TelemetrySeries | None:
    # From shortly before the first timed step to the first one after the last, where the energy counter ended.
    kept = [sample for sample in samples if timed_from_s - BEFORE_S <= sample.at_s <= timed_to_s]
    if not kept:
        return None
    kept += [sample for sample in samples if sample.at_s > timed_to_s][:1]
    relative = [sample._replace(at_s=sample.at_s - timed_from_s) for sample in kept]
    return TelemetrySeries(**dict(zip(Sample._fields, zip(*relative, strict=True), strict=True)))

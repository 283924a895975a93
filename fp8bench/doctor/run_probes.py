"""Runs probes, each in its own process with a time limit. How a probe failed is a result too."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from fp8bench.doctor.facts import Failure
from fp8bench.schema.files import Frozen

PROBE = (sys.executable, "-m", "fp8bench.doctor.probe")
POLL_S = 0.02
LONGEST_QUOTE = 160
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Failed|Exit|Interrupt|Unavailable|Invalid)\b.*")


@dataclass(frozen=True)
class Probe:
    """A probe. name: `python -m fp8bench.doctor.probe NAME` runs it. result: the type of its output. environ: the
    complete environment of its process.
    """

    name: str
    result: type[Frozen]
    environ: Mapping[str, str]


def run_probes(
    probes: Sequence[Probe], at_once: int, limit_s: float, command: tuple[str, ...] = PROBE
) -> dict[str, Frozen | Failure]:
    """Return results by name. limit_s: the limit for all probes together. command: what is run, before the probe's
    name. Every process that is left at the end, for whatever reason, is killed.
    """
    deadline = time.monotonic() + limit_s
    waiting, results = list(probes), dict[str, Frozen | Failure]()
    running: list[_Running] = []
    try:
        while (waiting or running) and time.monotonic() <= deadline:
            while waiting and len(running) < at_once:
                running.append(_Running(waiting.pop(0), command))
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                one.end()
                results[one.probe.name] = one.result()
            time.sleep(POLL_S)
    finally:
        for one in running:
            one.end()
    late = Failure(kind="timeout", message=f"no answer within {limit_s:.0f} s")
    return {probe.name: results.get(probe.name, late) for probe in probes}


class _Running:
    """A probe's process. It writes to files, because a pipe would stay open while anything that it started is alive."""

    def __init__(self, probe: Probe, command: tuple[str, ...]) -> None:
        self.probe = probe
        self._stdout, self._stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*command, probe.name, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            env=dict(probe.environ),
            # A separate process group, so that a compiler that the probe started ends with it.
            start_new_session=True,
        )

    def end(self) -> None:
        """Kill the process and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def result(self) -> Frozen | Failure:
        """Return what the process printed, once it has ended."""
        texts = []
        for file in (self._stdout, self._stderr):
            with file:
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        stdout, stderr = texts
        code = self.process.returncode
        if code < 0:
            # Real-time signals have no names.
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            memory = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
            return Failure(kind="killed", message=f"the probe died of {name}{memory}")
        if code > 0:
            return Failure(kind="error", message=error_line(stderr) or f"exit code {code} without a message")
        try:
            return self.probe.result.model_validate_json(stdout)
        except ValidationError:
            return Failure(kind="garbage", message="the probe exited with code 0, but its output is invalid")


def error_line(stderr: str) -> str:
    """Return the line of a traceback that has the error: the last one that begins with an error's name, because advice
    may follow it; otherwise the last line.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in stderr.splitlines() if _ERROR_LINE.match(line)]
    line = (named or lines or [""])[-1].strip()
    return line if len(line) <= LONGEST_QUOTE else line[: LONGEST_QUOTE - 3] + "..."

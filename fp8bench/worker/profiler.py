"""Takes a short profile after the timed steps: which kernels ran, and for how long.

Every rank runs the same few steps, because they meet in collectives; only rank 0 is profiled. Kernels are not slower
under the profiler, steps are. A profiler that fails costs the profile and nothing else.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from fp8bench.profiling.kernels import breakdown, keep_trace, read_trace
from fp8bench.schema.errors import Fp8benchError, first_line
from fp8bench.schema.rank import Profile
from fp8bench.stats.steps import PROFILED_STEPS


class Profiled(NamedTuple):
    """profile: None if it failed; the warning then says why."""

    profile: Profile | None
    warning: str | None = None


def profile_steps(
    run_steps: Callable[[int], None],
    device: torch.device,
    label: str,
    step_time_s: float,
    keep: Path | None,
    folder: Path | None = None,
) -> Profiled:
    """Run PROFILED_STEPS steps under the profiler; what they raise passes through. keep: where the trace stays."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    try:
        # All events are of one cycle; with this argument, the profiler does not warn that it drops earlier cycles.
        profiler: Any = profile(activities=activities, acc_events=True)
        profiler.start()
    except (RuntimeError, OSError) as error:
        run_steps(PROFILED_STEPS)
        return _failed(error)
    run_steps(PROFILED_STEPS)
    metadata = {"mode": label, "steps": PROFILED_STEPS, "device": device.type, "step_time_s": step_time_s}
    try:
        profiler.add_metadata_json("fp8bench", json.dumps(metadata))
        profiler.stop()
        with tempfile.TemporaryDirectory(prefix="fp8bench-trace-", dir=folder) as temporary:
            trace = Path(temporary) / "trace.json"
            profiler.export_chrome_trace(str(trace))
            if keep is not None:
                keep_trace(trace, keep)
            return Profiled(breakdown(read_trace(trace)))
    except (RuntimeError, OSError, ValueError, Fp8benchError) as error:
        return _failed(error)


def _failed(error: Exception) -> Profiled:
    return Profiled(None, f"the profiler failed, so which kernels ran is unknown: {first_line(error)}")

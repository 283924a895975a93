"""Whether somebody else is at work on the GPUs, asked before we are: a time on a shared GPU is nobody's time.

Two signs are taken: a compute process on the GPU, and more than HIDDEN_BYTES in use where no process is seen, since a
container shows none of the host's. Both are looked for by NVML, without torch, and before this process or any of its
children touches a GPU: whoever is seen then is another. It is not a lock: somebody may begin a moment later, and the
telemetry would show that only as a lower clock.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pynvml

from fp8bench.machine import nvml
from fp8bench.machine.gpus import Gpu, gpus_here, visible
from fp8bench.schema.errors import ModeUnavailable

HIDDEN_BYTES = 2**30
"""Idle cards hold up to some hundred MiB for the driver, and a CUDA context as much again."""

RELEASE_S = 5.0
"""How long the driver may take to give back the memory of our own round before this one."""

POLL_S = 0.25


@dataclass(frozen=True)
class BusyGpu:
    """A GPU that somebody else uses. index: as nvidia-smi counts. memory_bytes: in use. reason: in words."""

    index: int
    processes: int
    memory_bytes: int
    reason: str

    @property
    def mark(self) -> str:
        """A record's flag."""
        if self.processes == 0:
            return f"busy GPU: {_gib(self.memory_bytes)} of processes unseen"
        return f"busy GPU: {_others(self.processes)}, {_gib(self.memory_bytes)}"


def is_held(processes: int | None, used_bytes: int | None) -> bool:
    """Whether a GPU is in use. processes, used_bytes: on the GPU; None is not told, and no sign."""
    return bool(processes) or (used_bytes or 0) > HIDDEN_BYTES


def busy_gpus(gpus: Sequence[Gpu]) -> list[BusyGpu]:
    """Those of the GPUs that are in use now. Raises pynvml.NVMLError where NVML would not say."""
    if not gpus:
        return []
    with nvml.opened():
        return [busy for busy in map(_look, gpus) if busy is not None]


def require_idle(environ: Mapping[str, str], local_rank: int | None, allow_busy: bool) -> tuple[str, ...]:
    """Marks for the record: none on idle GPUs, or without a GPU; waits up to RELEASE_S for a GPU to become idle.

    environ: CUDA_VISIBLE_DEVICES is heeded. local_rank: look at this rank's GPU only; None: at every visible one.
    Raises ModeUnavailable where a GPU is busy, unless allow_busy: then that is marked. NVML that does not say is marked
    too, and refuses nothing.
    """
    deadline = time.monotonic() + RELEASE_S
    try:
        gpus = visible(gpus_here(), environ)
        watched = gpus if local_rank is None else gpus[local_rank : local_rank + 1]
        while (busy := busy_gpus(watched)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    except pynvml.NVMLError as error:
        return (f"could not see whether the GPU is busy: {error}",)
    if busy and not allow_busy:
        raise ModeUnavailable(
            "; ".join(f"GPU {gpu.index} is busy: {gpu.reason}" for gpu in busy),
            "End them, choose others with CUDA_VISIBLE_DEVICES, or say --allow-busy to measure all the same, marked",
        )
    return tuple(gpu.mark for gpu in busy)


def _look(gpu: Gpu) -> BusyGpu | None:
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    used = int(nvml.memory(handle).used)
    # Not everybody may see processes, or not on every card; the memory tells too.
    shares = nvml.process_bytes(handle) or []
    if not is_held(len(shares), used):
        return None
    if not shares:
        return BusyGpu(gpu.index, 0, used, f"{_gib(used)} are in use by processes that cannot be seen from here")
    told = [share for share in shares if share is not None]
    # Where NVML names no process's share, the whole is theirs.
    held = sum(told) if len(told) == len(shares) else used
    verb = "holds" if len(shares) == 1 else "hold"
    return BusyGpu(gpu.index, len(shares), held, f"{_others(len(shares))} {verb} {_gib(held)}")


def _others(count: int) -> str:
    return "1 other process" if count == 1 else f"{count} other processes"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

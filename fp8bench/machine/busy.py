"""Checks what is there before fp8bench's processes start: whether others use the GPUs, because a step time on a shared
GPU measures neither, and how much memory each rank may take. This is not a lock: others may begin a moment later, and
the telemetry would show that only as a lower clock.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Literal

from fp8bench.machine import nvml
from fp8bench.machine.gpus import Gpu, gpus_here, visible
from fp8bench.machine.host import free_host_bytes
from fp8bench.machine.nvml import pynvml
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.machine import GIB, gib
from fp8bench.tables.written import counted

# How long the driver may take to free the memory of fp8bench's own previous round:
RELEASE_S, POLL_S = 5.0, 0.25


def is_held(processes: int | None, used_bytes: int | None) -> bool:
    """Return whether a GPU is in use. None is unknown, and no sign of use."""
    # A container shows no process of the host, so much memory counts too. Idle cards use up to some hundred MiB for the
    # driver, and a CUDA context uses as much again.
    return bool(processes) or (used_bytes or 0) > GIB


def busy_gpus(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Return what uses each GPU that is in use now, in words, by its index. Raises pynvml.NVMLError."""
    found = {}
    with nvml.opened() if gpus else nullcontext():
        for gpu in gpus:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            used = int(nvml.memory(handle).used)
            # Not every user may see processes, or not on every card; the memory is a sign too.
            shares = nvml.process_bytes(handle) or []
            if is_held(len(shares), used):
                # If NVML does not report every share, all memory in use counts.
                known = [share for share in shares if share is not None]
                in_use = gib(sum(known) if shares and len(known) == len(shares) else used)
                others = counted(len(shares), "other process", "other processes")
                found[gpu.index] = f"{others}, {in_use}" if shares else f"{in_use} of processes unseen"
    return found


def require_idle(environ: Mapping[str, str], local_rank: int | None, allow_busy: bool) -> tuple[str, ...]:
    """Return marks for the record, none on idle GPUs; wait up to RELEASE_S for a GPU to become idle. local_rank: look
    only at this rank's GPU; None: at every visible one. Raises ModeUnavailable if a GPU is busy, unless allow_busy.
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
            "; ".join(f"GPU {index} is busy: {use}" for index, use in busy.items()),
            "End them, choose other GPUs with CUDA_VISIBLE_DEVICES, or measure anyway, marked, with --allow-busy",
        )
    return tuple(f"busy GPU: {use}" for use in busy.values())


def room_bytes(device: Literal["cuda", "cpu"], ranks: int, environ: Mapping[str, str]) -> int | None:
    """Return the free memory for each rank here, of the GPU that has the least; None: unknown, as of a slice."""
    if device == "cpu":
        free = free_host_bytes()
        return None if free is None else free // ranks
    try:
        gpus = visible(gpus_here(), environ)[:ranks]
        if any(gpu.mig for gpu in gpus):
            return None
        with nvml.opened():
            found = [nvml.query(nvml.memory, pynvml.nvmlDeviceGetHandleByIndex(gpu.index)) for gpu in gpus]
    except pynvml.NVMLError:
        return None
    return None if None in found else min((int(memory.free) for memory in found), default=None)

"""How much memory each rank may take, asked while nothing of ours runs: what is free of its GPU, or its share of what
is free of the host. None is unknown.
"""

from collections.abc import Mapping
from typing import Literal

import pynvml

from fp8bench.machine import nvml
from fp8bench.machine.gpus import gpus_here, visible
from fp8bench.machine.host import free_host_bytes


def room_bytes(device: Literal["cuda", "cpu"], ranks: int, environ: Mapping[str, str]) -> int | None:
    """Of the rank that has the least. ranks: on this host. Unknown where a GPU is sliced, since a slice has only a part
    of it.
    """
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

"""How much memory a rank used at its peak, on its GPU by torch's allocator and on the host by the kernel."""

import resource

import torch

from fp8bench.schema.record import RankMemory


def reset_peaks(device: torch.device) -> None:
    """Forget what was allocated so far, and give the allocator's spare memory back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device, rank: int) -> RankMemory:
    """Peaks since the last reset, a graph's own pool among them; the host's is of the process's whole life (ru_maxrss,
    KiB on Linux).
    """
    on_gpu = device.type == "cuda"
    return RankMemory(
        rank=rank,
        peak_allocated_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        peak_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_gpu else None,
        peak_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )

"""Reads what torch and the kernel count in this process: compilations, retries of the allocator, peaks of memory.

A step that compiles takes seconds, so compilations after the first step are counted separately, and compilations during
timed steps make a run unsteady. Transformer Engine compiles small functions of its own, which count too.
"""

import resource
import sys
from dataclasses import dataclass

import torch

from fp8bench.schema.rank import RankMemory

PHASES = ("entire_frame_compile", "entire_backward_compile")
"""torch's own clocks that together count all of the time, and none of it twice."""

MAX_REASONS = 5
REASON_LENGTH = 160


@dataclass(frozen=True)
class Compilations:
    """Compilations so far. frames: functions compiled, each time. graphs: captured by dynamo. split_graphs: compiled
    from them, after DDP's buckets. seconds: spent on all of it.
    """

    frames: int = 0
    graphs: int = 0
    split_graphs: int = 0
    graph_breaks: int = 0
    graph_break_reasons: tuple[str, ...] = ()
    seconds: float = 0.0


def compilations() -> Compilations:
    """Return the compilations so far; all zero if torch.compile was never loaded."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return Compilations()
    counters = dynamo.counters
    spent = dynamo.calculate_time_spent()
    breaks = counters["graph_break"]
    return Compilations(
        frames=counters["frames"]["total"],
        graphs=counters["stats"]["unique_graphs"],
        split_graphs=counters["aot_autograd"]["total"],
        graph_breaks=sum(breaks.values()),
        graph_break_reasons=tuple(str(reason).split("\n")[0][:REASON_LENGTH] for reason in list(breaks)[:MAX_REASONS]),
        seconds=sum(spent.get(phase, 0.0) for phase in PHASES),
    )


def allocator_retries(device: torch.device) -> int | None:
    """Return how often torch's allocator had to free memory and try again; None on a CPU."""
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0)) if device.type == "cuda" else None


def reset_peaks(device: torch.device) -> None:
    """Reset the peaks, and give the allocator's unused memory back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def allocated(device: torch.device) -> int:
    """Return the bytes that tensors have, with the allocator's rounding; 0 on a CPU."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


def allocated_peak(device: torch.device) -> int:
    """Return the peak in bytes since the last reset; 0 on a CPU."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


def peak_memory(device: torch.device, rank: int, captured: int = 0) -> RankMemory:
    """Return the peaks since the last reset, including a graph's own pool; the host's peak is of the process's entire
    life (ru_maxrss, KiB on Linux). captured: peak bytes during the capture of a step; its replays allocate nothing.
    """
    on_gpu = device.type == "cuda"
    return RankMemory(
        rank=rank,
        peak_allocated_bytes=max(captured, allocated_peak(device)) if on_gpu else None,
        peak_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_gpu else None,
        peak_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )

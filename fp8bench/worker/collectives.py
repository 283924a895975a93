"""One rank of `fp8bench collectives`: it proves each operation, then times it.

To prove one, every rank fills its array with small integers, so that any sum is exact in bf16 too. Repetitions follow
each other without a wait, as in nccl-tests. Cases run forwards and backwards, so that a machine that slows down affects
all equally.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.schema.collectives import Case, CollectivesConfig, Dtype, RankTimes
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.rank import RankReport
from fp8bench.worker.parallel import largest
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.rank_report import Aside
from fp8bench.worker.subject import environment

FEWEST, MOST, WARM = 20, 100, 5
TORCH: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


def measure(_config: RunConfig, rank: int, device: torch.device, aside: Aside, plan: dict[str, Any]) -> RankReport:
    """Time every case of `plan`, a CollectivesConfig, as `times` of `found`. Raises RunFailed without memory."""
    config = CollectivesConfig.model_validate(plan)
    ProgressFile(aside.progress).stage("timing")
    try:
        times = timed(config.cases, rank, config.world_size, device, config.rounds, config.seconds)
    except torch.OutOfMemoryError as error:
        said = str(error).split(". ")[0]
        raise RunFailed(f"rank {rank} ran out of GPU memory: {said}", "Give smaller ones with --size", "oom") from error
    first = rank % (config.world_size // config.nodes) == 0
    here = environment(device) if first else None
    return RankReport(rank=rank, environment=here, found={"times": [one.model_dump(mode="json") for one in times]})


def timed(
    cases: Sequence[Case], rank: int, ranks: int, device: torch.device, rounds: int, seconds: float
) -> tuple[RankTimes, ...]:
    """Prove and time each case. seconds: how long in each round."""
    wrong: list[int] = []
    right: list[bool] = []
    found: list[list[tuple[float, ...]]] = [[] for _ in cases]
    for turn in range(rounds):
        for number, case in [*enumerate(cases)][:: -1 if turn % 2 else 1]:
            arrays = Arrays(case, rank, ranks, device)
            if turn == 0:
                wrong.append(wrong_elements(arrays))
                # Of any rank: no rank waits for one that does not time it.
                right.append(largest(wrong[number], device) == 0)
            if right[number]:
                found[number].append(_repetitions(arrays, device, seconds))
    return tuple(RankTimes(wrong=bad, rounds_s=tuple(of)) for bad, of in zip(wrong, found, strict=True))


class Arrays:
    """The arrays of a case. ours: what the rank gives. result: what it gets; in an all-reduce the same array."""

    def __init__(self, case: Case, rank: int, ranks: int, device: torch.device) -> None:
        self.case, self.rank, self.ranks = case, rank, ranks
        part = case.elements // ranks
        given = part if case.operation == "all-gather" else case.elements
        taken = case.elements if case.operation == "all-gather" else part
        self.ours = torch.zeros(given, dtype=TORCH[case.dtype], device=device)
        self.result = self.ours if case.operation == "all-reduce" else self.ours.new_zeros(taken)

    def work(self) -> None:
        if self.case.operation == "all-reduce":
            dist.all_reduce(self.ours)
        elif self.case.operation == "all-gather":
            dist.all_gather_into_tensor(self.result, self.ours)
        else:
            dist.reduce_scatter_tensor(self.result, self.ours)

    def expected(self) -> Tensor:
        size, ranks = self.ours.numel(), range(self.ranks)
        if self.case.operation == "all-gather":
            return torch.cat([self.values(rank, size) for rank in ranks])
        total = sum((self.values(rank, size) for rank in ranks), torch.zeros(size, device=self.ours.device))
        if self.case.operation == "all-reduce":
            return total
        return total.chunk(self.ranks)[self.rank]

    def values(self, rank: int, size: int) -> Tensor:
        # With one stride for all, as many ranks as there are values would add up to the same sum everywhere, and an
        # element in the wrong place would go unnoticed. Sums stay exact: in bf16, integers up to 256 are.
        values = max(2, min(7, 256 // self.ranks) + 1)
        places = torch.arange(size, device=self.ours.device)
        return places.div_(rank % 16 + 1, rounding_mode="floor").add_(rank).remainder_(values).float()


def wrong_elements(arrays: Arrays) -> int:
    """Return how many elements of the result are wrong on this rank. Leaves the arrays zero."""
    arrays.ours.copy_(arrays.values(arrays.rank, arrays.ours.numel()))
    arrays.work()
    found = int((arrays.result.float() != arrays.expected()).sum().item())
    arrays.ours.zero_()
    arrays.result.zero_()
    return found


def _repetitions(arrays: Arrays, device: torch.device, seconds: float) -> tuple[float, ...]:
    _elapsed(arrays.work, WARM, device)
    each_s = largest(int(sum(_elapsed(arrays.work, WARM, device)) / WARM * 1e9), device) / 1e9
    count = min(MOST, max(FEWEST, int(seconds / each_s) if each_s > 0 else MOST))
    # To whole nanoseconds.
    return tuple(max(round(one, 9), 1e-9) for one in _elapsed(arrays.work, count, device))


def _elapsed(call: Callable[[], object], count: int, device: torch.device) -> list[float]:
    """Time calls that ranks begin together: an all-reduce aligns hosts, an uncounted first call the devices."""
    largest(0, device)
    call()
    if device.type != "cuda":
        stamps = [time.perf_counter()]
        for _ in range(count):
            call()
            stamps.append(time.perf_counter())
        return [end - start for start, end in pairwise(stamps)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize(device)
    return [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]

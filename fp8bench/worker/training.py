"""A model made ready to train: compiled where that was decided, replicated over the ranks, with its optimizer and its
batches.

torch.compile goes inside DDP. On several GPUs torch then cuts the graph at DDP's gradient buckets, so that all-reduce
can begin before backward ends (torch._dynamo.config.optimize_ddp; ViT-Huge's one graph becomes 98). On a single GPU
nothing is reduced and the cuts would only cost, so the graph stays whole. The record's evidence has both counts.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fp8bench.modes.protocol import Mode
from fp8bench.schema.config import RunConfig
from fp8bench.worker.loop import Training, sgd
from fp8bench.workloads.protocol import Workload


@contextmanager
def ready_to_train(
    config: RunConfig, rank: int, device: torch.device, mode: Mode, workload: Workload, model: nn.Module, compiled: bool
) -> Iterator[Training]:
    """Whatever a step needs, for as long as the context lasts."""
    replica = DistributedDataParallel(
        _compile(model, config.world_size) if compiled else model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
    batches = workload.batches(config.batch_size, rank, device)
    # What has been made so far stays: the collector need not walk it again and again while steps are timed.
    gc.collect()
    gc.freeze()
    try:
        yield Training(replica, sgd(replica), mode, workload, batches, device)
    finally:
        # A loader ends its processes here, and not some time while the interpreter goes down.
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _compile(model: nn.Module, world_size: int) -> nn.Module:
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = world_size > 1
    return cast(nn.Module, torch.compile(model))

"""A model made ready to train: as it was chosen to be executed, with its batches, for as long as both are wanted."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fp8bench.modes.protocol import Mode
from fp8bench.schema.config import RunConfig
from fp8bench.worker.execution.build import build, stream
from fp8bench.worker.execution.choice import Choice
from fp8bench.worker.execution.step import Parts
from fp8bench.workloads.protocol import Batch, Workload


@contextmanager
def ready_to_train(
    config: RunConfig,
    rank: int,
    device: torch.device,
    mode: Mode,
    workload: Workload,
    model: nn.Module,
    choice: Choice,
) -> Iterator[tuple[Parts, Iterator[Batch]]]:
    """What a step needs, and its batches. Where the step may be captured, the current stream is its own meanwhile."""
    with stream(device, choice.graph):
        parts = build(config, device, mode, workload, model, choice)
        batches = workload.batches(config.batch_size, rank, device)
        # What has been made so far stays: the collector need not walk it again and again while steps are timed.
        gc.collect()
        gc.freeze()
        try:
            yield parts, batches
        finally:
            # A loader ends its processes here, and not some time while the interpreter goes down.
            close = getattr(batches, "close", None)
            if close is not None:
                close()

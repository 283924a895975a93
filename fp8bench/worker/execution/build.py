"""A model made ready to train as it was chosen: wrapped, joined, with its optimizer, on a stream that it keeps."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from fp8bench.modes.protocol import Mode
from fp8bench.schema.config import RunConfig
from fp8bench.schema.record import GraphEvidence
from fp8bench.worker.execution.choice import Choice
from fp8bench.worker.execution.join import join, part
from fp8bench.worker.execution.optimizers import make_optimizer
from fp8bench.worker.execution.step import Parts
from fp8bench.worker.execution.wrap import wrap
from fp8bench.workloads.protocol import Workload


def build(
    config: RunConfig, device: torch.device, mode: Mode, workload: Workload, model: nn.Module, choice: Choice
) -> Parts:
    """What a step needs. model: converted, as the parity gate proved it."""
    wrapped = wrap(model, choice.compile.scope if choice.compile.enabled else None, config.world_size)
    optimizer = make_optimizer(config.optimizer, model.parameters(), device)
    return Parts(join(wrapped, device), wrapped, model, optimizer, mode, workload, device)


def joined_anew(parts: Parts) -> Parts:
    """The same with ranks joined afresh, after a step that stopped half-way. `parts` is of no more use."""
    part(parts.model)
    return replace(parts, model=join(parts.wrapped, parts.device))


@contextmanager
def stream(device: torch.device, graph: GraphEvidence) -> Iterator[None]:
    """Where everything of a captured step is queued from DDP's construction on: never the default stream, which cannot
    be captured. Steps that are not captured keep the default one.
    """
    context: AbstractContextManager[object] = nullcontext()
    if graph.enabled and device.type == "cuda":
        own = torch.cuda.Stream(device)
        own.wait_stream(torch.cuda.current_stream(device))
        context = torch.cuda.stream(own)
    with context:
        yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)

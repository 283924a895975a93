"""How ranks work together: the process group, what they agree on, and how they share their gradients.

Where one rank stops while another waits for it in a collective, both hang. So each stage that may refuse (the mode
cannot run here, the gate says no, the loss is not finite) is an `agreement`: all ranks exchange what they found, and
the first refusal by rank is raised on every one. A crash or a hang cannot be exchanged; whoever launched the ranks ends
the others then.

Gradients are shared by DistributedDataParallel, and for the reference by the same mean by hand. A single rank has
nobody to share with, and is not wrapped: DDP would copy every gradient into its buckets all the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.nn.parallel import DistributedDataParallel

from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.execution import Join

TIMEOUT = timedelta(days=2)
"""How long a collective waits for a late rank: longer than any phase may take. A rank that comes late is ended by the
phase's deadline, and named then; a collective that gave up first would name a rank that waited.
"""

JOIN = timedelta(seconds=60)
"""How long the store may take to answer the first time."""

DDP_TIMED_STEPS = 10
"""DDP times its first steps, and later each hundredth, with events that it waits for (torch's Reducer and Logger,
`kDDPRuntimeLoggingSampleRate`): such a step cannot be captured.
"""

DDP_TIMED_EVERY = 100


def _at_a_store(url: str, timeout: timedelta = TIMEOUT, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Meets at `store://HOST:PORT/PREFIX`: a TCPStore that somebody else holds, under a prefix of this group alone."""
    found = urlsplit(url)
    query = {name: int(values[0]) for name, values in parse_qs(found.query).items() if name in ("rank", "world_size")}
    store = dist.TCPStore(str(found.hostname), found.port or 0, is_master=False, timeout=JOIN, wait_for_workers=False)
    store.set_timeout(timeout)
    yield dist.PrefixStore(found.path, store), query["rank"], query["world_size"]


# For several nodes: each run has fresh processes, and the store by which torchrun's find each other outlives them.
register_rendezvous_handler("store", _at_a_store)


@contextmanager
def process_group(rank: int, world_size: int, device: torch.device, init_method: str) -> Iterator[None]:
    """NCCL between GPUs, gloo between CPU processes; left again whatever happens."""
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=TIMEOUT,
        device_id=device if on_gpu else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def largest(value: int, device: torch.device) -> int:
    """The largest of all ranks' values. Every rank calls it."""
    found = torch.tensor(value, dtype=torch.int64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found.item())


@contextmanager
def agreement() -> Iterator[None]:
    """Every rank enters it; if the body refuses on any, the first refusal by rank is raised on all."""
    mine: Fp8benchError | None = None
    try:
        yield
    except Fp8benchError as refusal:
        mine = refusal
    found: list[Fp8benchError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    first = next((refusal for refusal in found if refusal is not None), None)
    if first is not None:
        raise first


def join(model: nn.Module, device: torch.device) -> nn.Module:
    """A replica whose gradients are the mean over all ranks when backward ends. Every rank of the group calls it."""
    if dist.get_world_size() == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )


def how_joined(model: nn.Module) -> Join:
    """What `join` made of it, in a word."""
    return "ddp" if isinstance(model, DistributedDataParallel) else "none"


def part(model: nn.Module) -> None:
    """Undo `join` for good: DDP takes its hooks off the weights when its reducer goes, and its logger holds that."""
    if isinstance(model, DistributedDataParallel):
        del model.logger
        del model.reducer


def average_gradients(model: nn.Module) -> None:
    """What `join` does to the gradients, by hand: the mean over all ranks."""
    world_size = dist.get_world_size()
    for weight in model.parameters():
        if weight.grad is not None and world_size > 1:
            dist.all_reduce(weight.grad)
            weight.grad /= world_size


def steps_before_capture(taken: int) -> int:
    """How many steps more are to be run before one can be captured, given those that have been."""
    steps = max(taken, DDP_TIMED_STEPS + 1)
    # It looks at its count before and after it counts a step.
    while steps % DDP_TIMED_EVERY in (0, DDP_TIMED_EVERY - 1):
        steps += 1
    return steps - taken

"""How ranks work together: the process group, and what they agree on.

If one rank stops while another waits for it in a collective, both hang. So each stage that may refuse is an
`agreement`: all ranks exchange what they found, and the first refusal by rank is raised on every rank. A crash or a
hang cannot be exchanged; the launcher then ends the others.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import register_rendezvous_handler

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, ModeUnavailable

# Longer than any phase may take: a late rank is ended and named by the phase's deadline, and a collective that gave up
# first would name a rank that waited.
TIMEOUT = timedelta(days=2)


def _at_a_store(url: str, timeout: timedelta = TIMEOUT, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Meet at `store://HOST:PORT/PREFIX`: a TCPStore that another process holds, under a prefix of this group alone."""
    found = urlsplit(url)
    query = {name: int(values[0]) for name, values in parse_qs(found.query).items() if name in ("rank", "world_size")}
    first = timedelta(seconds=60)
    store = dist.TCPStore(str(found.hostname), found.port or 0, is_master=False, timeout=first, wait_for_workers=False)
    store.set_timeout(timeout)
    yield dist.PrefixStore(found.path, store), query["rank"], query["world_size"]


# For several nodes: each run has fresh processes, and the store by which torchrun's meet outlives them.
register_rendezvous_handler("store", _at_a_store)


@contextmanager
def rank_group(config: RunConfig, rank: int, local_rank: int, init_method: str) -> Iterator[torch.device]:
    """Yield this rank's device while it is in a process group. Raises ModeUnavailable if torch sees no such device."""
    on_gpu = config.device == "cuda"
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        if (visible := torch.cuda.device_count()) <= local_rank:
            raise ModeUnavailable(
                f"torch sees {visible} CUDA devices, which leaves none for local rank {local_rank}",
                "Install a CUDA build of torch that fits the driver, or lower --gpus",
            )
        torch.cuda.set_device(device)
    else:
        # The ranks of this node share its cores.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (config.world_size // config.nodes)))
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        init_method=init_method,
        rank=rank,
        world_size=config.world_size,
        timeout=TIMEOUT,
        device_id=device if on_gpu else None,
    )
    try:
        yield device
    finally:
        dist.destroy_process_group()


def largest(value: int, device: torch.device) -> int:
    """Return the largest value of any rank. Every rank calls this."""
    found = torch.tensor(value, dtype=torch.int64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found.item())


def averaged(values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Make these, in place, the mean over the ranks of a group, all without one. Every rank of it calls this."""
    dist.all_reduce(values, group=group)
    return values.div_(dist.get_world_size(group))


@contextmanager
def agreement() -> Iterator[None]:
    """Raise the first refusal by rank on all ranks, if the body refuses on any. Every rank enters it."""
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

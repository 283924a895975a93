"""Scenes that run in several ranks, each in a process of its own, and what came of them: in a file of each rank."""

import json
from pathlib import Path

import fork_server
import torch.distributed as dist
from cli.calling import environment
from torch import multiprocessing


def begin(folder, size, scenes, start_method="fork"):
    """Run scenes, which are functions by their names, in so many ranks. scenes: a function that gives them."""
    multiprocessing.start_processes(_rank, args=(folder, size, scenes), nprocs=size, start_method=start_method)


def _rank(rank, folder, size, scenes):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    found = {name: scene() for name, scene in scenes().items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def of_ranks(program, folder, size, limit_s):
    here = environment(PYTHONPATH=str(Path(__file__).parents[1]))
    code, _, errors = fork_server.called([str(folder), str(size)], folder, here, limit_s, ("-m", program))
    assert code == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]

"""Two ranks, each in a process of its own, that settle how their steps are executed and write down what came of it.

python -m worker.execution.two_ranks FOLDER LAUNCH
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist
from torch import multiprocessing
from worker.execution import executing

from fp8bench.modes.protocol import FP8_TOLERANCE
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker.execution.decide import decide


def settle_here(rank, folder, launch):
    """launch: the name of one in `executing`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    parts, batches = executing.some_parts(rank=rank)
    capture = getattr(executing, launch)
    try:
        found = decide(
            executing.settings(cuda_graphs="on"),
            parts,
            executing.CAPTURED,
            batches,
            executing.gate(parts, FP8_TOLERANCE),
            print,
            capture,
        )
        outcome = {"join": found.join, **found.executed.model_dump()}
    except MeasurementInvalid as refusal:
        outcome = {"refused": refusal.what}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(settle_here, args=tuple(sys.argv[1:]), nprocs=2, start_method="spawn")

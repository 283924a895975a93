"""Under torchrun: join the group that it made, instead of making one. Rank 0 gathers the reports and keeps the record.

A refusal reaches every rank (worker.group.agreement), so its record is kept too. A crash ends this process with an
error line and exit code 5; torchrun then ends the other ranks, and there is no record.
"""

from pathlib import Path

import torch.distributed as dist

from fp8bench.launch.executor import Watch, quieten_the_profiler
from fp8bench.launch.plan import Elastic
from fp8bench.schema.config import RunConfig
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank_report import RankReport
from fp8bench.worker.main import Aside, measure, rank_group


class ElasticExecutor:
    """Runs this process's rank."""

    def __init__(self, place: Elastic, machine: MachineIdentity | None = None) -> None:
        """machine: this node's."""
        self.place = place
        self.machine = machine

    def run(self, config: RunConfig, watch: Watch, trace: Path | None = None) -> list[RankReport] | None:
        """The reports of all ranks on rank 0, None on the others; nobody watches, since this process is the one at
        work. Raises RunFailed when this rank runs out of memory.
        """
        quieten_the_profiler()
        with rank_group(config, self.place.rank, self.place.local_rank, init_method="env://") as device:
            report = measure(config, self.place.rank, device, Aside(trace=trace))
            mine = report.model_copy(update={"machine": self.machine})
            gathered = [mine] * self.place.world_size if self.place.rank == 0 else None
            dist.gather_object(mine, gathered, dst=0)
        return gathered

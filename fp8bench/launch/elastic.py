"""Under torchrun: join the group that it made, instead of making one. Rank 0 gathers the reports and keeps the record.

A refusal reaches every rank (worker.parallel.agreement), so its record is kept too. A crash ends this process with an
error line and exit code 5, and so does a phase that takes too long (`launch.watchdog`); torchrun then ends the other
ranks by SIGTERM, and there is no record.
"""

import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from fp8bench.launch.deadlines import Deadlines
from fp8bench.launch.executor import Watch, quieten_the_profiler
from fp8bench.launch.last_words import in_a_line
from fp8bench.launch.plan import Elastic
from fp8bench.launch.watchdog import Watchdog
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, RunFailed
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank import RankReport
from fp8bench.worker.main import Aside, measure, rank_group


class ElasticExecutor:
    """Runs this process's rank."""

    def __init__(self, place: Elastic, machine: MachineIdentity | None = None, timeout_s: float | None = None) -> None:
        """machine: this node's. timeout_s: of each phase; None: by the phase."""
        self.place = place
        self.machine = machine
        self.timeout_s = timeout_s

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport] | None:
        """The reports of all ranks on rank 0, None on the others; nobody watches, since this process is the one at
        work. marks: what this rank found of its GPU. Raises RunFailed when this rank fails.
        """
        quieten_the_profiler()
        rank = self.place.rank
        with tempfile.TemporaryDirectory(prefix="fp8bench-", ignore_cleanup_errors=True) as name:
            progress = Path(name) / "progress"
            with (
                Watchdog(rank, progress, Deadlines(config, self.timeout_s)),
                _told_in_a_line(rank),
                rank_group(config, rank, self.place.local_rank, init_method="env://") as device,
            ):
                report = measure(config, rank, device, Aside(progress=progress, trace=trace))
                mine = report.model_copy(update={"machine": self.machine, "marks": tuple(marks)})
                gathered = [mine] * self.place.world_size if rank == 0 else None
                dist.gather_object(mine, gathered, dst=0)
        return gathered


@contextmanager
def _told_in_a_line(rank: int) -> Iterator[None]:
    """An error that is not ours becomes one that is; its traceback goes to standard error."""
    try:
        yield
    except (Fp8benchError, KeyboardInterrupt):
        raise
    except BaseException as error:
        traceback.print_exception(error)
        raise RunFailed(
            f"rank {rank} died: {in_a_line(error)} (crash)", "Its traceback is above; torchrun ends the other ranks"
        ) from error

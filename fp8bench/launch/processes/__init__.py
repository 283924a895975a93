"""The processes of one run: who starts them, how long they may take, and which one is to blame when one fails.

    rank    the process of one rank, and what it tells its launcher through a pipe
    server  the process that they are forked from, which has imported what they import
    watch   the ranks of a run from their start to their end
    blame   when a run has failed, which rank made it fail, and the reports that follow

`Executor` separates what is measured from how processes are started: `watch` starts them on this machine,
`launch.nodes.executor` on several, and tests use a fake executor with made-up times, whose tables are always the same.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import Parity, RankReport
from fp8bench.schema.record import Session
from fp8bench.worker.progress import Progress

Watch = Callable[[Progress], None]
"""Called a few times a second with the progress of rank 0."""


class Executor(AbstractContextManager["Executor"]):
    """Runs one configuration after the other. What it holds for the next run ends with the context."""

    def run(
        self,
        config: RunConfig,
        watch: Watch,
        trace: Path | None = None,
        place: Session | None = None,
        earlier: Parity | None = None,
    ) -> list[RankReport]:
        """Run the configuration and return one report per rank, by rank, also for a rank that died. trace: where rank 0
        keeps its Chrome trace; None: nowhere. place: of the run's record in the session; None if it is not kept.
        earlier: the parity that another process of the session measured, on which this one may rely.
        """
        raise NotImplementedError

    def require_ready(self) -> None:
        """Raise what keeps anything more from running."""

    def close(self) -> None:
        """End what is kept for a run that follows."""

    def __exit__(self, *_: object) -> None:
        self.close()

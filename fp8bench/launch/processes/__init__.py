"""The processes of one run: who starts them, how long they may take, and which one is to blame when one fails.

`Executor` separates what is measured from how processes are started: `watch` starts them on this machine,
`launch.nodes.executor` on several.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from fp8bench.launch.processes.rank import Task
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress

Watch = Callable[[Progress], None]
"""Called a few times a second with the progress of rank 0."""


class Executor(AbstractContextManager["Executor"]):
    """Runs one task after the other. What it holds for the next run ends with the context."""

    def run(self, task: Task, watch: Watch = lambda _progress: None) -> list[RankReport]:
        """Run the task and return one report per rank, by rank, also for a rank that died."""
        raise NotImplementedError

    def require_ready(self) -> None:
        """Raise what keeps anything more from running."""

    def close(self) -> None:
        """End what is kept for a run that follows."""

    def __exit__(self, *_: object) -> None:
        self.close()

"""The processes of one run: who starts them, how long they may take, and which one is to blame when one fails.

`Executor` separates what is measured from how processes are started: `spawn` starts them on this machine,
`launch.nodes.leader` on several, and tests use a fake executor with made-up times, whose tables are always the same.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress

Watch = Callable[[Progress], None]
"""Called a few times a second with the progress of rank 0."""


class Executor(Protocol):
    """Runs one configuration."""

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport]:
        """Run the configuration and return one report per rank, by rank, also for a rank that died (status failed).

        trace: where rank 0 keeps the Chrome trace of its profile; None: nowhere. marks: what this process found of the
        circumstances; the reports contain those of other nodes.
        """

"""The processes of one run: who starts them, how long they may take, and who is to blame when one fails.

`Executor` is the seam between what is measured and how processes come to be: `spawn` starts them on this machine,
`launch.nodes.leader` on several, and tests use a fake one, with made-up times, whose tables are the same every time.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress

Watch = Callable[[Progress], None]
"""Called a few times a second with how far rank 0 has come."""


class Executor(Protocol):
    """Runs one configuration."""

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport]:
        """trace: where rank 0 keeps the Chrome trace of its profile; None: nowhere. marks: what this process found of
        the circumstances; what other nodes find of theirs is in the reports.

        One report a rank, by rank; a rank that died has one too, with status failed.
        """

"""Who runs a group of workers: the seam between what is measured and how processes come to be.

`spawn` makes processes, `elastic` joins the ones that torchrun made; tests put a fake one in, with a made-up clock, to
see whole runs and their tables come out the same every time.
"""

import os
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
    ) -> list[RankReport] | None:
        """trace: where rank 0 keeps the Chrome trace of its profile; None: nowhere. marks: what this process found of
        the circumstances; where others look for themselves too (torchrun's), each rank's report carries its own.

        One report a rank, by rank; a rank that died has one too, with status failed. None: this process is not the
        one that keeps the record (a rank other than 0 under torchrun).
        """


def quieten_the_profiler() -> None:
    """torch's profiler writes to every rank's standard error, in the middle of the progress, unless it is told not to
    before its first use.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")

"""Who runs a group of workers: the seam between what is measured and how processes come to be.

`spawn` makes processes, `elastic` joins the ones that torchrun made; tests put a fake one in, with a made-up clock, to
see whole runs and their tables come out the same every time.
"""

from typing import Protocol

from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank_report import RankReport


class Executor(Protocol):
    """Runs one configuration."""

    def run(self, config: RunConfig) -> list[RankReport] | None:
        """One report a rank, by rank; a rank that died has one too, with status failed. None: this process is not the
        one that keeps the record (a rank other than 0 under torchrun).
        """

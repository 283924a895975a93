"""`--emit` of `run` and `sweep`: the fastest of what was measured as a training script of its own."""

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Annotated

from fp8bench.cli.options import option
from fp8bench.cli.output import log, written
from fp8bench.kinds.run import script
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import write_atomically
from fp8bench.schema.record import Record
from fp8bench.stats.steps import step_times

Emit = Annotated[
    Path | None, option("FILE", "Write the fastest of these modes as a training script that needs no fp8bench.")
]
REMEDY = "Name another file with --emit"


def require_writable(path: Path | None, configs: Iterable[RunConfig]) -> None:
    """Raise UsageError unless a script of each configuration can be written to a new file. path: None for no script."""
    if path is None:
        return
    if path.exists() or not path.parent.is_dir():
        raise UsageError(f"{path} exists" if path.exists() else f"there is no folder {path.parent}", REMEDY)
    for config in configs:
        script.require_writable(config)


def write_script(path: Path | None, records: Iterable[Record]) -> None:
    """Write the script of the record that takes the least time a unit. Raises RunFailed if the disk refuses it."""
    best = min((record for record in records if record.status == "ok"), key=_unit_s, default=None)
    if path is None or best is None or best.config is None:
        return
    with written(path, REMEDY):
        write_atomically(path, script.script(best), replace=False)
    log(f"{best.config.switched_label} as a training script: {path}")


def _unit_s(record: Record) -> float:
    times = step_times(record)
    return times.mean_s / record.summary.units_per_step if times and record.summary else inf

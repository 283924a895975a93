"""A session: each configuration in turn, each record kept as soon as it is there, so that what follows can lose
nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fp8bench.launch.assemble import assemble, new_run_id
from fp8bench.launch.executor import Executor
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted
from fp8bench.schema.record import Record
from fp8bench.store import results


def measure_all(
    configs: Sequence[RunConfig],
    executor: Executor,
    instance: str,
    results_dir: Path,
    announce: Callable[[RunConfig], None],
) -> Iterator[tuple[Record, Path]]:
    """Yield each record with the path where it is kept; none on a rank that keeps none.

    announce: called before each run. Raises Interrupted after Ctrl-C, when every worker has ended.
    """
    for config in configs:
        announce(config)
        try:
            reports = executor.run(config)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                f"interrupted while {config.mode_label} ran; its workers have ended",
                f"What was finished before it is in {results_dir}",
            ) from interrupt
        if reports is None:
            continue
        now = datetime.now(UTC)
        record = assemble(config, reports, instance, new_run_id(config.mode_label, now), now)
        yield record, results.write(record, results_dir)


def exit_code(records: Sequence[Record]) -> int:
    """5 if a run broke, else 4 if a measurement is invalid, else 3 if nothing could run here, else 0. No record: 0."""
    statuses = {record.status for record in records}
    if "failed" in statuses:
        return 5
    if "invalid" in statuses:
        return 4
    return 3 if statuses == {"unsupported"} else 0

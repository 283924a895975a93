"""A prepared request, measured: the session with its executor, chosen by who makes the processes."""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from fp8bench.launch.assemble import new_session_id
from fp8bench.launch.busy import require_idle
from fp8bench.launch.executor import Executor
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.rounds import Schedule
from fp8bench.launch.session import Listener, Where, measure_all
from fp8bench.schema.config import RunConfig
from fp8bench.schema.record import Record


def schedule(prepared: Prepared) -> Schedule:
    """The rounds of this call, under a session of their own."""
    return Schedule(prepared.entries, prepared.stop, new_session_id(datetime.now(UTC)))


def measure(
    prepared: Prepared, rounds: Schedule, listener: Listener, traces: Mapping[str, Path] | None = None
) -> Iterator[tuple[Record, Path]]:
    """Run every turn of `rounds`. See session.measure_all for what it yields and raises."""
    local_rank = prepared.elastic.local_rank if prepared.elastic else None

    def marks(config: RunConfig) -> tuple[str, ...]:
        return require_idle(os.environ, local_rank, prepared.allow_busy) if config.device == "cuda" else ()

    where = Where(prepared.instance.key, prepared.results_dir, marks, traces)
    return measure_all(rounds, _executor(prepared), where, listener)


def _executor(prepared: Prepared) -> Executor:
    # Imported here: both bring torch.
    if prepared.elastic:
        from fp8bench.launch.elastic import ElasticExecutor

        return ElasticExecutor(prepared.elastic)
    from fp8bench.launch.spawn import SpawnExecutor

    return SpawnExecutor()

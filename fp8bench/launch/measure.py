"""A prepared request, measured: the session with its executor, chosen by who makes the processes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fp8bench.launch.assemble import new_session_id
from fp8bench.launch.busy import require_idle
from fp8bench.launch.executor import Executor
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.rounds import Schedule, Stop
from fp8bench.launch.session import Listener, Where, measure_all
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record
from fp8bench.schema.request import LATEST
from fp8bench.store import results


def schedule(prepared: Prepared) -> Schedule:
    """The rounds of this call: under a session of their own, or what is missing of the one that was named.

    Raises UsageError where `latest` was asked for and there is none.
    """
    if prepared.session is None or not prepared.keeps_records:
        return Schedule(prepared.entries, prepared.stop, new_session_id(datetime.now(UTC)))
    kept = results.read(prepared.results_dir, [prepared.instance.key])
    session_id = _latest(kept, prepared) if prepared.session == LATEST else prepared.session
    rounds = Schedule(prepared.entries, prepared.stop, session_id)
    rounds.restore(
        results.read_record(path)
        for record, path in kept
        if record.session is not None and record.session.session_id == session_id
    )
    if prepared.elastic:
        # torchrun makes one group of processes a call, and so one more round.
        rounds.stop = Stop(rounds=rounds.first_round)
    return rounds


def _latest(kept: Sequence[results.Kept], prepared: Prepared) -> str:
    sessions = [record.session.session_id for record, _ in kept if record.session is not None]
    if not sessions:
        raise UsageError(
            f"no session of {prepared.instance.key!r} is kept in {prepared.results_dir}, so none can be taken up",
            "Leave --session away, or give the folder with --results-dir",
        )
    return sessions[-1]


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

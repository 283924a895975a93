"""A prepared request, measured: the session with its executor, chosen by who makes the processes."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fp8bench.launch import resume
from fp8bench.launch.assemble import new_session_id
from fp8bench.launch.executor import Executor
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.rounds import Schedule, Stop
from fp8bench.launch.session import Listener, Where, measure_all
from fp8bench.machine.busy import require_idle
from fp8bench.machine.identity import Here
from fp8bench.records import lock, results
from fp8bench.records.files import Broken
from fp8bench.schema.config import RunConfig
from fp8bench.schema.record import Record


@contextmanager
def session(prepared: Prepared, told: Callable[[str], None]) -> Iterator[Schedule]:
    """The rounds of this call; while they are run, no other call can have the same session.

    told: hears where that cannot be made sure of. Raises UsageError where another call has it, and as `schedule`.
    """
    if prepared.session is None or not prepared.keeps_records:
        yield schedule(prepared, told)
        return
    path = prepared.results_dir / prepared.instance.key / f".session-{prepared.session}.lock"
    remedy = "Wait until it ends, or choose another name with --session"
    with lock.held(path, f"session {prepared.session!r}", remedy, told):
        yield schedule(prepared, told)


def schedule(prepared: Prepared, told: Callable[[str], None] = lambda _line: None) -> Schedule:
    """The rounds of this call: under a session of their own, or what is missing of the one that was named.

    told: hears of records that cannot be read, which do not count: their rounds are run again.

    Raises UsageError where `latest` was asked for and there is none, and where what is kept of the session is not of
    this machine, its software and these settings.
    """
    if prepared.session is None or not prepared.keeps_records:
        return Schedule(prepared.entries, prepared.stop, new_session_id(datetime.now(UTC)))
    found = results.read(prepared.results_dir, [prepared.instance.key])
    # Looked at again, since another call may have added to it between `prepare` and the lock.
    where = f"of {prepared.instance.key!r} is kept in {prepared.results_dir}"
    kept = resume.find(prepared.session, [record for record, _ in found], prepared.here or Here(one=False), where)
    resume.refuse_unlike(kept, [entry.config for entry in prepared.entries], prepared.entries[0].arm is not None)
    paths = {record.run_id: path for record, path in found}
    rounds = Schedule(prepared.entries, prepared.stop, kept.session_id)
    whole = [results.read_whole(paths[record.run_id]) for record in kept.records]
    for broken in (*found.broken, *(one for one in whole if isinstance(one, Broken))):
        told(f"warning: not read: {broken}")
    rounds.restore(record for record in whole if isinstance(record, Record))
    if prepared.elastic:
        # torchrun makes one group of processes a call, and so one more round.
        rounds.stop = Stop(rounds=rounds.first_round)
    return rounds


def measure(
    prepared: Prepared, rounds: Schedule, listener: Listener, traces: Mapping[str, Path] | None = None
) -> Iterator[tuple[Record, Path]]:
    """Run every turn of `rounds`. See session.measure_all for what it yields and raises."""
    local_rank = prepared.elastic.local_rank if prepared.elastic else None

    def marks(config: RunConfig) -> tuple[str, ...]:
        return require_idle(os.environ, local_rank, prepared.allow_busy) if config.device == "cuda" else ()

    stop = prepared.stop
    asked = {} if prepared.elastic else resume.asked_for(stop.rounds, stop.precision, stop.max_rounds)
    machine = prepared.here.machine if prepared.here else None
    where = Where(prepared.instance.key, prepared.results_dir, marks, traces, machine, asked)
    return measure_all(rounds, _executor(prepared), where, listener)


def _executor(prepared: Prepared) -> Executor:
    if prepared.elastic:
        # Imported here: it brings torch.
        from fp8bench.launch.elastic import ElasticExecutor

        machine = prepared.here.machine if prepared.here else None
        return ElasticExecutor(prepared.elastic, machine, prepared.timeout_s)
    from fp8bench.launch.spawn import SpawnExecutor

    return SpawnExecutor(prepared.timeout_s)

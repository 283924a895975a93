"""The batch sizes that a call left to the machine, found one configuration after the other, before its rounds begin.

See `batch_size` for the search itself; here are the processes, the memory and the records that it asks.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fp8bench.launch import batch_size
from fp8bench.launch.assemble import assemble, new_run_id
from fp8bench.launch.batch_size import Sized
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes import Executor
from fp8bench.launch.rounds import Entry, Schedule
from fp8bench.launch.signals import exit_code
from fp8bench.machine.identity import Here
from fp8bench.machine.room import room_bytes
from fp8bench.records import results
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Record, Session

if TYPE_CHECKING:
    from fp8bench.launch.session import Where

Say = Callable[[str], None]


def find_sizes(
    prepared: Prepared, rounds: Schedule, executor: Executor, where: "Where", say: Say
) -> Iterator[tuple[Entry, Sized]]:
    """Search for each configuration of `prepared.to_size`, and give its entries of `rounds` the size that was found.
    Entries without one are omitted from then on; the record that ended their search is in its place of the session.

    Raises Interrupted after Ctrl-C, SIGTERM or SIGHUP, when every worker has ended.
    """
    kept = results.read(prepared.results_dir, [prepared.instance.key])
    here = prepared.here or Here()
    alike = [record for record, _ in kept if not here.unlike(record)]
    for config in prepared.to_size:
        mine = [entry for entry in rounds.entries if entry.config == config]
        try:
            found = search(config, alike, executor, where, say)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                f"interrupted while batch sizes of {config.mode_label} were tried; its workers have ended",
                "Run the same command again",
                exit_code(interrupt),
            ) from interrupt
        if found.config is None:
            rounds.entries = [entry for entry in rounds.entries if entry not in mine]
            place = Session(session_id=rounds.session_id, round=1, position=1, arm=mine[0].arm)
            place = place.model_copy(update={**where.asked, "batch_search": found.search})
            if found.stopped is not None:
                found = replace(found, stopped=found.stopped.model_copy(update={"session": place}))
        else:
            say(f"{config.mode_label}: batch size {found.config.batch_size}")
            sized = {entry: replace(entry, config=found.config) for entry in mine}
            rounds.entries = [sized.get(entry, entry) for entry in rounds.entries]
        yield mine[0], found


def search(config: RunConfig, alike: Sequence[Record], executor: Executor, where: "Where", say: Say) -> Sized:
    """For one configuration. alike: records of this machine and its software, which may have sizes of it."""
    blank = blank_search(config)
    marks: tuple[str, ...] = ()

    def run(candidate: RunConfig) -> Sequence[RankReport]:
        nonlocal marks
        marks = where.marks(candidate)
        say(f"{config.mode_label}: trying batch size {candidate.batch_size}")
        return executor.run(candidate, lambda _progress: None, None, marks)

    def assembled(candidate: RunConfig, reports: Sequence[RankReport]) -> Record:
        now = datetime.now(UTC)
        run_id = new_run_id(candidate.mode_label, now)
        return assemble(candidate, reports, where.instance, run_id, now, None, marks, where.machine)

    return batch_size.size(config, batch_size.known_tries(config, alike, blank), run, assembled, say)


def blank_search(config: RunConfig) -> BatchSearch:
    """Before anything was tried, with the memory that is free now."""
    memory = room_bytes(config.device, config.world_size // config.nodes, os.environ)
    return BatchSearch(memory_bytes=memory, headroom=batch_size.HEADROOM, tries=())

"""Finds the batch sizes that a call left to the machine, one configuration after the other, before its rounds begin.

`batch_size` holds the search itself; this module handles its processes, its memory, and the records it reads and keeps.
"""

import os
from collections.abc import Callable, Iterable, Iterator
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
from fp8bench.machine.busy import room_bytes
from fp8bench.machine.identity import Here
from fp8bench.records import results
from fp8bench.records.results import Kept
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted
from fp8bench.schema.record import Record, Session

if TYPE_CHECKING:
    from fp8bench.launch.session import Where

Say = Callable[[str], None]

TRIES = ".batch-sizes"
"""A folder in the folder of results. It is hidden because a try of a few steps is not a measurement, and no table must
show it as the latest of its mode. A search that was interrupted continues from its records.
"""


def find_sizes(
    prepared: Prepared, rounds: Schedule, executor: Executor, where: "Where", say: Say
) -> Iterator[tuple[Entry, Sized]]:
    """Search for each configuration of `prepared.to_size`, and give its entries of `rounds` the size that was found.
    Entries without a size are dropped from `rounds`; the record that ended their search takes their place in the
    session.

    Raises Interrupted after Ctrl-C, SIGTERM or SIGHUP, once every worker has ended.
    """
    here = prepared.here or Here()
    kept, tried = (
        [one for one in results.read(folder, [where.instance]) if not here.unlike(one.record)]
        for folder in (where.results_dir, where.results_dir / TRIES)
    )
    for config in prepared.to_size:
        mine = [entry for entry in rounds.entries if entry.config == config]
        blank = blank_search(config)
        known = batch_size.known_tries(config, [one.record for one in kept], blank, _unfinished(config, kept, tried))
        if batch_size.next_size(known, config) is None and all(one.fit != "fits" for one in known.tries):
            # Sizes that never fitted are tried again, so that each call says why there is no size.
            known = blank
        try:
            found = _search(config, known, executor, where, say)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                f"interrupted while batch sizes of {config.switched_label} were tried; its workers have ended",
                "Run the same command again: the sizes that were tried are kept",
                exit_code(interrupt),
            ) from interrupt
        if found.config is None:
            rounds.entries = [entry for entry in rounds.entries if entry not in mine]
            place = Session(session_id=rounds.session_id, round=1, position=1, arm=mine[0].arm)
            place = place.model_copy(update={**where.asked, "batch_search": found.search})
            if found.stopped is not None:
                found = replace(found, stopped=found.stopped.model_copy(update={"session": place}))
        else:
            say(f"{config.switched_label}: batch size {found.config.batch_size}")
            sized = {entry: replace(entry, config=found.config) for entry in mine}
            # The size found may equal the size that another variant was given.
            rounds.entries = list(dict.fromkeys(sized.get(entry, entry) for entry in rounds.entries))
        yield mine[0], found


def _unfinished(config: RunConfig, kept: Iterable[Kept[Record]], tried: Iterable[Kept[Record]]) -> list[Record]:
    """Return the tries of this configuration that no record contains yet. The others are removed, because the record
    that resulted from their search contains them.
    """
    ok = [one.record for one in kept if one.record.status == "ok"]
    of_searches = [record for record in ok if record.session and record.session.batch_search]
    known = [record.created_utc for record in of_searches if batch_size.same_but_size(config, record)]
    found = []
    for record, path in tried:
        if not batch_size.same_but_size(config, record):
            continue
        if known and record.created_utc <= max(known):
            results.remove(path)
        else:
            found.append(record)
    return found


def _search(config: RunConfig, known: BatchSearch, executor: Executor, where: "Where", say: Say) -> Sized:
    """Search for one configuration. Each try is kept as soon as it exists."""

    def run(candidate: RunConfig) -> Record:
        marks = where.marks(candidate)
        say(f"{config.switched_label}: trying batch size {candidate.batch_size}")
        reports = executor.run(candidate, lambda _progress: None, None, marks)
        now = datetime.now(UTC)
        run_id = new_run_id(candidate.switched_label, now)
        record = assemble(candidate, reports, where.instance, run_id, now, None, marks, where.machine)
        if any(report.cause == "oom" for report in reports):
            record = record.model_copy(update={"cause": "oom"})
        results.write(record, where.results_dir / TRIES)
        return record

    return batch_size.search(config, known, run, say)


def blank_search(config: RunConfig) -> BatchSearch:
    """Return a search before its first try, with the memory that is free now."""
    memory = room_bytes(config.device, config.world_size // config.nodes, os.environ)
    return BatchSearch(memory_bytes=memory, headroom=batch_size.HEADROOM, tries=())

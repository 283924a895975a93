"""The records that a table will show, read whole: a search leaves samples out, and finds out too late that they are
broken.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fp8bench.records.broken import Broken
from fp8bench.records.results import Found, Kept, read_whole
from fp8bench.report.measurement import Measurement
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Shown:
    """records: all that were found, oldest first, but for those that turned out to be broken, without samples. broken:
    these and what the search had named.
    """

    records: tuple[Record, ...]
    broken: tuple[Broken, ...]
    _whole: dict[Path, Record]
    _paths: dict[str, Path]

    def whole(self, record: Record) -> Record:
        """One of those that are shown, with its samples."""
        return self._whole[self._paths[record.run_id]]


def read_shown(found: Found[Kept[Record]], choose: Callable[[list[Record]], Iterable[Measurement]]) -> Shown:
    """choose: which measurements are shown of some records, oldest first. Where a record of theirs is broken, another
    measurement may be the latest, and so they are chosen again without it.
    """
    paths = {record.run_id: path for record, path in found}
    left = {record.run_id: record for record, _ in found}
    broken = list(found.broken)
    whole: dict[Path, Record] = {}
    while True:
        wanted = [record.run_id for one in choose(list(left.values())) for record in one.rounds]
        unread = [run_id for run_id in wanted if paths[run_id] not in whole]
        read = {run_id: read_whole(paths[run_id]) for run_id in unread}
        for run_id, one in read.items():
            if isinstance(one, Broken):
                broken.append(one)
                del left[run_id]
            else:
                whole[paths[run_id]] = one
        if not any(isinstance(one, Broken) for one in read.values()):
            return Shown(tuple(left.values()), tuple(broken), whole, paths)

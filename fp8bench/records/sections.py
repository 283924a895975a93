"""Sections of records, read when they are asked for: a search leaves them out, and what is broken in them is found out
only then.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fp8bench.records.broken import Broken
from fp8bench.records.results import Found, Kept, read_whole
from fp8bench.schema.record import Record

Answer = TypeVar("Answer")


class _Unreadable(Exception):
    """A record that was asked for is broken where the search did not look."""

    def __init__(self, run_id: str, broken: Broken) -> None:
        super().__init__(run_id, broken)
        self.run_id, self.broken = run_id, broken


def ask(
    found: Found[Kept[Record]],
    told: Callable[[Sequence[Broken]], None],
    question: Callable[[list[Record], Callable[[Record], Record]], Answer],
) -> Answer:
    """The answer to a question about some records. question: takes them oldest first, without their sections, and a
    function that gives one of them whole. told: hears of what cannot be read, the search's own first.

    Where a record turns out to be broken, another may be the latest, and so the question is asked again without it.
    """
    told(found.broken)
    paths = {record.run_id: path for record, path in found}
    left = {record.run_id: record for record, _ in found}
    read: dict[str, Record] = {}

    def whole(record: Record) -> Record:
        if record.run_id not in read:
            one = read_whole(paths[record.run_id])
            if isinstance(one, Broken):
                raise _Unreadable(record.run_id, one)
            read[record.run_id] = one
        return read[record.run_id]

    while True:
        try:
            return question(list(left.values()), whole)
        except _Unreadable as unreadable:
            told([unreadable.broken])
            del left[unreadable.run_id]

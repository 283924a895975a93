"""The measurement that is explained if a mode is named: that of `compare`'s first row of the mode, so that the two
agree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.row import Row
from fp8bench.records.named import parse_reference
from fp8bench.records.select import Filter, latest_first, session, variant
from fp8bench.report.written import workers
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Choice:
    """The choice. record: the profiled round nearest the row's step time; a profile is of one round. is_first:
    whether the row is `compare`'s first of that mode; it is not if that one was recorded without a profile.
    """

    record: Record
    row: Row
    is_first: bool

    @property
    def sentence(self) -> str:
        row = self.row
        number = self.record.session.round if self.record.session else 1
        first = "" if self.is_first else "; `compare`'s first row of it was recorded without a profile"
        return (
            f"{row.variant_label} on {row.instance}: batch {row.batch_size} x {workers(row.world_size, row.device)}, "
            f"session {row.session_id or self.record.run_id}, profile of round {number}{first}"
        )


def choose(records: Sequence[Record], fitting: Sequence[Record], catalog: Catalog, today: date) -> Choice | None:
    """Choose a round. records: of one mode on one instance, of any status, oldest first. fitting: those that may make
    up the row. None if no fitting record was profiled.
    """
    fits = {record.run_id for record in Filter(status="ok").of(fitting)}
    rows = [row for row in _rows(records, catalog, today) if row.status == "ok" and row.run_id in fits]
    for row in rows:
        record = profiled((record for record in records if record.run_id in row.run_ids), row)
        if record is not None:
            return Choice(record, row, row is rows[0])
    for together in _older(fitting, records):
        # A mode that was invalid in any round of a session is invalid there too.
        row = _rows(together, catalog, today)[0]
        rounds = [record for record in together if record.run_id in row.run_ids]
        record = profiled(rounds, row) if row.status == "ok" else None
        if record is not None:
            return Choice(record, row, False)
    return None


def alone(record: Record, catalog: Catalog, today: date) -> Row:
    """Return the row that `compare --all` shows for a record."""
    return _rows([record], catalog, today)[0]


def _rows(records: Sequence[Record], catalog: Catalog, today: date) -> tuple[Row, ...]:
    instance = records[0].instance
    options = CompareOptions((instance,), today, parse_reference(None, [instance]), allow_mismatch=True)
    return compare(records, catalog, options).rows


def profiled(rounds: Iterable[Record], row: Row) -> Record | None:
    """Return the round that has a profile and is nearest the row's step time; None if no round has one."""

    def distance_s(record: Record) -> float:
        return abs((record.summary.step_time_s if record.summary else 0.0) - (row.step_time_s or 0.0))

    return min((record for record in rounds if record.profile is not None), key=distance_s, default=None)


def _older(fitting: Sequence[Record], records: Sequence[Record]) -> list[list[Record]]:
    """Return the rounds of each variant and session, latest first, each with what stopped in the session."""
    found = latest_first(Filter(status="ok").of(fitting), lambda record: (session(record), variant(record)))
    stopped = [record for record in records if record.status != "ok"]
    return [[*rounds, *(s for s in stopped if session(s) == session(rounds[0]))] for rounds in found]

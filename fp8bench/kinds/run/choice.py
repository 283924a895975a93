"""Which measurement is explained where a mode was named: that of `compare`'s first row of the mode, so that the two
agree; and whether a comparison shows a figure that is imported.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.row import Row
from fp8bench.records.named import parse_reference
from fp8bench.records.select import Filter, latest_first, select, session, variant
from fp8bench.schema.execution import suffix
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Choice:
    """record: the profiled round nearest the row's step time, whole; a profile is of one round. is_first: whether the
    row is `compare`'s first of that mode; it is not where that one was recorded without a profile.
    """

    record: Record
    row: Row
    is_first: bool

    @property
    def sentence(self) -> str:
        """Which it is."""
        row = self.row
        worker = "process" if row.device == "cpu" else "GPU"
        plural = "" if row.world_size == 1 else "es" if row.device == "cpu" else "s"
        number = self.record.session.round if self.record.session else 1
        first = "" if self.is_first else "; `compare`'s first row of it was recorded without a profile"
        return (
            f"{row.mode_label}{suffix(row.execution)} on {row.instance}: batch {row.batch_size} x {row.world_size} "
            f"{worker}{plural}, session {row.session_id or self.record.run_id}, profile of round {number}{first}"
        )


def choose(
    records: Sequence[Record],
    fitting: Sequence[Record],
    catalog: Catalog,
    today: date,
    whole: Callable[[Record], Record],
) -> Choice | None:
    """records: of one mode on one instance, of any status, oldest first, without their samples; `whole` gives one with
    them. fitting: those of which a row may be. None where none that fits was profiled.
    """
    fits = {record.run_id for record in Filter(status="ok").of(fitting)}
    rows = [row for row in _rows(records, catalog, today, whole) if row.status == "ok" and row.run_id in fits]
    for row in rows:
        record = _profiled([record for record in records if record.run_id in row.run_ids], row, whole)
        if record is not None:
            return Choice(record, row, row is rows[0])
    for together in _older(fitting, records):
        # What was invalid in any round of its session is invalid there too.
        row = _rows(together, catalog, today, whole)[0]
        rounds = [record for record in together if record.run_id in row.run_ids]
        record = _profiled(rounds, row, whole) if row.status == "ok" else None
        if record is not None:
            return Choice(record, row, False)
    return None


def alone(record: Record, catalog: Catalog, today: date) -> Row:
    """The row that `compare --all` shows of one record. record: whole."""
    return _rows([record], catalog, today, lambda one: one)[0]


def _rows(
    records: Sequence[Record], catalog: Catalog, today: date, whole: Callable[[Record], Record]
) -> tuple[Row, ...]:
    instance = records[0].instance
    options = CompareOptions((instance,), today, parse_reference(None, [instance]), allow_mismatch=True)
    return compare(records, catalog, options, whole).rows


def _profiled(rounds: Sequence[Record], row: Row, whole: Callable[[Record], Record]) -> Record | None:
    """Of those that have a profile the round nearest the row's step time."""
    found = [record for record in map(whole, rounds) if record.profile is not None]
    return min(found, key=lambda record: abs(_step_time_s(record) - (row.step_time_s or 0.0)), default=None)


def _older(fitting: Sequence[Record], records: Sequence[Record]) -> list[list[Record]]:
    """The rounds of each variant and session, latest first, each with what stopped in the session."""
    found = latest_first(Filter(status="ok").of(fitting), lambda record: (session(record), variant(record)))
    stopped = [record for record in records if record.status != "ok"]
    return [[*rounds, *(s for s in stopped if session(s) == session(rounds[0]))] for rounds in found]


def _step_time_s(record: Record) -> float:
    return record.summary.step_time_s if record.summary else 0.0


def notices(figure: Record, kept: Sequence[Record]) -> Iterator[str]:
    """A line for each thing that whoever imports it must know. kept: what the instance has besides, oldest first."""
    everything = sorted([*kept, figure], key=lambda record: record.created_utc)
    shown = {record.run_id: record for one in select(everything, every=False) for record in one.rounds}
    name = figure.instance
    if figure.run_id not in shown:
        measured = any(record.source == "measured" and record.status == "ok" for record in kept)
        why = (
            f"{name} has measured records, and a figure is shown only where there is none"
            if measured
            else "a later figure of the same mode, batch and GPUs is kept"
        )
        yield f"no table shows this figure: {why}. `fp8bench compare {name} --all --allow-mismatch` does"
        return
    before = [record for record in kept if record.source != "measured" and variant(record) == variant(figure)]
    if before:
        yield f"this figure replaces {before[-1].run_id}, which tables show with --all only"
    others = [record for record in shown.values() if record.status == "ok" and record.fingerprint != figure.fingerprint]
    if others:
        workload = figure.what.workload
        unlike = any(record.what.workload != workload for record in others)
        flag = f"--workload {workload}" if unlike else "--allow-mismatch"
        yield f"{name} has records of other work, with which it is not comparable: `compare` shows it with {flag}"

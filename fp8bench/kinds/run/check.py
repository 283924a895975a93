"""`check`: every variant of a reference compared with what was measured now. A variant is a row of `compare`, but for
its attention, which a library may change overnight; several attentions on both sides are compared each with itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import Field

from fp8bench.kinds.kind import Labelled
from fp8bench.kinds.run.compare import unlike_marks, unlike_work
from fp8bench.kinds.run.rounds import unit_time
from fp8bench.kinds.run.row import to_row
from fp8bench.kinds.run.sessions import Sides, ran
from fp8bench.records.select import Measurement, execution, grouped, not_comparable, planned, session, system, variants
from fp8bench.schema.errors import MeasurementInvalid, UsageError
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import COMES_WITH, HARDWARE, changes, checkout_of
from fp8bench.schema.record import Record
from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import (
    FEWEST_OF_REFERENCE,
    OF_REFERENCE,
    POOLED,
    over_nights,
    regression,
    rounds_to_find,
    smallest_found,
)
from fp8bench.tables.written import Interval, counted

Outcome = Literal["regression", "missing", "failed", "not comparable", "inconclusive", "ok", "new", "failed before"]
"""Outcomes in the order in which they are shown. regression, ok: the complete interval lies beyond, or within, what is
allowed. missing, failed: now it was not measured, or did not run. new: the reference does not have it. failed before:
it did not run in the reference either.
"""

REGRESSION_FOUND, UNDECIDED = 1, 6
"""Exit codes: a variant is bad; nothing is bad, and a variant could not be decided."""


class CheckedRow(Labelled, Frozen):
    """One variant, in the reference and now. SI units; a pair is a 95 % interval. change: our step time over the
    reference's, minus 1. smallest_found, rounds_to_find: as in `stats.ratio`. The names are the keys of json and csv,
    which have no te_switches.
    """

    instance: str
    mode: str
    recipe: str | None
    te_switches: str | None = Field(default=None, exclude=True)
    execution: Variant | None
    attention: str | None
    workload: str
    optimizer: str | None
    batch_size: int
    world_size: int
    outcome: Outcome
    reason: str | None = None
    change: float | None = None
    change_ci: Interval | None = None
    step_time_s: float | None = None
    step_time_ci_s: Interval | None = None
    throughput_per_s: float | None = None
    throughput_ci_per_s: Interval | None = None
    unit: str | None = None
    rounds: int = 0
    reference_step_time_s: float | None = None
    reference_step_time_ci_s: Interval | None = None
    reference_rounds: int = 0
    marks: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    reference_run_ids: tuple[str, ...] = ()
    smallest_found: float | None = None
    rounds_to_find: int | None = None


class Check(Frozen):
    """A check. max_regression: how much longer a step may take, as a share. strict: whether new variants fail too.
    reference: its name. under_test: versions that were allowed to differ and did, e.g. `torch 2.15.0 -> 2.16.0`.
    """

    max_regression: float
    strict: bool
    reference: str
    sessions: tuple[str, ...]
    rows: tuple[CheckedRow, ...]
    under_test: tuple[str, ...] = ()

    def of(self, *outcomes: Outcome) -> tuple[CheckedRow, ...]:
        return tuple(row for row in self.rows if row.outcome in outcomes)

    def fails(self, row: CheckedRow) -> bool:
        bad = ("regression", "missing", "failed", "not comparable", *(("new",) if self.strict else ()))
        return row.outcome in bad

    @property
    def exit_code(self) -> int:
        """1 if one fails; else 4 if one could not be compared; else 6 if one is open, or none was decided; else 0."""
        if any(self.fails(row) and row.outcome != "not comparable" for row in self.rows):
            return REGRESSION_FOUND
        if self.of("not comparable"):
            return MeasurementInvalid.exit_code
        return UNDECIDED if self.of("inconclusive") or not self.of("ok") else 0

    @property
    def plan_exit_code(self) -> int:
        """6 if a variant that ran on both sides has no interval, or if there is none; else 0."""
        ran = [row for row in self.rows if row.rounds and row.reference_rounds]
        return UNDECIDED if not ran or any(row.smallest_found is None for row in ran) else 0


def check(
    sides: Sides,
    max_regression: float,
    strict: bool = False,
    allow_mismatch: bool = False,
    under_test: Sequence[str] = (),
) -> Check:
    """Compare both sides. allow_mismatch: whether other work, machines and software are judged. under_test: software
    that may differ, with what comes with it. Raises UsageError if no record names it. The rest is as in `Check`.
    """
    there = sorted({name for one in (*sides.now, *sides.before) for name in one.software or ()} - {*HARDWARE})
    for name in under_test:
        if name not in there:
            what = f"--under-test {name!r} is in no record that is checked"
            raise UsageError(what, f"There are: {', '.join(there) or 'none'}")
    tested = tuple(dict.fromkeys(part for name in under_test for part in (name, *COMES_WITH.get(name, ()))))
    theirs = _one_each(sides)
    taken: set[str] = set()
    rows: list[CheckedRow] = []
    differed: dict[str, None] = {}
    for one in filter(ran, theirs):
        # What did not run stands for each variant that it might have become.
        left = [each for each in sides.now if each.latest.run_id not in taken or not ran(each)]
        like = _like(one.latest, left, theirs)
        if like is None:
            alike = [each.latest for each in sides.now if ran(each) and planned(each.latest) == planned(one.latest)]
            others = ", ".join(sorted({str(execution(record)) for record in alike}))
            instead = f"; its steps were executed as {others} instead" if alike else ""
            rows.append(_row(one.latest, "missing", f"not measured now{instead}", None, one))
            continue
        taken.add(like.latest.run_id)
        rows.append(_compared(like, one, sides, max_regression, allow_mismatch, tested))
        differed |= {text: None for name, text in changes(one.software, like.software).items() if name in tested}
    for each in (each for each in sides.now if each.latest.run_id not in taken):
        if ran(each):
            rows.append(_row(each.latest, "new", "not in the reference", each, None))
            continue
        again = any(not ran(one) and planned(one.latest) == planned(each.latest) for one in theirs)
        rows.append(_row(each.latest, "failed before" if again else "failed", _why_stopped(each.latest), None, None))
    order = get_args(Outcome)
    return Check(
        max_regression=max_regression,
        strict=strict,
        reference=sides.reference,
        sessions=tuple(dict.fromkeys(session(record) for one in sides.now for record in one.rounds)),
        rows=tuple(sorted(rows, key=lambda row: order.index(row.outcome))),
        under_test=tuple(differed),
    )


def _variant(record: Record) -> tuple[object, ...]:
    return planned(record), execution(record), record.attention


def _one_each(sides: Sides) -> list[Measurement]:
    """Return each variant of the reference once: of now's machine and software, else its machine, else the latest."""
    systems = {system(each.latest) for each in sides.now}
    machines = {machine for machine, *_ in systems}

    def nearness(one: Measurement) -> tuple[bool, bool, bool, datetime]:
        own = system(one.latest)
        return ran(one), own in systems, own[0] in machines, one.latest.created_utc

    groups = grouped(sides.before, lambda one: _variant(one.latest)).values()
    return [max(together, key=nearness) for together in groups]


def _like(record: Record, mine: Sequence[Measurement], theirs: Sequence[Measurement]) -> Measurement | None:
    """Return the variant now: of the same attention, else of one that no other variant has, else what did not run."""
    ran_as, known = execution(record), [_variant(other.latest) for other in theirs]
    alike = [each for each in mine if planned(each.latest) == planned(record)]
    fits = [each for each in alike if ran_as is None or ran_as in variants(each.latest)]
    same = [each for each in fits if ran(each) and each.latest.attention == record.attention]
    free = [each for each in fits if ran(each) and _variant(each.latest) not in known]
    return next(iter((*same, *free, *(each for each in fits if not ran(each)))), None)


def _on_nights(nights: Sequence[Measurement], wanted: Measurement) -> list[Estimate]:
    key = _variant(wanted.latest), system(wanted.latest)
    alike = (unit_time(one) for one in nights if (_variant(one.latest), system(one.latest)) == key)
    return [one.by_elapsed for one in alike if one is not None]


def _compared(
    mine: Measurement, one: Measurement, sides: Sides, allowed: float, allow_mismatch: bool, tested: Sequence[str]
) -> CheckedRow:
    ours, theirs = mine.latest, one.latest
    if not ran(mine):
        return _row(theirs, "failed", _why_stopped(ours), None, one)
    other_work = [
        f"unlike the reference in {name} ({ours.fingerprint.get(name)}, reference {theirs.fingerprint.get(name)})"
        for name in unlike_work(ours.fingerprint, theirs.fingerprint)
    ]
    unlike, changed = (*other_work, *unlike_marks(ours, theirs, allow_mismatch=True)), tuple(_changed(mine, one))
    # Another release of fp8bench is among the marks, and bars nothing: the method has a version of its own.
    if (other_work or not_comparable(ours, theirs, tested)) and not allow_mismatch:
        return _row(theirs, "not comparable", "; ".join(unlike), mine, one, changed)
    marks: tuple[str, ...] = (*unlike, *changed)
    nights = _on_nights(sides.nights, mine), _on_nights(sides.nights_before, one)
    found, reference = unit_time(mine), unit_time(one)
    if found is None or reference is None:
        return _row(theirs, "inconclusive", "there are no samples", mine, one, marks)
    judged = regression(found.by_elapsed, reference.by_elapsed, allowed)
    if len(nights[1]) >= FEWEST_OF_REFERENCE:
        judged = over_nights(*nights, allowed)
        counts = min(len(nights[0]), POOLED), min(len(nights[1]), OF_REFERENCE)
        marks += ("over {} beside {}".format(*(counted(count, "night") for count in counts)),)
    outcome, why = judged.judgement, judged.why
    if outcome != "inconclusive" and (found.uneven or reference.uneven):
        by_medians = regression(found.by_medians, reference.by_medians, allowed).judgement
        # Inconclusive medians contradict nothing.
        if by_medians not in (outcome, "inconclusive"):
            outcome, why = "inconclusive", f"{outcome} by elapsed time, {by_medians} by medians: slow steps decide"
    return _row(theirs, outcome, why, mine, one, marks).model_copy(
        update={
            "change": judged.value - 1,
            "change_ci": judged.interval and (judged.interval[0] - 1, judged.interval[1] - 1),
            "smallest_found": smallest_found(judged, allowed),
            "rounds_to_find": rounds_to_find(found.by_elapsed, reference.by_elapsed, allowed),
        }
    )


def _changed(mine: Measurement, one: Measurement) -> Iterator[str]:
    ours, theirs = mine.latest, one.latest
    if ours.attention != theirs.attention:
        yield f"attention {ours.attention}, reference {theirs.attention}"
    checkouts = checkout_of(ours.environment), checkout_of(theirs.environment)
    if None not in checkouts and checkouts[0] != checkouts[1]:
        yield f"fp8bench at commit {checkouts[0]}, reference at {checkouts[1]}"
    if ours.proof_version != theirs.proof_version:
        yield f"proved by the rules of version {ours.proof_version}, reference {theirs.proof_version}"
    if stopped := mine.stopped:
        yield f"{len(stopped)} of {len(mine.rounds) + len(stopped)} rounds {_why_stopped(stopped[-1])}"


def _why_stopped(record: Record) -> str:
    return f"{record.status}: {record.reason}"


def _row(
    record: Record,
    outcome: Outcome,
    reason: str | None,
    mine: Measurement | None,
    one: Measurement | None,
    marks: Iterable[str] = (),
) -> CheckedRow:
    fields: dict[str, Any] = {}
    for prefix, side in (("", mine), ("reference_", one)):
        if side is not None:
            row = to_row(side, Catalog(instances={}, gpus={}))
            timed = ("step_time_s", "step_time_ci_s") if row.times and ran(side) else ()
            rates = ("throughput_per_s", "throughput_ci_per_s", "unit") if timed and not prefix else ()
            fields |= {f"{prefix}{name}": getattr(row, name) for name in ("rounds", "run_ids", *timed, *rates)}
    return made_of(
        CheckedRow,
        record,
        record.what,
        execution=execution(record),
        attention=(mine.latest if mine else record).attention,
        optimizer=record.config.optimizer if record.config else None,
        outcome=outcome,
        reason=reason,
        marks=tuple(marks),
        **fields,
    )

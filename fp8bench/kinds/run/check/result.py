"""A check: every variant of a reference compared with what was measured now. Numbers only; `document` shows them,
`exports` writes them for other programs.

A variant is what `compare` shows as a row: instance, mode, recipe, execution, workload, batch, GPUs, optimizer and
source of data. The attention is not part of it: if a library uses another attention overnight, the variant changed and
is not a new one. If both sides measured several attentions, each is compared with the same one.

What `compare` does not compare (other work, another machine or other software) is not checked either, unless the user
requests it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal, get_args

from fp8bench.kinds.kind import Labelled
from fp8bench.kinds.run.likeness import likeness, unlike_work
from fp8bench.kinds.run.unit_cost import UnitTime, unit_time
from fp8bench.records.select import Key, Measurement, execution, planned, session, system, variants
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.machine import checkout_of
from fp8bench.schema.record import Record, not_comparable
from fp8bench.stats.power import rounds_to_find, smallest_found
from fp8bench.stats.ratio import regression
from fp8bench.tables.written import Interval

Outcome = Literal["regression", "missing", "failed", "not comparable", "inconclusive", "ok", "new", "failed before"]
"""Outcomes in the order in which they are shown.

regression: the complete interval lies beyond what is allowed
missing, failed: the reference has it, and now it was not measured, or did not run
not comparable: measured now on another machine, with other software, or of other work
inconclusive: the interval includes what is allowed, or there is one process on a side
ok: the complete interval lies within what is allowed
new: the reference does not have it
failed before: it did not run in the reference either
"""

ORDER: tuple[Outcome, ...] = get_args(Outcome)
BAD: frozenset[Outcome] = frozenset(("regression", "missing", "failed"))

REGRESSION_FOUND = 1
"""The exit code if a variant is bad."""

UNDECIDED = 6
"""The exit code if nothing is bad, and a variant could not be decided."""


class CheckedRow(Labelled, Frozen):
    """One variant, in the reference and now. SI units; a pair is a 95 % interval. change: our step time over the
    reference's, minus 1. smallest_found: the smallest change that would have been a regression. rounds_to_find: on
    either side, so that the interval reaches no further than the limit; both null if unknown. The names are the keys
    of `check --format json` and the columns of csv.
    """

    instance: str
    mode: str
    recipe: str | None
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
    reference: the name of what was compared with, for a reader. sessions: those that were checked.
    """

    max_regression: float
    strict: bool
    reference: str
    sessions: tuple[str, ...]
    rows: tuple[CheckedRow, ...]

    def of(self, *outcomes: Outcome) -> tuple[CheckedRow, ...]:
        return tuple(row for row in self.rows if row.outcome in outcomes)

    def fails(self, row: CheckedRow) -> bool:
        return row.outcome in BAD or row.outcome == "not comparable" or (self.strict and row.outcome == "new")

    @property
    def exit_code(self) -> int:
        """1 for a variant that is slower, missing or failed, or with `strict` new; else 4 if a variant could not be
        compared; else 6 if one is inconclusive, or if none was decided; else 0.
        """
        if any(self.fails(row) and row.outcome != "not comparable" for row in self.rows):
            return REGRESSION_FOUND
        if self.of("not comparable"):
            return MeasurementInvalid.exit_code
        return UNDECIDED if self.of("inconclusive") or not self.of("ok") else 0

    @property
    def plan_exit_code(self) -> int:
        """6 if a variant that ran on both sides has no interval, or if there is none, so that nothing can be planned;
        else 0.
        """
        ran = [row for row in self.rows if row.rounds and row.reference_rounds]
        return UNDECIDED if not ran or any(row.smallest_found is None for row in ran) else 0


@dataclass(frozen=True)
class CheckOptions:
    """The options of a check, as in `Check`. allow_mismatch: whether other work, machines and software are judged."""

    max_regression: float
    strict: bool = False
    allow_mismatch: bool = False


@dataclass(frozen=True, eq=False)
class Side:
    """A measurement, whose times are estimated once."""

    measurement: Measurement

    @property
    def latest(self) -> Record:
        """The latest record, which stands for all rounds in what does not differ between them."""
        return self.measurement.latest

    @property
    def ok(self) -> bool:
        return self.latest.status == "ok"

    @cached_property
    def found(self) -> UnitTime | None:
        """The times of a unit; None if there are no samples."""
        return unit_time(self.measurement) if self.ok else None

    @cached_property
    def step_time(self) -> "tuple[float, Interval | None] | None":
        """The step by elapsed time, in seconds, with its interval; None if there are no samples."""
        summary = self.latest.summary
        return self.found.step_time_s(summary.units_per_step) if self.found and summary else None


def check(now: Sequence[Measurement], before: Sequence[Measurement], options: CheckOptions, reference: str) -> Check:
    """Compare this session (now) with the reference (before), by complete records. reference: its name."""
    mine = list(map(Side, now))
    theirs = _one_each(list(map(Side, before)), mine)
    rows: list[CheckedRow] = []
    taken: list[Side] = []
    for one in theirs:
        if one.ok:
            like = _like(one, [each for each in mine if each not in taken or not each.ok], theirs)
            taken += [like] if like is not None else []
            rows.append(_compared(like, one, options) if like is not None else _missing(one, mine))
    rows += [_unmatched(each, theirs) for each in mine if each not in taken]
    return Check(
        max_regression=options.max_regression,
        strict=options.strict,
        reference=reference,
        sessions=tuple(dict.fromkeys(map(session, (record for one in now for record in one.rounds)))),
        rows=tuple(sorted(rows, key=lambda row: ORDER.index(row.outcome))),
    )


def _one_each(theirs: Sequence[Side], mine: Sequence[Side]) -> list[Side]:
    """Return one measurement for each variant of the reference. If it has several machines or softwares, choose the one
    like what was measured now, else one on its machine, else the latest.
    """
    systems = {system(each.latest) for each in mine}
    machines = {machine for machine, *_ in systems}

    def nearness(one: Side) -> tuple[bool, bool, bool, datetime]:
        own = system(one.latest)
        return one.ok, own in systems, own[0] in machines, one.latest.created_utc

    groups: dict[Key, list[Side]] = {}
    for one in theirs:
        variant = (planned(one.latest), execution(one.latest), one.latest.attention)
        groups.setdefault(variant, []).append(one)
    return [max(together, key=nearness) for together in groups.values()]


def _like(one: Side, mine: Sequence[Side], theirs: Sequence[Side]) -> Side | None:
    """Return what was measured now of the reference's variant: with the same attention if there is any, else with one
    that no other variant of the reference has. What did not run stands for each variant that it might have become.
    """
    ran_as = execution(one.latest)
    alike = [each for each in mine if planned(each.latest) == planned(one.latest)]
    fits = [each for each in alike if ran_as is None or ran_as in variants(each.latest)]
    same = [each for each in fits if each.ok and each.latest.attention == one.latest.attention]
    free = [each for each in fits if each.ok and not any(_same(each.latest, other.latest) for other in theirs)]
    stopped = [each for each in fits if not each.ok]
    return next(iter((*same, *free, *stopped)), None)


def _same(a: Record, b: Record) -> bool:
    """Return whether both are the same variant with the same attention."""
    return (planned(a), execution(a), a.attention) == (planned(b), execution(b), b.attention)


def _compared(mine: Side, one: Side, options: CheckOptions) -> CheckedRow:
    """Return the row of a variant of the reference with what was measured of it now."""
    if not mine.ok:
        return _row(one.latest, "failed", _why_stopped(mine.latest), None, one)
    unlike = (*_unlike_work(mine.latest, one.latest), *likeness(mine.latest, one.latest, allow_mismatch=True).marks)
    # Another release of fp8bench is among the marks, and bars nothing: the method has a version of its own.
    barred = _unlike_work(mine.latest, one.latest) or not_comparable(mine.latest, one.latest)
    if barred and not options.allow_mismatch:
        return _row(one.latest, "not comparable", "; ".join(unlike), mine, one, _changed(mine, one))
    marks = (*unlike, *_changed(mine, one))
    if mine.found is None or one.found is None:
        return _row(one.latest, "inconclusive", "there are no samples", mine, one, marks)
    return _judged(_row(one.latest, "ok", None, mine, one, marks), mine.found, one.found, options.max_regression)


def _judged(row: CheckedRow, found: UnitTime, reference: UnitTime, allowed: float) -> CheckedRow:
    judged = regression(found.by_elapsed, reference.by_elapsed, allowed)
    outcome, why = judged.judgement, judged.why
    if outcome != "inconclusive" and (found.uneven or reference.uneven):
        by_medians = regression(found.by_medians, reference.by_medians, allowed).judgement
        # Inconclusive medians contradict nothing.
        if by_medians not in (outcome, "inconclusive"):
            outcome, why = "inconclusive", f"{outcome} by elapsed time, {by_medians} by medians: slow steps decide"
    return row.model_copy(
        update={
            "outcome": outcome,
            "reason": why,
            "change": judged.value - 1,
            "change_ci": judged.interval and (judged.interval[0] - 1, judged.interval[1] - 1),
            "smallest_found": smallest_found(judged, allowed),
            "rounds_to_find": rounds_to_find(found.by_elapsed, reference.by_elapsed, allowed),
        }
    )


def _unlike_work(record: Record, reference: Record) -> list[str]:
    """Return what differs in the fingerprints, with both values."""
    mine, theirs = record.fingerprint, reference.fingerprint
    return [
        f"unlike the reference in {name} ({mine.get(name)}, reference {theirs.get(name)})"
        for name in unlike_work(mine, theirs)
    ]


def _changed(mine: Side, one: Side) -> list[str]:
    """Return the marks of a variant that ran."""
    marks = []
    if mine.latest.attention != one.latest.attention:
        marks.append(f"attention {mine.latest.attention}, reference {one.latest.attention}")
    checkouts = checkout_of(mine.latest.environment), checkout_of(one.latest.environment)
    if None not in checkouts and checkouts[0] != checkouts[1]:
        marks.append(f"fp8bench at commit {checkouts[0]}, reference at {checkouts[1]}")
    proofs = mine.latest.proof_version, one.latest.proof_version
    if proofs[0] != proofs[1]:
        marks.append(f"proved by the rules of version {proofs[0]}, reference {proofs[1]}")
    stopped = mine.measurement.stopped
    if stopped:
        every = len(mine.measurement.rounds) + len(stopped)
        marks.append(f"{len(stopped)} of {every} rounds {_why_stopped(stopped[-1])}")
    return marks


def _missing(one: Side, mine: Sequence[Side]) -> CheckedRow:
    """Return the row of a variant that was not measured, saying so if its mode was measured with another execution."""
    like = [each.latest for each in mine if each.ok and planned(each.latest) == planned(one.latest)]
    others = sorted({str(execution(record)) for record in like})
    instead = f"; its steps were executed as {', '.join(others)} instead" if others else ""
    return _row(one.latest, "missing", f"not measured now{instead}", None, one)


def _unmatched(mine: Side, theirs: Sequence[Side]) -> CheckedRow:
    """Return the row of a variant that the reference has no measurement of."""
    if mine.ok:
        return _row(mine.latest, "new", "not in the reference", mine, None)
    before = any(not one.ok and planned(one.latest) == planned(mine.latest) for one in theirs)
    return _row(mine.latest, "failed before" if before else "failed", _why_stopped(mine.latest), None, None)


def _why_stopped(record: Record) -> str:
    return f"{record.status}: {record.reason}"


def _row(
    record: Record,
    outcome: Outcome,
    reason: str | None,
    mine: Side | None,
    one: Side | None,
    marks: Sequence[str] = (),
) -> CheckedRow:
    """Return a row. record: defines the variant. mine, one: what was measured now, and in the reference."""
    summary = mine.latest.summary if mine is not None else None
    now, interval = (mine.step_time if mine is not None else None) or (None, None)
    then, then_interval = (one.step_time if one is not None else None) or (None, None)
    units = summary.units_per_step if summary else 0
    return made_of(
        CheckedRow,
        record,
        record.what,
        execution=execution(record),
        attention=(mine or one or Side(Measurement((record,)))).latest.attention,
        optimizer=record.config.optimizer if record.config else None,
        outcome=outcome,
        reason=reason,
        step_time_s=now,
        step_time_ci_s=interval,
        throughput_per_s=units / now if now else None,
        throughput_ci_per_s=(units / interval[1], units / interval[0]) if interval else None,
        unit=summary.unit if summary else None,
        rounds=len(mine.measurement.rounds) if mine else 0,
        reference_step_time_s=then,
        reference_step_time_ci_s=then_interval,
        reference_rounds=len(one.measurement.rounds) if one else 0,
        marks=tuple(marks),
        run_ids=tuple(each.run_id for each in mine.measurement.rounds) if mine else (),
        reference_run_ids=tuple(each.run_id for each in one.measurement.rounds) if one else (),
    )

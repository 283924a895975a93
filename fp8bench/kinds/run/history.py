"""What sessions took: `check --history` has a line for each night, and the night at which a variant changed; and where
the seconds of one session went, by phase and mode.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import get_args

from fp8bench.kinds.run.unit_cost import unit_time
from fp8bench.records.layout import RUN
from fp8bench.records.results import nothing_found
from fp8bench.records.select import Key, Measurement, execution, grouped, planned, session
from fp8bench.schema.execution import suffix
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import changes
from fp8bench.schema.record import Phase, Record
from fp8bench.stats.estimate import estimate
from fp8bench.stats.ratio import FEWEST_NIGHTS, changed_at, ratio
from fp8bench.tables import document as doc
from fp8bench.tables.written import Interval, change, number

WORDS: dict[Phase, str] = {
    "prepare": "fp8bench itself",
    "start": "start and imports",
    "warm_up": "warm-up and compile",
    "timed": "timed steps",
}
"""What phases are called in the table, where that is not their name."""


class Night(Frozen):
    """One session of a variant. step_time_s: seconds, its mean over the session's processes."""

    session: str
    created_utc: datetime
    step_time_s: float
    rounds: int


class History(Frozen):
    """A variant over nights, oldest first. changed_at: the session of the first night after a change. change: of the
    step time from then on, over that before, minus 1, with its 95 % interval over nights (None if one side has one
    night). versions: what else changed with it, e.g. `torch 2.15.0 -> 2.16.0`.
    """

    variant: str
    nights: tuple[Night, ...]
    changed_at: str | None = None
    change: float | None = None
    change_ci: Interval | None = None
    versions: tuple[str, ...] = ()


def histories(measured: Iterable[Measurement]) -> list[History]:
    """Return the history of each variant. measured: as `sides.by_session` returns it."""
    of_variant = grouped(measured, _variant)
    several = len({together[0].latest.what.workload for together in of_variant.values()}) > 1
    return [_history(together, several) for together in of_variant.values()]


def _variant(one: Measurement) -> Key:
    record = one.latest
    return record.instance, record.machine and record.machine.id, planned(record), execution(record)


def _history(together: Sequence[Measurement], several: bool) -> History:
    timed = [(one, time, one.latest.summary) for one in together if one.latest.summary and (time := unit_time(one))]
    nights = tuple(
        Night(
            session=session(one.latest),
            created_utc=one.rounds[0].created_utc,
            step_time_s=time.by_elapsed.value * summary.units_per_step,
            rounds=len(one.rounds),
        )
        for one, time, summary in timed
    )
    record, what = together[-1].latest, together[-1].latest.what
    of = f"{what.workload}, " if several else ""
    variant = f"{what.mode_label}{suffix(execution(record))}, {of}{what.batch_size} x {what.world_size}"
    means = [time.by_elapsed.value for _, time, _ in timed]
    place = changed_at([time.by_elapsed for _, time, _ in timed])
    if place is None:
        return History(variant=variant, nights=nights)
    compared = ratio(estimate(means[place:]), estimate(means[:place]))
    return History(
        variant=variant,
        nights=nights,
        changed_at=nights[place].session,
        change=compared.value - 1,
        change_ci=compared.interval and (compared.interval[0] - 1, compared.interval[1] - 1),
        versions=tuple(changes(timed[place - 1][0].software, timed[place][0].software).values()),
    )


def document(measured: Sequence[Measurement], results_dir: Path) -> doc.Document:
    """Return the document. Raises UsageError if nothing ran."""
    found = histories(measured)
    if not found:
        raise nothing_found("of any night", results_dir, "Run `fp8bench run` first, or name a folder", RUN)
    began = {night.session: night.created_utc for one in reversed(found) for night in one.nights}
    nights = sorted(began, key=lambda name: began[name])
    columns = [doc.Cells("night, UTC", tuple(f"{began[name]:%Y-%m-%d %H:%M}" for name in nights), "word")]
    for one in found:
        steps = {night.session: number(night.step_time_s, ".1f", 1e3) for night in one.nights}
        if one.changed_at is not None:
            steps[one.changed_at] = f"> {steps[one.changed_at]}"
        columns.append(doc.Cells(f"{one.variant}, ms", tuple(steps.get(name, doc.NOTHING) for name in nights)))
    return doc.Document(
        doc.blocks([doc.Table(tuple(columns))], [doc.Sentence(sentence(one)) for one in found]),
        data=[one.model_dump(mode="json") for one in found],
        lines=doc.CsvLines(
            ("variant", *Night.model_fields, "changed"),
            tuple(
                (one.variant, *night.model_dump(mode="json").values(), night.session == one.changed_at)
                for one in found
                for night in one.nights
            ),
        ),
    )


def sentence(history: History) -> str:
    """Return at which night the variant changed, and by how much, or that it did not."""
    night = next((one for one in history.nights if one.session == history.changed_at), None)
    if night is not None:
        why = f": {', '.join(history.versions)}" if history.versions else ""
        by = change(history.change, history.change_ci)
        return f"{history.variant} changed at {night.created_utc:%Y-%m-%d} (session {night.session}), by {by}{why}."
    count = len(history.nights)
    few = f", too few to tell: {FEWEST_NIGHTS} or more can" if count < FEWEST_NIGHTS else ""
    return f"{history.variant}: no change in {count} nights{few}."


def seconds(records: Sequence[Record]) -> list[doc.Part]:
    """Return a table with a line for each phase and a column for each mode, of all its rounds together. Records of
    older formats do not say; without any that does there is no table.
    """
    by_mode: dict[str, Counter[Phase]] = {}
    for record in records:
        if record.phases_s:
            by_mode.setdefault(record.what.mode_label, Counter()).update(record.phases_s)
    if not by_mode:
        return [doc.Note("The records of this session do not say where its seconds went.")]
    every = sum(by_mode.values(), Counter[Phase]())
    phases: list[Phase] = [phase for phase in get_args(Phase) if every[phase]]
    columns = [doc.Cells("phase", (*(WORDS.get(phase, phase) for phase in phases), "together"), "word")]
    for mode, sums in {**by_mode, **({"all": every} if len(by_mode) > 1 else {})}.items():
        shown = [*(sums[phase] for phase in phases), sum(sums.values())]
        columns.append(doc.Cells(f"{mode}, s", tuple(number(value or None, ".1f") for value in shown)))
    plain: list[doc.Emphasis] = [""] * len(phases)
    return [doc.Table(tuple(columns), emphasis=(*plain, "strong"))]

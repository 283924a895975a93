"""Where a step's time goes, for one mode or for two side by side, and why; and which measurement a mode's name means.

A step is what its kernels need, by purpose, and the device's idle time. Hidden communication is shown next to the step,
and is not part of it. With two modes, the last column is the first's time minus the second's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import NamedTuple

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.row import Row
from fp8bench.profiling.causes import (
    SMALLEST_S,
    Cause,
    across,
    explain,
    other_machine,
    replay_saves_at_most_s,
    same_mode,
)
from fp8bench.profiling.facts import ADVICE, PARTS, StepFacts, milliseconds
from fp8bench.records.named import parse_reference
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant, is_compiled, suffix
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.rank import Category, ExecutedEvidence
from fp8bench.schema.record import Record
from fp8bench.tables import document as doc
from fp8bench.tables.row_chart import Item, Stack, Stacks
from fp8bench.tables.written import counted, number, workers

LONGER_THAN_TIMED = 1.03
"""Busy over timed seconds from which the profile and the timed steps contradict each other: noise stays below."""

IDLE = "idle"
PICTURE = "steps"
"""The name of the figure."""

COLOURS = dict(
    zip(
        (*PARTS.values(), IDLE),
        (
            *("#0072b2", "#56b4e9", "#a6d8f5", "#009e73", "#d55e00", "#efe3a0", "#e69f00", "#cc79a7", "#4d2a6b"),
            *("#b0b0b0", "#f2f2f2"),
        ),
        strict=True,
    )
)
"""The colours of a step's parts. Idle time is nearly white, because nothing ran in it."""


class StepBreakdown(Frozen):
    """One mode's step, in seconds. The names are the keys of `explain --format json`. Null means unknown.

    by_category adds up to busy_s and, with idle_s, to step_time_s, except if the profiled steps were busy for longer
    than a timed step, when idle_s is 0. host_lead_s: how far the host is ahead of the GPU. executed: the proof of the
    execution. replay_saves_at_most_s: null if steps are replayed, or if the GPU does not wait for its host.
    """

    label: str
    source: str
    device: str
    instance: str | None
    workload: str | None
    batch_size: int | None
    world_size: int | None
    compile: bool | None
    execution: Variant | None
    executed: ExecutedEvidence | None
    step_time_s: float | None
    busy_s: float
    idle_s: float | None
    by_category: dict[Category, float]
    nccl_s: float
    nccl_overlapped_s: float
    host_lead_s: float | None
    replay_saves_at_most_s: float | None

    @property
    def length_s(self) -> float:
        """What shares refer to: the step or, if it was not timed, the busy time."""
        return max(self.busy_s, self.step_time_s or 0.0)

    def parts(self) -> list[tuple[str, float]]:
        """Return the names and seconds of the step's parts, without those of 0, in the order of PARTS, idle last."""
        found = [(name, self.by_category.get(category, 0.0)) for category, name in PARTS.items()]
        return [(name, seconds) for name, seconds in [*found, (IDLE, self.idle_s or 0.0)] if seconds > 0]


class Explained(Frozen):
    """The explanation. modes: the first is explained; the second, if any, is its reference."""

    modes: tuple[StepBreakdown, ...]
    cause: Cause
    sentence: str
    explained_s: dict[Cause, float]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def explain_steps(facts: StepFacts, reference: StepFacts | None) -> Explained:
    """Explain one or two steps. Raises UsageError if two are not comparable: no sentence about them would be true."""
    chosen, explanation = [facts], None
    if reference is not None:
        for field in ("workload", "batch_size", "device"):
            mine, theirs = getattr(facts, field), getattr(reference, field)
            if mine is not None and theirs is not None and mine != theirs:
                raise UsageError(
                    f"{facts.label} and {reference.label} are not comparable: "
                    f"{field.replace('_', ' ')} {mine} and {theirs}",
                    "Name two records of the same work on each device",
                )
        chosen = _distinct_labels(facts, reference)
        explanation = across(facts, reference, [one.label for one in chosen])
    if explanation is None:
        explanation = explain(chosen[0], chosen[1] if reference else None)
    unused = {name: [one.label for one in chosen if name in one.unused] for name in ADVICE}
    return Explained(
        modes=tuple(
            made_of(
                StepBreakdown,
                one,
                compile=None if one.execution is None else is_compiled(one.execution),
                by_category=one.profile.by_category,
                nccl_overlapped_s=one.profile.nccl_overlapped_s,
                replay_saves_at_most_s=replay_saves_at_most_s(one),
            )
            for one in chosen
        ),
        cause=explanation.cause,
        sentence=explanation.sentence,
        explained_s=explanation.explained_s,
        notes=(
            *(note for one in chosen if (note := _note(one))),
            *(f"{' and '.join(labels)}: {ADVICE[name]}" for name, labels in unused.items() if labels),
        ),
        warnings=tuple(_warnings(chosen)),
    )


def _distinct_labels(facts: StepFacts, reference: StepFacts) -> list[StepFacts]:
    # By mode, else also by execution, else by instance, else by run; two modes on two machines by both.
    both = [facts, reference]
    on_both = [f"{one.instance}:{one.label}{suffix(one.execution)}" for one in both]
    two_modes = other_machine(facts, reference) and not same_mode(facts, reference)
    namings = (
        *([on_both] if two_modes and facts.instance != reference.instance else []),
        [one.label for one in both],
        [one.label + suffix(one.execution) for one in both],
        [f"{one.instance}:{one.label}" if one.instance else one.label for one in both],
        [f"{one.label} ({one.source})" for one in both],
    )
    labels = next((labels for labels in namings if labels[0] != labels[1]), namings[0])
    return [replace(one, label=label) for one, label in zip(both, labels, strict=True)]


def _note(facts: StepFacts) -> str:
    said = ["each step was replayed as one CUDA graph, so that Python launched none of its kernels"] * bool(
        facts.replayed
    )
    if facts.executed:
        proof = facts.executed
        errors = {
            "loss": proof.loss_error,
            "gradients": proof.gradient_error,
            "weights' update": proof.update_error,
            "scales": proof.state_error,
        }
        found = ", ".join(f"{name} {error:.2g}" for name, error in errors.items() if error is not None)
        said.append(
            f"proved over {counted(proof.steps, 'step')} against the same steps plainly eager (relative errors: "
            f"{found or 'not finite'})"
        )
    return f"{facts.label}: {'; '.join(said)}" if said else ""


def _warnings(chosen: Sequence[StepFacts]) -> Iterator[str]:
    both = " and ".join(one.label for one in chosen)
    for field, name in (("instance", "instances"), ("world_size", "numbers of workers")):
        values = {getattr(one, field) for one in chosen}
        if None not in values and len(values) > 1:
            yield f"{both} ran with different {name}"
    executions = [one.execution for one in chosen if one.execution is not None]
    if len(set(executions)) > 1:
        yield f"{both} ran with different executions: {' and '.join(executions)}"
    for one in chosen:
        if one.step_time_s is not None and one.busy_s > one.step_time_s * LONGER_THAN_TIMED:
            yield (
                f"{one.label} was busy for {milliseconds(one.busy_s)} ms a step when profiled, and a timed step lasts "
                f"{milliseconds(one.step_time_s)}: its device was slower then, so its idle time is unknown"
            )


def lines(modes: Sequence[StepBreakdown]) -> dict[str, tuple[float | None, ...]]:
    """Return the seconds of each line of the table in each mode, None if unknown: parts that any mode has, the sums
    (that of the kernels for a step that was not timed), and hidden communication if there is any.
    """
    parts = [dict(mode.parts()) for mode in modes]
    shown = [name for name in PARTS.values() if any(name in of_mode for of_mode in parts)]
    found: dict[str, tuple[float | None, ...]] = {
        name: tuple(of_mode.get(name, 0.0) for of_mode in parts) for name in shown
    }
    if any(mode.step_time_s is None for mode in modes):
        found["busy"] = tuple(mode.busy_s for mode in modes)
    if any(mode.step_time_s is not None for mode in modes):
        found[IDLE] = tuple(mode.idle_s for mode in modes)
        found["step"] = tuple(mode.step_time_s for mode in modes)
    if any(mode.nccl_overlapped_s > 0 for mode in modes):
        found["communication, hidden"] = tuple(mode.nccl_overlapped_s for mode in modes)
    return found


def document(explained: Explained) -> doc.Document:
    """Return the document. Its data is the explanation, with every number unrounded."""
    shown = doc.blocks(
        [_table(explained)],
        [doc.Sentence(explained.sentence)],
        *([doc.Note(note)] for note in explained.notes),
        *([doc.Warned(warning)] for warning in explained.warnings),
    )
    return doc.Document(shown, data=explained, figures=(doc.Figure(PICTURE, step_bars(explained.modes).write),))


def _table(explained: Explained) -> doc.Table:
    shown = {name: s for name, s in lines(explained.modes).items() if max(one or 0.0 for one in s) >= SMALLEST_S}
    columns = [doc.Cells("part of a step", tuple(shown), "word")]
    for place, mode in enumerate(explained.modes):
        # A part that takes no time is not part of the step.
        times = doc.Rows([seconds[place] or None for seconds in shown.values()])
        columns.append(times.column(mode.label, lambda time: number(time, ".1f", 1e3), unit="ms"))
        shares = doc.Rows([time and time / mode.length_s for time in times.of])
        columns.append(shares.column("share", lambda share: number(share, ".1f", 100, " %")))
    if len(explained.modes) > 1:
        more = [None if None in s else (s[0] or 0.0) - (s[1] or 0.0) for s in shown.values()]
        none = [seconds is not None and abs(seconds) < SMALLEST_S for seconds in more]
        tones: tuple[doc.Tone, ...] = tuple(
            "" if same or not seconds else "bad" if seconds > 0 else "good"
            for seconds, same in zip(more, none, strict=True)
        )
        texts = ("0.0" if same else number(s, "+z.1f", 1e3) for s, same in zip(more, none, strict=True))
        columns.append(doc.Cells("difference", tuple(texts), unit="ms", tones=tones))
    emphasis: tuple[doc.Emphasis, ...] = tuple("strong" if name in ("busy", "step") else "" for name in shown)
    return doc.Table(tuple(columns), emphasis=emphasis)


def step_bars(modes: Sequence[StepBreakdown]) -> Stacks:
    """Return one bar for each mode. A step that was not timed ends where its kernels do."""
    stacks = []
    for mode in modes:
        detail = (mode.instance, mode.workload, f"batch {mode.batch_size}" if mode.batch_size else "")
        length = f"{(mode.step_time_s or mode.busy_s) * 1e3:.1f} ms"
        remark = "" if mode.step_time_s is not None else "of kernels"
        item = Item(None, mode.label, length, ", ".join(filter(None, detail)), remark)
        stacks.append(Stack(item, tuple((name, seconds * 1e3) for name, seconds in mode.parts())))
    caption = "By kind of kernel, from a short profile of rank 0 after the timed steps."
    title = "Where a step goes, ms"
    return Stacks(PICTURE, title, caption, tuple(stacks), tuple(COLOURS.items()), lambda ms: f"{ms:.1f}")


class Choice(NamedTuple):
    """The measurement that is explained if a mode is named: that of `compare`'s first row of the mode that has a
    profile. record: the profiled round nearest the row's step time.
    """

    record: Record
    row: Row

    @property
    def sentence(self) -> str:
        row = self.row
        number = self.record.session.round if self.record.session else 1
        return (
            f"{row.variant_label} on {row.instance}: batch {row.batch_size} x {workers(row.world_size, row.device)}, "
            f"session {row.session_id or self.record.run_id}, profile of round {number}"
        )


def choose(records: Sequence[Record], fitting: Sequence[Record], catalog: Catalog, today: date) -> Choice | None:
    """Choose a round. records: of one mode on one instance, of any status, oldest first. fitting: those that may make
    up the row. None if no row of a fitting record was profiled.
    """
    fits = {record.run_id for record in fitting}
    for row in _rows(records, catalog, today):
        record = profiled((record for record in records if record.run_id in row.run_ids), row)
        if row.status == "ok" and row.run_id in fits and record is not None:
            return Choice(record, row)
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

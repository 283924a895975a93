"""Where a step's time goes, for one mode or for two side by side, and why. Numbers only; `document` shows them.

A step is what its kernels need, by purpose, and the device's idle time. Communication counts if no other kernel hides
it; hidden communication is shown next to the step, and is not part of it.
"""

from collections.abc import Sequence
from dataclasses import replace

from fp8bench.kinds.run.explain.across import across, other_machine, same_mode
from fp8bench.profiling.causes import Cause, explain, replay_saves_at_most_s
from fp8bench.profiling.facts import StepFacts, milliseconds
from fp8bench.profiling.unused import ADVICE
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant, is_compiled, suffix
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.rank import Category, ExecutedEvidence
from fp8bench.tables.written import counted

PARTS: dict[Category, str] = {
    "gemm_fp8": "GEMMs, fp8",
    "gemm_bf16": "GEMMs, 16 bit",
    "gemm_fp32": "GEMMs, fp32",
    "attention": "attention",
    "cast": "casts and scales",
    "elementwise": "norms, activations, sums",
    "copy": "copies",
    "optimizer": "optimizer",
    "nccl": "communication, exposed",
    "other": "other",
}
"""Names of categories for readers, in the order of table and plot."""

LONGER_THAN_TIMED = 1.03
"""Busy over timed seconds from which the profile and the timed steps contradict each other: noise stays below."""

IDLE = "idle"
STEP = "step"
BUSY = "busy"
HIDDEN = "communication, hidden"


class StepBreakdown(Frozen):
    """One mode's step, in seconds. The names are the keys of `explain --format json`. Null means unknown.

    by_category adds up to busy_s and, with idle_s, to step_time_s, except if the profiled steps were busy for longer
    than a timed step, when idle_s is 0. host_lead_s: how far the host is ahead of the GPU. execution: how the steps
    were executed. executed: the proof of that. replay_saves_at_most_s: null if each step is already replayed, or if the
    GPU does not wait for its host.
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
        """The length that shares refer to: the step or, if it was not timed, the busy time."""
        return max(self.busy_s, self.step_time_s or 0.0)

    def parts(self) -> list[tuple[str, float]]:
        """Return the names and seconds of the step's parts, without those of 0, in the order of PARTS, idle last."""
        found = [(name, self.by_category.get(category, 0.0)) for category, name in PARTS.items()]
        return [(name, seconds) for name, seconds in [*found, (IDLE, self.idle_s or 0.0)] if seconds > 0]


class Explained(Frozen):
    """The explanation. modes: the first is explained; the second, if any, is its reference. notes: how each was
    executed, how far that was proved, and what it left unused.
    """

    modes: tuple[StepBreakdown, ...]
    cause: Cause
    sentence: str
    explained_s: dict[Cause, float]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class PartTimes(Frozen):
    """One line of the table: seconds in each mode; None is unknown. total: whether it sums the lines above it."""

    name: str
    seconds: tuple[float | None, ...]
    total: bool = False


def explain_steps(facts: StepFacts, reference: StepFacts | None) -> Explained:
    """Explain one or two steps. Raises UsageError if two are not comparable: no sentence about them would be true."""
    if reference is None:
        chosen = [facts]
    else:
        _require_like_work(facts, reference)
        chosen = _distinct_labels(facts, reference)
    explanation = None
    if reference is not None:
        explanation = across(facts, reference, [one.label for one in chosen], PARTS)
    if explanation is None:
        explanation = explain(chosen[0], chosen[1] if reference else None)
    return Explained(
        modes=tuple(_breakdown(one) for one in chosen),
        cause=explanation.cause,
        sentence=explanation.sentence,
        explained_s=explanation.explained_s,
        notes=(*(note for one in chosen if (note := _note(one))), *_advice(chosen)),
        warnings=tuple(_warnings(chosen)),
    )


def lines(modes: Sequence[StepBreakdown]) -> list[PartTimes]:
    """Return the table's lines: parts that any mode has, then the sums, then hidden communication if there is any.

    A step that was not timed has no length and no idle time, only kernels, whose sum is then shown.
    """
    found = [dict(mode.parts()) for mode in modes]
    shown = [name for name in PARTS.values() if any(name in parts for parts in found)]
    table = [PartTimes(name=name, seconds=tuple(parts.get(name, 0.0) for parts in found)) for name in shown]
    if any(mode.step_time_s is None for mode in modes):
        table.append(PartTimes(name=BUSY, seconds=tuple(mode.busy_s for mode in modes), total=True))
    if any(mode.step_time_s is not None for mode in modes):
        table.append(PartTimes(name=IDLE, seconds=tuple(mode.idle_s for mode in modes)))
        table.append(PartTimes(name=STEP, seconds=tuple(mode.step_time_s for mode in modes), total=True))
    if any(mode.nccl_overlapped_s > 0 for mode in modes):
        table.append(PartTimes(name=HIDDEN, seconds=tuple(mode.nccl_overlapped_s for mode in modes)))
    return table


def _require_like_work(facts: StepFacts, reference: StepFacts) -> None:
    for field in ("workload", "batch_size", "device"):
        mine, theirs = getattr(facts, field), getattr(reference, field)
        if mine is not None and theirs is not None and mine != theirs:
            raise UsageError(
                f"{facts.label} and {reference.label} are not comparable: "
                f"{field.replace('_', ' ')} {mine} and {theirs}",
                "Name two records of the same work on each device",
            )


def _distinct_labels(facts: StepFacts, reference: StepFacts) -> list[StepFacts]:
    """Return the steps with labels that differ: by mode, else also by execution, else by instance, else by run. Two
    modes on two machines are labelled with both.
    """
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


def _breakdown(facts: StepFacts) -> StepBreakdown:
    return made_of(
        StepBreakdown,
        facts,
        compile=None if facts.execution is None else is_compiled(facts.execution),
        by_category=facts.profile.by_category,
        nccl_overlapped_s=facts.profile.nccl_overlapped_s,
        replay_saves_at_most_s=replay_saves_at_most_s(facts),
    )


def _note(facts: StepFacts) -> str:
    """Return how the steps were executed if they were replayed, and what their proof says; empty for neither."""
    replayed = "each step was replayed as one CUDA graph, so that Python launched none of its kernels"
    said = [*([replayed] if facts.replayed else []), *([_proof(facts.executed)] if facts.executed else [])]
    return f"{facts.label}: {'; '.join(said)}" if said else ""


def _advice(chosen: Sequence[StepFacts]) -> list[str]:
    """Return a sentence for every switch that would only have gained, with the modes that left it off."""
    left = {name: [one.label for one in chosen if name in one.unused] for name in ADVICE}
    return [f"{' and '.join(labels)}: {ADVICE[name]}" for name, labels in left.items() if labels]


def _proof(executed: ExecutedEvidence) -> str:
    errors = {
        "loss": executed.loss_error,
        "gradients": executed.gradient_error,
        "weights' update": executed.update_error,
        "scales": executed.state_error,
    }
    found = ", ".join(f"{name} {error:.2g}" for name, error in errors.items() if error is not None)
    steps = counted(executed.steps, "step")
    return f"proved over {steps} against the same steps plainly eager (relative errors: {found or 'not finite'})"


def _warnings(chosen: Sequence[StepFacts]) -> list[str]:
    """Warn of what makes the two less alike than they seem, and if a profile contradicts its timed steps."""
    both = " and ".join(one.label for one in chosen)
    warnings = []
    for name, values in (
        ("instances", [one.instance for one in chosen]),
        ("numbers of workers", [one.world_size for one in chosen]),
    ):
        if None not in values and len(set(values)) > 1:
            warnings.append(f"{both} ran with different {name}")
    executions = [one.execution for one in chosen if one.execution is not None]
    if len(set(executions)) > 1:
        warnings.append(f"{both} ran with different executions: {' and '.join(executions)}")
    for one in chosen:
        if one.step_time_s is not None and one.busy_s > one.step_time_s * LONGER_THAN_TIMED:
            warnings.append(
                f"{one.label} was busy for {milliseconds(one.busy_s)} ms a step when profiled, and a timed step lasts "
                f"{milliseconds(one.step_time_s)}: its device was slower then, so its idle time is unknown"
            )
    return warnings

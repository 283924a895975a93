"""Where a step's time goes, for one mode or two side by side, and why. Hidden communication is no part of the step."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from fp8bench.kinds.run.row import Row
from fp8bench.profiling import causes
from fp8bench.profiling.causes import ADVICE, IDLE, PARTS, SMALLEST_S, Cause, StepFacts, ms
from fp8bench.profiling.floor import Floor
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import executed, suffix
from fp8bench.schema.record import Record
from fp8bench.stats.estimate import over_common_rounds
from fp8bench.tables import document as doc
from fp8bench.tables.row_chart import Bar, Bars
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import counted

PICTURE = "steps"
"""The name of the figure."""

HUES = "#0072b2 #56b4e9 #a6d8f5 #009e73 #d55e00 #efe3a0 #e69f00 #cc79a7 #4d2a6b #b0b0b0 #f2f2f2"
COLOURS = dict(zip((*PARTS.values(), IDLE), HUES.split(), strict=True))
"""The colours of a step's parts. Idle time is nearly white, because nothing ran in it."""

KEYS = (
    *("label", "source", "device", "instance", "workload", "batch_size", "world_size", "compile", "execution"),
    *("executed", "step_time_s", "profile.busy_s", "idle_s", "profile.by_category", "profile.nccl_s"),
    *("profile.nccl_overlapped_s", "host_lead_s", "replay_saves_at_most_s"),
)
"""What `explain --format json` has of each step, under the last part of the name. profile.by_category adds up to busy_s
and, with idle_s, to step_time_s, except if the profiled steps were busy for longer than a timed step.
"""


class Explained(NamedTuple):
    """The explanation. modes: the first is explained; the second, if any, is its reference."""

    modes: tuple[StepFacts, ...]
    cause: Cause
    sentence: str
    explained_s: dict[Cause, float]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def explain_steps(facts: StepFacts, reference: StepFacts | None, common: Collection[int] = ()) -> Explained:
    """Explain one or two steps. common: batch sizes at which both can be explained. Raises UsageError if two are not
    comparable: no sentence about them would be true.
    """
    modes, explanation = [facts], None
    if reference is not None:
        # The step times that `compare` compares.
        mine, theirs = over_common_rounds(facts.unit_time, reference.unit_time)
        facts = replace(facts, step_time_s=facts.step_time_s * mine)
        reference = replace(reference, step_time_s=reference.step_time_s * theirs)
        modes = _distinct_labels(facts, reference)
        for field in ("workload", "batch_size", "device"):
            here, there = getattr(facts, field), getattr(reference, field)
            if here != there:
                both = " and ".join(mode.label for mode in modes)
                remedy = "Name two records of the same work on each device, or give --workload and --batch-size"
                if field == "batch_size" and common:
                    remedy = f"Give --batch-size {max(common)}, which both have"
                what = f"{both} are not comparable: {field.replace('_', ' ')} {here} and {there}"
                raise UsageError(what, remedy)
        explanation = causes.across(facts, reference, [mode.label for mode in modes])
    unused = {name: [mode.label for mode in modes if name in mode.unused] for name in ADVICE}
    advice = (f"{' and '.join(labels)}: {ADVICE[name]}" for name, labels in unused.items() if labels)
    return Explained(
        tuple(modes),
        *(explanation or causes.explain(modes[0], modes[1] if reference else None)),
        notes=(*filter(None, map(_note, modes)), *advice),
        warnings=tuple(_warnings(modes)),
    )


def _distinct_labels(facts: StepFacts, reference: StepFacts) -> list[StepFacts]:
    # By mode, else also by execution, else by instance, else by run; two modes on two machines by both.
    forms: list[Callable[[StepFacts], str]] = [
        lambda mode: mode.label,
        lambda mode: mode.label + suffix(mode.execution),
        lambda mode: f"{mode.instance}:{mode.label}",
        lambda mode: f"{mode.label} ({mode.source})",
    ]
    if causes.two_machines(facts, reference) == "mode and machine" and facts.instance != reference.instance:
        forms = [lambda mode: f"{mode.instance}:{mode.label}{suffix(mode.execution)}"]
    write = next((form for form in forms if form(facts) != form(reference)), forms[0])
    return [replace(mode, label=write(mode)) for mode in (facts, reference)]


def _note(mode: StepFacts) -> str:
    said = []
    if mode.replayed:
        said.append("each step was replayed as one CUDA graph, so that Python launched none of its kernels")
    if proof := mode.executed:
        names = {"loss": "loss", "gradient": "gradients", "update": "weights' update", "state": "scales"}
        errors = {name: getattr(proof, f"{field}_error") for field, name in names.items()}
        found = ", ".join(f"{name} {error:.2g}" for name, error in errors.items() if error is not None)
        beside = f"proved over {counted(proof.steps, 'step')} against the same steps plainly eager"
        said.append(f"{beside} (relative errors: {found or 'not finite'})")
    return f"{mode.label}: {'; '.join(said)}" if said else ""


def _warnings(modes: Sequence[StepFacts]) -> Iterator[str]:
    both = " and ".join(mode.label for mode in modes)
    if len({mode.instance for mode in modes}) > 1:
        yield f"{both} ran with different instances"
    if len({mode.world_size for mode in modes}) > 1:
        yield f"{both} ran with different numbers of workers"
    executions = [mode.execution for mode in modes if mode.execution is not None]
    if len(set(executions)) > 1:
        yield f"{both} ran with different executions: {' and '.join(executions)}"
    for mode in modes:
        # Noise stays below that.
        if mode.profile.busy_s > mode.step_time_s * 1.03:
            yield (
                f"{mode.label} was busy for {ms(mode.profile.busy_s)} ms a step when profiled, and a timed step lasts "
                f"{ms(mode.step_time_s)}: its device was slower then, so its idle time is unknown"
            )


def document(explained: Explained, floor: bool = False) -> doc.Document:
    """Return the document of an explanation, with every number unrounded. floor: with how far each part could go.
    Raises UsageError if that is unknown.
    """
    first = explained.modes[0]
    left = first.floor if floor else None
    if floor and left is None:
        remedy = "Measure with `fp8bench run --floor`, in fp8 or 16 bits, without --tensor-parallel"
        raise UsageError(f"{first.label} has no floor: its record has no ceilings of its GPU", remedy)
    told: list[doc.Part] = [*map(doc.Note, explained.notes), *map(doc.Warned, explained.warnings)]
    if left is not None:
        most = f"At most {first.step_time_s / left.total_s:.2f}x is left on this machine: its floors add up to "
        sums = f"{ms(left.total_s)} of {ms(first.step_time_s)} ms. "
        tries = f"Three tries of each differed by {left.spread * 100:.1f} %."
        told = [doc.Sentence(most + sums + tries), *told, *map(doc.Warned, left.beaten(first.profile))]
    parts = (_table(explained.modes, left), doc.Sentence(explained.sentence), *told)
    shown = doc.blocks(*([part] for part in parts))
    modes = [{key.rpartition(".")[2]: attrgetter(key)(mode) for key in KEYS} for mode in explained.modes]
    data = {**explained._asdict(), "modes": modes}
    if left is not None:
        data |= {"floor_s": dict(left.parts), "left_at_most": first.step_time_s / left.total_s}
    return doc.Document(shown, data=data, figures={PICTURE: step_bars(explained.modes).write})


def _lowered_by(mode: StepFacts) -> dict[str, str]:
    """Return, by part, the option that lowers it and is not in use."""
    on_gpu = mode.device == "cuda"
    found = {
        PARTS["gemm_bf16"]: ("--mode te-fp8", on_gpu and not mode.fp8),
        PARTS["cast"]: ("--batch-size, larger", mode.fp8),
        PARTS["elementwise"]: ("--compile on", not mode.compile),
        PARTS["copy"]: ("--te-switch split-qkv", "split-qkv" in mode.unused),
        PARTS["optimizer"]: ("--grad-accumulation", True),
        PARTS["nccl"]: ("--grad-accumulation", True),
        IDLE: ("--cuda-graphs on", on_gpu and not mode.replayed),
    }
    return {part: option for part, (option, is_one) in found.items() if is_one}


def _table(modes: Sequence[StepFacts], floor: Floor | None = None) -> doc.Table:
    """Return the parts that any mode has, idle time, the sum, and hidden communication if there is any. floor: of the
    first mode.
    """
    hidden = "communication, hidden"
    every = [{**dict(one.parts()), "step": one.step_time_s, hidden: one.profile.nccl_overlapped_s} for one in modes]
    order = (*PARTS.values(), IDLE, "step", hidden)
    shown = [name for name in order if max(of.get(name, 0.0) for of in every) >= SMALLEST_S]
    ms_of = partial(Column[str], format=".1f", unit="ms", scale=1e3)
    columns: list[Column[str]] = [word("part of a step", str)]
    for mode, of in zip(modes, every, strict=True):
        # A part that takes no time is not part of the step.
        times = {name: seconds for name, seconds in of.items() if seconds}
        shares = {name: seconds / mode.length_s for name, seconds in times.items()}
        columns += [ms_of(mode.label, times.get), Column("share", shares.get, ".1f", scale=100, after=" %")]
    if len(modes) > 1:
        longer = {name: every[0].get(name, 0.0) - every[1].get(name, 0.0) for name in shown}

        def tone(name: str) -> doc.Tone:
            return "" if abs(longer[name]) < SMALLEST_S else "bad" if longer[name] > 0 else "good"

        columns.append(ms_of("difference", longer.get, format="+z.1f", tone=tone))
    if floor is not None:
        least = {PARTS[part]: seconds for part, seconds in floor.parts.items()} | {"step": floor.total_s}
        above = {name: every[0].get(name, 0.0) - least.get(name, 0.0) for name in shown if name != hidden}
        columns += [ms_of("floor", least.get), ms_of("above", above.get), word("lowered by", _lowered_by(modes[0]).get)]
    return table_of(columns, shown, emphasis=lambda name: "strong" if name == "step" else "")


def step_bars(modes: Sequence[StepFacts]) -> Bars:
    bars = []
    for mode in modes:
        words = (mode.instance, mode.workload, executed(mode.execution), f"batch {mode.batch_size}")
        detail = ", ".join(filter(None, words))
        parts = tuple((name, seconds * 1e3) for name, seconds in mode.parts())
        bars.append(Bar(None, mode.label, f"{ms(mode.step_time_s)} ms", detail, parts=parts))
    caption = "By kind of kernel, from a short profile of rank 0 after the timed steps."
    return Bars(PICTURE, "Where a step goes, ms", caption, bars, COLOURS, write_part="{:.1f}".format)


def profiled(row: Row) -> Record | None:
    """Return the round that has a profile and is nearest the row's step time; None if no round has one."""
    known, step_s = (one for one in row.measurement.rounds if one.profile is not None), row.step_time_s or 0.0
    return min(known, key=lambda one: abs((one.summary.step_time_s if one.summary else 0.0) - step_s), default=None)

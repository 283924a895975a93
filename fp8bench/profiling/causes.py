"""What a mode's step spends its time on, by its record; and for two steps, in one sentence with figures: on one machine
why a mode is not faster than another, on two what differs. The cause is the part of a step that grew most, or the gain
that failed to come where that costs more. This is an account of times, not of deeper causes: removing the named
obstacle may reveal another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fp8bench.profiling.floor import Floor, floor_of
from fp8bench.registry import switches_of
from fp8bench.schema.execution import Variant, is_compiled, is_replayed
from fp8bench.schema.machine import release
from fp8bench.schema.rank import GEMMS, Category, ExecutedEvidence, Profile, starved
from fp8bench.schema.record import Record
from fp8bench.schema.switches import ONLY_GAIN, split
from fp8bench.stats.certainty import NOISE
from fp8bench.stats.estimate import Estimate

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
"""Names of categories for readers, in the order of tables and plots."""

IDLE = "idle"

# A sentence for each of ONLY_GAIN; figures as in docs/models.md.
ADVICE = {
    "split-qkv": "`--te-switch split-qkv` avoids three copies of the gradient of queries, keys and values. ViT-Huge at "
    "batch 64 on an H200 took 90.8 ms a step with it and 100.5 without, in te-fp8."
}


@dataclass(frozen=True)
class StepFacts:
    """Seconds per step, on rank 0's device. A None is unknown. source: the run's id. step_time_s: timed without a
    profiler. host_lead_s: how far the host is ahead of the GPU. data_wait_s: how long the host waited for a batch. fp8:
    whether it is an fp8 mode. not_replayed: why each step was not one CUDA graph. executed: proof of execution. unused:
    switches that would only have gained. unit_time: over the processes whose mean step_time_s is; None: of one.
    """

    label: str
    profile: Profile
    step_time_s: float
    source: str
    fp8: bool
    instance: str
    workload: str
    batch_size: int
    world_size: int
    device_name: str | None = None
    execution: Variant | None = None
    not_replayed: str | None = None
    executed: ExecutedEvidence | None = None
    unused: tuple[str, ...] = ()
    emulated: bool = False
    host_lead_s: float | None = None
    data_wait_s: float | None = None
    sm_clock_mhz: float | None = None
    flags: tuple[str, ...] = ()
    floor: Floor | None = None
    unit_time: Estimate | None = None

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        return self.profile.device

    @property
    def compile(self) -> bool | None:
        return None if self.execution is None else is_compiled(self.execution)

    @property
    def replayed(self) -> bool:
        return self.execution is not None and is_replayed(self.execution)

    @property
    def length_s(self) -> float:
        """What shares refer to: a profiled step may be busy for longer than a timed one lasts."""
        return max(self.profile.busy_s, self.step_time_s)

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran, never negative."""
        return max(0.0, self.step_time_s - self.profile.busy_s)

    @property
    def host_bound(self) -> bool | None:
        """Whether the GPU waits for the host, by its idle time; None on a CPU."""
        return starved(self.profile.idle_share(self.step_time_s))

    @property
    def idle_for_data_s(self) -> float:
        """Idle time in which the host waits for a batch. A wait while the GPU is busy is free."""
        return 0.0 if self.host_bound is False else min(self.idle_s, self.data_wait_s or 0.0)

    @property
    def idle_otherwise_s(self) -> float:
        return self.idle_s - self.idle_for_data_s

    @property
    def replay_saves_at_most_s(self) -> float | None:
        """What a replay could save; None if the step is replayed, its GPU does not wait for its host, or unknown."""
        if self.replayed or not self.host_bound:
            return None
        # The time that NCCL's kernels spin while no work comes ends with the wait.
        return self.idle_otherwise_s + self.seconds("nccl")

    def seconds(self, *categories: Category) -> float:
        return self.profile.seconds(*categories)

    def parts(self) -> list[tuple[str, float]]:
        """Return the names and seconds of the step's parts, without those of 0, in the order of PARTS, idle last."""
        found = [*((name, self.seconds(category)) for category, name in PARTS.items()), (IDLE, self.idle_s)]
        return [(name, seconds) for name, seconds in found if seconds > 0]


def facts_of(record: Record, step_time_s: float | None = None, unit_time: Estimate | None = None) -> StepFacts:
    """Return the facts of an ok record with a profile; others raise ValueError. step_time_s: if not the summary's."""
    summary, profile, config, evidence = record.summary, record.profile, record.config, record.evidence
    if summary is None or profile is None or config is None:
        raise ValueError("only an ok record of a measurement that has a profile can be explained")
    data_wait_s = summary.data_wait_s
    if data_wait_s is None and summary.data_wait_share is not None:
        data_wait_s = summary.data_wait_share * summary.step_time_s
    versions = record.environment.versions if record.environment else {}
    # From this Transformer Engine on, attention is passed one packed tensor (`modes.te_gpt`).
    packed = release(versions.get("transformer-engine") or "") >= (2, 19)
    eager = record.execution is not None and not is_compiled(record.execution)
    helped = eager and packed and (record.attention or "").startswith("te:")
    taken = switches_of(config.workload) if helped else ()
    parts = (record, config, evidence, summary)
    same = {name: getattr(one, name) for one in parts for name in StepFacts.__annotations__ if hasattr(one, name)}
    ceilings, sharded = record.ceilings, (record.joined or "").startswith("fsdp")
    own = {
        "label": config.switched_label,
        "source": record.run_id,
        "step_time_s": step_time_s or summary.step_time_s,
        "unit_time": unit_time,
        "fp8": bool(evidence and evidence.fp8) or profile.has_fp8_gemm,
        "data_wait_s": data_wait_s,
        # In a compiled run they do nothing.
        "unused": tuple(name for name in ONLY_GAIN if name in taken and name not in split(config.te_switches)),
        "floor": ceilings and floor_of(ceilings, config, bool(evidence and evidence.fp8), sharded),
    }
    return StepFacts(**{**same, **own})


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


Wait = Literal["host-bound", "loader-bound", "communication-bound"]
Grown = Literal["copies", "norms and sums", "attention", "optimizer", "GEMMs", "gaps between kernels", "other kernels"]
Gain = Literal["casts eat the gain", "shapes too small", "attention dominates", "no fp8 kernels", "emulated"]
# `another machine` and `mode and machine` explain nothing: they mean that no mode can.
Cause = Wait | Grown | Gain | Literal["throttled", "faster", "another machine", "mode and machine", "none"]

# Our choices. The share of a step below which no cause is named, because processes of a mode differ by 1 to 2 %; of the
# busy time from which attention may dominate; of the reference's clock above which the difference is usual at a power
# limit; and of the difference of two machines' steps from which a part is named:
NOTICEABLE, ATTENTION_SHARE, SLOWER_CLOCK, WORTH_NAMING = 0.03, 0.4, 0.97, 0.05
# What GEMMs should gain by fp8 at least. Its peak is twice that of bf16 (NVIDIA's data sheets of Ada, Hopper and
# Blackwell), and ViT-Huge at batch 64 on an H200 reaches 1.8; GEMMs far below are too small to be bound by arithmetic:
FAIR_FP8_SPEED_UP, PEAK_FP8_SPEED_UP = 1.3, 2.0
# Half of the last digit that is shown:
SMALLEST_S = 0.5e-4

# Parts of a step that are a cause if they take longer than the reference's.
GROWN: dict[Cause, tuple[str, tuple[Category, ...]]] = {
    "copies": ("copies", ("copy",)),
    "norms and sums": ("norms, activations and sums", ("elementwise",)),
    "attention": ("attention", ("attention",)),
    "optimizer": ("optimizer's kernels", ("optimizer",)),
    "GEMMs": ("GEMMs", GEMMS),
    "other kernels": ("other kernels", ("other",)),
}

# A cause, the seconds per step that it accounts for, and its clause of a sentence:
Measured = tuple[Cause, float, str]


class Explanation(NamedTuple):
    """explained_s: seconds per step that each measured cause accounts for, largest first."""

    cause: Cause
    sentence: str
    explained_s: dict[Cause, float]


def explain(facts: StepFacts, reference: StepFacts | None) -> Explanation:
    """Explain why `facts` is not faster than `reference`, or what limits it. Both do the same work on each GPU."""
    if facts.emulated:
        return Explanation("emulated", f"{facts.label} is emulated here, so its speed is not that of fp8.", {})
    measured = [*_measured(facts, reference), *(_grown(facts, reference) if reference else ())]
    least_s = max(NOTICEABLE * facts.step_time_s, 1e-12)
    # If the GPU waits for the host, shorter kernels only lengthen the wait, and NCCL's kernels spin in it.
    waits = ("host-bound", "loader-bound") if facts.host_bound else ()
    noticed = sorted((one for one in measured if one[1] >= least_s), key=lambda one: (one[0] not in waits, -one[1]))
    explained = {cause: seconds for cause, seconds, _ in noticed}
    cause, sentence = _explanation(facts, reference, noticed)
    return Explanation(cause, sentence + (_replay_saves(facts) if "host-bound" in explained else ""), explained)


def _explanation(facts: StepFacts, reference: StepFacts | None, noticed: Sequence[Measured]) -> tuple[Cause, str]:
    label, length = facts.label, ms(facts.step_time_s)
    if reference is None:
        said, because = f"{label} takes {length} ms a step", ", and"
    elif facts.step_time_s < reference.step_time_s * (1 - NOISE):
        return "faster", (
            f"{label} is {reference.step_time_s / facts.step_time_s:.2f} times as fast as {reference.label} "
            f"({length} ms a step, the reference's {ms(reference.step_time_s)}; its kernels need "
            f"{ms(facts.profile.busy_s)} ms, the reference's {ms(reference.profile.busy_s)}). {_limit(facts)}"
        )
    else:
        said, because = f"{label} is not faster than {reference.label}", " because"
    if facts.fp8 and not facts.profile.has_fp8_gemm:
        return "no fp8 kernels", f"{said}{because} none of its GEMMs ran in fp8."
    if noticed:
        (first, _, words), *others = noticed
        too = (f"; {cause} {ms(seconds)} more" for cause, seconds, _ in others if {first, cause} <= GROWN.keys())
        return first, f"{said}{because} {words}{''.join(too)}."
    if reference is None:
        return "none", f"{said}. {_limit(facts)}"
    kinds = [*GROWN.values(), ("casts", ("cast",)), ("communication that nothing hides", ("nccl",))]
    parts = [(name, facts.seconds(*kind), reference.seconds(*kind)) for name, kind in kinds]
    name, mine, theirs = max(parts, key=lambda part: abs(part[1] - part[2]))
    return "none", (
        f"{said} ({length} ms a step, the reference's {ms(reference.step_time_s)}). The largest difference is in "
        f"{name}: {ms(mine)} ms, the reference's {ms(theirs)}."
    )


def _measured(facts: StepFacts, reference: StepFacts | None) -> Iterator[Measured]:
    # Causes that a step alone may show.
    for_data, idle, spinning = facts.idle_for_data_s, facts.idle_otherwise_s, facts.seconds("nccl")
    length, busy = ms(facts.step_time_s), ms(facts.profile.busy_s)
    words = f"it is loader-bound: the device is idle for {ms(for_data)} of {length} ms a step, waiting for a batch"
    yield "loader-bound", for_data, words
    if facts.host_bound:
        waits = "between one replay of its graph and the next" if facts.replayed else "waiting for Python to launch"
        also = f" and only communicates for {ms(spinning)} more" if spinning > 0 else ""
        words = f"the GPU is idle for {ms(idle)} of {length} ms a step{also} (its kernels need {busy} ms), {waits}"
        yield "host-bound", idle + spinning, f"it is host-bound: {words}"
    else:
        words = f"{ms(spinning)} of {ms(facts.length_s)} ms a step are communication that nothing hides"
        words = f"it is communication-bound: {words} ({ms(facts.profile.nccl_s)} ms in all)"
        yield "communication-bound", spinning - (reference.seconds("nccl") if reference else 0.0), words
    attention, casts, gemms = facts.seconds("attention"), facts.seconds("cast"), facts.seconds(*GEMMS)
    if facts.fp8 and attention >= ATTENTION_SHARE * facts.profile.busy_s:
        words = f"it takes {ms(attention)} of the {busy} ms that the device is busy, its GEMMs {ms(gemms)}"
        yield "attention dominates", attention - gemms, f"attention dominates: {words}, and fp8 does not shorten it"
    # At its peak fp8 halves a GEMM, so it has saved at most the GEMM's own time.
    at_most = facts.seconds("gemm_fp8") * (PEAK_FP8_SPEED_UP - 1)
    if reference is None and facts.fp8 and casts >= at_most > 0:
        words = f"they take {ms(casts)} ms a step, and fp8 can have saved at most {ms(at_most)} ms in its GEMMs"
        yield "casts eat the gain", casts, f"casts eat the gain: {words}"


def _grown(facts: StepFacts, reference: StepFacts) -> Iterator[Measured]:
    # Causes that only a reference shows.
    # Of every type, because an fp8 mode keeps some in bf16.
    gemms, their_gemms = facts.seconds(*GEMMS), reference.seconds(*GEMMS)
    if facts.fp8:
        casts, usual = facts.seconds("cast"), reference.seconds("cast")
        # A cast that replaces a sum costs nothing more: it costs what it and the work fused with it cost together.
        fused: tuple[Category, ...] = ("cast", "elementwise", "copy")
        around = facts.seconds(*fused) - reference.seconds(*fused)
        saved = f"take {ms(their_gemms - gemms)} ms a step less ({ms(gemms)}"
        saved = saved if their_gemms > gemms else f"save nothing ({ms(gemms)} ms a step"
        words = (
            f"casts eat the gain: its GEMMs {saved}, the reference's {ms(their_gemms)}), but casts and the work around "
            f"them {ms(around)} ms more (casts {ms(casts)}, the reference's {ms(usual)})"
        )
        yield "casts eat the gain", min(around, casts - usual), words
    if facts.fp8 and not reference.fp8 and facts.profile.has_fp8_gemm and their_gemms > 0:
        words = (
            f"its shapes are too small for fp8: its GEMMs take {ms(gemms)} ms a step and the reference's "
            f"{ms(their_gemms)}, where fp8 should be {FAIR_FP8_SPEED_UP} times as fast at least"
        )
        yield "shapes too small", gemms - their_gemms / FAIR_FP8_SPEED_UP, words
    clock, usual_clock = facts.sm_clock_mhz, reference.sm_clock_mhz
    if clock and usual_clock and clock < SLOWER_CLOCK * usual_clock:
        lost, flags = facts.profile.busy_s * (1 - clock / usual_clock), ", ".join(("", *facts.flags))
        words = (
            f"its GPU was slowed down: it ran at {clock:.0f} MHz and the reference's at {usual_clock:.0f}{flags}, "
            f"which costs about {ms(lost)} ms a step"
        )
        yield "throttled", lost, words
    parts = [(cause, name, facts.seconds(*kind), reference.seconds(*kind)) for cause, (name, kind) in GROWN.items()]
    if not facts.host_bound:
        between = f"gaps between {'kernels' if facts.device == 'cuda' else 'operators'}"
        parts.append(("gaps between kernels", between, facts.idle_otherwise_s, reference.idle_otherwise_s))
    for cause, name, mine, theirs in parts:
        more = f"{ms(mine - theirs)} ms a step more ({ms(mine)}, the reference's {ms(theirs)})"
        yield cause, mine - theirs, f"its {name} take{'s' * (cause == 'attention')} {more}"


def _replay_saves(facts: StepFacts) -> str:
    if facts.replay_saves_at_most_s is None:
        return ""
    saved = f"could save {ms(facts.replay_saves_at_most_s)} ms a step at most"
    if facts.not_replayed is None:
        return f" Replaying the step as one CUDA graph (`--cuda-graphs on`) {saved}."
    return (
        f" Replaying the step as one CUDA graph {saved}, but was not possible: {facts.not_replayed}. "
        "A larger --batch-size gives the GPU more work for each launch."
    )


def _limit(facts: StepFacts) -> str:
    gaps = "gaps between kernels" if facts.host_bound is False else "the host, while the GPU is idle"
    parts = {
        gaps if facts.device == "cuda" else "Python, between operators": facts.idle_otherwise_s,
        "the loader, while the device is idle": facts.idle_for_data_s,
        "communication that nothing hides": facts.seconds("nccl"),
        "attention": facts.seconds("attention"),
        "casts and scales": facts.seconds("cast"),
        "norms, activations, sums and copies": facts.seconds("elementwise", "copy"),
    }
    name = max(parts, key=lambda name: parts[name])
    of = f"{ms(parts[name])} of {ms(facts.step_time_s)} ms"
    return f"Beside its GEMMs ({ms(facts.seconds(*GEMMS))} ms), what limits it most is {name}: {of}."


def two_machines(facts: StepFacts, reference: StepFacts) -> Literal["another machine", "mode and machine"] | None:
    """Return how two machines, or numbers of GPUs, come into a comparison of one mode or of two, if they do."""
    elsewhere, sized = facts.instance != reference.instance, facts.world_size != reference.world_size
    if (facts.label, facts.execution) == (reference.label, reference.execution):
        return "another machine" if elsewhere or sized else None
    other_gpu = facts.device_name is None or facts.device_name != reference.device_name
    return "mode and machine" if sized or (elsewhere and other_gpu) else None


def across(facts: StepFacts, reference: StepFacts, labels: Sequence[str]) -> Explanation | None:
    """Explain two steps on two machines by the parts that differ, the largest first; None for one machine, or two modes
    on the same GPUs. The same mode makes the same casts and GEMMs on both. labels: of the steps.
    """
    cause = two_machines(facts, reference)
    if cause is None or facts.emulated or reference.emulated:
        return None
    said = f"{labels[0]} takes {ms(facts.step_time_s)} ms a step and {labels[1]} {ms(reference.step_time_s)}"
    if cause == "mode and machine":
        what = "execution" if facts.label == reference.label else "mode"
        where = "; ".join(f"{one.world_size} x {one.device_name or one.device}" for one in (facts, reference))
        why = (
            f"but both the {what} and the machine differ ({where}), and these times do not tell which of the two makes"
        )
        return Explanation(cause, f"{said}, {why} the difference. Compare them on one machine, on as many GPUs.", {})
    # GEMMs of all types are one part, which is always named, because a reader asks for it first.
    kinds = {"GEMMs": GEMMS, **{name: (kind,) for kind, name in PARTS.items() if kind not in GEMMS}}
    parts = {name: facts.seconds(*kind) - reference.seconds(*kind) for name, kind in kinds.items()}
    parts["idle"] = facts.idle_s - reference.idle_s
    least_s = max(SMALLEST_S, WORTH_NAMING * abs(facts.step_time_s - reference.step_time_s))
    named = [(name, seconds) for name, seconds in parts.items() if name == "GEMMs" or abs(seconds) >= least_s]
    listed = ", ".join(f"{name} {s * 1e3:+z.1f}" for name, s in sorted(named, key=lambda part: -abs(part[1])))
    mine, theirs = facts.sm_clock_mhz, reference.sm_clock_mhz
    unlike = mine and theirs and min(mine, theirs) < SLOWER_CLOCK * max(mine, theirs)
    clocks = f" Its GPU ran at {mine:.0f} MHz and the reference's at {theirs:.0f}." if unlike else ""
    return Explanation(cause, f"{said}: {listed}.{clocks}{_replay_saves(facts)}", {})

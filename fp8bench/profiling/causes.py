"""Explains why a mode is not faster than another on the same machine, in one sentence with figures.

A step consists of the time that its kernels need and the time that the GPU is idle. The cause is the part that grew
most, or the gain that failed to come where that costs more, each in seconds per step. If the GPU waits for the host,
the first two come before all others, because shorter kernels would then only lengthen the wait:

  host-bound            idle time of a GPU that is idle for a tenth of a step or more: the host launches too late
  loader-bound          idle time, while the host waits for the next batch
  communication-bound   communication that no other kernel hides, more than the reference has
  casts eat the gain    casts to fp8, more than the reference has, of an fp8 mode
  copies, norms and sums, attention, optimizer, GEMMs, gaps between kernels, other kernels
                        more of these than the reference has
  shapes too small      GEMMs that fp8 hardly speeds up: the time above what a fair speed-up would leave
  attention dominates   attention longer than all GEMMs: fp8 does not shorten it
  throttled             the time lost because the clock is lower than the reference's

A host that launches too late need not launch at all: a step replayed as one CUDA graph is launched by one call. At most
that saves the GPU's wait for the host; a wait for a batch remains.

Idle time is the timed step minus the profile's busy time, because profiling slows the host and not the kernels.
`schema.rank` defines the share of a step from which idle time means that the GPU waits for its host; the mark in tables
uses the same share. Then exposed communication counts as idle time too: NCCL's kernels spin while no work comes, and
without them the step would be no shorter. Below that share the host is not the cause, and idle time is gaps between
kernels.

This is an account of times, not of deeper causes: two obstacles may hide each other, and removing the named one then
reveals the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from fp8bench.profiling.facts import StepFacts
from fp8bench.profiling.facts import milliseconds as ms
from fp8bench.schema.noise import NOISE
from fp8bench.schema.rank import GEMMS, Category, starved

Cause = Literal[
    "faster",
    "host-bound",
    "loader-bound",
    "communication-bound",
    "casts eat the gain",
    "copies",
    "norms and sums",
    "attention",
    "optimizer",
    "GEMMs",
    "gaps between kernels",
    "other kernels",
    "shapes too small",
    "attention dominates",
    "throttled",
    "no fp8 kernels",
    "emulated",
    "another machine",
    "mode and machine",
    "none",
]
"""`another machine` and `mode and machine` explain nothing: they mean that no mode can (see `kinds.run.explain`)."""

WAITS: tuple[Cause, ...] = ("host-bound", "loader-bound")

NOTICEABLE = 0.03
"""Our choice: the share of a step below which a cause is not named, because processes of a mode differ by 1 to 2 %."""

FAIR_FP8_SPEED_UP = 1.3
"""Our choice: the speed-up of GEMMs that fp8 should reach at least. Its peak is twice that of bf16, and ViT-Huge at
batch 64 on an H200 reaches 1.8; GEMMs far below are too small to be bound by arithmetic."""

PEAK_FP8_SPEED_UP = 2.0
"""The peak of fp8 over that of bf16, by NVIDIA's data sheets of Ada, Hopper and Blackwell."""

ATTENTION_SHARE = 0.4
"""Our choice: the share of the busy time from which attention may dominate."""

SLOWER_CLOCK = 0.97
"""Our choice: clock over the reference's. Above it, the difference is usual for runs at a power limit."""

AROUND: tuple[Category, ...] = ("cast", "elementwise", "copy")
"""Casts and the work that modes fuse them with in different ways (see `kernels`)."""

PARTS: dict[Cause, tuple[str, tuple[Category, ...]]] = {
    "copies": ("copies", ("copy",)),
    "norms and sums": ("norms, activations and sums", ("elementwise",)),
    "attention": ("attention", ("attention",)),
    "optimizer": ("optimizer's kernels", ("optimizer",)),
    "GEMMs": ("GEMMs", GEMMS),
    "other kernels": ("other kernels", ("other",)),
}
"""Parts of a step that are a cause if they take longer than the reference's. Casts are one in an fp8 mode alone."""


@dataclass(frozen=True)
class Explanation:
    """explained_s: seconds per step that each measured cause accounts for, largest first."""

    cause: Cause
    sentence: str
    explained_s: dict[Cause, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Candidate:
    """A possible cause. seconds: its cost per step. words: the clause after `because`, or the main limit."""

    cause: Cause
    seconds: float
    words: str


def explain(facts: StepFacts, reference: StepFacts | None) -> Explanation:
    """Explain why `facts` is not faster than `reference`, or what limits it. Both do the same work on each GPU."""
    if facts.emulated:
        return Explanation("emulated", f"{facts.label} is emulated here, so its speed is not that of fp8.")
    if reference is not None and None in (facts.step_time_s, reference.step_time_s):
        # If one of them was not timed, the kernels' times are compared.
        facts, reference = replace(facts, step_time_s=None), replace(reference, step_time_s=None)
    noticed = sorted(
        (each for each in _candidates(facts, reference) if each.seconds >= max(NOTICEABLE * facts.length_s, 1e-12)),
        # If the GPU waits for the host, shorter kernels only lengthen the wait.
        key=lambda each: (host_waits(facts) is True and each.cause not in WAITS, -each.seconds),
    )
    explained = {candidate.cause: candidate.seconds for candidate in noticed}
    cause, sentence = _explanation(facts, reference, noticed)
    replayed = replay_would_save(facts) if "host-bound" in explained else ""
    return Explanation(cause, sentence + replayed, explained)


def _explanation(facts: StepFacts, reference: StepFacts | None, noticed: list[_Candidate]) -> tuple[Cause, str]:
    no_fp8 = facts.fp8 and not facts.profile.has_fp8_gemm
    if reference is None:
        said, joint = f"{facts.label} takes {_length(facts)}", ", and"
    elif facts.length_s < reference.length_s * (1 - NOISE):
        return "faster", _faster(facts, reference)
    else:
        said, joint = f"{facts.label} is not faster than {reference.label}", " because"
    if no_fp8:
        return "no fp8 kernels", f"{said}{joint} none of its GEMMs ran in fp8."
    if noticed:
        first, *others = noticed
        too = (f"; {one.cause} {ms(one.seconds)} more" for one in others if {first.cause, one.cause} <= PARTS.keys())
        return first.cause, f"{said}{joint} {first.words}{''.join(too)}."
    if reference is None:
        return "none", f"{said}. {_limit(facts)}"
    kinds = [*PARTS.values(), ("casts", ("cast",)), ("communication that nothing hides", ("nccl",))]
    parts = [(name, facts.seconds(*kind), reference.seconds(*kind)) for name, kind in kinds]
    name, mine, theirs = max(parts, key=lambda part: abs(part[1] - part[2]))
    return "none", (
        f"{said} ({_length(facts)}, the reference's {ms(reference.length_s)}). The largest difference is in {name}: "
        f"{ms(mine)} ms, the reference's {ms(theirs)}."
    )


def host_waits(facts: StepFacts) -> bool | None:
    """Return whether the GPU waits for the host, by its idle time; None on a CPU, and if the step was not timed."""
    return starved(facts.idle_share)


def replay_saves_at_most_s(facts: StepFacts) -> float | None:
    """Return the most seconds per step that replaying it as a CUDA graph could save; None if it is already replayed, if
    the GPU does not wait for its host, or if either is unknown.
    """
    if facts.device != "cuda" or facts.replayed or not host_waits(facts) or facts.idle_s is None:
        return None
    # The time that NCCL's kernels spin while no work comes ends with the wait.
    return max(0.0, facts.idle_s - _waiting_for_data(facts)) + facts.exposed_nccl_s


def replay_would_save(facts: StepFacts) -> str:
    """Return a sentence to append for a step that is launched too late; empty if replaying saves nothing."""
    at_most = replay_saves_at_most_s(facts)
    if at_most is None:
        return ""
    saved = f"{ms(at_most)} ms a step at most"
    if facts.not_replayed is not None:
        tried = f"but was not possible: {facts.not_replayed}"
        larger = "A larger --batch-size gives the GPU more work for each launch."
        return f" Replaying the step as one CUDA graph could save {saved}, {tried}. {larger}"
    return f" Replaying the step as one CUDA graph (`--cuda-graphs on`) could save {saved}."


def _candidates(facts: StepFacts, reference: StepFacts | None) -> Iterable[_Candidate]:
    """Yield every cause that was measured. A CPU waits for no host, because it is the host."""
    yield _loader(facts)
    yield from _host(facts, reference) if host_waits(facts) else _communication(facts, reference)
    if facts.fp8:
        yield from _attention(facts)
        yield from (*_casts(facts, reference), *_shapes(facts, reference)) if reference else _casts_alone(facts)
    if reference is not None:
        yield from (*_throttling(facts, reference), *_grown(facts, reference))


def _grown(facts: StepFacts, reference: StepFacts) -> Iterable[_Candidate]:
    """Yield each part of the step with how much longer it takes than the reference's."""
    parts = [(cause, name, facts.seconds(*kind), reference.seconds(*kind)) for cause, (name, kind) in PARTS.items()]
    if not host_waits(facts):
        gaps, theirs = ((one.idle_s or 0.0) - _waiting_for_data(one) for one in (facts, reference))
        between = "kernels" if facts.device == "cuda" else "operators"
        parts.append(("gaps between kernels", f"gaps between {between}", gaps, theirs))
    for cause, name, mine, theirs in parts:
        more = f"{ms(mine - theirs)} ms a step more ({ms(mine)}, the reference's {ms(theirs)})"
        yield _Candidate(cause, mine - theirs, f"its {name} take{'s' * (cause == 'attention')} {more}")


def _host(facts: StepFacts, reference: StepFacts | None) -> Iterable[_Candidate]:
    idle, for_data, spinning = facts.idle_s or 0.0, _waiting_for_data(facts), facts.exposed_nccl_s
    some_for_data = f", {ms(for_data)} of them for a batch" if for_data >= NOTICEABLE * facts.length_s else ""
    beside = f", the reference's {ms(reference.busy_s)}" if reference else ""
    waiting = "between one replay of its graph and the next" if facts.replayed else "waiting for Python to launch"
    communicating = f" and only communicates for {ms(spinning)} more" if spinning > 0 else ""
    yield _Candidate(
        "host-bound",
        idle - for_data + spinning,
        f"it is host-bound: the GPU is idle for {ms(idle)} of {ms(facts.length_s)} ms a step{some_for_data} "
        f"(its kernels need {ms(facts.busy_s)} ms{beside}){communicating}, {waiting}",
    )


def _waiting_for_data(facts: StepFacts) -> float:
    """Return the idle seconds per step in which the host waited for a batch. A wait while the GPU is busy is free."""
    if facts.idle_s is None or host_waits(facts) is False:
        return 0.0
    return min(facts.idle_s, facts.data_wait_s or 0.0)


def _loader(facts: StepFacts) -> _Candidate:
    wait, device = _waiting_for_data(facts), "GPU" if facts.device == "cuda" else "CPU"
    return _Candidate(
        "loader-bound",
        wait,
        f"it is loader-bound: the {device} is idle for {ms(wait)} of {ms(facts.length_s)} ms a step, while the host "
        "waits for the next batch",
    )


def _communication(facts: StepFacts, reference: StepFacts | None) -> Iterable[_Candidate]:
    usual = reference.exposed_nccl_s if reference else 0.0
    beside = f", and {ms(usual)} of the reference's" if usual else ""
    yield _Candidate(
        "communication-bound",
        facts.exposed_nccl_s - usual,
        f"it is communication-bound: {ms(facts.exposed_nccl_s)} of {ms(facts.length_s)} ms a step are communication "
        f"that nothing hides ({ms(facts.nccl_s)} ms in all){beside}",
    )


def _casts(facts: StepFacts, reference: StepFacts) -> Iterable[_Candidate]:
    """Judge the casts of an fp8 mode. What they cost is at most what they and the work that modes fuse with them cost
    together: a cast that replaces a sum costs nothing more.
    """
    casts, usual = facts.seconds("cast"), reference.seconds("cast")
    more = facts.seconds(*AROUND) - reference.seconds(*AROUND)
    saved = reference.gemms_s - facts.gemms_s
    gain = f"take {ms(saved)} ms a step less (" if saved > 0 else "save nothing ("
    unit = "" if saved > 0 else " ms a step"
    yield _Candidate(
        "casts eat the gain",
        min(more, casts - usual),
        f"casts eat the gain: its GEMMs {gain}{ms(facts.gemms_s)}{unit}, the reference's "
        f"{ms(reference.gemms_s)}), but casts and the work around them {ms(more)} ms more (casts {ms(casts)}, the "
        f"reference's {ms(usual)})",
    )


def _casts_alone(facts: StepFacts) -> Iterable[_Candidate]:
    """Judge casts without a reference: at its peak fp8 halves a GEMM, so it has saved at most the GEMM's own time."""
    gemms, casts = facts.seconds("gemm_fp8"), facts.seconds("cast")
    at_most = gemms * (PEAK_FP8_SPEED_UP - 1)
    if casts >= at_most > 0:
        yield _Candidate(
            "casts eat the gain",
            casts,
            f"casts eat the gain: they take {ms(casts)} ms a step, and fp8 can have saved at most {ms(at_most)} ms in "
            "its GEMMs",
        )


def _shapes(facts: StepFacts, reference: StepFacts) -> Iterable[_Candidate]:
    if not reference.fp8 and facts.profile.has_fp8_gemm and reference.gemms_s:
        yield _Candidate(
            "shapes too small",
            facts.gemms_s - reference.gemms_s / FAIR_FP8_SPEED_UP,
            f"its shapes are too small for fp8: its GEMMs take {ms(facts.gemms_s)} ms a step and the reference's "
            f"{ms(reference.gemms_s)}, where fp8 should be {FAIR_FP8_SPEED_UP} times as fast at least",
        )


def _attention(facts: StepFacts) -> Iterable[_Candidate]:
    attention = facts.seconds("attention")
    if attention >= ATTENTION_SHARE * facts.busy_s:
        yield _Candidate(
            "attention dominates",
            attention - facts.gemms_s,
            f"attention dominates: it takes {ms(attention)} of the {ms(facts.busy_s)} ms that the device is busy, more "
            f"than the GEMMs ({ms(facts.gemms_s)}), and fp8 does not shorten it",
        )


def _throttling(facts: StepFacts, reference: StepFacts) -> Iterable[_Candidate]:
    clock, usual = facts.sm_clock_mhz, reference.sm_clock_mhz
    if clock and usual and clock < SLOWER_CLOCK * usual:
        lost = facts.busy_s * (1 - clock / usual)
        flags = f" ({', '.join(facts.flags)})" if facts.flags else ""
        yield _Candidate(
            "throttled",
            lost,
            f"its GPU was slowed down: it ran at {clock:.0f} MHz and the reference's at {usual:.0f}{flags}, which "
            f"costs about {ms(lost)} ms a step",
        )


def _faster(facts: StepFacts, reference: StepFacts) -> str:
    """Return by how much the mode is faster, and what takes most of the remaining time."""
    kernels = ""
    if facts.step_time_s is not None:
        kernels = f"; its kernels need {ms(facts.busy_s)} ms, the reference's {ms(reference.busy_s)}"
    return (
        f"{facts.label} is {reference.length_s / facts.length_s:.2f} times as fast as {reference.label} "
        f"({_length(facts)}, the reference's {ms(reference.length_s)}{kernels}). {_limit(facts)}"
    )


def _length(facts: StepFacts) -> str:
    return f"{ms(facts.length_s)} ms {'a step' if facts.step_time_s is not None else 'of kernels a step'}"


def _limit(facts: StepFacts) -> str:
    """Return what takes most of a step among the parts that fp8 does not shorten."""
    device = "GPU" if facts.device == "cuda" else "CPU"
    gaps = "gaps between kernels" if host_waits(facts) is False else "the host, while the GPU is idle"
    parts = {
        gaps if device == "GPU" else "Python, between operators": (facts.idle_s or 0.0) - _waiting_for_data(facts),
        f"the loader, while the {device} is idle": _waiting_for_data(facts),
        "communication that nothing hides": facts.exposed_nccl_s,
        "attention": facts.seconds("attention"),
        "casts and scales": facts.seconds("cast"),
        "norms, activations, sums and copies": facts.seconds("elementwise", "copy"),
    }
    name, seconds = max(parts.items(), key=lambda item: item[1])
    return (
        f"Beside its GEMMs ({ms(facts.gemms_s)} ms), what limits it most is {name}: {ms(seconds)} of "
        f"{ms(facts.length_s)} ms."
    )

"""Why a mode is not faster than another, in one sentence with its figures.

A step is what its kernels need and what the GPU is idle. fp8 promises one thing: matrix products in less time. What can
come to nothing of that promise is measured, each in seconds a step, and the largest is the cause, the first two before
all others where the GPU waits for the host, since shorter kernels would then only lengthen the wait:

  host-bound            idle time of a GPU that is idle for a tenth of a step or more: the host launches too late
  loader-bound          idle time, while the host waits for the next batch
  communication-bound   communication that no other kernel hides
  casts eat the gain    casts to fp8 and the work around them, more than the reference has
  shapes too small      products that fp8 hardly speeds up: the time above what a fair speed-up would leave
  attention dominates   attention longer than all products: fp8 leaves it as it is
  throttled             the time that a lower clock than the reference's costs

A host that launches too late need not launch at all: a step replayed as one CUDA graph is launched by one call. What
that can save at most is what the GPU waits for the host; a wait for a batch stays.

Idle time is the timed step less the profile's busy time, since profiling slows the host and not the kernels. From
which share of a step on it says that the GPU waits for its host, `schema.rank` tells; the table's mark goes by the
same. Exposed communication is idle time too then: NCCL's kernels spin while no work comes, and without them the step
would be no shorter. Below that share the host is cleared, and what the GPU is idle is gaps between kernels.

It is an account of times, not of causes in a deeper sense: two obstacles may hide each other, and then removing the
named one shows the next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fp8bench.profiling.breakdown import PRODUCTS
from fp8bench.profiling.facts import Facts, milliseconds
from fp8bench.schema.rank import Category, starved

Cause = Literal[
    "faster",
    "host-bound",
    "loader-bound",
    "communication-bound",
    "casts eat the gain",
    "shapes too small",
    "attention dominates",
    "throttled",
    "no fp8 kernels",
    "emulated",
    "none",
]

WAITS: tuple[Cause, ...] = ("host-bound", "loader-bound")

NOTICEABLE = 0.03
"""Ours: share of a step below which a cause is not named, since processes of one mode differ by a per cent or two."""

FASTER = 0.02
"""Ours: how much shorter a step has to be to count as faster, for the same reason."""

FAIR_FP8_SPEED_UP = 1.3
"""Ours: what fp8 should at least make of products. Its peak is twice that of bf16, and ViT-Huge at batch 64 on an H200
reaches 1.8; products far below are too small to be bound by arithmetic."""

PEAK_FP8_SPEED_UP = 2.0
"""Peak of fp8 over that of bf16, by NVIDIA's data sheets of Ada, Hopper and Blackwell."""

ATTENTION_SHARE = 0.4
"""Ours: share of the busy time from which attention may be what dominates."""

SLOWER_CLOCK = 0.97
"""Ours: clock over the reference's below which the two differ by more than runs at a power limit do anyway."""

AROUND: tuple[Category, ...] = ("cast", "elementwise", "copy")
"""Casts and what they are fused into or out of, from one mode to another (see `kernels`)."""


@dataclass(frozen=True)
class Explanation:
    """explained_s: seconds a step that each measured cause accounts for, largest first."""

    cause: Cause
    sentence: str
    explained_s: dict[Cause, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Candidate:
    """seconds: what it costs a step; words: the clause that follows `because`, or tells what limits most."""

    cause: Cause
    seconds: float
    words: str


def explain(facts: Facts, reference: Facts | None) -> Explanation:
    """Why `facts` is not faster than `reference`, or what limits it. Both are of the same work on each GPU."""
    if facts.emulated:
        return Explanation("emulated", f"{facts.label} is emulated here, so its speed says nothing of fp8.")
    if reference is not None:
        facts, reference = _alike_in_timing(facts, reference)
    candidates = sorted(_candidates(facts, reference), key=lambda candidate: _weight(candidate, facts))
    noticed = [candidate for candidate in candidates if candidate.seconds >= NOTICEABLE * facts.length_s]
    explained = {candidate.cause: candidate.seconds for candidate in noticed}
    if reference is None:
        explanation = _alone(facts, noticed)
    elif _is_faster(facts, reference):
        explanation = _faster(facts, reference)
    else:
        explanation = _not_faster(facts, reference, noticed)
    return replace(
        explanation, sentence=explanation.sentence + _replay_would_save(facts, explained), explained_s=explained
    )


def _weight(candidate: _Candidate, facts: Facts) -> tuple[bool, float]:
    """Smallest first. Where the GPU waits for the host, shorter kernels would only lengthen the wait."""
    hidden = host_waits(facts) is True and candidate.cause not in WAITS
    return hidden, -candidate.seconds


def host_waits(facts: Facts) -> bool | None:
    """Whether the GPU waits for the host, by what it is idle; None on a CPU, and where the step was not timed."""
    return starved(facts.idle_share)


def replay_saves_at_most_s(facts: Facts) -> float | None:
    """Seconds a step by which replaying it as a CUDA graph could shorten it; None where it is replayed already, the GPU
    does not wait for its host, or either is unknown.
    """
    if facts.device != "cuda" or facts.replayed or not host_waits(facts) or facts.idle_s is None:
        return None
    # What NCCL's kernels spin while no work comes is gone with the wait.
    return max(0.0, facts.idle_s - _waiting_for_data(facts)) + facts.exposed_nccl_s


def _replay_would_save(facts: Facts, explained: Mapping[Cause, float]) -> str:
    """A sentence for a step that is launched too late."""
    at_most = replay_saves_at_most_s(facts)
    if at_most is None or "host-bound" not in explained:
        return ""
    saved = f"{milliseconds(at_most)} ms a step at most"
    if facts.not_replayed is not None:
        return f" Replaying the step as one CUDA graph could save {saved}, but was not possible: {facts.not_replayed}."
    return f" Replaying the step as one CUDA graph (`--cuda-graphs on`) could save {saved}."


def _alike_in_timing(facts: Facts, reference: Facts) -> tuple[Facts, Facts]:
    """Both with their step's time, or if one was not timed both without: then kernels' times are held together."""
    if facts.step_time_s is not None and reference.step_time_s is not None:
        return facts, reference
    return replace(facts, step_time_s=None), replace(reference, step_time_s=None)


def _is_faster(facts: Facts, reference: Facts) -> bool:
    return facts.length_s < reference.length_s * (1 - FASTER)


def _candidates(facts: Facts, reference: Facts | None) -> Iterable[_Candidate]:
    """Every cause that was measured. A CPU waits for no host: it is the host."""
    found: list[_Candidate | None] = [_attention(facts), _loader(facts), _communication(facts)]
    if facts.device == "cuda":
        found.append(_host(facts, reference))
    if reference is not None:
        found += [_casts(facts, reference), _shapes(facts, reference), _throttling(facts, reference)]
    elif facts.fp8:
        found.append(_casts_alone(facts))
    return [candidate for candidate in found if candidate is not None and candidate.seconds > 0]


def _host(facts: Facts, reference: Facts | None) -> _Candidate | None:
    idle = facts.idle_s
    if idle is None or not host_waits(facts):
        return None
    for_data = _waiting_for_data(facts)
    some_for_data = f", {milliseconds(for_data)} of them for a batch" if for_data >= NOTICEABLE * facts.length_s else ""
    spinning = facts.exposed_nccl_s
    beside = f", the reference's {milliseconds(reference.busy_s)}" if reference else ""
    waiting = "between one replay of its graph and the next" if facts.replayed else "waiting for Python to launch"
    communicating = f" and only communicates for {milliseconds(spinning)} more" if spinning > 0 else ""
    return _Candidate(
        "host-bound",
        idle - for_data + spinning,
        f"it is host-bound: the GPU is idle for {milliseconds(idle)} of {milliseconds(facts.length_s)} ms a step"
        f"{some_for_data} (its kernels need {milliseconds(facts.busy_s)} ms{beside}){communicating}, {waiting}",
    )


def _waiting_for_data(facts: Facts) -> float:
    """Idle seconds a step in which the host waited for a batch: a wait while the GPU is busy costs nothing."""
    if facts.idle_s is None or host_waits(facts) is False:
        return 0.0
    return min(facts.idle_s, facts.data_wait_s or 0.0)


def _loader(facts: Facts) -> _Candidate:
    wait = _waiting_for_data(facts)
    return _Candidate(
        "loader-bound",
        wait,
        f"it is loader-bound: the {_device(facts)} is idle for {milliseconds(wait)} of {milliseconds(facts.length_s)} "
        "ms a step, while the host waits for the next batch",
    )


def _communication(facts: Facts) -> _Candidate | None:
    if host_waits(facts):
        return None
    return _Candidate(
        "communication-bound",
        facts.exposed_nccl_s,
        f"it is communication-bound: {milliseconds(facts.exposed_nccl_s)} of {milliseconds(facts.length_s)} ms a step "
        f"are communication that nothing hides ({milliseconds(facts.nccl_s)} ms in all)",
    )


def _casts(facts: Facts, reference: Facts) -> _Candidate | None:
    more_casts = facts.seconds("cast") - reference.seconds("cast")
    if more_casts <= 0:
        return None
    more = facts.seconds(*AROUND) - reference.seconds(*AROUND)
    saved = reference.products_s - facts.products_s
    gain = (
        f"its matrix products take {milliseconds(saved)} ms a step less ({milliseconds(facts.products_s)}, the "
        f"reference's {milliseconds(reference.products_s)})"
        if saved > 0
        else f"its matrix products save nothing ({milliseconds(facts.products_s)} ms a step, the reference's "
        f"{milliseconds(reference.products_s)})"
    )
    return _Candidate(
        "casts eat the gain",
        more,
        f"casts eat the gain: {gain}, but casts and the work around them {milliseconds(more)} ms more "
        f"(casts {milliseconds(facts.seconds('cast'))}, the reference's {milliseconds(reference.seconds('cast'))})",
    )


def _casts_alone(facts: Facts) -> _Candidate | None:
    """Without a reference: fp8 at its peak halves a product, so it can have saved its own time at most."""
    products, casts = facts.seconds("gemm_fp8"), facts.seconds("cast")
    at_most = products * (PEAK_FP8_SPEED_UP - 1)
    if casts < at_most or products == 0:
        return None
    return _Candidate(
        "casts eat the gain",
        casts,
        f"casts eat the gain: they take {milliseconds(casts)} ms a step, and fp8 can have saved at most "
        f"{milliseconds(at_most)} ms in its matrix products",
    )


def _shapes(facts: Facts, reference: Facts) -> _Candidate | None:
    if not facts.fp8 or reference.fp8 or not facts.has_fp8_products or not reference.products_s:
        return None
    lost = facts.products_s - reference.products_s / FAIR_FP8_SPEED_UP
    return _Candidate(
        "shapes too small",
        lost,
        f"its shapes are too small for fp8: its matrix products take {milliseconds(facts.products_s)} ms a step and "
        f"the reference's {milliseconds(reference.products_s)}, where fp8 should be {FAIR_FP8_SPEED_UP} times as fast "
        "at least",
    )


def _attention(facts: Facts) -> _Candidate | None:
    attention = facts.seconds("attention")
    if not facts.fp8 or attention < ATTENTION_SHARE * facts.busy_s:
        return None
    return _Candidate(
        "attention dominates",
        attention - facts.products_s,
        f"attention dominates: it takes {milliseconds(attention)} of the {milliseconds(facts.busy_s)} ms that the "
        f"device is busy, more than the matrix products ({milliseconds(facts.products_s)}), and fp8 leaves it as it is",
    )


def _throttling(facts: Facts, reference: Facts) -> _Candidate | None:
    clock, usual = facts.sm_clock_mhz, reference.sm_clock_mhz
    if not clock or not usual or clock >= SLOWER_CLOCK * usual:
        return None
    lost = facts.busy_s * (1 - clock / usual)
    flags = f" ({', '.join(facts.flags)})" if facts.flags else ""
    return _Candidate(
        "throttled",
        lost,
        f"its GPU was slowed down: it ran at {clock:.0f} MHz and the reference's at {usual:.0f}{flags}, which costs "
        f"about {milliseconds(lost)} ms a step",
    )


def _not_faster(facts: Facts, reference: Facts, noticed: list[_Candidate]) -> Explanation:
    said = f"{facts.label} is not faster than {reference.label}"
    if facts.fp8 and not facts.has_fp8_products:
        return Explanation("no fp8 kernels", f"{said} because none of its matrix products ran in fp8.")
    if noticed:
        return Explanation(noticed[0].cause, f"{said} because {noticed[0].words}.")
    return Explanation(
        "none",
        f"{said} ({_lengths(facts, reference)}), and nothing that was measured holds it up. "
        f"{_largest_difference(facts, reference)}",
    )


def _largest_difference(facts: Facts, reference: Facts) -> str:
    """In which kind of work the two are least alike; whether one is idle for longer is a cause of its own."""
    kinds: dict[str, tuple[Category, ...]] = {
        "matrix products": PRODUCTS,
        "attention": ("attention",),
        "casts, norms, activations, sums and copies": AROUND,
        "the optimizer": ("optimizer",),
        "communication that nothing hides": ("nccl",),
    }
    name, kind = max(kinds.items(), key=lambda item: abs(facts.seconds(*item[1]) - reference.seconds(*item[1])))
    return (
        f"The largest difference is in {name}: {milliseconds(facts.seconds(*kind))} ms, the reference's "
        f"{milliseconds(reference.seconds(*kind))}."
    )


def _faster(facts: Facts, reference: Facts) -> Explanation:
    """By how much, and what takes most of what is left."""
    kernels = (
        f"; its kernels need {milliseconds(facts.busy_s)} ms, the reference's {milliseconds(reference.busy_s)}"
        if facts.step_time_s is not None
        else ""
    )
    return Explanation(
        "faster",
        f"{facts.label} is {reference.length_s / facts.length_s:.2f} times as fast as {reference.label} "
        f"({_lengths(facts, reference)}{kernels}). {_limit(facts)}",
    )


def _lengths(facts: Facts, reference: Facts) -> str:
    of = "a step" if facts.step_time_s is not None else "of kernels a step"
    return f"{milliseconds(facts.length_s)} ms {of}, the reference's {milliseconds(reference.length_s)}"


def _limit(facts: Facts) -> str:
    """What takes most of a step, of all that fp8 does not shorten."""
    idle = (facts.idle_s or 0.0) - _waiting_for_data(facts)
    parts = {
        _who_idles(facts): idle,
        f"the loader, while the {_device(facts)} is idle": _waiting_for_data(facts),
        "communication that nothing hides": facts.exposed_nccl_s,
        "attention": facts.seconds("attention"),
        "casts and scales": facts.seconds("cast"),
        "norms, activations, sums and copies": facts.seconds("elementwise", "copy"),
    }
    name, seconds = max(parts.items(), key=lambda item: item[1])
    return (
        f"Beside its matrix products ({milliseconds(facts.products_s)} ms), what limits it most is {name}: "
        f"{milliseconds(seconds)} of {milliseconds(facts.length_s)} ms."
    )


def _device(facts: Facts) -> str:
    return "GPU" if facts.device == "cuda" else "CPU"


def _who_idles(facts: Facts) -> str:
    if facts.device == "cpu":
        return "Python, between operators"
    return "gaps between kernels" if host_waits(facts) is False else "the host, while the GPU is idle"


def _alone(facts: Facts, noticed: list[_Candidate]) -> Explanation:
    of = "a step" if facts.step_time_s is not None else "of kernels a step"
    said = f"{facts.label} takes {milliseconds(facts.length_s)} ms {of}"
    if facts.fp8 and not facts.has_fp8_products:
        return Explanation("no fp8 kernels", f"{said}, and none of its matrix products ran in fp8.")
    if noticed:
        return Explanation(noticed[0].cause, f"{said}, and {noticed[0].words}.")
    return Explanation("none", f"{said}, and nothing that was measured holds it up. {_limit(facts)}")

"""Two steps on two machines: what differs, without a cause. Pure words and numbers.

The question why a mode is not faster than another (`profiling.causes`) is about two modes on one machine. The same mode
on two machines makes the same casts and the same GEMMs on both, so no mode uses up a gain: what differs is how long
each part of the step takes. Two modes on two machines differ in both, and their times do not show which of the two
causes a part's difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8bench.profiling.causes import SLOWER_CLOCK, Explanation, replay_would_save
from fp8bench.profiling.facts import StepFacts
from fp8bench.profiling.facts import milliseconds as ms
from fp8bench.schema.execution import suffix
from fp8bench.schema.rank import GEMMS, Category

WORTH_NAMING = 0.05
"""Our choice: the share of the steps' difference from which a part is named."""

SMALLEST_S = 0.5e-4
"""Half of the last digit that is shown."""

GEMMS_NAME = "GEMMs"


@dataclass(frozen=True)
class _Part:
    """A part of the difference. seconds: how much longer it takes than the reference's."""

    name: str
    seconds: float


def same_mode(facts: StepFacts, reference: StepFacts) -> bool:
    """Return whether both have the same mode, recipe and execution."""
    return (facts.label, facts.execution) == (reference.label, reference.execution)


def other_machine(facts: StepFacts, reference: StepFacts) -> bool:
    """Return whether they ran on different GPUs or numbers of GPUs; False if either's instance is unknown."""
    if facts.instance is None or reference.instance is None:
        return False
    sizes = {facts.world_size, reference.world_size}
    if None not in sizes and len(sizes) > 1:
        return True
    named = facts.device_name is not None and facts.device_name == reference.device_name
    return facts.instance != reference.instance and not named


def across(
    facts: StepFacts, reference: StepFacts, labels: Sequence[str], names: dict[Category, str]
) -> Explanation | None:
    """Explain two steps on two machines. None if both ran on one machine, or in two modes on two machines of the same
    GPUs. labels: of the two steps, which differ. names: of kinds of work, for a reader.
    """
    if facts.emulated or reference.emulated:
        return None
    elsewhere = facts.instance != reference.instance and None not in (facts.instance, reference.instance)
    if same_mode(facts, reference):
        if not elsewhere and not other_machine(facts, reference):
            return None
        return Explanation("another machine", _difference(facts, reference, labels, names))
    if not other_machine(facts, reference):
        return None
    return Explanation("mode and machine", _both(facts, reference, labels))


def _difference(facts: StepFacts, reference: StepFacts, labels: Sequence[str], names: dict[Category, str]) -> str:
    untimed = facts.step_time_s is None or reference.step_time_s is None
    mine_s, theirs_s = (one.busy_s if untimed else one.length_s for one in (facts, reference))
    more_s = mine_s - theirs_s
    unit = "ms of kernels a step" if untimed else "ms a step"
    beside = f"({ms(mine_s)}, the reference's {ms(theirs_s)})"
    if abs(more_s) < SMALLEST_S:
        said = f"{labels[0]} takes as long as {labels[1]}, {ms(mine_s)} {unit}"
    else:
        word = "more" if more_s > 0 else "less"
        said = f"{labels[0]} takes {ms(abs(more_s))} {unit} {word} than {labels[1]} {beside}"
    parts = _parts(facts, reference, names, untimed)
    least_s = max(SMALLEST_S, WORTH_NAMING * abs(more_s))
    named = [part for part in parts if abs(part.seconds) >= least_s]
    listed = ", ".join(f"{part.name} {part.seconds * 1e3:+z.1f}" for part in named)
    listed = f": {listed}" if listed else ""
    return f"{said}{listed}{_gemms(parts, named)}.{_clocks(facts, reference)}{replay_would_save(facts)}"


def _parts(facts: StepFacts, reference: StepFacts, names: dict[Category, str], untimed: bool) -> list[_Part]:
    """Return the parts, largest difference first; GEMMs of all types are one, because a mode's are the same on both."""

    def more_s(*kinds: Category) -> float:
        return facts.seconds(*kinds) - reference.seconds(*kinds)

    found = [_Part(GEMMS_NAME, more_s(*GEMMS))]
    found += [_Part(name, more_s(kind)) for kind, name in names.items() if kind not in GEMMS]
    if not untimed:
        found.append(_Part("idle", (facts.idle_s or 0.0) - (reference.idle_s or 0.0)))
    return sorted(found, key=lambda part: -abs(part.seconds))


def _gemms(parts: Sequence[_Part], named: Sequence[_Part]) -> str:
    """Mention GEMMs, which a reader asks for first, if their difference is too small to be named."""
    if any(part.name == GEMMS_NAME for part in named):
        return ""
    (gemms,) = (part for part in parts if part.name == GEMMS_NAME)
    little = abs(gemms.seconds)
    return "; GEMMs take as long" if little < SMALLEST_S else f"; GEMMs differ by {ms(little)} ms"


def _clocks(facts: StepFacts, reference: StepFacts) -> str:
    """Say if one GPU ran at a slower clock than the other, which the times of parts do not show."""
    mine, theirs = facts.sm_clock_mhz, reference.sm_clock_mhz
    if not mine or not theirs or min(mine, theirs) >= SLOWER_CLOCK * max(mine, theirs):
        return ""
    return f" Its GPU ran at {mine:.0f} MHz and the reference's at {theirs:.0f}."


def _both(facts: StepFacts, reference: StepFacts, labels: Sequence[str]) -> str:
    what = "execution" if facts.label == reference.label else "mode"
    remedy = "Compare them on as many GPUs."
    if facts.instance != reference.instance:
        there = f"{reference.instance}:{facts.label}{suffix(facts.execution)}"
        remedy = f"Compare them on one machine: `fp8bench explain {there} {labels[1]}`."
    return (
        f"{labels[0]} takes {_length(facts)} and {labels[1]} {_length(reference)}, but both the {what} and the machine "
        f"differ ({_where(facts)}; {_where(reference)}), and these times do not tell which of the two makes the "
        f"difference. {remedy}"
    )


def _where(facts: StepFacts) -> str:
    unit = "GPU" if facts.device == "cuda" else "process"
    workers = "" if facts.world_size is None else f"{facts.world_size} x "
    return f"{workers}{facts.device_name or unit}"


def _length(facts: StepFacts) -> str:
    return f"{ms(facts.length_s)} ms {'a step' if facts.step_time_s is not None else 'of kernels a step'}"

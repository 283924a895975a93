"""How a way of scaling answered to the jump, in numbers: for how long it saturated, how far off it was, and how soon
its scale was right again.
"""

from dataclasses import dataclass

from fp8bench.schema.numerics import AmaxJump, ScalingTrace

MANY = 0.01
"""More than this share of saturated values is a step that saturates; single values do so all the time."""

NEAR = 2.0
"""A scale is where current scaling has it when it is off by less than this factor."""


@dataclass(frozen=True)
class Answer:
    """One way's. worst_share: of the values, saturated at any step; worst_error: of any step, relative.

    steps_to_come_back: after the fall, until the scale is near current scaling's; None: in none of the steps_after.
    """

    steps_that_saturate: int
    worst_share: float
    worst_error: float
    steps_to_come_back: int | None
    steps_after: int


def answer(trace: ScalingTrace, history: AmaxJump) -> Answer:
    """history: of which the trace is a part."""
    after = range(history.down_at, history.steps)
    wanted = {step: history.largest / trace.amax[step] for step in after}
    back = next((step for step in after if wanted[step] / NEAR < trace.scale[step] < wanted[step] * NEAR), None)
    return Answer(
        steps_that_saturate=sum(share > MANY for share in trace.saturated),
        worst_share=max(trace.saturated),
        worst_error=max(trace.relative_error),
        steps_to_come_back=None if back is None else back - history.down_at,
        steps_after=len(after),
    )


def scaling_name(trace: ScalingTrace) -> str:
    """In words: `delayed, max of 1024`."""
    if trace.scaling == "current":
        return "current"
    return "delayed, most recent" if trace.algo == "most_recent" else f"delayed, max of {trace.history_len}"


def source_name(trace: ScalingTrace) -> str:
    """Who did it."""
    return "Transformer Engine" if trace.source == "transformer_engine" else "simulation"


def come_back_text(found: Answer) -> str:
    """`> 40`: in none of the 40 steps that there were."""
    return f"> {found.steps_after}" if found.steps_to_come_back is None else str(found.steps_to_come_back)

"""What follows from GEMMs that were timed, in sentences."""

from collections.abc import Iterable, Sequence

from fp8bench.report.gemm.rows import CAST_WAYS, BreakEven, GemmReport
from fp8bench.report.written import rate
from fp8bench.schema.gemm import Casts, Shape, StepBound

SAID: dict[Casts, str] = {"none": "casts free", "compiled": "with compiled casts", "eager": "with eager casts"}
UNLIKE = 0.1
"""How far a profile's products and those timed here may lie apart before a reader is told."""

METHOD = (
    "Times are {medians}, all of this one process, {cache}; two of them are called different where their 95 % "
    "intervals have nothing in common (a `?` marks those that overlap). {casts}"
)
CASTS = "Eager casts are torch operations one by one: a fused cast is cheaper."
EMULATED = "fp8 is emulated on this device: its times say nothing of fp8, and no speed-up is shown."


def sentences(report: GemmReport) -> list[str]:
    """What follows from the table, a line each."""
    emulated = [EMULATED] if any(row.emulated for row in report.rows) else []
    return [*own_sentences(report), *emulated, METHOD.format(medians=medians(report), cache=cache(report), casts=CASTS)]


def own_sentences(report: GemmReport) -> list[str]:
    """What was found out here: ceilings, from which size on fp8 pays, and how much it can give a step."""
    said = [*_ceilings(report), *_break_even(report.break_even)]
    return [*said, *(line for one in report.bounds for line in _bound(one, report))]


def medians(report: GemmReport) -> str:
    """What a time is."""
    return "medians" if report.rounds == 1 else f"means of {report.rounds} rounds' medians (of one round with casts)"


def cache(report: GemmReport) -> str:
    """What the products found in the caches."""
    return "from a cold cache" if report.cold_cache else "with warm caches"


def _ceilings(report: GemmReport) -> Iterable[str]:
    if report.ceilings:
        found = (f"{c.arithmetic} {rate(c.tflops)} TFLOP/s ({_of(c.shape)})" for c in report.ceilings)
        yield f"Measured ceilings, the fastest products seen: {', '.join(found)}."
    peaks = (("bf16", report.peak_bf16_tflops), ("fp8", report.peak_fp8_tflops))
    known = [f"{name} {peak:,.0f} TFLOP/s" for name, peak in peaks if peak is not None]
    if known:
        yield f"Datasheet's peaks, dense: {', '.join(known)}."


def _of(shape: Shape) -> str:
    return f"a cube of {shape.m}" if shape.is_square else str(shape)


def _break_even(found: Sequence[BreakEven]) -> Iterable[str]:
    """One line a precision."""
    for precision in dict.fromkeys(one.precision for one in found):
        ways = {one.casts: one for one in found if one.precision == precision}
        said = [f"{_from_size(ways[way])} ({SAID[way]})" for way in CAST_WAYS if way in ways]
        largest = max(max(one.sizes) for one in ways.values())
        yield f"{precision} is faster than bf16 {', '.join(said)}; cubes were measured up to {largest}."


def _from_size(one: BreakEven) -> str:
    return "at no size" if one.size is None else f"from {one.size} x {one.size} x {one.size} on"


def _bound(one: StepBound, report: GemmReport) -> Iterable[str]:
    gains = ", ".join(f"{gain.speedup:.2f}x ({SAID[gain.casts]})" for gain in one.at_most)
    if one.step_time_s is None:
        yield (
            f"fp8 makes the products of the converted layers {gains} as fast; no baseline-bf16 run of "
            f"{report.workload} at batch {report.batch_size} on one GPU is kept for {report.instance}, so what that "
            "gives a whole step is not known: less, since nothing else of it gains."
        )
    else:
        yield from _bound_of_step(one, gains)
    if one.left_in_bf16:
        yield f"{one.left_in_bf16} products have no right fp8 time, and count as bf16 in this."


def _bound_of_step(one: StepBound, gains: str) -> Iterable[str]:
    setting = one.execution or ("compiled" if one.compiled else "eager")
    rounds = f"{one.rounds} round" if one.rounds == 1 else f"{one.rounds} rounds"
    step = f"{(one.step_time_s or 0) * 1e3:.1f} ms (baseline-bf16, {setting}, {rounds})"
    products = f"{one.bf16_products_s * 1e3:.1f} ms of products that fp8 modes convert"
    if one.reason is not None:
        yield f"A step takes {step} and has {products}: no bound, since {one.reason}."
        return
    yield f"A step takes {step} and has {products}: fp8 can give it at most {gains}."
    for mode in one.modes:
        beyond = bool(one.at_most) and mode.speedup > max(gain.speedup for gain in one.at_most)
        more = ", more than its products can: the mode replaces other parts too" if beyond else ""
        setting = mode.execution or ("compiled" if mode.compiled else "eager")
        held = f", and is {mode.held_back_by}" if mode.held_back_by else ""
        yield f"{mode.label} ({setting}) gives {mode.speedup:.2f}x ({mode.step_time_s * 1e3:.1f} ms){more}{held}."
    alone = one.bf16_products_s + one.other_products_s
    if one.profiled_products_s and abs(alone / one.profiled_products_s - 1) > UNLIKE:
        yield (
            f"In the step's profile all products take {one.profiled_products_s * 1e3:.1f} ms, and timed alone those of "
            f"the linear layers take {alone * 1e3:.1f}: the bound is no better than that."
        )

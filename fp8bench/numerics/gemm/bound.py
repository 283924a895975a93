"""The most that fp8 can gain on a complete step: Amdahl's law, over GEMMs.

    bound = T / (T - GEMMs in bf16 + GEMMs in fp8)

with T the baseline's measured step time, and the GEMMs of the converted layers as timed here times their calls per
step, each in the fastest correct fp8 precision, or bf16 without one. It assumes that GEMMs take the same time in the
step as alone (compare `profiled_products_s`) and that the rest is unchanged: a mode that replaces more, as Transformer
Engine's block does, may gain more, and the excess is not due to fp8.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from fp8bench.records.select import Filter, grouped, latest_first
from fp8bench.schema.execution import VARIANTS, Variant
from fp8bench.schema.gemm import Arithmetic, Casts, Gain, ModeGain, ProductTimings, StepBound, arithmetic_of
from fp8bench.schema.rank import GEMMS
from fp8bench.schema.record import Record
from fp8bench.stats.steps import bottleneck_of

BASELINE = "baseline-bf16"
WAYS: tuple[Casts, ...] = ("none", "compiled", "eager")


def bound(
    products: Sequence[ProductTimings],
    baseline: Sequence[Record] = (),
    modes: Iterable[Sequence[Record]] = (),
) -> StepBound | None:
    """Return the bound of all products of a step. baseline: rounds of one measurement, oldest first; none: of the GEMMs
    alone. modes: the rounds of each mode shown with it. None without an fp8 time that is not emulated, or without a
    bf16 time.
    """
    timed = [(one, time) for one in products if (time := _fastest_s(one, "bf16", "none")) is not None]
    converted = [(one, time) for one, time in timed if one.product.stays_bf16 is None]
    fp8_s = {way: [_fastest_s(one, "fp8", way) for one, _ in converted] for way in WAYS}
    if not any(fp8_s["none"]) or len(timed) < len(products):
        return None
    bf16_s = sum(time for _, time in converted)
    step_s = _step_time_s(baseline) if baseline else None
    rest_s = 0.0 if step_s is None else step_s - bf16_s
    # If the GEMMs alone take longer than the step, the clocks were not the same.
    fits = step_s is None or rest_s > 0
    gains = []
    for way, times in fp8_s.items():
        if fits and any(times):
            ours = sum(time or bf16 for (_, bf16), time in zip(converted, times, strict=True))
            gains.append(Gain(casts=way, products_s=ours, speedup=(rest_s + bf16_s) / (rest_s + ours)))
    last = baseline[-1] if baseline else None
    return StepBound(
        baseline_run_id=last.run_id if last else None,
        compiled=last.compiled if last else None,
        execution=last.execution if last else None,
        rounds=len(baseline) or None,
        step_time_s=step_s,
        profiled_products_s=last.profile.seconds(*GEMMS) if last and last.profile else None,
        bf16_products_s=bf16_s,
        other_products_s=sum(time for one, time in timed if one.product.stays_bf16 is not None),
        left_in_bf16=fp8_s["none"].count(None),
        at_most=tuple(gains),
        modes=tuple(_mode_gain(rounds, step_s) for rounds in modes) if step_s is not None else (),
        reason=None if fits else "the GEMMs alone take longer here than the whole step did",
    )


def _fastest_s(one: ProductTimings, arithmetic: Arithmetic, way: Casts) -> float | None:
    """Return the seconds a step of the fastest timing with these casts; None without one that is not emulated."""
    found = (t for t in one.timings if arithmetic_of(t.precision) == arithmetic and t.casts == way and not t.emulated)
    times = [timing.time_s * (one.product.calls_per_step or 1) for timing in found if timing.time_s is not None]
    return min(times, default=None)


def _step_time_s(rounds: Sequence[Record]) -> float:
    return median(record.summary.step_time_s for record in rounds if record.summary is not None)


def _mode_gain(rounds: Sequence[Record], step_s: float) -> ModeGain:
    last, time_s = rounds[-1], _step_time_s(rounds)
    assert last.config is not None
    return ModeGain(
        label=last.config.mode_label,
        compiled=bool(last.compiled),
        execution=last.execution,
        step_time_s=time_s,
        rounds=len(rounds),
        speedup=step_s / time_s,
        held_back_by=next((str(one) for one in map(bottleneck_of, reversed(rounds)) if one), None),
    )


def latest_measurements(
    records: Iterable[Record], workload: str, batch_size: int
) -> dict[Variant, dict[str, list[Record]]]:
    """Return the rounds of the latest measurement by variant and mode: one GPU, this workload and batch size, status
    ok; of the baseline and fp8 modes. records: oldest first.
    """
    wanted = Filter(
        status="ok", source="measured", workload=workload, batch_size=batch_size, world_size=1, device="cuda"
    )
    fitting = [
        record
        for record in wanted.of(records)
        if record.summary and (record.what.mode == BASELINE or (record.evidence and record.evidence.fp8))
    ]
    found: dict[Variant, dict[str, list[Record]]] = {}
    by_variant = grouped(fitting, lambda record: (record.execution or "eager", record.what.mode_label))
    for (variant, label), of_mode in by_variant.items():
        found.setdefault(variant, {})[label] = latest_first(of_mode)[0]
    return found


def bounds(
    products: Sequence[ProductTimings], measured: dict[Variant, dict[str, list[Record]]]
) -> tuple[StepBound, ...]:
    """Return one bound for each variant in which the baseline was measured, eager first; without any,
    one for the GEMMs alone. Empty if there is no bound.

    An eager baseline is shown only with eager modes: the gain of the compiler or of the replay would count as fp8's.
    Another one is also shown with modes that were not measured in all of its ways: that is the choice that a user has.
    """
    found = []
    for variant in (one for one in VARIANTS if BASELINE in measured.get(one, {})):
        parts = set(variant.split("+"))
        within = dict.fromkeys(["eager", *(one for one in VARIANTS if set(one.split("+")) <= parts)])
        shown = {label: rounds for fewer in within for label, rounds in measured.get(fewer, {}).items()}
        others = [rounds for label, rounds in shown.items() if label != BASELINE]
        found.append(bound(products, measured[variant][BASELINE], others))
    return tuple(one for one in found or [bound(products)] if one is not None)

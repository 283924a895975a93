"""The most that fp8 can gain on a complete step: Amdahl's law, over GEMMs.

fp8 makes the linear layers' GEMMs shorter and nothing else, so

    bound = T / (T - GEMMs in bf16 + GEMMs in fp8)

with T the baseline's step time as measured by `fp8bench run`, and the GEMMs of the converted layers as timed here, each
multiplied by its calls per step. For each GEMM the fastest correct fp8 precision is used; a GEMM without one stays in
bf16. Without casts this is the most that any recipe can reach; with eager casts it is what plain torch operations
achieve.

The bound assumes that GEMMs take the same time in the step as alone (compare `profiled_products_s`, from the baseline's
profile), and that the rest of the step is unchanged. A mode that replaces more than the GEMMs, as Transformer Engine's
block does with fused norms and bf16 activations, may gain more; the excess is then not due to fp8.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from fp8bench.records.select import Filter, grouped, latest_first
from fp8bench.schema.execution import VARIANTS, Variant
from fp8bench.schema.gemm import Casts, Gain, ModeGain, ProductTimings, StepBound
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
    """Return the bound. products: all products of a workload's step. baseline: the rounds of one measurement, oldest
    first; if empty, the bound is for the GEMMs alone. modes: the rounds of each mode shown with it.

    None if no fp8 GEMM was timed without emulation, or if a GEMM has no bf16 time.
    """
    converted = [one for one in products if one.product.stays_bf16 is None]
    if not any(_fastest(one, "none") for one in converted) or not all(one.find("bf16") for one in products):
        return None
    bf16_s = sum(_bf16_s(one) for one in converted)
    step_s = _step_time_s(baseline) if baseline else None
    rest_s = None if step_s is None else step_s - bf16_s
    # If the GEMMs alone take longer than the step, the clocks were not the same.
    fits = rest_s is None or rest_s > 0
    return StepBound(
        baseline_run_id=baseline[-1].run_id if baseline else None,
        compiled=baseline[-1].compiled if baseline else None,
        execution=baseline[-1].execution if baseline else None,
        rounds=len(baseline) or None,
        step_time_s=step_s,
        profiled_products_s=_profiled_s(baseline[-1]) if baseline else None,
        bf16_products_s=bf16_s,
        other_products_s=sum(_bf16_s(one) for one in products if one.product.stays_bf16 is not None),
        left_in_bf16=sum(_fastest(one, "none") is None for one in converted),
        at_most=tuple(_gains(converted, bf16_s, rest_s or 0.0)) if fits else (),
        modes=tuple(_mode_gain(rounds, step_s) for rounds in modes) if step_s is not None else (),
        reason=None if fits else "the GEMMs alone take longer here than the whole step did",
    )


def _gains(converted: Sequence[ProductTimings], bf16_s: float, rest_s: float) -> Iterable[Gain]:
    for way in WAYS:
        times = [_fastest(one, way) for one in converted]
        if any(time is not None for time in times):
            fp8_s = sum(
                _calls(one) * time if time is not None else _bf16_s(one)
                for one, time in zip(converted, times, strict=True)
            )
            yield Gain(casts=way, products_s=fp8_s, speedup=(rest_s + bf16_s) / (rest_s + fp8_s))


def _fastest(one: ProductTimings, way: Casts) -> float | None:
    """Return the seconds per GEMM; None without a correct fp8 time."""
    times = [
        timing.time_s
        for timing in one.timings
        if timing.precision != "bf16" and timing.casts == way and timing.time_s is not None and not timing.emulated
    ]
    return min(times, default=None)


def _bf16_s(one: ProductTimings) -> float:
    """Return the seconds per step."""
    timing = one.find("bf16")
    assert timing is not None
    assert timing.time_s is not None
    return _calls(one) * timing.time_s


def _calls(one: ProductTimings) -> int:
    return one.product.calls_per_step or 1


def _profiled_s(record: Record) -> float | None:
    return None if record.profile is None else record.profile.seconds(*GEMMS)


def _step_time_s(rounds: Sequence[Record]) -> float:
    return median(record.summary.step_time_s for record in rounds if record.summary is not None)


def _mode_gain(rounds: Sequence[Record], step_s: float) -> ModeGain:
    config = rounds[-1].config
    assert config is not None
    time_s = _step_time_s(rounds)
    waits = [bottleneck_of(record) for record in rounds]
    return ModeGain(
        label=config.mode_label,
        compiled=bool(rounds[-1].compiled),
        execution=rounds[-1].execution,
        step_time_s=time_s,
        rounds=len(rounds),
        speedup=step_s / time_s,
        held_back_by=next((str(one) for one in reversed(waits) if one), None),
    )


def latest_measurements(
    records: Iterable[Record], workload: str, batch_size: int
) -> dict[Variant, dict[str, list[Record]]]:
    """Return the rounds of the latest measurement by variant and mode: one GPU, this workload and batch size, status
    ok. Only the baseline and fp8 modes are included.

    records: oldest first.
    """
    wanted = Filter(
        status="ok", source="measured", workload=workload, batch_size=batch_size, world_size=1, device="cuda"
    )
    fitting = [record for record in wanted.of(records) if record.summary and _is_baseline_or_fp8(record)]
    found: dict[Variant, dict[str, list[Record]]] = {}
    for (variant, label), of_mode in grouped(fitting, _variant_and_mode).items():
        found.setdefault(variant, {})[label] = latest_first(of_mode)[0]
    return found


def _variant_and_mode(record: Record) -> tuple[Variant, str]:
    assert record.config is not None
    return record.execution or "eager", record.config.mode_label


def _is_baseline_or_fp8(record: Record) -> bool:
    return record.what.mode == BASELINE or (record.evidence is not None and record.evidence.fp8)


def bounds(
    products: Sequence[ProductTimings], measured: dict[Variant, dict[str, list[Record]]]
) -> tuple[StepBound, ...]:
    """Return one bound for each variant in which the baseline was measured (see latest_measurements), eager first.
    Without any baseline, return one for the GEMMs alone. Empty if there is no bound.

    An eager baseline is shown only with eager modes: with a compiled or replayed mode, the gain of the compiler or of
    the replay would count as fp8's. Another baseline is also shown with modes that were not measured in all of its
    ways, such as those of Transformer Engine with a compiled baseline, because that is the choice that a user has.
    """
    found = []
    for variant in VARIANTS:
        modes = measured.get(variant, {})
        if BASELINE in modes:
            shown = {label: rounds for fewer in _within(variant) for label, rounds in measured.get(fewer, {}).items()}
            others = [rounds for label, rounds in shown.items() if label != BASELINE]
            found.append(bound(products, modes[BASELINE], others))
    return tuple(one for one in found or [bound(products)] if one is not None)


def _within(variant: Variant) -> list[Variant]:
    """Return the variants made of parts of this one, in order of the number of parts, with this one last."""
    parts = set(variant.split("+"))
    return [*dict.fromkeys(["eager", *(one for one in VARIANTS if set(one.split("+")) <= parts)])]

"""The most that fp8 can gain on a complete step: Amdahl's law, over GEMMs.

    bound = T / (T - GEMMs in bf16 + GEMMs in fp8)

T is the baseline's measured step time; GEMMs are as timed here, each in the fastest correct fp8 precision, or bf16
without one. A mode that replaces more, as Transformer Engine's block does, may gain more: that is not due to fp8.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from fp8bench.records.select import Filter, grouped, latest_first
from fp8bench.schema.execution import VARIANTS
from fp8bench.schema.gemm import CASTS, Arithmetic, Casts, Gain, ModeGain, ProductTimings, StepBound
from fp8bench.schema.rank import GEMMS
from fp8bench.schema.record import Record
from fp8bench.stats.steps import bottleneck_of

BASELINE = "baseline-bf16"


def bounds(products: Sequence[ProductTimings], records: Iterable[Record], of_step: Filter) -> tuple[StepBound, ...]:
    """Return one bound for each variant in which the baseline was measured, eager first; without any, one for the GEMMs
    alone. Empty if there is no bound. records: oldest first; the latest measurement on one GPU counts of the baseline
    and of each fp8 mode. of_step: the workload and batch size of the GEMMs.

    An eager baseline is shown only with eager modes: the gain of the compiler or of the replay would count as fp8's.
    Another one is also shown with modes that were not measured in all of its ways: that is the choice that a user has.
    """
    wanted = replace(of_step, status="ok", source="measured", world_size=1, device="cuda")
    fitting = [
        record
        for record in wanted.of(records)
        if record.summary and (record.what.mode == BASELINE or (record.evidence and record.evidence.fp8))
    ]
    every = grouped(fitting, lambda record: (record.execution or "eager", record.what.mode_label))
    found = []
    for variant in VARIANTS:
        ways = {"eager", variant, *variant.split("+")}
        shown = {label: of for one in VARIANTS for (how, label), of in every.items() if one == how and how in ways}
        if (variant, BASELINE) in every:
            rounds = {label: latest_first(of)[0] for label, of in shown.items()}
            found.append(bound(products, rounds.pop(BASELINE), rounds.values()))
    return tuple(one for one in found or [bound(products)] if one is not None)


def bound(
    products: Sequence[ProductTimings], baseline: Sequence[Record] = (), modes: Iterable[Sequence[Record]] = ()
) -> StepBound | None:
    """Return the bound of all products of a step. baseline: rounds of one measurement, oldest first; none: of the GEMMs
    alone. modes: the rounds of each mode shown with it. None without an fp8 time that is not emulated, or without a
    bf16 time.
    """
    timed = [(one, time) for one in products if (time := _fastest_s(one, "bf16", "none")) is not None]
    converted = [(one, time) for one, time in timed if one.product.stays_bf16 is None]
    fp8_s = {way: [_fastest_s(one, "fp8", way) for one, _ in converted] for way in CASTS}
    if not any(fp8_s["none"]) or len(timed) < len(products):
        return None
    bf16_s, rest_s = sum(time for _, time in converted), 0.0
    of_step: dict[str, Any] = {}
    if baseline:
        last, step_s = baseline[-1], _step_time_s(baseline)
        rest_s = step_s - bf16_s
        of_step = {
            "baseline_run_id": last.run_id,
            "compiled": last.compiled,
            "execution": last.execution,
            "rounds": len(baseline),
            "step_time_s": step_s,
            "profiled_products_s": last.profile.seconds(*GEMMS) if last.profile else None,
            "modes": tuple(
                ModeGain(
                    label=rounds[-1].what.mode_label,
                    compiled=bool(rounds[-1].compiled),
                    execution=rounds[-1].execution,
                    step_time_s=(time_s := _step_time_s(rounds)),
                    rounds=len(rounds),
                    speedup=step_s / time_s,
                    held_back_by=next((str(one) for one in map(bottleneck_of, reversed(rounds)) if one), None),
                )
                for rounds in modes
            ),
        }
    # If the GEMMs alone take longer than the step, the clocks were not the same.
    fits = not baseline or rest_s > 0
    gains = []
    for way, times in fp8_s.items():
        if fits and any(times):
            ours = sum(time or bf16 for (_, bf16), time in zip(converted, times, strict=True))
            gains.append(Gain(casts=way, products_s=ours, speedup=(rest_s + bf16_s) / (rest_s + ours)))
    return StepBound(
        **of_step,
        bf16_products_s=bf16_s,
        other_products_s=sum(time for one, time in timed if one.product.stays_bf16 is not None),
        left_in_bf16=fp8_s["none"].count(None),
        at_most=tuple(gains),
        reason=None if fits else "the GEMMs alone take longer here than the whole step did",
    )


def _fastest_s(one: ProductTimings, arithmetic: Arithmetic, casts: Casts) -> float | None:
    """Return the seconds a step of the fastest timing with these casts; None without one that is not emulated."""
    alike = (timing.on_units_s for timing in one.timings if (timing.arithmetic, timing.casts) == (arithmetic, casts))
    return min((time * (one.product.calls_per_step or 1) for time in alike if time is not None), default=None)


def _step_time_s(rounds: Sequence[Record]) -> float:
    return median(record.summary.step_time_s for record in rounds if record.summary is not None)

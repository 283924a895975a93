"""The numbers of a GEMM record: speed, shares of ceiling and peak, speed-up over bf16, and from which size fp8 pays.

Two times are called different if their 95 % intervals do not overlap. That is a stricter rule than a test of their
ratio, and a narrower claim: both intervals are of one process, and another process may differ. `stats.ratio`, which
compares modes over processes, would rightly call all of this inconclusive. Emulated GEMMs have no speed-up: their time
is not that of fp8.

For a workload, the GEMMs of a step are also summed, each as often as a step makes it. The interval of a sum goes from
the sum of the lower ends to that of the upper ones: wider than necessary if the errors are independent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from pydantic import Field

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.gemm import (
    CASTS,
    PRECISIONS,
    Arithmetic,
    Casts,
    Precision,
    ProductTimings,
    Shape,
    StepBound,
    Timing,
)
from fp8bench.schema.instance import Catalog

Verdict = Literal["faster", "slower", "undecided"]
OF_CASTS = ("status", "reason", "time_s", "time_ci_s")
OF_TIMING = ("precision", "status", "reason", "emulated", "error", "repetitions", "time_s", "time_ci_s")
COMPARED = ("speedup_vs_bf16", "verdict")


class MeasuredCeiling(Frozen):
    """The fastest GEMM of a record in one arithmetic, with casts free. Candidates are the large squares, which run
    before the power limit is felt, and all other GEMMs, because a shape that suits the GPU better may be even faster.
    """

    arithmetic: Arithmetic
    tflops: float
    precision: Precision
    shape: Shape


class BreakEven(Frozen):
    """The smallest M = N = K that is faster in fp8, and whose larger ones all are too; null if the largest is not."""

    precision: Precision
    casts: Casts
    size: int | None
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """A GEMM in one precision and way of casting; without `of`, all GEMMs of a step. row: its numbers, if casts are
    free.
    """

    timing: Timing
    flops: int
    of: ProductTimings | None = None
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def way(self) -> tuple[Precision, Casts]:
        return self.timing.precision, self.timing.casts

    @property
    def tflops(self) -> float | None:
        """The operations over the whole time, casts too."""
        return self.flops / self.timing.time_s / 1e12 if self.timing.time_s else None


class GemmReport(Frozen):
    """The numbers of one record. rounds: of each GEMM. peaks: from datasheets, in TFLOP/s; null if the GPU is unknown.
    lines: one for each timing, not in the data.

    rows: one for each GEMM and precision, and in `with_casts` the same GEMM after the casts of both operands. Times are
    in seconds for each GEMM; a speed-up is over bf16, which casts nothing.
    """

    run_id: str
    instance: str
    device_name: str | None
    workload: str | None
    batch_size: int | None
    is_sweep: bool
    cold_cache: bool
    rounds: int
    rows: tuple[Mapping[str, Any], ...]
    ceilings: tuple[MeasuredCeiling, ...]
    peak_bf16_tflops: float | None
    peak_fp8_tflops: float | None
    break_even: tuple[BreakEven, ...]
    bounds: tuple[StepBound, ...]
    warnings: tuple[str, ...]
    lines: tuple[Line, ...] = Field(exclude=True)

    @property
    def what(self) -> str:
        """What was measured, e.g. `vit-huge, batch 64`; `GEMMs` for shapes."""
        return f"{self.workload}, batch {self.batch_size}" if self.workload else "GEMMs"


def gemm_report(record: GemmRecord, catalog: Catalog) -> GemmReport:
    """Return the numbers of a record. The catalogue gives the datasheet's peaks, by the exact name of the GPU."""
    gpu = catalog.gpu_by_product(record.device_name)
    peaks = {"bf16": gpu.dense_bf16_tflops, "fp8": gpu.dense_fp8_tflops} if gpu else {}
    ceilings = measured_ceilings(record)
    highest = {ceiling.arithmetic: ceiling.tflops for ceiling in ceilings}
    lines: list[Line] = []
    for one, timing in _alone(record):
        gemm, shape, bf16 = one.product, one.product.shape, one.find("bf16")
        ways = [other for other in one.timings if other.precision == timing.precision and other is not timing]
        ceiling, peak = highest.get(timing.arithmetic), peaks.get(timing.arithmetic)
        on_units = shape.tflops(timing.on_units_s) if timing.on_units_s else None
        row = {
            "run_id": record.run_id,
            "instance": record.instance,
            "device_name": record.device_name,
            "workload": record.config.workload,
            "batch_size": record.config.batch_size,
            "product": gemm.label,
            "role": gemm.role,
            **shape.model_dump(),
            **{name: getattr(gemm, name) for name in ("calls_per_step", "formats", "bias", "output")},
            **{name: getattr(timing, name) for name in OF_TIMING},
            "tflops": shape.tflops(timing.time_s) if timing.time_s else None,
            "share_of_ceiling": on_units / ceiling if on_units and ceiling else None,
            "share_of_peak": on_units / peak if on_units and peak else None,
            **dict(zip(COMPARED, compared(timing, bf16), strict=True)),
            "with_casts": [
                {"casts": way.casts}
                | {name: getattr(way, name) for name in OF_CASTS}
                | dict(zip(COMPARED, compared(way, bf16), strict=True))
                for way in ways
            ],
        }
        lines.append(Line(timing, shape.flops, one, row))
        lines += [Line(way, shape.flops, one) for way in sorted(ways, key=lambda way: CASTS.index(way.casts))]
    return made_of(
        GemmReport,
        record,
        record.config,
        is_sweep=record.config.sweep,
        cold_cache=record.flush_bytes is not None,
        rows=tuple(line.row for line in lines if line.row),
        ceilings=ceilings,
        peak_bf16_tflops=peaks.get("bf16"),
        peak_fp8_tflops=peaks.get("fp8"),
        break_even=tuple(break_even(record.products)),
        lines=tuple(lines),
    )


def _alone(record: GemmRecord) -> Iterable[tuple[ProductTimings, Timing]]:
    return ((one, timing) for one in record.products for timing in one.timings if timing.casts == "none")


def measured_ceilings(record: GemmRecord) -> tuple[MeasuredCeiling, ...]:
    """Return bf16's ceiling, then fp8's, each if the record has large squares of it."""
    found = []
    for square in record.ceilings:
        every = [(square.tflops, square.precision, Shape.cube(square.size))]
        for one, timing in _alone(record):
            if timing.arithmetic == square.arithmetic and timing.on_units_s:
                every.append((one.product.shape.tflops(timing.on_units_s), timing.precision, one.product.shape))
        tflops, precision, shape = max(every, key=lambda one: one[0])
        found.append(MeasuredCeiling(arithmetic=square.arithmetic, tflops=tflops, precision=precision, shape=shape))
    return tuple(found)


def break_even(products: Sequence[ProductTimings]) -> list[BreakEven]:
    """Return the break-even of each fp8 precision and way of casting, over the square sizes that were timed in it and
    in bf16; nothing for emulated ones, or for a single size, which has no "from there on".
    """
    cubes = (one for one in products if one.product.shape.is_cube and not one.product.layers)
    squares = sorted(cubes, key=lambda one: one.product.shape.m)
    found = []
    for way in dict.fromkeys((t.precision, t.casts) for one in squares for t in one.timings if t.precision != "bf16"):
        judged = [(one.product.shape.m, compared(one.find(*way), one.find("bf16"))[1]) for one in squares]
        known = [(size, verdict) for size, verdict in judged if verdict is not None]
        faster = [size for size, _ in takewhile(lambda one: one[1] == "faster", reversed(known))]
        if len(known) > 1:
            sizes, size = tuple(size for size, _ in known), faster[-1] if faster else None
            found.append(BreakEven(precision=way[0], casts=way[1], size=size, sizes=sizes))
    return found


def compared(timing: Timing | None, reference: Timing | None) -> tuple[float | None, Verdict | None]:
    """Return how many times as fast as the reference it is, None if either was not timed or is emulated; and the
    verdict, None also if either has no interval, or if both are the same.
    """
    if timing is None or reference is None or not timing.on_units_s or not reference.on_units_s:
        return None, None
    speedup = reference.on_units_s / timing.on_units_s
    if timing is reference or timing.time_ci_s is None or reference.time_ci_s is None:
        return speedup, None
    if timing.time_ci_s[1] < reference.time_ci_s[0]:
        return speedup, "faster"
    return speedup, "slower" if timing.time_ci_s[0] > reference.time_ci_s[1] else "undecided"


def in_order(way: tuple[Precision, Casts]) -> tuple[int, int]:
    """Return the place of a precision and a way of casting among all."""
    return PRECISIONS.index(way[0]), CASTS.index(way[1])


def steps(report: GemmReport) -> list[Line]:
    """Return the sums of a workload's step, in each precision and way of casting in which all GEMMs are known."""
    gemms = list({id(line.of): line.of for line in report.lines if line.of}.values())
    flops = sum(one.product.shape.flops * (one.product.calls_per_step or 0) for one in gemms)
    found = []
    for precision, casts in sorted({line.way for line in report.lines}, key=in_order):
        # A GEMM that no mode converts takes its time in bf16 in every precision.
        timings = ((one, one.find("bf16") if one.product.stays_bf16 else one.find(precision, casts)) for one in gemms)
        parts = [(calls, timing) for one, timing in timings if timing and (calls := one.product.calls_per_step)]
        if len(parts) < len(gemms):
            continue
        intervals = [(calls, timing.time_ci_s) for calls, timing in parts if timing.time_ci_s is not None]
        low_s, high_s = (sum(calls * interval[end] for calls, interval in intervals) for end in (0, 1))
        total = Timing(
            precision=precision,
            casts=casts,
            emulated=any(timing.emulated for _, timing in parts),
            time_s=sum(calls * (timing.time_s or 0.0) for calls, timing in parts),
            time_ci_s=(low_s, high_s) if len(intervals) == len(parts) else None,
        )
        found.append(Line(total, flops))
    return found

"""The numbers of a GEMM record: speed, shares of ceiling and peak, speed-up over bf16, and from which size fp8 pays.

Two times are called different if their 95 % intervals do not overlap. That is a stricter rule than a test of their
ratio, and a narrower claim: both intervals are of one process, and another process may differ. `stats.ratio`, which
compares modes over processes, would rightly call all of this inconclusive.

Emulated GEMMs have no speed-up: their time is not that of fp8.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

from pydantic import Field

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.schema.files import Frozen
from fp8bench.schema.gemm import (
    Arithmetic,
    Casts,
    Output,
    Pair,
    Precision,
    ProductTimings,
    Role,
    Shape,
    StepBound,
    Timing,
    TimingStatus,
    arithmetic_of,
)
from fp8bench.schema.instance import Catalog

FEWEST_SIZES = 2
"""The fewest sizes of a sweep: a single size has no "from there on"."""

CAST_WAYS: tuple[Casts, ...] = ("none", "compiled", "eager")
TimingVerdict = Literal["faster", "slower", "undecided"]


class OfRecord(Frozen):
    """Whose the numbers are: a report begins with it, and each of its rows. device_name: null on a CPU."""

    run_id: str
    instance: str
    device_name: str | None
    workload: str | None
    batch_size: int | None


class MeasuredCeiling(Frozen):
    """The fastest GEMM of a record in one arithmetic, with casts free. Candidates are the large squares, which run
    before the power limit is felt, and all other GEMMs, because a shape that suits the GPU better may be even faster.
    """

    arithmetic: Arithmetic
    tflops: float
    precision: Precision
    shape: Shape


class WithCasts(Frozen):
    """A GEMM preceded by the casts of both operands. speedup: over bf16, which casts nothing."""

    casts: Casts
    status: TimingStatus
    reason: str | None
    time_s: float | None
    time_ci_s: tuple[float, float] | None
    speedup_vs_bf16: float | None
    verdict: TimingVerdict | None


class GemmRow(OfRecord):
    """One GEMM in one precision. Times are in seconds for each GEMM; shares and speed-ups have no unit. of: the GEMM
    in the record, which is no data of the row.
    """

    product: str
    role: Role
    m: int
    n: int
    k: int
    calls_per_step: int | None
    formats: Pair | None
    bias: bool
    output: Output
    precision: Precision
    status: TimingStatus
    reason: str | None
    emulated: bool
    error: float | None
    repetitions: int
    time_s: float | None
    time_ci_s: tuple[float, float] | None
    tflops: float | None
    share_of_ceiling: float | None
    share_of_peak: float | None
    speedup_vs_bf16: float | None
    verdict: TimingVerdict | None
    with_casts: tuple[WithCasts, ...]
    of: ProductTimings = Field(exclude=True)

    @property
    def shape(self) -> Shape:
        return self.of.product.shape


class BreakEven(Frozen):
    """The square size from which fp8 is faster. size: the smallest M = N = K that is faster and whose larger ones all
    are too; null if the largest is not.
    """

    precision: Precision
    casts: Casts
    size: int | None
    sizes: tuple[int, ...]


class GemmReport(OfRecord):
    """The numbers of one record. rounds: of each GEMM. peaks: from datasheets, in TFLOP/s; null if the GPU is
    unknown.
    """

    is_sweep: bool
    cold_cache: bool
    rounds: int
    rows: tuple[GemmRow, ...]
    ceilings: tuple[MeasuredCeiling, ...]
    peak_bf16_tflops: float | None
    peak_fp8_tflops: float | None
    break_even: tuple[BreakEven, ...]
    bounds: tuple[StepBound, ...]
    warnings: tuple[str, ...]

    @property
    def what(self) -> str:
        """What was measured, e.g. `vit-huge, batch 64`; `GEMMs` for shapes."""
        return f"{self.workload}, batch {self.batch_size}" if self.workload else "GEMMs"

    @property
    def names_formats(self) -> bool:
        """Whether formats were named. If any row has named formats, all rows have them."""
        return any(row.formats is not None for row in self.rows)


def gemm_report(record: GemmRecord, catalog: Catalog) -> GemmReport:
    """Return the numbers of a record. The catalogue gives the datasheet's peaks, by the exact name of the GPU."""
    device = record.environment.device_name if record.environment else None
    gpu = catalog.gpu_by_product(device)
    peaks = {"bf16": gpu.dense_bf16_tflops, "fp8": gpu.dense_fp8_tflops} if gpu else {}
    ceilings = measured_ceilings(record)
    highest = {ceiling.arithmetic: ceiling.tflops for ceiling in ceilings}
    whose: dict[str, Any] = {
        "run_id": record.run_id,
        "instance": record.instance,
        "device_name": device,
        "workload": record.config.workload,
        "batch_size": record.config.batch_size,
    }
    rows = []
    for one in record.products:
        for timing in one.timings:
            if timing.casts != "none":
                continue
            tflops = timing.time_s and one.product.shape.tflops(timing.time_s)
            arithmetic, reference = arithmetic_of(timing.precision), one.find("bf16")
            of = None if timing.emulated else tflops
            product = one.product.model_dump(exclude={"shape", "layers", "stays_bf16"})
            rows.append(
                GemmRow(
                    **{**whose, **product, **one.product.shape.model_dump(), "product": one.product.label},
                    **timing.model_dump(exclude={"casts", "round_sizes", "samples_s"}),
                    tflops=tflops,
                    share_of_ceiling=_share(of, highest.get(arithmetic)),
                    share_of_peak=_share(of, peaks.get(arithmetic)),
                    speedup_vs_bf16=speedup(timing, reference),
                    verdict=judge(timing, reference),
                    with_casts=tuple(
                        WithCasts(
                            **other.model_dump(include={"casts", "status", "reason", "time_s", "time_ci_s"}),
                            speedup_vs_bf16=speedup(other, reference),
                            verdict=judge(other, reference),
                        )
                        for other in one.timings
                        if other.precision == timing.precision and other.casts != "none"
                    ),
                    of=one,
                )
            )
    return GemmReport(
        **whose,
        is_sweep=record.config.sweep,
        cold_cache=record.flush_bytes is not None,
        rounds=record.config.rounds,
        rows=tuple(rows),
        ceilings=ceilings,
        peak_bf16_tflops=peaks.get("bf16"),
        peak_fp8_tflops=peaks.get("fp8"),
        break_even=tuple(break_even(record.products)),
        bounds=record.bounds,
        warnings=record.warnings,
    )


def _share(tflops: float | None, whole: float | None) -> float | None:
    return tflops / whole if tflops is not None and whole is not None else None


def measured_ceilings(record: GemmRecord) -> tuple[MeasuredCeiling, ...]:
    """Return bf16's ceiling, then fp8's, each if the record has large squares of it."""
    fastest: dict[Arithmetic, MeasuredCeiling] = {}
    for square in record.ceilings:
        shape = Shape(m=square.size, n=square.size, k=square.size)
        fastest[square.arithmetic] = MeasuredCeiling(**square.model_dump(exclude={"size"}), shape=shape)
    for one in record.products:
        shape = one.product.shape
        for timing in one.timings:
            best = fastest.get(arithmetic_of(timing.precision))
            if best is None or timing.time_s is None or timing.casts != "none" or timing.emulated:
                continue
            if (tflops := shape.tflops(timing.time_s)) > best.tflops:
                new = {"tflops": tflops, "precision": timing.precision, "shape": shape}
                fastest[best.arithmetic] = best.model_copy(update=new)
    return tuple(fastest.values())


def break_even(products: Sequence[ProductTimings]) -> list[BreakEven]:
    """Return the break-even of each fp8 precision and way of casting, over the square sizes that were timed in it and
    in bf16; nothing for fewer than FEWEST_SIZES sizes, or for emulated ones.
    """
    cubes = (one for one in products if one.product.shape.is_square and not one.product.layers)
    squares = sorted(cubes, key=lambda one: one.product.shape.m)
    wanted = dict.fromkeys((t.precision, t.casts) for one in squares for t in one.timings if t.precision != "bf16")
    found = []
    for precision, casts in wanted:
        judged = [(one.product.shape.m, judge(one.find(precision, casts), one.find("bf16"))) for one in squares]
        known = [(size, verdict) for size, verdict in judged if verdict is not None]
        if len(known) < FEWEST_SIZES:
            continue
        sizes = tuple(size for size, _ in known)
        faster = [size for size, _ in takewhile(lambda one: one[1] == "faster", reversed(known))]
        size = faster[-1] if faster else None
        found.append(BreakEven(precision=precision, casts=casts, size=size, sizes=sizes))
    return found


def speedup(timing: Timing | None, reference: Timing | None) -> float | None:
    """Return how many times as fast as the reference it is; None if either was not timed or is emulated."""
    if timing is None or reference is None or timing.emulated or reference.emulated:
        return None
    return reference.time_s / timing.time_s if timing.time_s and reference.time_s else None


def judge(timing: Timing | None, reference: Timing | None) -> TimingVerdict | None:
    """Return the verdict; None if either was not timed, has no interval or is emulated, or if both are the same."""
    if timing is None or reference is None or timing is reference or speedup(timing, reference) is None:
        return None
    if timing.time_ci_s is None or reference.time_ci_s is None:
        return None
    if timing.time_ci_s[1] < reference.time_ci_s[0]:
        return "faster"
    return "slower" if timing.time_ci_s[0] > reference.time_ci_s[1] else "undecided"

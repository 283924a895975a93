"""GEMMs of several records side by side, as numbers: each timing of each record, and its ratio to the first record's.
Numbers only; `document` shows them.

A ratio is the first record's time over this one's: above 1, this record is faster. It is undecided if the two intervals
overlap, by the rule of `gemm`. An emulated time has no ratio.

For a workload, the GEMMs of a step are also summed: each one's time, as often as a step makes it. A GEMM that stays in
bf16 in every mode counts with its time in bf16. The interval of a sum goes from the sum of the lower ends to the sum of
the upper ends: wider than necessary if the GEMMs' errors are independent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.gemm.rows import CAST_WAYS, GemmReport, TimingVerdict, gemm_report, judge, speedup, tflops_of
from fp8bench.schema.gemm import PRECISIONS, Casts, Precision, ProductTimings, Shape, Timing, TimingStatus
from fp8bench.schema.instance import Catalog
from fp8bench.tables.side_by_side import Difference, against_first, differences, labels


@dataclass(frozen=True)
class Reading:
    """What one record says about a row. Times are in seconds; tflops counts the GEMMs' operations over the complete
    time, including casts. status: None if not timed. ratio, verdict: against the first record; None for that record
    itself.
    """

    status: TimingStatus | None = None
    reason: str | None = None
    emulated: bool = False
    time_s: float | None = None
    time_ci_s: tuple[float, float] | None = None
    tflops: float | None = None
    ratio: float | None = None
    verdict: TimingVerdict | None = None


@dataclass(frozen=True)
class ProductRow:
    """One GEMM in one precision and way of casting. readings: one for each record."""

    product: str
    shape: Shape
    precision: Precision
    casts: Casts
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class StepRow:
    """All GEMMs of a step in one precision and way of casting. A record that lacks any of them has no time."""

    precision: Precision
    casts: Casts
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class GemmComparison:
    """Records of the same work. Every field with one value for each record has the values in the records' order."""

    labels: tuple[str, ...]
    reports: tuple[GemmReport, ...]
    rows: tuple[ProductRow, ...]
    steps: tuple[StepRow, ...]
    differences: tuple[Difference, ...]

    @property
    def emulated(self) -> tuple[str, ...]:
        every = zip(self.labels, self.reports, strict=True)
        return tuple(label for label, report in every if any(row.emulated for row in report.rows))


def compare_products(records: Sequence[GemmRecord], catalog: Catalog) -> GemmComparison:
    """Compare records with the first. records: of one fingerprint, at least one."""
    rows = tuple(_rows(records))
    return GemmComparison(
        labels=labels(records),
        reports=tuple(gemm_report(record, catalog) for record in records),
        rows=rows,
        steps=tuple(_steps(records, rows)),
        differences=differences(records),
    )


def _rows(records: Sequence[GemmRecord]) -> Iterator[ProductRow]:
    """Yield a row for each GEMM, precision and way of casting, in this order, that any record tried."""
    tried = [
        {
            (one.product.label, one.product.shape, t.precision, t.casts): t
            for one in record.products
            for t in one.timings
        }
        for record in records
    ]
    products = dict.fromkeys((one.product.label, one.product.shape) for record in records for one in record.products)
    for (label, shape), precision, casts in product(products, PRECISIONS, CAST_WAYS):
        timings = [known.get((label, shape, precision, casts)) for known in tried]
        if any(timing is not None for timing in timings):
            readings = against_first((_reading(timing, shape) for timing in timings), _beside)
            yield ProductRow(label, shape, precision, casts, readings)


def _reading(timing: Timing | None, shape: Shape) -> Reading:
    if timing is None:
        return Reading()
    tflops = tflops_of(shape, timing)
    return Reading(timing.status, timing.reason, timing.emulated, timing.time_s, timing.time_ci_s, tflops)


def _beside(one: Reading, first: Reading) -> Reading:
    return replace(one, ratio=speedup(one, first), verdict=judge(one, first))


def _steps(records: Sequence[GemmRecord], rows: Sequence[ProductRow]) -> Iterator[StepRow]:
    """Yield the sums of a workload's steps that are known for at least one record."""
    ways = {(row.precision, row.casts) for row in rows}
    for precision, casts in (way for way in product(PRECISIONS, CAST_WAYS) if way in ways):
        readings = against_first((_step(record.products, precision, casts) for record in records), _beside)
        if any(reading.status for reading in readings):
            yield StepRow(precision, casts, readings)


def _step(products: Sequence[ProductTimings], precision: Precision, casts: Casts) -> Reading:
    time_s = low_s = high_s = 0.0
    flops = 0
    emulated, known = False, bool(products)
    for one in products:
        timing = one.find(precision, casts) if one.product.stays_bf16 is None else one.find("bf16")
        calls = one.product.calls_per_step
        if timing is None or timing.time_s is None or calls is None:
            return Reading()
        time_s += timing.time_s * calls
        flops += one.product.shape.flops * calls
        emulated |= timing.emulated
        known &= timing.time_ci_s is not None
        low, high = timing.time_ci_s or (0.0, 0.0)
        low_s, high_s = low_s + low * calls, high_s + high * calls
    if not time_s:
        return Reading()
    interval = (low_s, high_s) if known else None
    return Reading("ok", None, emulated, time_s, interval, flops / time_s / 1e12)

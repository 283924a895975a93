"""The fastest that a record of `fp8bench gemm` has seen of each arithmetic: what other products are held against."""

from fp8bench.schema.files import Frozen
from fp8bench.schema.gemm import Arithmetic, GemmRecord, Precision, Shape, Timing, arithmetic_of


class MeasuredCeiling(Frozen):
    """The fastest product of a record in one arithmetic, casts free: of the large squares, which run before the power
    limit is felt, and of all others, of which a shape that suits the GPU better may be faster still.
    """

    arithmetic: Arithmetic
    tflops: float
    precision: Precision
    shape: Shape


def measured_ceilings(record: GemmRecord) -> tuple[MeasuredCeiling, ...]:
    """bf16's, then fp8's, where the record has any of its large squares."""
    fastest: dict[str, MeasuredCeiling] = {}
    for ceiling in record.ceilings:
        size = ceiling.size
        fastest[ceiling.arithmetic] = MeasuredCeiling(
            arithmetic=ceiling.arithmetic,
            tflops=ceiling.tflops,
            precision=ceiling.precision,
            shape=Shape(m=size, n=size, k=size),
        )
    for one in record.products:
        for timing in one.timings:
            known = fastest.get(arithmetic_of(timing.precision))
            tflops = tflops_of(one.product.shape, timing)
            if known is None or tflops is None or timing.casts != "none" or timing.emulated or tflops <= known.tflops:
                continue
            fastest[known.arithmetic] = MeasuredCeiling(
                arithmetic=known.arithmetic, tflops=tflops, precision=timing.precision, shape=one.product.shape
            )
    return tuple(fastest.values())


def tflops_of(shape: Shape, timing: Timing) -> float | None:
    """Of the product, and its casts if they were timed with it; None where it has no time."""
    return shape.tflops(timing.time_s) if timing.time_s else None

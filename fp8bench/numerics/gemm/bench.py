"""GEMMs, checked and timed: one GEMM in each precision, with and without its casts, in rounds of alternating order.

Each call is timed from a cold cache, as training finds it: before each repetition a buffer several times the size of
the L2 cache is written, and operands rotate among several sets. A repetition is between two CUDA events, and all are
queued before any is read; one whose first event has passed when it is queued is late and not counted.

A GEMM above the power limit runs at full clock for a while (70 ms of ViT-Huge's fc1 on an H200), and slower from then
on, which is the state of a training step: so a timing starts after SETTLE_S of its own load, and only a ceiling without
that (evidence/README.md). A CPU is timed with warm caches, which only shows that the command works.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from fp8bench.numerics.gemm import multiply as mm
from fp8bench.numerics.gemm.multiply import Kernel, Operand, quantize
from fp8bench.numerics.memory import gemm_bytes, operand_sets, require
from fp8bench.records.select import grouped
from fp8bench.schema.config import Device
from fp8bench.schema.errors import RunFailed, first_line
from fp8bench.schema.gemm import REFUSED_PAIR, Casts, Ceiling, Precision, Product, ProductTimings, Shape, Timing
from fp8bench.stats.estimate import estimate

CEILING_SIZES = {"cuda": (4096, 8192), "cpu": (256, 512)}
CEILING_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8-tensorwise", "fp8-tensorwise-fast")
NANOSECONDS = 9

FEWEST, MOST = 20, 200
"""Repetitions: more do not make the interval narrower than the variation between processes."""

FEWEST_WARM, WARM_SHARE, SETTLE_S = 3, 0.25, 0.3
"""An H200's clock fell within 60 to 400 ms of a steady load. Rounds average over its later changes."""

SMALLEST_FLUSH, MOST_FLUSHES = 256 * 2**20, 32
LEAD, MOST_LATE = 1.5, 0.1
"""How many times as long the flush should take the GPU as launching the work after it takes the host; the largest share
of late repetitions.
"""

Call = Callable[[int], object]
"""Does the work once. The argument is the number of the repetition, which selects a set of operands."""

Pair = tuple[Tensor, Tensor]


def _call_s(call: Call, number: int) -> float:
    began = time.perf_counter()
    call(number)
    return time.perf_counter() - began


def repetitions(seconds: float, each_s: float) -> int:
    """Return how many repetitions fill the budget, within FEWEST and MOST."""
    return min(MOST, max(FEWEST, int(seconds / each_s) if each_s > 0 else MOST))


class HostTimer:
    """Times by perf_counter: on a CPU the work is done when the call returns. Caches stay warm."""

    flush_bytes: int | None = None

    def samples(self, call: Call, seconds: float, settled: bool = True) -> list[float]:
        """Return seconds per repetition, in order, within a budget. settled: of no meaning on a CPU."""
        warm = [_call_s(call, number) for number in range(FEWEST_WARM)]
        return [_call_s(call, number) for number in range(repetitions(seconds, min(warm)))]


class CudaTimer:
    """Times by events on the current stream, each repetition from a cold L2 cache."""

    def __init__(self, device: torch.device) -> None:
        cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        self.flush_bytes: int | None = max(SMALLEST_FLUSH, 2 * cache)
        self._device = device
        self._buffer = torch.empty(self.flush_bytes, dtype=torch.uint8, device=device)
        # The quickest of several, after others: the first loads the kernel, and a single one would wait for its launch.
        self._flush_s = min(seconds for seconds, _ in self._elapsed(lambda _: self._buffer.zero_(), FEWEST_WARM, 2))

    def samples(self, call: Call, seconds: float, settled: bool = True) -> list[float]:
        """Return seconds per repetition, in order. seconds: the budget. settled: only after SETTLE_S under load. Waits
        for the device before and after. Raises RuntimeError if the host is too slow.
        """
        launches = []
        for number in range(1 + FEWEST_WARM):
            torch.cuda.synchronize(self._device)
            launches.append(_call_s(call, number))
        torch.cuda.synchronize(self._device)
        # The first call chooses and loads kernels. Of the others the slowest counts: a late repetition is a bad sample.
        flushes = min(MOST_FLUSHES, max(1, math.ceil(LEAD * max(launches[1:]) / self._flush_s)))
        while True:
            pilot = median(seconds for seconds, _ in self._elapsed(call, FEWEST_WARM, flushes))
            each_s = pilot + flushes * self._flush_s
            wanted = repetitions(seconds, each_s)
            warm = math.ceil(SETTLE_S / each_s if settled else WARM_SHARE * wanted)
            for number in range(max(FEWEST_WARM, warm)):
                self._flush(flushes)
                call(number)
            kept = [seconds for seconds, late in self._elapsed(call, wanted, flushes) if not late]
            least = FEWEST if flushes == MOST_FLUSHES else wanted
            if len(kept) >= min(least, (1 - MOST_LATE) * wanted):
                return kept
            if flushes == MOST_FLUSHES:
                waited = f"{wanted - len(kept)} of {wanted} repetitions waited for it"
                raise RuntimeError(f"the host launches this more slowly than the GPU runs it: {waited}")
            flushes = min(MOST_FLUSHES, 2 * flushes)

    def _elapsed(self, call: Call, count: int, flushes: int) -> list[tuple[float, bool]]:
        """Return the seconds of `count` repetitions, queued without waiting; and for each whether the GPU began before
        all of it was queued, so that it may have waited for the host.
        """
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        late = []
        torch.cuda.synchronize(self._device)
        for number, (start, end) in enumerate(events):
            self._flush(flushes)
            start.record()
            call(number)
            end.record()
            late.append(start.query())
        torch.cuda.synchronize(self._device)
        return [(start.elapsed_time(end) / 1e3, passed) for (start, end), passed in zip(events, late, strict=True)]

    def _flush(self, times: int) -> None:
        for _ in range(times):
            self._buffer.zero_()


@dataclass(frozen=True)
class Bench:
    """Where and how GEMMs are measured. seconds: the budget of each timing, over all its rounds. seed: for the
    operands. settled: under sustained load, as in a training step.
    """

    device: torch.device
    timer: HostTimer | CudaTimer
    kernel: Kernel
    seconds: float
    seed: int
    compiled_casts: bool
    rounds: int = 1
    settled: bool = True

    @classmethod
    def on(
        cls, device: Device, seconds: float, seed: int = 0, compiled_casts: bool = False, rounds: int = 1
    ) -> "Bench":
        """Return a bench on a CPU or the first visible GPU, with the timer and the fp8 function for it."""
        place = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        timer = CudaTimer(place) if device == "cuda" else HostTimer()
        return cls(place, timer, mm.KERNELS[device], seconds, seed, compiled_casts, rounds)

    def require_memory(self, shapes: Iterable[Shape]) -> None:
        """Raise UsageError unless each shape, and those of the ceilings, fit into the device's free memory."""
        every = [*shapes, *map(Shape.cube, CEILING_SIZES[self.device.type])]
        needed, largest = max((gemm_bytes(shape, self.timer.flush_bytes), str(shape)) for shape in every)
        remedy = "Give a smaller --shape or --batch-size, or end what else uses the memory"
        require(f"the GEMM {largest}", needed, self.device, remedy)

    def measure(self, product: Product, precisions: Sequence[Precision]) -> ProductTimings:
        """Measure each precision alone and with its casts, in rounds: A B C, C B A, and so on. What stays bf16 is
        measured in bf16 only, named formats without casts; what was not `ok` is not tried again. Raises RunFailed if
        the device fails.
        """
        casts: tuple[Casts, ...] = ("none", "eager", "compiled") if self.compiled_casts else ("none", "eager")
        rounds: dict[tuple[Precision, Casts], list[Timing]] = {
            (precision, way): []
            for precision in precisions
            if precision == "bf16" or product.stays_bf16 is None
            for way in (casts if precision != "bf16" and product.formats is None else casts[:1])
        }

        def right(precision: Precision, way: Casts) -> bool:
            return all(timing.status == "ok" for timing in (*rounds[precision, "none"], *rounds[precision, way]))

        sources = self._sources(product)
        for number in range(self.rounds):
            for one in rounds if number % 2 == 0 else reversed(rounds):
                if right(*one):
                    rounds[one].append(self._attempt(product, *one, sources))
        shown = [of for (precision, way), of in rounds.items() if way == "none" or right(precision, "none")]
        return ProductTimings(product=product, timings=tuple(map(pooled, shown)))

    def ceilings(self, precisions: Sequence[Precision]) -> tuple[Ceiling, ...]:
        """Return the best of a few large square GEMMs in bf16 and, if `precisions` has fp8 and the device units for it,
        in fp8: the most that the device reaches before its power limit takes effect.
        """
        burst = replace(self, settled=False, rounds=1)
        found = []
        for size in CEILING_SIZES[self.device.type]:
            product = Product(shape=Shape.cube(size))
            sources = self._sources(product)
            for precision in CEILING_PRECISIONS if set(precisions) - {"bf16"} else CEILING_PRECISIONS[:1]:
                timing = burst._attempt(product, precision, "none", sources)
                if timing.on_units_s is not None:
                    tflops = product.shape.tflops(timing.on_units_s)
                    found.append(Ceiling(arithmetic=timing.arithmetic, tflops=tflops, precision=precision, size=size))
        by_arithmetic = grouped(found, lambda one: one.arithmetic)
        return tuple(max(of, key=lambda one: one.tflops) for of in by_arithmetic.values())

    def _sources(self, product: Product) -> list[Pair]:
        generator = torch.Generator(self.device).manual_seed(self.seed)
        sets = operand_sets(product.shape, self.timer.flush_bytes)
        return [mm.operands(product, self.device, generator) for _ in range(sets)]

    def _attempt(self, product: Product, precision: Precision, casts: Casts, sources: list[Pair]) -> Timing:
        try:
            # On a GPU, the library itself refuses what it cannot do.
            if precision != "bf16" and self.kernel.emulated and product.formats == REFUSED_PAIR:
                raise ValueError("no GPU takes it: cuBLASLt has no GEMM of two e5m2 matrices")
            return self._timed(product, precision, casts, sources)
        except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
            raise RunFailed(
                f"{product.label} in {precision} broke the run: {first_line(error)}",
                "Give a smaller --shape or --batch-size, or end what else uses the GPU",
            ) from error
        except (RuntimeError, ValueError) as error:
            return Timing(precision=precision, casts=casts, status="unsupported", reason=first_line(error))

    def _timed(self, product: Product, precision: Precision, casts: Casts, sources: list[Pair]) -> Timing:
        fp8, fast, rowwise = precision != "bf16", precision.endswith("-fast"), precision.startswith("fp8-rowwise")
        multiply, formats = self.kernel.multiply if fp8 else mm.bf16_mm, mm.formats(product, precision)
        cast = _compiled_quantize() if casts == "compiled" else quantize
        unscaled = torch.ones((), device=self.device)

        def operands(pair: Pair) -> tuple[Operand, Operand]:
            if not fp8:
                return Operand(pair[0], unscaled), Operand(pair[1], unscaled)
            return Operand(*cast(pair[0], formats[0], rowwise)), Operand(*cast(pair[1], formats[1], rowwise))

        ready = list(map(operands, sources)) if casts == "none" else None

        def work(number: int) -> tuple[tuple[Operand, Operand], Tensor]:
            place = number % len(sources)
            made = operands(sources[place]) if ready is None else ready[place]
            return made, multiply(*made, fast)

        made, output = work(0)
        error = mm.gemm_error(output, *made, product.shape)
        wrong = mm.complaint(error, mm.limit(precision, product.shape.k), "the GEMM")
        if casts != "none":
            for matrix, operand in zip(sources[0], made, strict=True):
                wrong = wrong or mm.complaint(mm.cast_error(matrix, operand, product.shape), mm.CAST_LIMIT, "a cast")
        if wrong is not None:
            return Timing(precision=precision, casts=casts, status="invalid", reason=wrong, error=error)
        # Nothing is kept that the timing does not need.
        del made, output
        samples = self.timer.samples(work, self.seconds / self.rounds, self.settled)
        return Timing(
            precision=precision,
            casts=casts,
            emulated=fp8 and self.kernel.emulated,
            error=error,
            time_s=median(samples),
            repetitions=len(samples),
            samples_s=tuple(round(sample, NANOSECONDS) for sample in samples),
        )


def pooled(rounds: Sequence[Timing]) -> Timing:
    """Combine rounds, at least one, of which only the last may be other than `ok`: the mean of their medians with its
    interval over rounds, and the largest of their errors. A round that is not `ok` is returned instead.
    """
    if len(rounds) == 1 or rounds[-1].status != "ok":
        return rounds[-1]
    found = estimate(median(timing.samples_s) for timing in rounds)
    return rounds[0].model_copy(
        update={
            "error": max((timing.error for timing in rounds if timing.error is not None), default=None),
            "time_s": found.value,
            "time_ci_s": found.interval,
            "repetitions": sum(timing.repetitions for timing in rounds),
            "round_sizes": tuple(len(timing.samples_s) for timing in rounds),
            "samples_s": tuple(sample for timing in rounds for sample in timing.samples_s),
        }
    )


def _compiled_quantize() -> Callable[[Tensor, torch.dtype, bool], Pair]:
    # Compiled anew: kernels kept from earlier shapes would count against torch's limit of recompilations, beyond which
    # it runs eagerly without an error.
    torch.compiler.reset()
    return torch.compile(quantize, fullgraph=True, dynamic=False)

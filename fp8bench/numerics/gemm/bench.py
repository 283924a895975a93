"""GEMMs, checked and timed: one GEMM in each precision, with and without its casts.

    bench = Bench.on("cuda", seconds=0.1, seed=0, compiled_casts=False, rounds=3)
    timings = bench.measure(product, precisions)

A GEMM is first compared with exact sums (`multiply`), then timed; one that fails the check is not timed.
bf16 operands are ready; fp8 is timed from operands that are already cast, and with both casts before it, in eager torch
operations: the cost of a mode is between these. GEMMs alone run at the power limit, where the clock varies from one
tenth of a second to the next, so each precision is timed in rounds, in alternating order. The interval is of one
process, and does not cover another. One round has none.

Each call is timed from a cold cache, as training finds it: before each repetition a buffer several times the size of
the L2 cache is written, and operands rotate among several sets.

On a GPU a repetition is between two CUDA events, and all are queued before any is read. The buffer is written often
enough to take LEAD times as long as a launch; a repetition whose first event has passed when it is queued is late and
not counted, and if more than MOST_LATE of them are, all are repeated with twice the lead.

Repetitions fill a budget of time after a warm-up. A GEMM above the power limit runs at full clock for a while (70 ms of
ViT-Huge's fc1 on an H200), and slower from then on, which is the state of a training step: so a timing starts after
SETTLE_S of its own load, and only a ceiling without that (evidence/README.md). A CPU is timed with warm caches, which
only shows that the command works.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fp8bench.numerics.gemm.multiply import (
    CAST_LIMIT,
    Kernel,
    Quantized,
    bf16_mm,
    cast_error,
    complaint,
    find_kernel,
    formats,
    gemm_error,
    is_fast,
    is_rowwise,
    limit,
    operands,
    quantize,
)
from fp8bench.numerics.memory import free_bytes, operand_sets, require_memory
from fp8bench.schema.config import Device
from fp8bench.schema.errors import RunFailed, first_line
from fp8bench.schema.gemm import (
    REFUSED_PAIR,
    Casts,
    Ceiling,
    Precision,
    Product,
    ProductTimings,
    Shape,
    Timing,
    arithmetic_of,
)
from fp8bench.stats.estimate import estimate

Quantize = Callable[[Tensor, torch.dtype, bool], tuple[Tensor, Tensor]]
Pair = tuple[Tensor, Tensor]

CEILING_SIZES = {"cuda": (4096, 8192), "cpu": (256, 512)}
CEILING_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8-tensorwise", "fp8-tensorwise-fast")
NANOSECONDS = 9
"""The digits of a sample that are kept."""

Call = Callable[[int], object]
"""Does the work once. The argument is the number of the repetition, which selects a set of operands."""

FEWEST = 20
MOST = 200
"""More repetitions do not make the interval narrower than the variation between processes."""

FEWEST_WARM = 3
WARM_SHARE = 0.25
SETTLE_S = 0.3
"""An H200's clock fell within 60 to 400 ms of a steady load. Rounds average over its later changes."""

SMALLEST_FLUSH = 256 * 2**20
MOST_FLUSHES = 32
LEAD = 1.5
"""How many times as long the flush should take the GPU as launching the work after it takes the host."""

MOST_LATE = 0.1
"""The largest share of late repetitions."""


def repetitions(seconds: float, each_s: float) -> int:
    """Return how many repetitions fill the budget, within FEWEST and MOST."""
    return min(MOST, max(FEWEST, int(seconds / each_s) if each_s > 0 else MOST))


class HostTimer:
    """Times by perf_counter. On a CPU the work is done when the call returns."""

    flush_bytes: int | None = None
    """The bytes written before each repetition; None if nothing is written."""

    def samples(self, call: Call, seconds: float, settled: bool = True) -> list[float]:
        """Return seconds per repetition, in order. seconds: the budget. settled: of no meaning on a CPU."""
        warm = self._timed(call, FEWEST_WARM)
        return self._timed(call, repetitions(seconds, min(warm)))

    def _timed(self, call: Call, count: int) -> list[float]:
        taken = []
        for number in range(count):
            began = time.perf_counter()
            call(number)
            taken.append(time.perf_counter() - began)
        return taken


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
        flushes = self._flushes(call)
        while True:
            found = self._loaded(call, seconds, settled, flushes)
            kept = [seconds for seconds, late in found if not late]
            if len(kept) >= (1 - MOST_LATE) * len(found):
                return kept
            if flushes == MOST_FLUSHES:
                break
            flushes = min(MOST_FLUSHES, 2 * flushes)
        if len(kept) < FEWEST:
            raise RuntimeError(
                f"the host launches this more slowly than the GPU runs it: {len(found) - len(kept)} of {len(found)} "
                "repetitions waited for it"
            )
        return kept

    def _loaded(self, call: Call, seconds: float, settled: bool, flushes: int) -> list[tuple[float, bool]]:
        pilot = sorted(seconds for seconds, _ in self._elapsed(call, FEWEST_WARM, flushes))
        each_s = pilot[len(pilot) // 2] + flushes * self._flush_s
        count = repetitions(seconds, each_s)
        warm = math.ceil(SETTLE_S / each_s) if settled else math.ceil(WARM_SHARE * count)
        for number in range(max(FEWEST_WARM, warm)):
            self._flush(flushes)
            call(number)
        return self._elapsed(call, count, flushes)

    def _flushes(self, call: Call) -> int:
        """Return how often the buffer must be written for the host to stay ahead."""
        launches = []
        for number in range(1 + FEWEST_WARM):
            torch.cuda.synchronize(self._device)
            began = time.perf_counter()
            call(number)
            launches.append(time.perf_counter() - began)
        torch.cuda.synchronize(self._device)
        # The first call chooses and loads kernels. The slowest of the others counts: one late repetition is a bad
        # sample.
        return min(MOST_FLUSHES, max(1, math.ceil(LEAD * max(launches[1:]) / self._flush_s)))

    def _elapsed(self, call: Call, count: int, flushes: int) -> list[tuple[float, bool]]:
        """Return the seconds of `count` repetitions, queued without waiting; and for each whether the GPU began before
        all of it was queued, so that it may have waited for the host.
        """
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        late = []
        torch.cuda.synchronize(self._device)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            self._flush(flushes)
            start.record()
            call(number)
            end.record()
            late.append(start.query())
        torch.cuda.synchronize(self._device)
        times = [start.elapsed_time(end) / 1e3 for start, end in zip(starts, ends, strict=True)]
        return list(zip(times, late, strict=True))

    def _flush(self, times: int) -> None:
        for _ in range(times):
            self._buffer.zero_()


Timer = HostTimer | CudaTimer


def timer_for(device: torch.device) -> Timer:
    return CudaTimer(device) if device.type == "cuda" else HostTimer()


@dataclass(frozen=True)
class Bench:
    """Where and how GEMMs are measured. seconds: the budget of each timing, over all its rounds. seed: for the
    operands. rounds: rounds of GEMMs alone. settled: under sustained load, as in a training step.
    """

    device: torch.device
    timer: Timer
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
        return cls(place, timer_for(place), find_kernel(place), seconds, seed, compiled_casts, rounds)

    def require_memory(self, shapes: Iterable[Shape]) -> None:
        """Raise UsageError unless each shape, and those of the ceilings, fit into the device's free memory."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "this host"
        every = [*shapes, *ceiling_shapes(self.device)]
        require_memory(every, self.timer.flush_bytes, free_bytes(self.device), name)

    def measure(self, product: Product, precisions: Sequence[Precision]) -> ProductTimings:
        """Measure each precision alone and with its casts, in rounds: A B C, C B A, and so on. What stays bf16 is
        measured in bf16 only, named formats without casts; what was not `ok` is not tried again. Raises RunFailed if
        the device fails.
        """
        wanted = [one for one in precisions if one == "bf16" or product.stays_bf16 is None]
        ways: tuple[Casts, ...] = ("none", "eager", "compiled") if self.compiled_casts else ("none", "eager")
        rounds: dict[tuple[Precision, Casts], list[Timing]] = {
            (precision, casts): []
            for precision in wanted
            for casts in (ways if precision != "bf16" and product.formats is None else ways[:1])
        }

        def right(precision: Precision, casts: Casts) -> bool:
            return all(timing.status == "ok" for timing in rounds[precision, casts])

        sources = self._sources(product)
        for number in range(self.rounds):
            for precision, casts in rounds if number % 2 == 0 else reversed(rounds):
                if right(precision, "none") and right(precision, casts):
                    rounds[precision, casts].append(self._attempt(product, precision, casts, sources))
        shown = [of for (precision, casts), of in rounds.items() if casts == "none" or right(precision, "none")]
        return ProductTimings(product=product, timings=tuple(map(pooled, shown)))

    def ceilings(self, precisions: Sequence[Precision]) -> tuple[Ceiling, ...]:
        """Return the best of a few large square GEMMs in bf16 and, if `precisions` has fp8 and the device units for it,
        in fp8: the most that the device reaches before its power limit takes effect.
        """
        of_fp8 = any(precision != "bf16" for precision in precisions)
        burst = replace(self, settled=False, rounds=1)
        best: dict[str, Ceiling] = {}
        for shape in ceiling_shapes(self.device):
            product = Product(shape=shape)
            sources = burst._sources(product)
            for precision in CEILING_PRECISIONS if of_fp8 else CEILING_PRECISIONS[:1]:
                timing = burst._attempt(product, precision, "none", sources)
                if timing.time_s is None or timing.emulated:
                    continue
                arithmetic, tflops = arithmetic_of(precision), shape.tflops(timing.time_s)
                if arithmetic not in best or tflops > best[arithmetic].tflops:
                    best[arithmetic] = Ceiling(arithmetic=arithmetic, tflops=tflops, precision=precision, size=shape.m)
        return tuple(best.values())

    def _sources(self, product: Product) -> list[Pair]:
        generator = torch.Generator(self.device).manual_seed(self.seed)
        sets = operand_sets(product.shape, self.timer.flush_bytes)
        return [operands(product, self.device, generator) for _ in range(sets)]

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
        fast = is_fast(precision)
        cast: Quantize = _compiled_quantize() if casts == "compiled" else quantize
        ready: Sequence[tuple[Any, Any]] = sources
        if precision != "bf16" and casts == "none":
            ready = [_quantized(pair, product, precision, cast) for pair in sources]
        multiply: Callable[[Any, Any, bool], Tensor] = bf16_mm if precision == "bf16" else self.kernel.multiply

        def work(number: int) -> tuple[Any, Any, Tensor]:
            left, right = ready[number % len(ready)]
            if casts != "none":
                left, right = _quantized((left, right), product, precision, cast)
            return left, right, multiply(left, right, fast)

        error, wrong = _checked(work(0), sources[0] if casts != "none" else None, product, precision)
        if wrong is not None:
            return Timing(precision=precision, casts=casts, status="invalid", reason=wrong, error=error)
        samples = self.timer.samples(work, self.seconds / self.rounds, self.settled)
        return Timing(
            precision=precision,
            casts=casts,
            emulated=precision != "bf16" and self.kernel.emulated,
            error=error,
            time_s=median(samples),
            repetitions=len(samples),
            samples_s=tuple(round(sample, NANOSECONDS) for sample in samples),
        )


def pooled(rounds: Sequence[Timing]) -> Timing:
    """Combine rounds, at least one: the mean of their medians with its interval over rounds, and the largest of their
    errors. A round that is not `ok` is returned instead.
    """
    for timing in rounds:
        if timing.status != "ok":
            return timing
    first, *others = rounds
    if not others:
        return first
    found = estimate(median(timing.samples_s) for timing in rounds)
    errors = [timing.error for timing in rounds if timing.error is not None]
    return first.model_copy(
        update={
            "error": max(errors, default=None),
            "time_s": found.value,
            "time_ci_s": found.interval,
            "repetitions": sum(timing.repetitions for timing in rounds),
            "round_sizes": tuple(len(timing.samples_s) for timing in rounds),
            "samples_s": tuple(sample for timing in rounds for sample in timing.samples_s),
        }
    )


def sees_cuda() -> bool:
    """Return whether this torch can use a GPU. A driver may report one that torch was not built for."""
    return torch.cuda.is_available()


def ceiling_shapes(device: torch.device) -> list[Shape]:
    """Return the large square GEMMs for that device."""
    return [Shape(m=size, n=size, k=size) for size in CEILING_SIZES[device.type]]


def _quantized(pair: Pair, product: Product, precision: Precision, function: Quantize) -> tuple[Quantized, Quantized]:
    left_format, right_format = formats(product, precision)
    rowwise = is_rowwise(precision)
    left, right = pair
    return Quantized(*function(left, left_format, rowwise)), Quantized(*function(right, right_format, rowwise))


def _checked(
    made: tuple[Any, Any, Tensor], source: Pair | None, product: Product, precision: Precision
) -> tuple[float | None, str | None]:
    left, right, output = made
    shape = product.shape
    error = gemm_error(output, left, right, shape)
    wrong = complaint(error, limit(precision, shape.k), "the GEMM")
    for matrix, cast in zip(source or (), (left, right), strict=source is not None):
        wrong = wrong or complaint(cast_error(matrix, cast, shape), CAST_LIMIT, "a cast")
    return error, wrong


def _compiled_quantize() -> Quantize:
    """Return the cast compiled anew by torch.compile. Kernels kept from earlier shapes would count against torch's
    limit of recompilations, beyond which it runs eagerly without an error.
    """
    torch.compiler.reset()
    compiled: Quantize = torch.compile(quantize, fullgraph=True, dynamic=False)
    return compiled

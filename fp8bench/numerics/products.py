"""Matrix products, proved and timed: one product in each precision, with and without its casts.

    bench = Bench.on("cuda", seconds=0.1, seed=0, compiled_casts=False, rounds=3)
    timings = bench.measure(product, precisions)

A product is compared with exact sums first (`product_check`), then timed from a cold cache and under a load that has
lasted (`product_timing`); what is wrong is not timed. bf16 operands are there already, in the layout of training; what
autocast pays to make them from float32 is not counted. fp8 is timed twice: from operands that are cast already, which
is what a kernel could give if casts cost nothing, and with both casts in front, in eager torch operations, each of
which runs over the whole matrix (`product_operands`). What a mode pays lies between, the nearer to the first the better
it fuses its casts.

Products alone run at the GPU's power limit, where its clock wanders, and its repetitions within a tenth of a second
share what the clock was: on two H200s ViT-Huge's fc1 read 1139 to 1198 TFLOP/s from one time to the next, each time
within 0.1 %. So each precision is timed in several rounds, all precisions in turn, there and back. A round counts as
`stats.estimate` counts a process; the interval is still of one process, and says nothing of another. With casts, whose
times are mostly memory's, there is one round.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fp8bench.numerics.memory import free_bytes, operand_sets, require_memory
from fp8bench.numerics.product_check import CAST_LIMIT, cast_error, complaint, limit, product_error
from fp8bench.numerics.product_kernels import Kernel, find_kernel
from fp8bench.numerics.product_operands import Quantized, cast, formats, is_fast, is_rowwise, operands
from fp8bench.numerics.product_rounds import pooled
from fp8bench.numerics.product_timing import Timer, timer_for
from fp8bench.schema.config import Device
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.gemm import Casts, Ceiling, Precision, Product, ProductTimings, Shape, Timing, arithmetic_of
from fp8bench.stats.estimate import estimate

Cast = Callable[[Tensor, torch.dtype, bool], tuple[Tensor, Tensor]]
Pair = tuple[Tensor, Tensor]

CEILING_SIZES = {"cuda": (4096, 8192), "cpu": (256, 512)}
CEILING_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8-tensorwise", "fp8-tensorwise-fast")
NANOSECONDS = 9


@dataclass(frozen=True)
class Bench:
    """Where and how products are measured. seconds: the budget of each timing, over all its rounds. seed: of the
    operands. rounds: of products alone. settled: under a load that has lasted, as a training step's has
    (`product_timing`).
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
        """A bench on a CPU or the first visible GPU, with the timer and the fp8 function that fit it."""
        place = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        return cls(place, timer_for(place), find_kernel(place), seconds, seed, compiled_casts, rounds)

    def require_memory(self, shapes: Iterable[Shape]) -> None:
        """Raises UsageError unless each shape, and those of the ceilings, fit into what is free on the device."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "this host"
        every = [*shapes, *ceiling_shapes(self.device)]
        require_memory(every, self.timer.flush_bytes, free_bytes(self.device), name)

    def measure(self, product: Product, precisions: Sequence[Precision]) -> ProductTimings:
        """Each precision alone, in rounds, then each with its casts; a product that stays bf16 in bf16 only.

        Raises RunFailed where the device runs out of memory or breaks.
        """
        wanted = [one for one in precisions if one == "bf16" or product.stays_bf16 is None]
        sources = self._sources(product)
        alone = self._in_rounds(product, wanted, sources)
        found: list[Timing] = []
        for precision in wanted:
            found.append(alone[precision])
            if precision != "bf16" and alone[precision].status == "ok":
                found += [self._with_casts(product, precision, sources, way) for way in self._ways()]
        return ProductTimings(product=product, timings=tuple(found))

    def ceilings(self, precisions: Sequence[Precision]) -> tuple[Ceiling, ...]:
        """The best of a few large square products in bf16 and, where it has units for it, in fp8: what the device
        reaches at all, before its power limit is felt.

        precisions: those that were asked for; no fp8 among them, no ceiling of fp8.
        """
        asked_fp8 = any(precision != "bf16" for precision in precisions)
        burst = replace(self, settled=False, rounds=1)
        best: dict[str, Ceiling] = {}
        for shape in ceiling_shapes(self.device):
            product = Product(shape=shape)
            sources = burst._sources(product)
            for precision in CEILING_PRECISIONS if asked_fp8 else CEILING_PRECISIONS[:1]:
                timing = burst._alone(product, precision, sources)
                found = None if timing.emulated else _ceiling(shape, timing)
                if found and (found.arithmetic not in best or found.tflops > best[found.arithmetic].tflops):
                    best[found.arithmetic] = found
        return tuple(best.values())

    def _ways(self) -> tuple[Casts, ...]:
        return ("eager", "compiled") if self.compiled_casts else ("eager",)

    def _sources(self, product: Product) -> list[Pair]:
        generator = torch.Generator(self.device).manual_seed(self.seed)
        sets = operand_sets(product.shape, self.timer.flush_bytes)
        return [operands(product, self.device, generator) for _ in range(sets)]

    def _in_rounds(self, product: Product, wanted: Sequence[Precision], sources: list[Pair]) -> dict[Precision, Timing]:
        """Each precision alone, A B C, C B A, and so on. One that was not `ok` in a round is not tried again."""
        rounds: dict[Precision, list[Timing]] = {precision: [] for precision in wanted}
        for number in range(self.rounds):
            for precision in wanted if number % 2 == 0 else reversed(wanted):
                if all(timing.status == "ok" for timing in rounds[precision]):
                    rounds[precision].append(self._alone(product, precision, sources))
        return {precision: pooled(timings) for precision, timings in rounds.items()}

    def _alone(self, product: Product, precision: Precision, sources: list[Pair]) -> Timing:
        """The product from operands that are in its format already."""
        if precision == "bf16":
            return self._attempt(product, precision, "none", lambda: self._bf16(product, sources))
        return self._attempt(product, precision, "none", lambda: self._fp8(product, precision, sources))

    def _bf16(self, product: Product, sources: list[Pair]) -> Timing:
        left, right = sources[0]
        error = product_error(torch.mm(left, right.t()), left, right, product.shape)
        wrong = complaint(error, limit("bf16", product.shape.k), "the product")
        if wrong is not None:
            return Timing(precision="bf16", status="invalid", reason=wrong, error=error)

        def multiply(number: int) -> object:
            left, right = sources[number % len(sources)]
            return torch.mm(left, right.t())

        return self._timed(multiply, "bf16", "none", error, emulated=False)

    def _fp8(self, product: Product, precision: Precision, sources: list[Pair]) -> Timing:
        fast = is_fast(precision)
        quantized = [_quantize(pair, product, precision, cast) for pair in sources]
        left, right = quantized[0]
        error = product_error(self.kernel.multiply(left, right, fast), left, right, product.shape)
        wrong = complaint(error, limit(precision, product.shape.k), "the product")
        if wrong is not None:
            return Timing(precision=precision, status="invalid", reason=wrong, error=error)

        def multiply(number: int) -> object:
            left, right = quantized[number % len(quantized)]
            return self.kernel.multiply(left, right, fast)

        return self._timed(multiply, precision, "none", error, self.kernel.emulated)

    def _with_casts(self, product: Product, precision: Precision, sources: list[Pair], way: Casts) -> Timing:
        """Both casts, then the product."""
        fast = is_fast(precision)

        def measured() -> Timing:
            function = _compiled_cast() if way == "compiled" else cast

            def work(number: int) -> tuple[Quantized, Quantized, Tensor]:
                left, right = _quantize(sources[number % len(sources)], product, precision, function)
                return left, right, self.kernel.multiply(left, right, fast)

            error, wrong = _judge(work(0), sources[0], product.shape, precision)
            if wrong is not None:
                return Timing(precision=precision, casts=way, status="invalid", reason=wrong, error=error)
            return self._timed(work, precision, way, error, self.kernel.emulated)

        return self._attempt(product, precision, way, measured)

    def _attempt(self, product: Product, precision: Precision, casts: Casts, measure: Callable[[], Timing]) -> Timing:
        """What the device cannot do is a finding. Raises RunFailed where it breaks, or its memory is full."""
        try:
            return measure()
        except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
            raise RunFailed(
                f"{product.label} in {precision} broke the run: {_first_line(error)}",
                "Give a smaller --shape or --batch-size, or end what else uses the GPU",
            ) from error
        except (RuntimeError, ValueError) as error:
            return Timing(precision=precision, casts=casts, status="unsupported", reason=_first_line(error))

    def _timed(
        self, call: Callable[[int], object], precision: Precision, casts: Casts, error: float | None, emulated: bool
    ) -> Timing:
        seconds = self.seconds / self.rounds if casts == "none" else self.seconds
        samples = self.timer.samples(call, seconds, self.settled)
        found = estimate([samples], "median")
        return Timing(
            precision=precision,
            casts=casts,
            emulated=emulated,
            error=error,
            time_s=found.value,
            time_ci_s=None if found.low is None or found.high is None else (found.low, found.high),
            repetitions=len(samples),
            samples_s=tuple(round(sample, NANOSECONDS) for sample in samples),
        )


def _quantize(pair: Pair, product: Product, precision: Precision, function: Cast) -> tuple[Quantized, Quantized]:
    left_format, right_format = formats(product.role, precision)
    rowwise = is_rowwise(precision)
    left, right = pair
    return Quantized(*function(left, left_format, rowwise)), Quantized(*function(right, right_format, rowwise))


def _judge(
    made: tuple[Quantized, Quantized, Tensor], source: Pair, shape: Shape, precision: Precision
) -> tuple[float | None, str | None]:
    """The product's error, and what is wrong with it or with a cast; None: nothing is."""
    left, right, output = made
    error = product_error(output, left, right, shape)
    wrong = complaint(error, limit(precision, shape.k), "the product")
    for matrix, kept in zip(source, (left, right), strict=True):
        wrong = wrong or complaint(cast_error(matrix, kept, shape), CAST_LIMIT, "a cast")
    return error, wrong


def _ceiling(shape: Shape, timing: Timing) -> Ceiling | None:
    if timing.time_s is None:
        return None
    return Ceiling(
        arithmetic=arithmetic_of(timing.precision),
        tflops=shape.tflops(timing.time_s),
        precision=timing.precision,
        size=shape.m,
    )


def sees_cuda() -> bool:
    """Whether this torch can use a GPU. A driver may show one to which torch was not built."""
    return torch.cuda.is_available()


def ceiling_shapes(device: torch.device) -> list[Shape]:
    """The large square products of that device."""
    return [Shape(m=size, n=size, k=size) for size in CEILING_SIZES[device.type]]


def _compiled_cast() -> Cast:
    """The cast by torch.compile, compiled anew: kernels kept from earlier shapes would count against torch's limit of
    recompilations, beyond which it runs eagerly and says little.
    """
    torch.compiler.reset()
    compiled: Cast = torch.compile(cast, fullgraph=True, dynamic=False)
    return compiled


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__

"""The target of a prediction: an instance of the catalogue, the GPUs that train, their price, and what cannot run."""

from dataclasses import dataclass

from fp8bench.launch.forecast import too_old
from fp8bench.predict.machine import Machine, machine
from fp8bench.predict.source import Source
from fp8bench.pricing.choose import PriceQuery, Share, of_used, why_no_price
from fp8bench.registry import modes
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Gpu, Instance
from fp8bench.schema.machine import GIB, gib

FP8_UNITS = (8, 9)
RECIPES = {"te-fp8:block": ((9, 0), (9, 0)), "te-fp8:mxfp8": ((10, 0), None)}
"""The first and the last compute capability on which a recipe runs as it is measured: on Blackwell, Transformer Engine
computes block scaling by mxfp8.
"""

NEARLY_FULL = 0.95
"""The share of the GPU's memory from which a prediction warns: the measured peak counts only torch's allocator, and the
driver and the libraries take memory of their own.
"""


@dataclass(frozen=True)
class Target:
    """The machine that a prediction is for. paid: the price of the GPUs that are used; None if no price is known.
    about_price: why no price is known, or whose price it is; empty if it is the instance's own.
    """

    instance: Instance
    gpu: Gpu
    machine: Machine
    paid: Share | None
    about_price: str = ""

    @property
    def share(self) -> float:
        """The share of an instance's price that is paid: of this one or of the listed one whose price stands in."""
        return self.paid.share if self.paid else self.machine.gpus / self.instance.gpu_count


def target(instance: Instance, catalog: Catalog, gpus: int | None, query: PriceQuery) -> Target:
    """Return the target. gpus: how many of the instance's GPUs train; None means all. Raises UsageError if the
    instance's GPU is unknown, or if it has fewer GPUs than requested.
    """
    key = instance.key
    gpu = catalog.gpus.get(instance.gpu or "")
    if gpu is None or instance.gpu_count < 1:
        what = f"{key} has {instance.gpu!r}, of which" if instance.gpu else f"{key} has no known GPU, so"
        raise UsageError(
            f"{what} neither dense_bf16_tflops nor memory_bandwidth_gb_s is known",
            "Name an instance of `fp8bench list instances` whose GPU is listed",
        )
    if gpus is not None and gpus > instance.gpu_count:
        raise UsageError(
            f"{key} has {instance.gpu_count} GPUs, not {gpus}, and several hosts are not predicted",
            f"Give --gpus {instance.gpu_count} or less",
        )
    used = gpus or instance.gpu_count
    paid = of_used(instance, gpu.name, used, catalog, query)
    about = why_no_price(key, instance, query) if paid is None else ""
    if paid is not None and paid.instance != key:
        about = f"no price of {key} is known: {paid} stand in for it"
    return Target(instance, gpu, machine(gpu, used), paid, about)


def unsupported(source: Source, target: Target) -> str | None:
    """Return why the target cannot run what was measured; None if nothing is known to prevent it."""
    return _of_mode(source, target.gpu) or _of_memory(source, target)


def _of_mode(source: Source, gpu: Gpu) -> str | None:
    record = source.record
    in_fp8 = bool(record.evidence and record.evidence.fp8) or bool(record.profile and record.profile.has_fp8_gemm)
    if in_fp8 and gpu.capability < FP8_UNITS:
        return f"{gpu.name} has no fp8 units, which take {too_old(gpu, FP8_UNITS)}"
    entry = modes().get(record.what.mode)
    first, last = RECIPES.get(source.label, (None, None))
    for least in (entry.needs.compute_capability if entry and entry.needs else None, first):
        if least is not None and gpu.capability < least:
            return f"{source.label} needs {too_old(gpu, least)}"
    if last is not None and gpu.capability > last:
        return f"{source.label} is computed by mxfp8 on {gpu.name}, and not as it was measured"
    return None


def _of_memory(source: Source, target: Target) -> str | None:
    peak, there = source.peak_memory_bytes, target.instance.gpu_memory_gib
    if peak is None or there is None or peak <= there * GIB:
        return None
    return f"it needs {gib(peak)} of each GPU, and {target.gpu.name} has {there:g}: predict a smaller batch"


def memory_warning(source: Source, target: Target) -> str | None:
    """Return a warning if the step may not fit into the target's memory, or if that is unknown; else None."""
    peak, there = source.peak_memory_bytes, target.instance.gpu_memory_gib
    if peak is None or there is None:
        return "whether it fits into memory is unknown"
    nearly_full = peak > NEARLY_FULL * there * GIB
    return f"needs {peak / GIB:.1f} of {there:g} GiB: it may not fit" if nearly_full else None

"""Whether an imported step time can be true, by what the instance's GPUs can do at most.

A figure is doubted and not refused, since whoever imports it may know better.
"""

from collections.abc import Iterator

from fp8bench.launch.imported import ImportedFigure
from fp8bench.schema.instance import Catalog, Gpu

FLOPS_PER_UNIT = {"vit-huge": 763_503_882_240}
"""Forward and backward of one image, as torch's FlopCounterMode counts them."""

LONG_STEP_S = 30.0
LOWEST_MFU, HIGHEST_MFU = 0.005, 1.0
"""No training that anybody publishes is slower, and none is faster than its arithmetic units."""

SIXTEEN_BITS_OR_MORE = ("baseline-", "te-bf16")


def doubts(figure: ImportedFigure, instance: str, catalog: Catalog) -> Iterator[str]:
    """A line for each reason to doubt the step time; none where nothing is known of the GPU or the work."""
    meant = f"--step-time is in seconds; {figure.step_time_s:g} ms are {figure.step_time_s / 1e3:g}"
    share = _share_of_peak(figure, instance, catalog)
    if share is not None and not LOWEST_MFU <= share <= HIGHEST_MFU:
        why = "more than it can do" if share > HIGHEST_MFU else meant
        percent = f"{share * 100:,.0f}" if share > 0.01 else f"{share * 100:.2g}"
        yield (
            f"a step of {figure.step_time_s:g} s for {figure.batch_size} images a GPU uses {percent} % of what this "
            f"instance's GPU can compute in that time: {why}"
        )
    elif figure.step_time_s > LONG_STEP_S:
        yield f"a step of {figure.step_time_s:g} s is longer than training steps are: {meant}"


def _share_of_peak(figure: ImportedFigure, instance: str, catalog: Catalog) -> float | None:
    known = catalog.instances.get(instance)
    gpu = catalog.gpus.get(known.gpu) if known and known.gpu else None
    flops = FLOPS_PER_UNIT.get(figure.workload)
    peak = _peak_tflops(figure, gpu) if gpu is not None else None
    if flops is None or peak is None:
        return None
    return flops * figure.batch_size / figure.step_time_s / (peak * 1e12)


def _peak_tflops(figure: ImportedFigure, gpu: Gpu) -> float | None:
    """Dense, of the fastest unit that the mode may use."""
    if figure.mode.startswith(SIXTEEN_BITS_OR_MORE):
        return gpu.dense_bf16_tflops
    known = [peak for peak in (gpu.dense_bf16_tflops, gpu.dense_fp8_tflops) if peak is not None]
    return max(known, default=None)

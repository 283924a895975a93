"""Whether a workload can be proved at all, which its plain model shows before any mode is judged by it.

Proofs compare passes, and take a batch in pieces of any size. So the plain model must give the same in two passes and
process each sample alone, and the loss of a batch must be the mean of its samples' losses; what is not so would later
look like a fault of a mode. Tests ask workloads of this package, others are asked in each run.

The last is measured by the loss and, since fresh models have nearly the same loss for every sample, by the gradient at
the input: a sample's is that of its part of the batch, times the part's share. On a CPU language models, ViTs, ConvNeXt
and Swin are within 0.004 of that; means over valid tokens are off by 0.1 to 0.4, sums by 0.4 to 0.9.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from fp8bench.modes.protocol import BF16_TOLERANCE
from fp8bench.schema.errors import MeasurementInvalid, in_words
from fp8bench.worker.rounding import logits_error, norm, ratio
from fp8bench.worker.view import View, leakage, look
from fp8bench.workloads.protocol import Batch, Workload

# How much two equal passes may differ: some GPU kernels add up in any order. A dropout of 0.01 in two blocks made 0.03
# of the logits, one of 0.1 made 0.1.
SAME = 0.01
# How far the loss may be from the mean of those of parts, and how far from 1 the scale of a part's gradient:
OF_LOSS, OF_GRADIENT = 0.02, 0.05
# Where a batch is cut: unequal parts, so that a sum differs from a mean, and small ones, whose samples differ more.
CUTS = (2, 6)


def require_provable(model: nn.Module, workload: Workload, batch: Batch, reset: Callable[[], None]) -> None:
    """Raise MeasurementInvalid if the plain model cannot be compared with another. reset: its buffers."""

    def again(part: Batch) -> View:
        view = look(model, workload, part)
        reset()
        return view

    whole, second = again(batch), again(batch)
    if not math.isfinite(whole.loss):
        raise _refused(f"the loss of {workload.name}'s plain model is {whole.loss}", "Correct its loss or its weights")
    off = max(_apart(whole.loss, second.loss), logits_error(whole.logits, second.logits))
    if off > SAME:
        raise _refused(
            f"the model of {workload.name} gives other results in each pass (dropout?): two equal ones differ by "
            f"{off:.3g} (at most {SAME:g})",
            "Set its dropout, and whatever else is random in it, to 0",
        )
    if whole.input_gradient.any():
        _require_alone(workload.name, *leakage(model, workload, batch))
        reset()
    cuts = [cut for cut in CUTS if cut + CUTS[0] <= len(batch.inputs)] or [1]
    parts = [Batch(*part) for part in zip(*(tensor.tensor_split(cuts) for tensor in batch), strict=True)]
    views = [again(part) for part in parts]
    shares = [len(part.inputs) / len(batch.inputs) for part in parts]
    mean = sum(share * view.loss for share, view in zip(shares, views, strict=True))
    # For each part with a gradient at its input in the whole batch, the multiple of it that it has alone.
    places = torch.tensor([len(view.input_gradient) for view in views]).cumsum(0)[:-1].tolist()
    scales = [
        share * float((view.input_gradient * mine).sum(dtype=torch.float64)) / norm(mine) ** 2
        for mine, view, share in zip(whole.input_gradient.tensor_split(places), views, shares, strict=True)
        if mine.any()
    ]
    fits = _apart(whole.loss, mean, *(view.loss for view in views)) <= OF_LOSS
    if not fits or not all(abs(scale - 1) <= OF_GRADIENT for scale in scales):
        told = f", gradients {', '.join(f'{scale:.2f}' for scale in scales)} times as large" if scales else ""
        raise _refused(
            f"the loss of {workload.name} is not the mean of its samples' losses: a batch has {whole.loss:.4g}, and "
            f"its parts by themselves {mean:.4g}{told}",
            "Average over samples, with as many valid targets in each (no padding, no sum), and nothing across samples",
        )


def _require_alone(name: str, samples: float, later: float | None) -> None:
    together = f"the samples of a batch see each other in the model of {name} (BatchNorm?)"
    ahead = f"{name} states that it is causal, and in its model tokens see later ones"
    most = BF16_TOLERANCE.max_leakage
    for found, what, remedy in (
        (samples, together, "Use a norm that sees one sample at a time, such as LayerNorm or GroupNorm"),
        (later or 0.0, ahead, "Mask its attention (is_causal=True), or state causal = False"),
    ):
        if found > most:
            raise _refused(f"{what}: leakage {found:.3g}, at most {most:g}", remedy)


def _apart(loss: float, other: float, *more: float) -> float:
    return 0.0 if loss == other else ratio(abs(other - loss), max(map(abs, (loss, other, *more))))


def _refused(what: str, remedy: str) -> MeasurementInvalid:
    return MeasurementInvalid(in_words(what), remedy, "parity")

"""Whether a workload can be proved at all: asked of its plain model before any mode is judged by it."""

from torch import nn

from fp8bench.modes.protocol import BF16_TOLERANCE
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker.relative import relative_error
from fp8bench.worker.view import View, leakage, look
from fp8bench.workloads.protocol import Batch, Workload

REPEATED = 0.01
"""By how much two equal passes may differ: some kernels add up in another order each time."""


def require_suitable(model: nn.Module, workload: Workload, batch: Batch, seen: View) -> None:
    """Raise MeasurementInvalid, with the workload's name, if two passes of its plain model differ, or if its samples
    see each other. seen: of the first pass. A model with a gradient of 0 at its input, whose first part is frozen, is
    not asked for the latter.
    """
    again = look(model, workload, batch)
    if not relative_error([seen.logits], [again.logits]) <= REPEATED:
        raise MeasurementInvalid(
            f"the plain model of {workload.name} gives other results in each pass, so no mode can be compared with it",
            "Turn off what is random in its forward pass: dropout, stochastic depth",
            "parity",
        )
    found = leakage(model, workload, batch)
    if seen.input_gradient.any() and not found.samples <= BF16_TOLERANCE.max_leakage:
        raise MeasurementInvalid(
            f"samples of a batch see each other in the plain model of {workload.name} (leakage {found.samples:.3g})",
            "Use a model whose layers see one sample: GroupNorm or LayerNorm where it has BatchNorm",
            "parity",
        )

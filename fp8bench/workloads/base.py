"""What this package's own workloads on images and on tokens have in common (a plug-in need not inherit from it), and
the work of a model: its parameters, and the FLOPs of a forward and a backward pass by torch's FlopCounterMode.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import gcd, prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fp8bench.schema.config import DataSource
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.gemm import ALIGNMENT
from fp8bench.workloads.fake_data import Drawn, draw_image, endless_batches, seeded
from fp8bench.workloads.protocol import Batch, stated
from fp8bench.workloads.resizable import Resizable

Sizes = Sequence[int]
Work = tuple[int, int]  # parameters, and FLOPs of a sample's step


def flops_of(forward: Callable[[], object]) -> int:
    """Return the FLOPs of `forward`, and of the backward pass from its output if that is a tensor."""
    formulas: dict[Any, Any] = {torch.ops.aten.convolution_backward: _convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        output = forward()
        if isinstance(output, Tensor):
            output.sum().backward()
    return int(counter.get_total_flops())


def _convolution_backward(gradient: Sizes, inputs: Sizes, weight: Sizes, *arguments: Any, **_others: Any) -> int:
    # Each gradient costs as much as the forward pass. torch's formula for the weight's ignores groups, and multiplies
    # the work of a depthwise convolution by its channels.
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = arguments
    places = prod((inputs if transposed else gradient)[2:])
    return int(2 * gradient[0] * places * prod(weight) * sum(wanted[:2]))


class SeededModel(ABC):
    """A workload whose model follows from the seed, and whose work is linear in the batch."""

    def __init__(self, data: DataSource = "loader", workers: int = 0, seed: int = 0) -> None:
        self.data: DataSource = data
        self.workers, self.seed = workers, seed

    @abstractmethod
    def model(self) -> nn.Module:
        """Return the model with weights drawn on torch's default device."""

    @abstractmethod
    def sample(self) -> Tensor:
        """Return the inputs of one sample, on torch's default device."""

    @abstractmethod
    def sizes(self) -> dict[str, int | str]: ...

    def work(self) -> Work:
        return _work(type(self), tuple(self.sizes().items()))

    def build(self, device: torch.device) -> nn.Module:
        with seeded(self.seed, device):
            model = self.model()
        return model.to(device).train()

    def flops_per_step(self, batch_size: int) -> int:
        return batch_size * self.work()[1]


@cache
def _work(made: Any, sizes: tuple[tuple[str, Any], ...]) -> Work:
    # Of equal blocks, one and two are counted.
    depth, own = stated(made, "depth_size"), dict(sizes)
    if depth is None:
        return _counted(made().resized(**own))
    of_one, of_two = (_counted(made().resized(**{**own, depth: blocks})) for blocks in (1, 2))
    parameters, flops = (one + (two - one) * (own[depth] - 1) for one, two in zip(of_one, of_two, strict=True))
    return parameters, flops


def _counted(workload: Any) -> Work:
    # On the meta device attention takes the plain path, and its GEMMs count once.
    with torch.device("meta"):
        model, inputs = workload.model(), workload.sample()
    return sum(parameter.numel() for parameter in model.parameters()), flops_of(lambda: model(inputs))


class ImageClassifier(SeededModel):
    """Random images with random classes."""

    unit = "images"

    @property
    @abstractmethod
    def images(self) -> tuple[int, int]:
        """The height and width of an image in pixels, and the number of classes."""

    def sample(self) -> Tensor:
        return torch.empty(1, 3, *[self.images[0]] * 2)

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        dataset = Drawn(partial(draw_image, *self.images), self.seed)
        return endless_batches(dataset, batch_size, rank, device, self.data, self.workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def units_per_step(self, batch_size: int) -> int:
        return batch_size


class TokenWorkload(Resizable, SeededModel):
    """A workload whose samples are sequences of `sequence_length` tokens, none of which sees a later one."""

    unit = "tokens"
    causal: ClassVar[bool] = True
    usual_length: ClassVar[int] = 2048
    gate_length: ClassVar[int | None] = 2048
    config_fields: ClassVar[tuple[str, ...]] = ("sequence_length",)

    def __init__(self, sequence_length: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.sequence_length = sequence_length or self.usual_length

    @property
    def piece(self) -> int:
        """The number of samples in a piece. Two reveal whether samples see each other; fp8 may need more tokens."""
        return max(2, ALIGNMENT // gcd(ALIGNMENT, self.sequence_length))

    def check(self, batch_size: int, fp8: bool) -> None:
        """Raise ModeUnavailable if the number of tokens does not suit fp8's GEMMs."""
        tokens = self.units_per_step(batch_size)
        if fp8 and tokens % ALIGNMENT:
            length, fewer = self.sequence_length, self.sequence_length // ALIGNMENT * ALIGNMENT
            what = f"fp8 GEMMs need a multiple of {ALIGNMENT} tokens, and batch {batch_size} x sequence {length} are"
            remedy = f"Use --sequence-length {fewer or ALIGNMENT} or {fewer + ALIGNMENT}, or a --batch-size that is a"
            raise ModeUnavailable(f"{what} {tokens:,}", f"{remedy} multiple of {ALIGNMENT // gcd(ALIGNMENT, length)}")

    def units_per_step(self, batch_size: int) -> int:
        return batch_size * self.sequence_length

    def parameters(self) -> int:
        return self.work()[0]

    def sizes(self) -> dict[str, int | str]:
        return {**self.architecture, "sequence_length": self.sequence_length}

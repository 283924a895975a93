"""The data and the work of every image classifier: random images with random classes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fp8bench.schema.config import DataSource
from fp8bench.workloads.fake_data import FakeDataset, endless_batches
from fp8bench.workloads.protocol import Batch


class Images(NamedTuple):
    """The images that a model takes. px: height and width of an image."""

    px: int
    classes: int


class ImageClassifier(ABC):
    """The base class of workloads on images. Subclasses add the model."""

    unit = "images"
    data: DataSource
    workers: int
    seed: int

    @property
    @abstractmethod
    def images(self) -> Images: ...

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        dataset = FakeDataset(*self.images, self.seed)
        return endless_batches(dataset, batch_size, rank, device, self.data, self.workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross entropy, as the mean over the batch."""
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def units_per_step(self, batch_size: int) -> int:
        return batch_size

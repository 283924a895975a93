"""The data and the work of every image classifier: random images with random classes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fp8bench.schema.config import DataSource
from fp8bench.workloads.fake_data import EndlessSampler, FakeDataset, LoaderBatches, device_batches
from fp8bench.workloads.protocol import Batch


@dataclass(frozen=True)
class Images:
    """The images of a model. px: height and width of an image."""

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
    def images(self) -> Images:
        """The images that the model takes."""

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        """Return endless batches, from a DataLoader or kept on the device."""
        dataset = FakeDataset(self.images.px, self.images.classes, self.seed)
        if self.data == "device":
            return device_batches(dataset, batch_size, rank, device)
        sampler = EndlessSampler(len(dataset), batch_size, rank)
        return LoaderBatches(dataset, sampler, batch_size, device, self.workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross entropy, as the mean over the batch."""
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def units_per_step(self, batch_size: int) -> int:
        """Return the number of images."""
        return batch_size

"""What every classifier of images is trained on, and how its work is counted: random images in random classes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fp8bench.schema.config import DataSource
from fp8bench.workloads.fake_data import EndlessSampler, FakeDataset, LoaderBatches, device_batches
from fp8bench.workloads.protocol import Batch


@dataclass(frozen=True)
class Images:
    """px: height and width of one."""

    px: int
    classes: int


class ImageClassifier:
    """A workload on images, but for its model."""

    unit = "images"
    data: DataSource
    workers: int
    seed: int

    @property
    def images(self) -> Images:
        """What the model takes."""
        raise NotImplementedError

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        """Batches without end, from a DataLoader or kept on the device."""
        dataset = FakeDataset(self.images.px, self.images.classes, self.seed)
        if self.data == "device":
            return device_batches(dataset, batch_size, rank, device)
        sampler = EndlessSampler(len(dataset), batch_size, rank)
        return LoaderBatches(dataset, sampler, batch_size, device, self.workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy, the mean over the batch."""
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def units_per_step(self, batch_size: int) -> int:
        """Images."""
        return batch_size

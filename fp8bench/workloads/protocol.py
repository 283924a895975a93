"""What a workload is: a seeded plain float32 model, its batches, its loss, and its work in a step.

    workload = cls(data=..., workers=..., seed=...)      # fields of RunConfig
    model = workload.build(device)
    for batch in workload.batches(batch_size, rank, device): loss = workload.loss(model, batch)

The iterator of `batches` may have an attribute `prefetched`: how many batches may be waiting in it, made ahead of the
step that takes them. The loop empties that queue before it times steps, since steps that live on what was made before
hide a loader that is too slow, and times a whole number of queues full, since processes that fill a queue together
deliver in bursts. Without the attribute nothing is taken to be made ahead.

A batch is (inputs, targets), both on the device. Inputs are floating point, or integer tokens for a model that takes
them in by torch.nn.Embedding: the parity gate takes the gradient at the inputs or at what the embedding makes of them,
and reads the logits from the model's output.

A class need not inherit from `Workload`; where it does not state `config_fields`, `packages`, `causal` or `piece`, the
values here hold. It may have four methods more:

  logits(model, batch)     the logits of the batch, [batch, ...], for a model whose output under `loss` is not them (a
                           language model that never holds all of them): the gate asks it, and never a timed step
  check(batch_size, fp8)   raises ModeUnavailable, before anything is built, where this batch cannot be trained on here,
                           by a mode with fp8 GEMMs or by one without
  parameters()             how many numbers are trained: memory that cannot hold them is found before it is used
  resized(**sizes)         the same workload with other whole numbers for some of `sizes()`, by their names: a language
                           model whose `vocab_size` is 256 can read a text byte by byte (`workloads.on_text`)

A target of a language model is the token after its input, and no loss shifts it again.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fp8bench.schema.config import DataSource


class Batch(NamedTuple):
    """inputs: [batch, ...] float32, or integer tokens; targets: [batch, ...] int64. Both on the device."""

    inputs: Tensor
    targets: Tensor


class Workload(Protocol):
    """The contract. unit: what throughput counts, "images" or "tokens". config_fields: further fields of RunConfig that
    its class takes as keywords. packages: that its model is made by, whose versions are recorded. causal: a logit for
    every token, [batch, tokens, ...], which depends on no later token. piece: samples that a proof takes at once: two
    or more, and a number that fp8 kernels can take. proves_gradients: the gate compares the gradient of every weight
    too, which needs memory for two more copies of all.
    """

    name: str
    unit: str
    config_fields: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = False
    proves_gradients: ClassVar[bool] = False
    piece: int = 16

    def __init__(self, data: DataSource = "loader", workers: int = 0, seed: int = 0) -> None: ...

    def build(self, device: torch.device) -> nn.Module:
        """The plain float32 model in training mode; the same weights for the same seed on every rank."""

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        """Batches without end. Each rank's differ; the same seed gives the same ones. A method `close`, if the iterator
        has one, is called after the last step.
        """

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """A scalar, from one call of `model`. Autocast is the loop's business."""

    def units_per_step(self, batch_size: int) -> int:
        """Units in one rank's step."""

    def flops_per_step(self, batch_size: int) -> int:
        """Model FLOPs of one rank's step, forward and backward, by torch's FlopCounterMode."""

    def sizes(self) -> dict[str, int | str]:
        """What makes two runs the same work; goes into the fingerprint."""


def stated(workload: Workload | type[Workload], name: str) -> Any:
    """What a workload states about itself, or the protocol's default where it is silent."""
    return getattr(workload, name, getattr(Workload, name))


def prefetched(batches: Iterator[Batch]) -> int:
    """How many batches may be waiting in an iterator; 0 where it does not say."""
    return int(getattr(batches, "prefetched", 0))

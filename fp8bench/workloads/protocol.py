"""The interface of a workload: a seeded plain float32 model, its batches, its loss, and the work in a step.

    workload = cls(data=..., workers=..., seed=...)      # fields of RunConfig
    model = workload.build(device)
    for batch in workload.batches(batch_size, rank, device): loss = workload.loss(model, batch)

The iterator of `batches` may have an attribute `prefetched`: how many batches may be waiting in it. The loop empties
that queue before it times steps, because steps that consume batches prepared earlier hide a loader that is too slow. It
times an integer number of full queues, because processes that fill a queue together deliver in bursts.

A batch is (inputs, targets), both on the device. Inputs are floating point, or integer tokens for a model that reads
them with torch.nn.Embedding. The parity gate takes the gradient at the inputs or at the output of the embedding, and
reads the logits from the model's output.

A class need not inherit from `Workload`. If it does not define `config_fields`, `packages`, `causal`, `depth_size`,
`gate_length` or `piece`, the values here apply. It may have four more methods:

  logits(model, batch)     the logits of the batch, [batch, ...], for a model whose output under `loss` is not logits
                           (a language model that never holds all logits): the gate calls it, and no timed step does
  check(batch_size, fp8)   raises ModeUnavailable, before anything is built, if this machine cannot train on this batch
                           by a mode with fp8 GEMMs or by one without
  parameters()             the number of trained parameters: used to detect memory that is too small before it is used
  resized(**sizes)         the same workload with other integers for some of `sizes()`, by their names, for `--size`
                           (`workloads.resizable`). A language model whose `vocab_size` is 256 can read a text byte by
                           byte (`workloads.on_text`)

Blocks, which are compiled, sharded and checkpointed one by one, are the members of a model's list of modules of one
class. A model with a single block, or whose blocks are in no such list, names them: `block_names = ("layer",)`.

The layer that computes the logits is called `head` or `lm_head`: modes leave it out of fp8 by its name.

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
    """The contract of a workload. unit: what throughput counts, "images" or "tokens". config_fields: more fields of
    RunConfig that its class takes as keywords. packages: that build its model, whose versions are recorded. causal:
    whether there is a logit for every token, [batch, tokens, ...], that depends on no later token. depth_size: which of
    `sizes()` is the number of identical blocks, so that `resized` can make fewer of them. gate_length: how many tokens
    of a sample the parity gate looks at where it keeps the whole model's activations, but not block by block; None for
    all. piece: samples that a proof processes at once: two or more, and a number that fp8 kernels can take.
    """

    name: str
    unit: str
    config_fields: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = False
    depth_size: ClassVar[str | None] = None
    gate_length: ClassVar[int | None] = None
    piece: int = 16

    def __init__(self, data: DataSource = "loader", workers: int = 0, seed: int = 0) -> None: ...

    def build(self, device: torch.device) -> nn.Module:
        """Return the plain float32 model in training mode. The same seed gives the same weights on every rank."""

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        """Return an endless iterator, unlike on each rank, the same for a seed; `close` ends it, if there."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss, a scalar, from one call of `model`. The loop applies autocast."""

    def units_per_step(self, batch_size: int) -> int:
        """Return the number of units in one rank's step."""

    def flops_per_step(self, batch_size: int) -> int:
        """Return the model FLOPs of one rank's step, forward and backward, by torch's FlopCounterMode."""

    def sizes(self) -> dict[str, int | str]:
        """Return what must be equal for two runs to do the same work. It is part of the fingerprint."""


def stated(workload: Workload | type[Workload], name: str) -> Any:
    """Return what a workload states about itself, or the protocol's default if it states nothing."""
    return getattr(workload, name, getattr(Workload, name))


def prefetched(batches: Iterator[Batch]) -> int:
    """Return how many batches may be waiting in an iterator; 0 if it does not say."""
    return int(getattr(batches, "prefetched", 0))

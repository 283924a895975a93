"""The interface of a way to join ranks; what a rank holds of a tensor, and the tensor that ranks hold together; and two
ways.

DistributedDataParallel: every rank holds the complete model, and gradients are averaged while backward runs. A single
rank shares with no other and is not wrapped, because DDP would still copy every gradient into its buckets.

FSDP2 (torch.distributed.fsdp.fully_shard): every rank holds a part of each weight, of its gradient and of the
optimizer's state. A block's weights are gathered while it runs, forward and again backward, and freed after it. As in
torchtitan, sharding goes block by block, then to the root with the rest; weights are gathered in bf16 (float32 for a
mode that trains in it), gradients reduced in float32, and the parts that the optimizer trains stay float32. Rank 0's
weights are sent to all ranks before they are cut, as DDP does: ranks on different GPUs draw different weights for a
seed. torchao's tensorwise recipe gathers in float8, with scales that one all-reduce after each step computes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fp8bench.modes.protocol import Mode, stated
from fp8bench.schema.execution import Join, join_of
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.worker.execution.checkpointing import repeated_blocks


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of the tensor, with the same storage; all of it if it is not sharded."""
    held = tensor.detach()
    if isinstance(tensor, DTensor):
        held = tensor._local_tensor.detach()
    # torchao's weights that are gathered in float8 are float32 underneath.
    inner = getattr(held, "_tensor", held)
    return inner if isinstance(inner, Tensor) else held


def reduced(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient sharded as the weight is; a rank may hold all of it or a summand. Every rank calls this."""
    if isinstance(gradient, DTensor) and isinstance(weight, DTensor) and gradient.placements != weight.placements:
        return gradient.redistribute(placements=weight.placements)
    return gradient


def whole(tensor: Tensor) -> Tensor:
    """Return the complete tensor on every rank. Every rank calls this."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    inner = getattr(found, "_tensor", found)
    return (inner if isinstance(inner, Tensor) else found).detach()


def part_of(full: Tensor, like: Tensor) -> Tensor:
    """Return what this rank holds of a complete tensor, sharded as `like` is. FSDP2 shards what a rank has of a layer
    that it shares with others, so the mesh is cut from its last dimension on.
    """
    if not isinstance(like, DTensor):
        return full
    place = like.device_mesh.get_coordinate()
    assert place is not None
    for size, index, placement in reversed(list(zip(like.device_mesh.shape, place, like.placements, strict=True))):
        if placement.is_shard() or type(placement).__name__ == "_StridedShard":
            dim: int = placement.dim  # type: ignore[attr-defined]
            parts = torch.chunk(full, size, dim)
            full = parts[index] if index < len(parts) else full.narrow(dim, 0, 0)
    return full


DATA, TENSOR = "data", "tensor"


def mesh_of(tensor: int, device: torch.device) -> DeviceMesh:
    """Return a mesh of [groups, tensor] ranks: `tensor` consecutive ranks share layers. Every rank calls this."""
    return init_device_mesh(device.type, (dist.get_world_size() // tensor, tensor), mesh_dim_names=(DATA, TENSOR))


class Strategy:
    """The contract, with what holds where every rank has the complete model; every rank calls each method at the same
    time.

    size: of a group of ranks that share every layer, and mesh: theirs. sharded: whether weights are parts after `join`
    or `divide`; divides_early: whether that is before the parity gate. prepares_sharding: whether a mode's
    `before_sharding` applies. capture_refusal: why its steps cannot be captured in a CUDA graph; None if, as far as
    known, they can. whole_refusal: the same for torch.compile of the complete model.
    """

    size = 1
    mesh: DeviceMesh | None = None
    sharded = False
    divides_early = False
    prepares_sharding = True
    capture_refusal: str | None = None
    whole_refusal: str | None = None

    @property
    def word(self) -> Join:
        raise NotImplementedError

    def divide(self, model: nn.Module) -> None:
        """Share layers among ranks, in place, before anything is wrapped. Raises ModeUnavailable if impossible."""

    def was_sharded(self, model: nn.Module) -> None:
        """Called after FSDP2 has sharded the model's weights."""

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """Return the model to train, whose gradients are those of all ranks' samples when backward ends."""
        return model

    def rejoin(self, joined: nn.Module, wrapped: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """Join again, after a step that stopped half-way. joined: unusable now. wrapped: what it was made from."""
        return joined

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Enclose forward and backward of one of several micro-batches: gradients are shared with the last one."""
        return nullcontext()

    def group(self) -> dist.ProcessGroup | None:
        """Return the ranks with different samples and the same layers; None for all ranks."""
        return None

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        """Return the ranks that hold the same part of this weight (or all of it, unsharded); None if no other does."""
        return dist.group.WORLD

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return the complete tensor of a weight, buffer or optimizer's state, by name, rows in the plain order."""
        return tensor

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        """Return what this rank holds of such a tensor of the plain model. like: the sharded weight of that name."""
        return part_of(full, like)

    def elements(self, name: str, weight: Tensor) -> int:
        return weight.numel()

    def evidence(self) -> ParallelEvidence:
        raise NotImplementedError


class DDP(Strategy):
    """Joins ranks with DDP. reason: why. alone: whether a single rank is wrapped too, to measure what that costs."""

    def __init__(self, reason: str = "auto: every GPU holds the whole model", alone: bool = False) -> None:
        self._reason, self._alone = reason, alone

    @property
    def word(self) -> Join:
        several = dist.is_initialized() and dist.get_world_size() > 1
        return "ddp" if several or self._alone else "none"

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        if self.word == "none":
            return model
        devices = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)

    def rejoin(self, joined: nn.Module, wrapped: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        if isinstance(joined, DistributedDataParallel):
            del joined.logger
            del joined.reducer
        return self.join(wrapped, mode, device)

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        return joined.no_sync() if isinstance(joined, DistributedDataParallel) and not last else nullcontext()

    def evidence(self) -> ParallelEvidence:
        return ParallelEvidence(reason=self._reason)


def steps_before_capture(taken: int) -> int:
    """Return how many more steps must run before one can be captured, given the number that have run. DDP times its
    first ten, and later each hundredth, with events that it waits for (torch's Reducer and Logger,
    `kDDPRuntimeLoggingSampleRate`): such a step cannot be captured.
    """
    steps = max(taken, 11)
    # DDP looks at its count before and after it counts a step.
    while steps % 100 in (0, 99):
        steps += 1
    return steps - taken


class FSDP(Strategy):
    """Joins ranks with FSDP2. reason: why, for the record. tensor: what is below it, if ranks share layers."""

    sharded = True
    capture_refusal = (
        "FSDP2 gathers weights on streams of its own and frees them after each block, and steps that do so are not "
        "known to be captured right"
    )
    whole_refusal = "FSDP2 gathers the weights of each block outside of it, which cuts a graph of the whole model"

    def __init__(self, reason: str, tensor: Strategy | None = None) -> None:
        self._tensor = tensor or Strategy()
        self.size, self.divides_early = self._tensor.size, self._tensor.divides_early
        self._evidence = ParallelEvidence(reason=reason)

    @property
    def word(self) -> Join:
        return join_of("fsdp", self.size)

    def divide(self, model: nn.Module) -> None:
        self._tensor.divide(model)

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        mesh = (self._tensor.mesh or mesh_of(1, device))[DATA]
        group = self.group()
        first = 0 if group is None else dist.get_process_group_ranks(group)[0]
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach(), first, group)
        before, notes = getattr(mode, "before_sharding", None), tuple(stated(mode, "sharding_notes"))
        if before is not None and not self._tensor.prepares_sharding:
            before, notes = None, (*notes, "weights of layers that ranks share are not gathered in float8")
        float8 = before is not None and bool(before(model))
        gathered: str | None = stated(mode, "gathered_dtype")
        policy = MixedPrecisionPolicy(
            param_dtype=getattr(torch, gathered) if gathered else None, reduce_dtype=torch.float32 if gathered else None
        )
        blocks = list(repeated_blocks(model))
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        self._tensor.was_sharded(model)
        self._evidence = ParallelEvidence(
            reason=self._evidence.reason,
            sharded_blocks=len(blocks),
            gathered_dtype="float8_e4m3fn" if float8 else (gathered or "float32"),
            reduced_dtype="float32",
            resharded_after_forward=True,
            notes=notes,
        )
        return model

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        return _synced(joined, last) if isinstance(joined, FSDPModule) else nullcontext()

    def group(self) -> dist.ProcessGroup | None:
        return self._tensor.group()

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        return None if self.size == 1 else self._tensor.replicas(weight)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return self._tensor.whole(name, whole(tensor))

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        return self._tensor.part(name, full, like)

    def elements(self, name: str, weight: Tensor) -> int:
        return self._tensor.elements(name, weight)

    def evidence(self) -> ParallelEvidence:
        if self.size == 1:
            return self._evidence
        notes = (*self._tensor.evidence().notes, *self._evidence.notes)
        return self._evidence.model_copy(update={"tensor_parallel": self.size, "notes": notes})


@contextmanager
def _synced(model: FSDPModule, last: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(last)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)

"""Tensor parallel: ranks of one host share every layer of a block, and see the same samples.

A layer whose rows are shared (q, k, v, gate, up; timm's qkv and fc1) gives each rank some of its outputs, in complete
heads; a layer whose columns are shared (o, down; proj, fc2) takes them and gives summands, which one collective adds
up: twice a block forward, and twice backward. A group of N ranks takes the samples of N: `--batch-size` remains samples
per GPU and step, so that a step on a number of GPUs is the same work however they share it.

torch's layers are shared by plans, with DTensors of torch.distributed.tensor.parallel. In timm's block every rank
computes the norms, which are cheap; the rows of qkv are rearranged so that a rank's part contains those of its heads.
Between Llama's blocks each rank has a part of the sequence (sequence parallel): the embedding is scattered over it,
norms work on it, and it is gathered before a layer that is shared by rows. The head returns the loss itself
(`workloads.head`), of each rank's own tokens; for a head that returns logits there is no plan, since what lies between
embedding and layers may count the tokens of a part.

Transformer Engine's layers are shared by the library's own arguments (see `modes.te_parallel`), with weights that are
plain tensors, before the parity gate, which therefore proves layers as they are shared. If each rank computes a summand
of a weight's gradient, the summands are added on arrival, before accumulation. Several groups are joined by FSDP2,
which replaces every weight by a sharded one, and its hooks with it: summands are then added after each reduction over
the groups.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from fp8bench.modes.protocol import Mode
from fp8bench.modes.te_parallel import WHOLE, Share, mean_over, require_divisible, rows_together
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import Join, join_of
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.worker.execution.parallel.strategy import DATA, TENSOR, Strategy, local, part_of, whole


@dataclass(frozen=True)
class Plan:
    """How ranks share a model. styles: by layer. orders: the plain row at each place of a rearranged weight."""

    name: str
    styles: dict[str, ParallelStyle]
    orders: dict[str, Tensor] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None


def plan_for(model: nn.Module, size: int) -> Plan:
    """Return the plan for `size` ranks. Raises ModeUnavailable for unknown blocks, or sizes that do not divide."""
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.Sequential) and all(_has_linears(block, _FUSED["timm"][0]) for block in blocks):
        if not all(hasattr(block.attn, "attn_dim") for block in blocks):
            why = "this timm does not name the width of its attention"
            raise ModeUnavailable(why, "Upgrade it: pip install -U timm")
        return _of_fused("timm", {f"blocks.{number}": block for number, block in enumerate(blocks)}, size)
    layer = getattr(model, "layer", None)
    if isinstance(layer, nn.Module) and _has_linears(layer, _FUSED["gpt-layer"][0]):
        return _of_fused("gpt-layer", {"layer": layer}, size)
    layers = getattr(getattr(model, "model", None), "layers", None)
    if isinstance(layers, nn.ModuleList) and all(_has_linears(one, _LLAMA_LINEARS) for one in layers):
        head = getattr(model, "lm_head", None)
        # One that gives the loss.
        if isinstance(head, nn.Module) and "targets" in inspect.signature(head.forward).parameters:
            return _of_llama(model, layers, size)
    raise ModeUnavailable(
        "there is no tensor-parallel plan for this model: its blocks are none of timm's, Llama's and gpt-layer's, as "
        "they are with torch's own layers",
        "Omit --tensor-parallel: --parallel fsdp shards any model",
    )


_FUSED = {
    "timm": (("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"), ("attn.num_heads", "attn.attn_dim")),
    "gpt-layer": (("qkv", "proj", "fc1", "fc2"), ("heads",)),
}
"""The linear layers of blocks with a fused qkv, and the numbers that ranks divide, that of heads first."""

_LLAMA_LINEARS = (*(f"self_attn.{one}_proj" for one in "qkvo"), *(f"mlp.{one}_proj" for one in ("gate", "up", "down")))


def _has_linears(module: nn.Module, names: tuple[str, ...]) -> bool:
    held = dict(module.named_modules(remove_duplicate=False))
    return all(isinstance(held.get(name), nn.Linear) for name in names)


def _of_fused(name: str, blocks: Mapping[str, Any], size: int) -> Plan:
    linears, divided = _FUSED[name]
    styles: dict[str, ParallelStyle] = {}
    orders: dict[str, Tensor] = {}
    for place, block in blocks.items():
        qkv, _, fc1, _ = map(block.get_submodule, linears)
        require_divisible("attention heads", attrgetter(divided[0])(block), size)
        require_divisible("MLP columns", fc1.out_features, size)
        by_rows_and_columns = (ColwiseParallel, RowwiseParallel) * 2
        styles |= {f"{place}.{one}": style() for one, style in zip(linears, by_rows_and_columns, strict=True)}
        width = qkv.out_features // 3
        order = rows_together((width, width, width), size).to(qkv.weight.device)
        orders |= {f"{place}.{linears[0]}.{one}": order for one, _ in qkv.named_parameters()}

    @torch.no_grad()
    def prepare() -> None:
        for place, block in blocks.items():
            for one, weight in block.get_submodule(linears[0]).named_parameters():
                weight.copy_(weight[orders[f"{place}.{linears[0]}.{one}"]])
            for path in divided:
                owner, _, number = path.rpartition(".")
                holder = block.get_submodule(owner)
                setattr(holder, number, getattr(holder, number) // size)

    return Plan(name, styles, orders, prepare)


def _of_llama(model: nn.Module, layers: nn.ModuleList, size: int) -> Plan:
    styles: dict[str, ParallelStyle] = {
        "model.embed_tokens": _Scattered(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(use_local_output=True),
        "lm_head": LossOfTokens(),
    }
    for number, layer in enumerate(layers):
        attention: Any = layer.self_attn
        for what, linear in (("query", attention.q_proj), ("key and value", attention.k_proj)):
            require_divisible(f"{what} heads", linear.out_features // attention.head_dim, size)
        mlp: Any = layer.mlp
        require_divisible("MLP columns", mlp.gate_proj.out_features, size)
        name = f"model.layers.{number}"
        gathered: dict[str, Placement] = {"hidden_states": Replicate()}
        styles |= {
            f"{name}.input_layernorm": SequenceParallel(),
            f"{name}.self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts=gathered
            ),
            **{f"{name}.self_attn.{one}_proj": ColwiseParallel() for one in "qkv"},
            f"{name}.self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            f"{name}.post_attention_layernorm": SequenceParallel(),
            f"{name}.mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            f"{name}.mlp.gate_proj": ColwiseParallel(),
            f"{name}.mlp.up_proj": ColwiseParallel(),
            f"{name}.mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
        }
    return Plan("llama", styles)


class _Scattered(RowwiseParallel):
    """Embeddings whose output is scattered: each rank gets its part of the sequence."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        size = device_mesh.size()

        def require(_module: nn.Module, inputs: tuple[Tensor]) -> None:
            length = inputs[0].shape[1]
            if length % size:
                raise ModeUnavailable(
                    f"--tensor-parallel {size} does not divide a sequence of {length} tokens, which ranks share",
                    f"Use a --sequence-length that is a multiple of {size}",
                )

        module.register_forward_pre_hook(require)
        return super()._apply(module, device_mesh)


class LossOfTokens(ParallelStyle):
    """A head that returns the loss of hidden [batch, this rank's tokens, width] and targets [batch, tokens]: the mean
    over the ranks'. Each has the complete head and computes a summand of its gradient, added up in the backward pass.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        rank, size = device_mesh.get_local_rank(), device_mesh.size()
        plain = module.forward

        def forward(hidden: Tensor, targets: Tensor) -> Tensor:
            own = targets.chunk(size, 1)[rank]
            kept = module._parameters.pop("weight")
            assert kept is not None
            module.weight = kept.view_as(kept)
            if module.weight.requires_grad:
                module.weight.register_hook(summed_over(group))
            try:
                loss: Tensor = mean_over(plain(hidden, own), group)
            finally:
                del module.weight
                module.register_parameter("weight", kept)
            return loss

        module.forward = forward
        return module


class TensorParallel(Strategy):
    """Joins ranks by shared layers. mesh: [groups, size] ranks. reason: why they are joined so, for the record."""

    sharded = True
    prepares_sharding = False
    """It prepares layers of its library, and these are DTensors."""
    mesh: DeviceMesh
    whole_refusal = "torch.compile takes the layers that ranks share block by block"

    def __init__(self, mesh: DeviceMesh, reason: str) -> None:
        self.mesh, self.size, self._reason = mesh, mesh[TENSOR].size(), reason
        self._plan = Plan("", {})

    @property
    def word(self) -> Join:
        return join_of("", self.size)

    def divide(self, model: nn.Module) -> None:
        self._plan = plan_for(model, self.size)
        self._plan.prepare()
        parallelize_module(model, self.mesh[TENSOR], self._plan.styles)

    def group(self) -> dist.ProcessGroup | None:
        return self.mesh[DATA].get_group()

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        # What FSDP2 alone has sharded has no such dimension.
        placed = isinstance(weight, DTensor) and TENSOR in (weight.device_mesh.mesh_dim_names or ())
        shared = placed and weight.placements[-1].is_shard()  # type: ignore[attr-defined]
        return None if shared else self.mesh[TENSOR].get_group()

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        full, order = whole(tensor), self._plan.orders.get(name)
        return full if order is None else full[torch.argsort(order.to(full.device))]

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        order = self._plan.orders.get(name)
        return part_of(full if order is None else full[order.to(full.device)], like)

    def evidence(self) -> ParallelEvidence:
        notes = (f"layers are shared as in the plan {self._plan.name!r}",) if self._plan.name else ()
        return ParallelEvidence(reason=self._reason, tensor_parallel=self.size, notes=notes)


class OwnTensorParallel(TensorParallel):
    """Joins ranks by the arguments of a mode's library (see the module)."""

    prepares_sharding = True
    divides_early = True

    def __init__(self, mesh: DeviceMesh, reason: str, mode: Mode) -> None:
        super().__init__(mesh, reason)
        self._mode = mode
        self._shares: dict[str, Share] | None = None
        self._parts: set[int] = set()

    def divide(self, model: nn.Module) -> None:
        if self._shares is None:
            divide = self._mode.divide  # type: ignore[attr-defined]
            self._shares = divide(model, self._ranks)
            for weight in self._find(model):
                weight.register_hook(summed_over(self._ranks))

    def was_sharded(self, model: nn.Module) -> None:
        for weight in self._find(model):
            weight.register_post_accumulate_grad_hook(sum_of_part_over(self._ranks))

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        return None if id(weight) in self._parts else self._ranks

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return self._share(name).whole(tensor.detach(), self._ranks)

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        return part_of(self._share(name).part(full, self.mesh[TENSOR].get_local_rank(), self.size), like)

    def elements(self, name: str, weight: Tensor) -> int:
        return weight.numel() * (1 if self._share(name).dim is None else self.size)

    def evidence(self) -> ParallelEvidence:
        note = f"layers are shared by {self._mode.name}'s own arguments, each rank with a part of the sequence between"
        return ParallelEvidence(reason=self._reason, tensor_parallel=self.size, notes=(note,))

    @property
    def _ranks(self) -> dist.ProcessGroup:
        return self.mesh[TENSOR].get_group()

    def _share(self, name: str) -> Share:
        return (self._shares or {}).get(name, WHOLE)

    def _find(self, model: nn.Module) -> Iterator[nn.Parameter]:
        weights = dict(model.named_parameters())
        self._parts = {id(weight) for name, weight in weights.items() if self._share(name).dim is not None}
        return (weight for name, weight in weights.items() if self._share(name).summed)


def summed_over(group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """Return a hook that replaces a weight's gradient by the sum over the group."""

    def hook(gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    return hook


def sum_of_part_over(group: dist.ProcessGroup) -> Callable[[Tensor], None]:
    """Return a hook that sums this rank's part of a sharded weight's gradient over the group, in place."""

    def hook(weight: Tensor) -> None:
        assert weight.grad is not None
        dist.all_reduce(local(weight.grad), group=group)

    return hook

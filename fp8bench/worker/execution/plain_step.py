"""One step of the plain model, with the weights of a timed one, on a batch of its own: loss, gradients, samples' parts.

Where there is no room for a second model on the GPU, it computes the loss alone, with one block there at a time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp8bench.schema.execution import OptimizerName
from fp8bench.worker.execution.checkpointing import repeated_blocks
from fp8bench.worker.execution.optimizers import SETTINGS
from fp8bench.worker.execution.reference import or_not_proved
from fp8bench.worker.execution.step import Parts, bf16_autocast
from fp8bench.worker.memory import SPARE, free_bytes
from fp8bench.worker.memory import size as size_of
from fp8bench.worker.parallel import largest
from fp8bench.worker.plain_weights import divided, shapes_of, ties, trained_weights
from fp8bench.workloads.protocol import Batch, Workload, stated

FEW = 65_536
"""Elements of the weights whose gradients are told apart by samples: norms, biases, small layers."""


def plain_model(workload: Workload, parts: Parts, optimizer: OptimizerName) -> tuple[nn.Module, float | None]:
    """Return it, and what `of_plain` needs to know of the optimizer: None where there is room for its loss alone."""
    needed = SPARE * 2 * size_of(parts.plain.parameters())
    if not parts.strategy.sharded and largest(int(free_bytes(parts.device) < needed), parts.device) == 0:
        return workload.build(parts.device), SETTINGS[optimizer]["lr"] if optimizer == "sgd" else math.inf
    # On the host its numbers come from `take_weights`: drawing them there takes minutes.
    model = workload.build(torch.device("meta"))
    if {name for name, _ in model.named_buffers()} <= {name for name, _ in parts.plain.named_buffers()}:
        return model.to_empty(device="cpu").train(), None
    return workload.build(torch.device("cpu")), None


@torch.no_grad()
def take_weights(parts: Parts, plain: nn.Module) -> None:
    """Give a plain model the weights and buffers of `parts`. If these are sharded, every rank calls this."""
    into, shapes = trained_weights(plain), shapes_of(plain)
    theirs = trained_weights(parts.plain)
    for tie in ties(parts.mode, parts.plain):
        whole = {name: parts.strategy.whole(name, theirs[name]) for name in tie.trained}
        for name, values in divided(tie.trained, whole, tie.plain, shapes).items():
            into[name].copy_(values)
    buffers = dict(parts.plain.named_buffers())
    for name, buffer in plain.named_buffers():
        if name in buffers:
            buffer.copy_(parts.strategy.whole(name, buffers[name]))


@dataclass(frozen=True)
class Plain:
    """What the plain model finds: its loss, and the mean gradients over ranks. of_samples: what each quarter of the
    samples adds to those of small weights. lost: weights whose step is lost in float32's last place.
    """

    loss: float
    gradients: Mapping[str, Tensor] | None
    of_samples: Sequence[Mapping[str, Tensor]] = ()
    lost: frozenset[str] = frozenset()


def of_plain(
    parts: Parts, workload: Workload, plain: nn.Module, batch: Batch, rate: float | None, bf16: bool = True
) -> Plain:
    """rate: by which gradients become steps; infinite if their size does not matter, None for the loss alone. bf16:
    under autocast, else in float32. Raises NotProved on every rank without memory.
    """
    size, total = len(batch.inputs), 0.0
    weights = {} if rate is None else trained_weights(plain)
    few = {name: weight for name, weight in weights.items() if weight.numel() <= FEW}
    so_far = {name: torch.zeros_like(weight) for name, weight in few.items()}
    of_samples = []
    with torch.set_grad_enabled(bool(weights)), _on_device_in_turn(plain, parts.device):
        for quarter in quarters(size):
            for places in torch.tensor(quarter).split(int(stated(workload, "piece"))):
                part = Batch(*(tensor[places.to(tensor.device)] for tensor in batch))
                with or_not_proved():
                    with bf16_autocast(parts.device) if bf16 else nullcontext():
                        loss = workload.loss(plain, part) * (len(places) / size)
                    if loss.requires_grad:
                        loss.backward()
                total += loss.item()
            now = {name: so_far[name] if weight.grad is None else weight.grad.clone() for name, weight in few.items()}
            of_samples.append({name: _mean(one - so_far[name]) for name, one in now.items()})
            so_far = now
    if rate is None:
        return Plain(total, None)
    gradients = {name: _mean(weight.grad) for name, weight in weights.items() if weight.grad is not None}
    # The smallest step that moves a float32 weight of 1 is 2^-23.
    lost = frozenset(
        name for name, one in gradients.items() if bool((rate * one.abs() <= 2.0**-23 * weights[name].abs()).all())
    )
    return Plain(total, gradients, of_samples, lost)


def _mean(gradient: Tensor) -> Tensor:
    dist.all_reduce(gradient)
    return gradient.div_(dist.get_world_size())


def quarters(size: int) -> list[list[int]]:
    """Return the samples of a batch in four parts, or as many as there are samples: even and odd ones of each half."""
    parts = product((False, True), (0, 1))
    found = [[place for place in range(size) if (2 * place >= size, place % 2) == part] for part in parts]
    return [part for part in found if part]


@contextmanager
def _on_device_in_turn(model: nn.Module, device: torch.device) -> Iterator[None]:
    if next(model.parameters()).device == device:
        yield
        return
    blocks = list(repeated_blocks(model))
    inside = {id(one) for block in blocks for one in block.parameters()}
    for tensor in (*(one for one in model.parameters() if id(one) not in inside), *model.buffers()):
        tensor.data = tensor.data.to(device)
    with ExitStack() as hooks:
        for block in blocks:
            hooks.callback(block.register_forward_pre_hook(lambda block, _args: block.to(device) and None).remove)
            hooks.callback(block.register_forward_hook(lambda block, _args, _out: block.cpu() and None).remove)
        yield

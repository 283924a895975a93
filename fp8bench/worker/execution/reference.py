"""What steps as executed are compared with: the same steps written out once more, plainly (`plain_steps`), and after
timing the plain model, with the weights of a timed one, on a batch of its own (`of_plain`).

They share nothing with the step that is timed (`step`): another mode converts another plain model, the optimizer's
rule is written out (`UpdateRule`), nothing is compiled, replayed, sharded, recomputed or joined; gradients are averaged
over the ranks, and divided by a loss scale, by hand. Weights, buffers and fp8 scales are those of the timed model.

Batches are taken in pieces, for memory: the gate has shown that samples do not see each other. A mode that keeps scales
must see in one piece what it sees in one as executed, and another fp8 mode sees it so where memory allows: one scale of
the whole batch rounds otherwise than one a piece, which changed what three steps of Adam make of ViT-Huge's weights by
0.75. A batch that is not divided stays whole on a CPU: torch's eager layer norm adds up 16-bit gradients of its bias in
16 bits there, and rounds more the more samples it takes (7 % of the gradient for 2,048 tokens).

Where there is no room for a plain model on the GPU, it computes the loss alone, with one block there at a time.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from fp8bench.modes.protocol import Mode, apart
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import ChosenOptimizer, OptimizerName, kept_bytes
from fp8bench.worker.execution.build import parameters
from fp8bench.worker.execution.checkpointing import repeated_blocks
from fp8bench.worker.execution.optimizers import UpdateRule, settings_of
from fp8bench.worker.execution.step import Parts, announce, bf16_autocast, scales
from fp8bench.worker.memory import SPARE, Room, copied, free_bytes, size
from fp8bench.worker.parallel import agreement, averaged, largest
from fp8bench.worker.plain_weights import divided, gradient_of, shapes_of, ties, trained_weights
from fp8bench.workloads.protocol import Batch, Workload
from fp8bench.workloads.protocol import stated as of_workload


class NotProved(ModeUnavailable):
    """Raised when there is nothing to compare with."""


@dataclass(frozen=True)
class Expected:
    """Results of plain steps by the weights' names; what this rank holds. piece: samples taken at once. gradients,
    states: the last step's; first_gradients: the first's, under Adam. own: the last before they were averaged, if ranks
    see different samples.
    """

    piece: int
    losses: list[float]
    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]
    first_gradients: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    scales: list[Tensor] = field(default_factory=list)


def plain_steps(
    parts: Parts,
    again: Callable[[], Mode],
    optimizer: ChosenOptimizer,
    batches: Sequence[Batch],
    place: torch.device,
    nudged: bool = False,
) -> Expected:
    """Run the plain steps from the state of `parts`, which does not change; every rank calls this. place: where results
    are kept. nudged: begin with weights that differ in bf16's last digit, so that all that follows is rounded
    otherwise; the weights returned are without that. Raises NotProved on every rank without memory.
    """
    taken = partial(_plain_steps, parts, again, optimizer, batches, place, nudged)
    *larger, least = pieces(parts, batches[0])
    for at_once in larger:
        try:
            return taken(at_once)
        except NotProved as refusal:
            if refusal.cause != "oom":
                raise
        torch.cuda.empty_cache()
    try:
        return taken(least)
    except NotProved:
        # A captured graph holds the addresses of the timed model.
        if parts.strategy.sharded or parts.device.type == "cpu" or nudged:
            raise
        torch.cuda.empty_cache()
    with _on_host(parts):
        return taken(least)


def _plain_steps(
    parts: Parts,
    again: Callable[[], Mode],
    optimizer: ChosenOptimizer,
    batches: Sequence[Batch],
    place: torch.device,
    nudged: bool,
    at_once: int,
) -> Expected:
    with apart(mode := again()):
        model, workload, device = mode.convert(parts.workload.build(parts.device)), parts.workload, parts.device
        _take_state(parts, mode, model, batches[0])
        weights = trained_weights(model)
        nudges = nudge(weights) if nudged else {}
        rule = UpdateRule(optimizer)
        scaling = getattr(mode, "loss_scaling", None)
        held, losses, first_gradients, own = partial(_held, parts, place), [], {}, {}
        for batch in batches:
            samples, total = len(batch.inputs), torch.zeros((), device=device)
            scale = 1.0 if scaling is None else float(scaling.scaled(torch.ones((), device=device)))
            model.zero_grad(set_to_none=True)
            for weight in weights.values():
                if hasattr(weight, "main_grad"):
                    weight.main_grad.zero_()
            for first in range(0, samples, at_once):
                piece = Batch(*(tensor[first : first + at_once] for tensor in batch))
                announce(mode, first == 0)
                with or_not_proved():
                    with torch.autocast(device.type, torch.bfloat16), mode.forward_context():
                        loss = workload.loss(model, piece) * (len(piece.inputs) / samples)
                    (scale * loss).backward()
                total += loss.detach()
            losses.append(total.item())
            # Ranks that share layers see the same samples: their own gradients are the mean but for rounding.
            if batch is batches[-1] and dist.get_world_size(parts.strategy.group()) > 1:
                own = held(_gradients(weights))
            with or_not_proved():
                taken = _updated(weights, rule, scale, skips=scaling is not None)
            if len(losses) == 1 and optimizer.name in MOVED_BY_SIGNS:
                first_gradients = held(_gradients(weights))
            if scaling is not None:
                # It is updated as with all weights by an optimizer that changes nothing.
                idle = nn.Parameter(torch.zeros((), device=device))
                idle.grad = torch.full_like(idle, scale if taken else math.inf)
                scaling.step(SGD([idle], lr=0.0))
        return Expected(
            piece=at_once,
            losses=losses,
            weights=held({name: one - nudges[name] if nudged else one for name, one in weights.items()}),
            gradients=held(_gradients(weights)),
            first_gradients=first_gradients,
            own=own,
            states={kind: held(kept) for kind, kept in rule.state.items() if kind.startswith("exp_avg")},
            scales=copied(scales(mode, model), place),
        )


LAST_DIGIT = 2.0**-9
"""By which share rounding to bf16, of 8 bits, changes a number at most."""


@torch.no_grad()
def nudge(weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Change each number by a random share of up to LAST_DIGIT, the same on every rank. Return the changes."""
    nudges = {}
    for place, (name, weight) in enumerate(weights.items()):
        generator = torch.Generator(weight.device).manual_seed(place)
        # A weight may be kept in fp8, and cannot be drawn then.
        share = torch.empty(weight.shape, device=weight.device).uniform_(-LAST_DIGIT, LAST_DIGIT, generator=generator)
        begun = weight.clone()
        weight.mul_(1 + share)
        nudges[name] = weight - begun
    return nudges


MOVED_BY_SIGNS = ("adam", "adamw")
"""Optimizers whose first changes are little more than the signs of gradients."""


def _updated(weights: Mapping[str, nn.Parameter], rule: UpdateRule, scale: float, skips: bool) -> bool:
    # Whether the step was taken: with skips it is not if a gradient is not finite.
    gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    for gradient in gradients.values():
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size() * scale
    taken = not skips or all(bool(gradient.isfinite().all()) for gradient in gradients.values())
    for name, gradient in gradients.items() if taken else ():
        rule.step(name, weights[name], gradient)
    return taken


def pieces(parts: Parts, batch: Batch) -> list[int]:
    """Return how many samples plain steps take at once: the first number for which memory suffices."""
    size = len(batch.inputs)
    whole, usual = size // parts.accumulation, min(int(of_workload(parts.workload, "piece")), size)
    # The value of a loss scale does not depend on the piece.
    if scales(parts.mode, parts.plain) and getattr(parts.mode, "loss_scaling", None) is None:
        return [whole]
    if parts.device.type == "cpu" and parts.accumulation == 1 and not parts.compiled:
        return [size]
    return [whole, usual] if hasattr(parts.mode, "rounds") and whole > usual else [usual]


def whole_bytes(parts: Parts, optimizer: OptimizerName) -> int:
    return kept_bytes(sum(parts.strategy.elements(*named) for named in parts.plain.named_parameters()), optimizer)


def missing_for_twin(parts: Parts, optimizer: OptimizerName, copies: int, room: Room | None) -> int:
    """Return the bytes that plain steps lack, on the rank with the least room. A sharded model needs a whole one beside
    it. Others change places with it, if the host has `room` beside `copies` (bytes there). Every rank calls this.
    """
    whole, free = int(SPARE * whole_bytes(parts, optimizer)), free_bytes(parts.device)
    missing = max(0, whole - free)
    if not parts.strategy.sharded:
        waiting = whole_bytes(parts, optimizer) - size(parts.plain.parameters()) if missing else 0
        missing = 0 if room is None else max(0, copies + waiting - room.free_bytes)
    return largest(missing, parts.device)


def fitting_layers(parts: Parts, optimizer: OptimizerName, name: str) -> int:
    """Return how many layers, of the size `name`, leave room for a second and a plain model; every rank calls this."""
    free, number = free_bytes(parts.device), int(parts.workload.sizes()[name])
    # A sharded model takes half of a whole one at most.
    models = 1.5 if parts.strategy.sharded else 2
    resized = parts.workload.resized  # type: ignore[attr-defined]
    fits = (
        layers
        for layers in range(number - 1, 0, -1)
        if SPARE * models * kept_bytes(parameters(resized(**{name: layers})), optimizer) <= free
    )
    return -largest(-next(fits, 0), parts.device)


@torch.no_grad()
def _take_state(parts: Parts, mode: Mode, model: nn.Module, batch: Batch) -> None:
    theirs = dict((*parts.plain.named_parameters(), *parts.plain.named_buffers()))
    for name, mine in (*model.named_parameters(), *model.named_buffers()):
        if name in theirs:
            mine.copy_(parts.strategy.whole(name, theirs[name]))
    held = scales(parts.mode, parts.plain)
    if held and len(scales(mode, model)) != len(held):
        # Some modes create their state in the first forward pass.
        with torch.enable_grad(), torch.autocast(parts.device.type, torch.bfloat16), mode.forward_context():
            parts.workload.loss(model, Batch(*(tensor[: pieces(parts, batch)[0]] for tensor in batch)))
    with agreement():
        if len(scales(mode, model)) != len(held):
            raise NotProved("a second model keeps other scales than the first", "Use --parallel ddp")
    for mine, scale in zip(scales(mode, model), held, strict=True):
        mine.copy_(scale)


def _gradients(weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    found = {name: gradient_of(weight) for name, weight in weights.items()}
    return {name: torch.zeros_like(weights[name]) if one is None else one for name, one in found.items()}


def _held(parts: Parts, place: torch.device, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    like = dict(parts.plain.named_parameters())
    return {
        name: parts.strategy.part(name, tensor.detach(), like[name]).to(place, copy=True)
        for name, tensor in whole.items()
        if name in like
    }


@contextmanager
def or_not_proved() -> Iterator[None]:
    """Raise NotProved on every rank where one has no memory for the body."""
    with agreement():
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise NotProved(
                "memory does not suffice to compare the steps as executed with the same steps run plainly",
                "Lower --batch-size",
                "oom",
            ) from error


@contextmanager
def _on_host(parts: Parts) -> Iterator[None]:
    @torch.no_grad()
    def move(place: torch.device) -> None:
        for weight in parts.plain.parameters():
            weight.data = weight.data.to(place)
        for state in parts.optimizer.state.values():
            state.update({key: one.to(place) for key, one in state.items() if isinstance(one, Tensor)})

    move(torch.device("cpu"))
    torch.cuda.empty_cache()
    try:
        yield
    finally:
        move(parts.device)


def plain_model(workload: Workload, parts: Parts, optimizer: ChosenOptimizer) -> tuple[nn.Module, float | None]:
    """Return it, and what `of_plain` needs to know of the optimizer: None where there is room for its loss alone."""
    needed = SPARE * 2 * size(parts.plain.parameters())
    if not parts.strategy.sharded and largest(int(free_bytes(parts.device) < needed), parts.device) == 0:
        return workload.build(parts.device), settings_of(optimizer)["lr"] if optimizer.name == "sgd" else math.inf
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
    # Those of norms, biases and small layers are told apart by samples.
    few = {name: weight for name, weight in weights.items() if weight.numel() <= 65_536}
    so_far = {name: torch.zeros_like(weight) for name, weight in few.items()}
    of_samples = []
    with torch.set_grad_enabled(bool(weights)), _on_device_in_turn(plain, parts.device):
        for quarter in quarters(size):
            for places in torch.tensor(quarter).split(int(of_workload(workload, "piece"))):
                part = Batch(*(tensor[places.to(tensor.device)] for tensor in batch))
                with or_not_proved():
                    with bf16_autocast(parts.device) if bf16 else nullcontext():
                        loss = workload.loss(plain, part) * (len(places) / size)
                    if loss.requires_grad:
                        loss.backward()
                total += loss.item()
            now = {name: so_far[name] if weight.grad is None else weight.grad.clone() for name, weight in few.items()}
            of_samples.append({name: averaged(one - so_far[name]) for name, one in now.items()})
            so_far = now
    if rate is None:
        return Plain(total, None)
    gradients = {name: averaged(weight.grad) for name, weight in weights.items() if weight.grad is not None}
    # The smallest step that moves a float32 weight of 1 is 2^-23.
    lost = frozenset(
        name for name, one in gradients.items() if bool((rate * one.abs() <= 2.0**-23 * weights[name].abs()).all())
    )
    return Plain(total, gradients, of_samples, lost)


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
            hooks.enter_context(block.register_forward_pre_hook(lambda block, _args: block.to(device) and None))
            hooks.enter_context(block.register_forward_hook(lambda block, _args, _out: block.cpu() and None))
        yield

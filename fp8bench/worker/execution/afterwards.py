"""What shows, after the last timed step, that what was timed is still what was proved.

A mode, a workload or a loader may do less once the proofs have ended. While steps are timed, only the number of samples
of each batch is looked at. After the last one, one more step is launched as timed, on a batch that was never trained
on, and the plain model with the same weights computes what it should have found:

  after_loss_error      |l' - l| / the larger of |l| and the size of the fresh model's loss
  after_gradient_error  |g' - g| / |g|, of all weights together. Not of sharded ones, whose gradients are parts, nor
                        where there is no room for a plain model: there it computes the loss alone, with one block on
                        the GPU at a time

Every weight, and every group of its rows, that has a gradient must also get one, and weights must move, in this step
and while steps were timed; ranks that hold the same weights must still hold the same numbers. Both are seen by one
number of each weight w, since a copy would take memory while steps are timed: the sketch <z, w>, z being seeded noise
of unit variance (a Johnson-Lindenstrauss projection on one dimension), moves with any change d by |d| in the root mean
square. Every quarter of the samples must have its share in the gradient (`shares`), since that of half of them may be
within fp8's bounds. The batch is new because one learned by heart has next to no gradient; a mode that keeps fp8 scales
of earlier passes, which would cut off another batch's gradient, first trains on it as often as they need.

Where they disagree, the plain model runs once more, without cuDNN's attention: on H200s (torch 2.11, cuDNN 9.19) a
gradient of one of the two was off by 0.7 to 2.3 in five of twenty processes of a language model, at an equal loss. The
step is not launched again: it must be that of a plain model as it is. If it is that of neither run, the refusal says
how far the two are apart.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.rank import Tolerance, WorkloadFacts
from fp8bench.worker.execution.checkpointing import repeated_blocks
from fp8bench.worker.execution.optimizers import SETTINGS
from fp8bench.worker.execution.parallel.choose import samples_of
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.proof import OF_ONE_WEIGHT, Gate, bound_on_spread, small
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, bf16_autocast, gradient_of, gradients_are_finite
from fp8bench.worker.judged import GROUPS, ROWS, norms_of_groups
from fp8bench.worker.memory import SPARE, free_bytes
from fp8bench.worker.memory import size as size_of
from fp8bench.worker.parallel import agreement, largest
from fp8bench.worker.plain_weights import by_plain_names, divided, shapes_of, ties, trained_weights
from fp8bench.worker.plugin import Batches
from fp8bench.worker.relative import ratio
from fp8bench.worker.rounding import MOST
from fp8bench.worker.view import sdpa_kernels
from fp8bench.workloads.protocol import Batch, Workload, stated

SHOWN = 3

FEWEST_LOSSES = 4
"""Timed steps whose losses tell anything."""

LAST_PLACE = 2.0**-23
"""The smallest step that moves a float32 weight of 1."""

MOST_SKIPPED = 20
"""How often a loss scale may be halved: from torch's first one, 65,536, to less than 1."""

PARTS = ((False, 0), (False, 1), (True, 0), (True, 1))

FEW = 65_536
"""Elements of the weights whose gradients are told apart by samples: norms, biases, small layers."""

OF_SAMPLES, HELD = 0.2, 0.1
"""How far from 1 a share may be, and below which share of the gradient a part's own is too small to tell."""

WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of attention for the second time that the plain model runs."""

AT_ONCE = 1 << 24
"""Elements of a sketch whose noise is made at once."""

DIMENSIONS = {"images": 1, "samples": 1, "tokens": 2}
"""How many of the first dimensions of a batch's inputs count units; of other units one or two."""


def require_work(workload: Workload, facts: WorkloadFacts, batches: Batches, config: RunConfig) -> None:
    """Raise MeasurementInvalid if the batches did not hold the units that are counted for a step."""
    shape, known = batches.shape, DIMENSIONS.get(facts.unit)
    counted = f"{facts.units_per_step} {facts.unit}"
    counts = [math.prod(shape[:number]) // config.tensor_parallel for number in range(1, min(len(shape), 2) + 1)]
    expected = counts if known is None else counts[known - 1 : known]
    if batches.unlike is not None:
        step, size = batches.unlike
        what = f"gave {size} samples at step {step} where {batches.size} were requested, and these are counted"
        remedy = "Give batches of one size: leave an incomplete last batch out (drop_last)"
    elif batches.changed is not None and known is not None:
        step, other = batches.changed
        first = list(batches.first or shape)
        what = (
            f"gave a batch of {list(other)} at step {step} where the first was one of {first}, and both count {counted}"
        )
        remedy = "Give batches of one shape"
    elif facts.units_per_step not in expected:
        what = f"counts {counted} a step, and its batches of {list(shape)} hold {' or '.join(map(str, expected))}"
        remedy = "Correct units_per_step in the workload's class"
    else:
        return
    raise MeasurementInvalid(f"{workload.name} {what}", remedy, "execution")


def require_changing(losses: Sequence[float], optimizer: OptimizerName) -> None:
    """Raise MeasurementInvalid if most timed steps have exactly the loss of the step before: an output was kept."""
    same = sum(one == other for one, other in pairwise(losses))
    if optimizer != "none" and len(losses) >= FEWEST_LOSSES and 2 * same >= len(losses):
        raise MeasurementInvalid(
            f"{same} of {len(losses)} timed steps have exactly the loss of the step before them",
            "Let each step compute its loss anew; if it is 0, use other data (--data loader)",
            "execution",
        )


def require_still(
    parts: Parts,
    launch: Launch,
    config: RunConfig,
    unseen: Callable[[], Workload],
    gate: Gate,
    begun: Mapping[str, float],
) -> "Afterwards":
    """Launch one more step and compare it with the plain model's; every rank calls this. unseen: makes a workload that
    trained no step, and needs no loader. begun: sketches before the timed steps. Raises MeasurementInvalid on every
    rank.
    """
    size, group = samples_of(config, dist.get_rank())
    workload = unseen()
    batch = next(Batches(workload, size, group + config.world_size, parts.device))
    for _ in range(gate.tolerance.settle_passes):
        _step_taken(parts, launch, batch)
    needed = SPARE * 2 * size_of(parts.plain.parameters())
    of_loss_alone = parts.strategy.sharded or largest(int(free_bytes(parts.device) < needed), parts.device) > 0
    plain = _on_host(workload, parts) if of_loss_alone else workload.build(parts.device)
    _take_weights(parts, plain)
    rate = SETTINGS[config.optimizer].get("lr", 0.0) if config.optimizer == "sgd" else math.inf
    of_loss = None if of_loss_alone else rate
    timed = sketches(parts)
    expected = _of_plain(parts, workload, plain, batch, of_loss)
    found = _step_taken(parts, launch, batch)
    now = sketches(parts)
    compared, warning = _compared(parts, expected, found, gate), None
    if largest(int(bool(compared.faults)), parts.device) > 0:
        plain.zero_grad(set_to_none=True)
        with sdpa_kernel(WITHOUT_CUDNN):
            second = _of_plain(parts, unseen(), plain, batch, of_loss)
        again = _compared(parts, second, found, gate)
        if largest(int(bool(again.faults)), parts.device) == 0:
            apart_from_it = "; ".join(compared.faults) or "another rank's step differs"
            warning = (
                f"the plain model's two runs after the timed steps differ: beside the one with {expected.attention}, "
                f"{apart_from_it}; beside the one without cuDNN's attention, the step is right"
            )
            compared = again
        elif compared.faults and second.gradients is not None and expected.gradients is not None:
            compared.faults.append(
                f"its gradients differ by {again.gradient_error:.3g} beside the plain model without cuDNN's attention, "
                f"whose own differ by {_apart(second.gradients, expected.gradients):.3g} from those of its first run"
            )
    faults = []
    apart = spread(parts, begun, timed)
    if apart is not None and not apart <= (most := bound_on_spread(parts.strategy.word)):
        faults.append(f"its ranks' weights moved apart while steps were timed, by {apart:.3g} (at most {most:.3g})")
    faults += compared.faults
    taught = compared.taught
    if config.optimizer != "none":
        faults += _standing(now, timed, taught, "do not move")
        faults += _standing(timed, begun, taught, "did not move while steps were timed")
    with agreement():
        if faults:
            raise MeasurementInvalid(
                f"{config.mode_label} after its timed steps no longer computes what was proved: {'; '.join(faults)}",
                "Do not use its speed: the mode, the workload or its batches change while steps are timed",
                "execution",
            )
    return Afterwards(compared.loss_error, compared.gradient_error, apart, warning)


@dataclass(frozen=True)
class Afterwards:
    """What was found. gradient_error: None for the loss alone. spread: None if no other rank holds the same weights."""

    loss_error: float
    gradient_error: float | None
    spread: float | None
    warning: str | None = None


@dataclass(frozen=True)
class _Compared:
    """A step beside the plain model's. taught: the weights that must move; None if any must. faults: in words."""

    loss_error: float
    gradient_error: float | None
    taught: set[str] | None
    faults: list[str]


def _compared(parts: Parts, expected: "_Plain", loss: float, gate: Gate) -> _Compared:
    """Compare the last step, whose gradients `parts` still hold. loss: the step's."""
    tolerance, faults = gate.tolerance, []
    loss_error = ratio(abs(loss - expected.loss), max(abs(expected.loss), gate.loss_size))
    if not loss_error <= tolerance.loss:
        faults.append(f"its loss differs by {loss_error:.3g} (at most {tolerance.loss:.3g})")
    if expected.gradients is None:
        return _Compared(loss_error, None, None, faults)
    gradient_error, taught, more = _of_gradients(parts, expected, expected.gradients, tolerance)
    return _Compared(loss_error, gradient_error, taught, faults + more)


def _of_gradients(
    parts: Parts, expected: "_Plain", plain: Mapping[str, Tensor], tolerance: Tolerance
) -> tuple[float, set[str], list[str]]:
    """Return the error of all gradients, the weights that must move, and what is wrong. plain: expected gradients."""
    shapes = {name: gradient.shape for name, gradient in plain.items()}
    of_model = ties(parts.mode, parts.plain)
    mine = {name: gradient_of(weight) for name, weight in trained_weights(parts.plain).items()}
    found = by_plain_names(of_model, mine, shapes)
    squares = {name: _square(gradient) for name, gradient in plain.items()}
    usual = sum(squares.values()) / max(1, sum(gradient.numel() for gradient in plain.values()))
    taught = {name for name, one in plain.items() if squares[name] > small(one) ** 2 * usual * one.numel()}
    own = {name: torch.zeros_like(one) for name, one in plain.items()}
    own |= {name: one for name, one in found.items() if one is not None and name in plain}
    missing = [name for name in sorted(taught) if _square(own[name]) < (1 - MOST) ** 2 * squares[name]]
    missing += [f"rows {rows}" for name in sorted(taught - {*missing}) for rows in _lost_rows(name, plain, own, usual)]
    error = _apart(own, plain)
    moving = {name for tie in of_model if set(tie.plain) <= taught - expected.lost for name in tie.trained}
    seen = [{name: one for name, one in part.items() if name in plain} for part in expected.of_samples]
    of_samples = shares(own, seen) if seen[0] else []
    bound = min(MOST, OF_ONE_WEIGHT * tolerance.input_gradient)
    faults = []
    if not error <= bound:
        faults.append(f"its gradients differ by {error:.3g} (at most {bound:.3g})")
    if missing:
        faults.append(f"no gradient reaches {', '.join(missing[:SHOWN])} ({len(missing)} in all)")
    if not all(abs(share - 1) <= OF_SAMPLES for share in of_samples):
        told = ", ".join(f"{share:.2f}" for share in of_samples)
        faults.append(
            f"its gradients are not those of all samples: parts of the batch count {told} times (a loss must be the "
            "mean over samples, which that of padded ones is not)"
        )
    return error, moving, faults


def _standing(now: Mapping[str, float], then: Mapping[str, float], taught: set[str] | None, words: str) -> list[str]:
    # taught: those that must move; None if one must, any.
    still = sorted(name for name, one in now.items() if then[name] == one and (taught is None or name in taught))
    if not still or (taught is None and len(still) < len(now)):
        return []
    return [f"{len(still)} of {len(now)} weights {words}: {', '.join(still[:SHOWN])}"]


@torch.no_grad()
def sketches(parts: Parts) -> dict[str, float]:
    """Return this rank's sketch of each trained weight (see the module). In 16 bits a small step may round to none."""
    held = {name: local(weight).detach() for name, weight in trained_weights(parts.plain).items()}
    found = {}
    for number, (name, values) in enumerate(held.items()):
        if values.dtype == torch.float32 and values.numel():
            generator = torch.Generator(values.device).manual_seed(number)
            found[name] = sum(
                float(part @ torch.empty_like(part).normal_(generator=generator))
                for part in values.double().flatten().split(AT_ONCE)
            )
    return found


def spread(parts: Parts, begun: Mapping[str, float], now: Mapping[str, float]) -> float | None:
    """Return how far sketches are from the mean of the ranks with the same weights, in units of what they changed since
    `begun`; None if no other holds the same. Every rank calls this.
    """
    weights = trained_weights(parts.plain)
    groups: dict[dist.ProcessGroup, list[str]] = {}
    for name in now:
        if (group := parts.strategy.replicas(weights[name])) is not None:
            groups.setdefault(group, []).append(name)
    apart = moved = 0.0
    for group, names in groups.items():
        start, mine = (
            torch.tensor([of[name] for name in names], dtype=torch.float64, device=parts.device) for of in (begun, now)
        )
        mean = mine.clone()
        dist.all_reduce(mean, group=group)
        mean /= dist.get_world_size(group)
        apart = math.hypot(apart, float((mine - mean).norm()))
        moved = math.hypot(moved, float((mean - start).norm()))
    if not groups:
        return None
    return 0.0 if apart == 0 else ratio(apart, moved)


def _on_host(workload: Workload, parts: Parts) -> nn.Module:
    # Its numbers come from `_take_weights`: drawing them there takes minutes.
    model = workload.build(torch.device("meta"))
    if {name for name, _ in model.named_buffers()} <= {name for name, _ in parts.plain.named_buffers()}:
        return model.to_empty(device="cpu").train()
    return workload.build(torch.device("cpu"))


@torch.no_grad()
def _take_weights(parts: Parts, plain: nn.Module) -> None:
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
class _Plain:
    """What the plain model finds: its loss, and the mean gradients over ranks. of_samples: what each quarter of the
    samples adds to those of small weights. lost: weights whose step is lost in float32's last place. attention: torch's
    kernels.
    """

    loss: float
    attention: str
    gradients: Mapping[str, Tensor] | None
    of_samples: Sequence[Mapping[str, Tensor]] = ()
    lost: frozenset[str] = frozenset()


def _of_plain(parts: Parts, workload: Workload, plain: nn.Module, batch: Batch, rate: float | None) -> _Plain:
    """rate: by which gradients become steps; infinite if their size does not matter, None for the loss alone."""
    size, total = len(batch.inputs), 0.0
    weights = {} if rate is None else trained_weights(plain)
    few = {name: weight for name, weight in weights.items() if weight.numel() <= FEW}
    so_far = {name: torch.zeros_like(weight) for name, weight in few.items()}
    of_samples, kernels = [], frozenset[str]()
    with torch.set_grad_enabled(bool(weights)), _on_device_in_turn(plain, parts.device):
        for quarter in quarters(size):
            for places in torch.tensor(quarter).split(int(stated(workload, "piece"))):
                part = Batch(*(tensor[places.to(tensor.device)] for tensor in batch))
                with bf16_autocast(parts.device):
                    loss = workload.loss(plain, part) * (len(places) / size)
                if loss.requires_grad:
                    kernels = kernels or sdpa_kernels(loss)
                    loss.backward()
                total += loss.item()
            now = {name: so_far[name] if weight.grad is None else weight.grad.clone() for name, weight in few.items()}
            of_samples.append({name: _mean(one - so_far[name]) for name, one in now.items()})
            so_far = now
    attention = f"attention by sdpa:{'+'.join(sorted(kernels))}" if kernels else "torch's own choice of attention"
    if rate is None:
        return _Plain(total, attention, None)
    gradients = {name: _mean(weight.grad) for name, weight in weights.items() if weight.grad is not None}
    lost = frozenset(
        name for name, one in gradients.items() if bool((rate * one.abs() <= LAST_PLACE * weights[name].abs()).all())
    )
    return _Plain(total, attention, gradients, of_samples, lost)


def _mean(gradient: Tensor) -> Tensor:
    dist.all_reduce(gradient)
    return gradient.div_(dist.get_world_size())


def quarters(size: int) -> list[list[int]]:
    """Return the samples of a batch in four parts, or as many as there are samples: even and odd ones of each half."""
    found = [[place for place in range(size) if (2 * place >= size, place % 2) == part] for part in PARTS]
    return [part for part in found if part]


def shares(own: Mapping[str, Tensor], of_samples: Sequence[Mapping[str, Tensor]]) -> list[float]:
    """Return how much of what each part of the samples adds is in a gradient, by least squares: 1 of each if it is
    theirs, 2 and 0 if one of two was trained instead of both; held to 1 where parts add nearly the same.
    """
    columns = [torch.cat([one.flatten().double() for one in part.values()]) for part in of_samples]
    parts = torch.stack(columns, 1).cpu()
    whole = parts.sum(1)
    rest = torch.cat([own[name].flatten().double() for name in of_samples[0]]).cpu() - whole
    if not bool(rest.isfinite().all()):
        return [math.nan]
    held = (HELD * whole.norm()) ** 2 * torch.eye(parts.shape[1], dtype=torch.float64)
    found: list[float] = (1 + torch.linalg.lstsq(parts.T @ parts + held, parts.T @ rest).solution).tolist()
    return found


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


def _step_taken(parts: Parts, launch: Launch, batch: Batch) -> float:
    # A step that was skipped, since a loss scale was too large for this batch, changed only that scale.
    for _ in range(1 if getattr(parts.mode, "loss_scaling", None) is None else MOST_SKIPPED):
        loss = float(launch(batch, NO_MARKS).detach())
        if largest(int(not gradients_are_finite(parts)), parts.device) == 0:
            break
    return loss


def _lost_rows(name: str, plain: Mapping[str, Tensor], own: Mapping[str, Tensor], usual: float) -> list[str]:
    # Queries and keys of an attention that is none have no weight of their own where they are packed with the values.
    if plain[name].dim() < 2 or len(plain[name]) < GROUPS * ROWS:
        return []
    norms = norms_of_groups([plain[name].detach(), own[name].detach().float()])
    least = small(plain[name]) * math.sqrt(usual * plain[name].numel() / GROUPS)
    return [
        f"{number}/{GROUPS} of {name}"
        for number, (wanted, found) in enumerate(zip(*norms, strict=True), 1)
        if wanted > least and found < (1 - MOST) * wanted
    ]


def _apart(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return |found - wanted| / |wanted| of all gradients together."""
    apart = sum(_square(found[name].float() - one.float()) for name, one in wanted.items())
    return ratio(math.sqrt(apart), math.sqrt(sum(map(_square, wanted.values()))))


def _square(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.detach(), dtype=torch.float64)) ** 2

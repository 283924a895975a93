"""What shows, after the last timed step, that what was timed is still what was proved.

A mode, a workload or a loader may do less once the proofs have ended. While steps are timed, only the number of samples
of each batch is looked at. After the last one, one more step is launched as timed, on a batch that was never trained
on (one learned by heart has next to no gradient; a mode that keeps fp8 scales of earlier passes first trains on it as
often as they need), and the plain model with the same weights computes what it should have found:

  after_loss_error      |l' - l| / the larger of |l| and the size of the fresh model's loss
  after_gradient_error  |g' - g| / |g|, of all weights together. Not of sharded ones, whose gradients are parts, nor
                        where there is no room for a plain model: there it computes the loss alone, with one block on
                        the GPU at a time, and the record says so

A single weight whose gradient is further off than all may be, or whose matrix is another multiple of the plain one's
(<g', g> / <g, g>, which fp8's rounding hardly moves), has bounds as in the gate: by what rounding alone does to it.

Every weight, and every group of its rows, that has a gradient must also get one, and weights must move, in this step
and while steps were timed; ranks that hold the same weights must still hold the same numbers. Both are seen by one
number of each weight (`sketches`). Every quarter of the samples must have its share in the gradient (`shares`), since
that of half of them may be within fp8's bounds.

Where they disagree, the plain model shows what rounding alone does to the gradient of the same batch. If that takes
more than half of a bound, the batch tells nothing, whatever the mode does, and the next one is taken. A language model
that learns random tokens meets such batches: after 70 steps of AdamW in 18 layers, bf16 and float32 differed by 0.67 to
1.2 in one sequence, by 0.004 in most. Before this was looked at, three of fifteen processes of llm-1b on an H200 were
refused, each for one sequence.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp8bench.records.select import grouped
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.rank import Tolerance, WorkloadFacts
from fp8bench.worker.execution.build import samples_of
from fp8bench.worker.execution.decide import Execution
from fp8bench.worker.execution.optimizers import UpdateRule, few_weights, misapplied
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.proof import OF_ONE_WEIGHT, Gate, bound_on_spread, small
from fp8bench.worker.execution.reference import NotProved, Plain, nudge, of_plain, plain_model, take_weights
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, gradient_of, gradients_are_finite
from fp8bench.worker.judged import FEW, GROUPS, OF_BF16, OF_FP8, ROWS, norms_of_groups
from fp8bench.worker.memory import SPARE, free_bytes, size
from fp8bench.worker.parallel import agreement, averaged, largest
from fp8bench.worker.plain_weights import SHOWN, by_plain_names, ties, trained_weights
from fp8bench.worker.plugin import Batches
from fp8bench.worker.rounding import GRIDS, MOST, norm, ratio, rounded
from fp8bench.workloads.protocol import Batch, Workload

OF_SAMPLES, HELD = 0.2, 0.1
"""How far from 1 a share may be, and below which share of the gradient a part's own is too small to tell."""

BATCHES = 4
"""How many are tried, until rounding alone leaves the gradient of one as it is."""

TELLS = 0.5
"""Which share of the bounds rounding alone may take of a batch that tells a fault."""


def require_work(workload: Workload, facts: WorkloadFacts, batches: Batches, config: RunConfig) -> None:
    """Raise MeasurementInvalid if the batches did not hold the units that are counted for a step."""
    # How many of the first dimensions of a batch's inputs count units; of other units one or two.
    shape, known = batches.shape, {"images": 1, "samples": 1, "tokens": 2}.get(facts.unit)
    counted = f"{facts.units_per_step} {facts.unit}"
    counts = [math.prod(shape[:number]) // config.tensor_parallel for number in range(1, min(len(shape), 2) + 1)]
    expected = counts if known is None else counts[known - 1 : known]
    first, *others = batches.shapes
    if unlike := [one for one in batches.shapes if one[0] != batches.size]:
        step = batches.shapes[unlike[0]]
        what = f"gave {unlike[0][0]} samples at step {step} where {batches.size} were requested, and these are counted"
        remedy = "Give batches of one size: leave an incomplete last batch out (drop_last)"
    elif others and known is not None:
        step = batches.shapes[others[0]]
        what = f"gave a batch of {list(others[0])} at step {step}, and counts it as the first, of {list(first)}"
        remedy = "Give batches of one shape"
    elif facts.units_per_step not in expected:
        what = f"counts {counted} a step, and its batches of {list(shape)} hold {' or '.join(map(str, expected))}"
        remedy = "Correct units_per_step in the workload's class"
    else:
        return
    raise MeasurementInvalid(f"{workload.name} {what}", remedy, "execution")


def require_own_samples(workload: Workload, batches: Batches, config: RunConfig) -> None:
    """Raise MeasurementInvalid on every rank if two that do not share layers have the same next batch: their samples
    would count twice. Every rank calls this.
    """
    with agreement():
        digest = sha256()
        for tensor in next(batches):
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, digest.hexdigest())
    own = found[:: config.tensor_parallel]
    if again := next((place for place, one in enumerate(own) if one in own[:place]), None):
        first, second = (place * config.tensor_parallel for place in (own.index(own[again]), again))
        raise MeasurementInvalid(
            f"{workload.name} gives ranks {first} and {second} the same batch, and counts its samples for both",
            "Let batches(batch_size, rank, device) give each rank samples of its own",
            "execution",
        )


def require_changing(losses: Sequence[float], optimizer: OptimizerName) -> None:
    """Raise MeasurementInvalid if most of four or more steps have exactly the loss of the one before: it was kept."""
    same = sum(one == other for one, other in pairwise(losses))
    if optimizer != "none" and 2 * same >= len(losses) >= 4:
        raise MeasurementInvalid(
            f"{same} of {len(losses)} timed steps have exactly the loss of the step before them",
            "Let each step compute its loss anew; if it is 0, use other data (--data loader)",
            "execution",
        )


@torch.no_grad()
def sketches(parts: Parts) -> dict[str, float]:
    """Return this rank's sketch <z, w> of each trained weight w, z being seeded noise of unit variance, since a copy
    would take memory while steps are timed. A change d moves it by |d| in the root mean square (a Johnson-Lindenstrauss
    projection on one dimension). In 16 bits a small step may round to none.
    """
    found = {}
    for number, (name, weight) in enumerate(trained_weights(parts.plain).items()):
        values = local(weight).detach()
        if values.dtype == torch.float32 and values.numel():
            generator = torch.Generator(values.device).manual_seed(number)
            found[name] = sum(
                float(part @ torch.empty_like(part).normal_(generator=generator))
                for part in values.double().flatten().split(1 << 24)
            )
    return found


def spread(parts: Parts, begun: Mapping[str, float], now: Mapping[str, float]) -> float | None:
    """Return how far sketches are from the mean of the ranks with the same weights, in units of what they changed since
    `begun`; None if no other holds the same. Every rank calls this.
    """
    weights = trained_weights(parts.plain)
    groups = grouped(now, lambda name: parts.strategy.replicas(weights[name]))
    groups.pop(None, None)
    apart = moved = 0.0
    for group, names in groups.items():
        start, mine = (
            torch.tensor([of[name] for name in names], dtype=torch.float64, device=parts.device) for of in (begun, now)
        )
        mean = averaged(mine.clone(), group)
        apart = math.hypot(apart, float((mine - mean).norm()))
        moved = math.hypot(moved, float((mean - start).norm()))
    if not groups:
        return None
    return 0.0 if apart == 0 else ratio(apart, moved)


def require_still(
    parts: Parts,
    execution: Execution,
    config: RunConfig,
    unseen: Callable[[], Workload],
    gate: Gate,
    begun: Mapping[str, float],
) -> Execution:
    """Launch one more step and compare it with the plain model's; every rank calls this. Return the execution with what
    was found. unseen: makes a workload that trained no step, and needs no loader. begun: sketches before the timed
    steps. Raises MeasurementInvalid on every rank.
    """
    samples, group = samples_of(config, dist.get_rank())
    plain, of_loss, alone = None, None, None
    first: dict[str, float] = {}
    untold: list[float] = []
    for place in range(1, BATCHES + 1):
        workload = unseen()
        batch = next(Batches(workload, samples, group + place * config.world_size, parts.device))
        for _ in range(gate.tolerance.settle_passes):
            _step_taken(parts, execution.launch, batch)
        if plain is None:
            plain, of_loss = plain_model(workload, parts, config.optimizer)
        take_weights(parts, plain)
        timed = sketches(parts)
        first = first or timed
        expected = of_plain(parts, workload, plain, batch, of_loss)
        few = few_weights(parts)
        rule = UpdateRule.after(parts, config.optimizer, few)
        loss = _step_taken(parts, execution.launch, batch)
        otherwise = misapplied(parts, few, rule)
        loss_error, gradient_error, taught, wrong, far = _compared(parts, expected, loss, gate)
        if largest(int(bool(wrong or far)), parts.device) == 0:
            break
        alone = _rounding_alone(parts, unseen, plain, batch, expected, gate.tolerance, far)
        wrong = wrong or (alone.beyond if alone is not None else [])
        if alone is None or alone.tells or largest(int(bool(wrong)), parts.device) == 0:
            break
        untold.append(alone.error)
        plain.zero_grad(set_to_none=True)
    moved = spread(parts, begun, first)
    faults = []
    if moved is not None and not moved <= (most := bound_on_spread(parts.strategy.word)):
        faults.append(f"its ranks' weights moved apart while steps were timed, by {moved:.3g} (at most {most:.3g})")
    telling = len(untold) < BATCHES
    if telling:
        faults += wrong
        if wrong and alone is not None:
            faults.append(f"rounding alone changes the plain model's by {alone.error:.3g}")
    if config.optimizer != "none":
        faults += otherwise
        faults += _standing(sketches(parts), timed, taught, "do not move")
        faults += _standing(first, begun, taught, "did not move while steps were timed")
    with agreement():
        _refuse(config.mode_label, faults, [] if telling else untold)
    spreads = [one for one in (execution.executed.spread, moved) if one is not None]
    errors = {"after_loss_error": loss_error, "after_gradient_error": gradient_error}
    executed = execution.executed.model_copy(update={**errors, "spread": max(spreads, default=None)})
    loss_alone = gradient_error is None and not parts.strategy.sharded
    said = filter(None, (execution.warning, *_warnings(untold, loss_alone, far if alone is None else {})))
    return replace(execution, executed=executed, warning="; ".join(said) or None)


def _warnings(untold: Sequence[float], loss_alone: bool, unjudged: Mapping[str, "Off"]) -> Iterator[str]:
    if untold:
        yield (
            f"rounding alone changes the plain model's gradients of {len(untold)} of {len(untold) + 1} batches after "
            f"the timed steps by up to {max(untold):.3g}; the step was compared on the last one"
        )
    if loss_alone:
        yield "memory does not suffice to compare gradients after the timed steps: the loss alone was compared"
    if unjudged:
        furthest = max(unjudged, key=lambda name: unjudged[name].error)
        yield (
            f"after the timed steps the gradients of {len(unjudged)} weights are further off than all may be, that of "
            f"{furthest} most, and memory does not suffice to see what of it is rounding"
        )


def _refuse(mode: str, faults: Sequence[str], untold: Sequence[float]) -> None:
    if faults:
        raise MeasurementInvalid(
            f"{mode} after its timed steps no longer computes what was proved: {'; '.join(faults)}",
            "Do not use its speed: the mode, the workload or its batches change while steps are timed",
            "execution",
        )
    if untold:
        raise MeasurementInvalid(
            f"whether {mode} after its timed steps still computes what was proved cannot be told: rounding alone "
            f"changes the plain model's gradients by {min(untold):.3g} or more on each of {len(untold)} batches",
            "Measure again, or with another --seed",
            "execution",
        )


@dataclass(frozen=True)
class Off:
    """How far one weight's gradient is from the plain one: |g' - g| / |g|, and <g', g> / <g, g> - 1."""

    error: float
    multiple: float
    of_matrix: bool

    @classmethod
    def of(cls, found: Tensor, plain: Tensor) -> "Off":
        one, two = plain.flatten().double(), found.flatten().double()
        return cls(ratio(norm(two - one), norm(one)), float(one @ (two - one)) / float(one @ one), plain.dim() > 1)

    def beyond(self, tolerance: Tolerance, bf16: Sequence["Off"] = (), fp8: Sequence["Off"] = ()) -> bool:
        """Whether this is more than a step's bound and what rounding does, by squares as in `worker.judged`."""

        def bound(least: float, of: Callable[[Off], float]) -> float:
            of_bf16, of_fp8 = (max(map(of, ways), default=0.0) for ways in (bf16, fp8))
            return math.hypot(least, OF_BF16 * of_bf16, OF_FP8 * of_fp8)

        within = self.error <= bound(tolerance.input_gradient, lambda one: one.error)
        scaled = self.of_matrix and not abs(self.multiple) <= bound(OF_SAMPLES, lambda one: abs(one.multiple))
        return scaled or not within


def _compared(
    parts: Parts, expected: Plain, loss: float, gate: Gate
) -> tuple[float, float | None, set[str] | None, list[str], dict[str, Off]]:
    """Compare a step, whose gradients `parts` still hold, with the plain model's. Return the errors of its loss and of
    its gradients (None for the loss alone), the weights that must move (None if any must), the faults in words, and the
    weights that are further off than all may be, which rounding may explain.
    """
    tolerance, faults, plain = gate.tolerance, [], expected.gradients
    loss_error = ratio(abs(loss - expected.loss), max(abs(expected.loss), gate.loss_size))
    if not loss_error <= tolerance.loss:
        faults.append(f"its loss differs by {loss_error:.3g} (at most {tolerance.loss:.3g})")
    if plain is None:
        return loss_error, None, None, faults, {}
    of_model = ties(parts.mode, parts.plain)
    mine = {name: gradient_of(weight) for name, weight in trained_weights(parts.plain).items()}
    found = by_plain_names(of_model, mine, {name: gradient.shape for name, gradient in plain.items()})
    squares = {name: norm(gradient) ** 2 for name, gradient in plain.items()}
    usual = sum(squares.values()) / max(1, sum(gradient.numel() for gradient in plain.values()))
    taught = {name for name, one in plain.items() if squares[name] > small(one) ** 2 * usual * one.numel()}
    own = {name: torch.zeros_like(one) for name, one in plain.items()}
    own |= {name: one for name, one in found.items() if one is not None and name in plain}
    missing = [name for name in sorted(taught) if norm(own[name]) ** 2 < (1 - MOST) ** 2 * squares[name]]
    missing += [f"rows {rows}" for name in sorted(taught - {*missing}) for rows in _lost_rows(name, plain, own, usual)]
    error, of_samples = _beside(own, expected, plain)
    if not error <= (bound := _bound(tolerance)):
        faults.append(f"its gradients differ by {error:.3g} (at most {bound:.3g})")
    if missing:
        faults.append(f"no gradient reaches {', '.join(missing[:SHOWN])} ({len(missing)} in all)")
    if not all(abs(share - 1) <= OF_SAMPLES for share in of_samples):
        faults.append(
            "its gradients are not those of all samples: parts of the batch count "
            f"{', '.join(f'{share:.2f}' for share in of_samples)} times (a loss must be the mean over samples, which "
            "that of padded ones is not)"
        )
    moving = {name for tie in of_model if set(tie.plain) <= taught - expected.lost for name in tie.trained}
    several = {name for name in taught if plain[name].numel() >= FEW}
    far = {name: off for name in sorted(several) if (off := Off.of(own[name], plain[name])).beyond(tolerance)}
    return loss_error, error, moving, faults, far


def _standing(now: Mapping[str, float], then: Mapping[str, float], taught: set[str] | None, words: str) -> list[str]:
    still = sorted(name for name, one in now.items() if then[name] == one and (taught is None or name in taught))
    if not still or (taught is None and len(still) < len(now)):
        return []
    return [f"{len(still)} of {len(now)} weights {words}: {', '.join(still[:SHOWN])}"]


@dataclass(frozen=True)
class _Alone:
    """What rounding alone does to the plain model's gradients, whether a fault shows beside it on every rank, and in
    words the weights that are further off than it explains.
    """

    error: float
    tells: bool
    beyond: list[str]


def _rounding_alone(
    parts: Parts,
    unseen: Callable[[], Workload],
    plain: nn.Module,
    batch: Batch,
    expected: Plain,
    tolerance: Tolerance,
    far: Mapping[str, Off],
) -> _Alone | None:
    """Run the plain model again, each time rounded otherwise; None if gradients are not compared, or without room.
    far: weights whose own rounding is of interest. Every rank calls this.
    """
    short = free_bytes(parts.device) < SPARE * size(plain.parameters())
    own = expected.gradients
    if own is None or largest(int(short), parts.device) > 0:
        return None
    errors, tells = [], True
    of_bf16, of_fp8 = (defaultdict[str, list[Off]](list) for _ in range(2))
    for way, bf16, fp8 in _rounded_otherwise(parts, plain):
        plain.zero_grad(set_to_none=True)
        # Some models do not run in float32.
        with suppress(NotProved, *(() if bf16 else (RuntimeError,))), way:
            found = of_plain(parts, unseen(), plain, batch, math.inf, bf16).gradients or {}
            error, of_samples = _beside(found, expected, own)
            errors.append(error)
            alike = all(abs(share - 1) <= TELLS * OF_SAMPLES for share in of_samples)
            tells = tells and alike and error <= TELLS * _bound(tolerance)
            for name in far:
                (of_fp8 if fp8 else of_bf16)[name].append(Off.of(found[name], own[name]))
    if not errors:
        return None
    beyond = [
        f"its gradient of {name} differs by {off.error:.3g}, {1 + off.multiple:.2f} times the plain one (rounding "
        f"alone: {max((one.error for one in (*of_bf16[name], *of_fp8[name])), default=0):.3g})"
        for name, off in sorted(far.items(), key=lambda one: -one[1].error)
        if off.beyond(tolerance, of_bf16[name], of_fp8[name])
    ]
    return _Alone(max(errors), largest(int(not tells), parts.device) == 0, beyond[:SHOWN])


def _rounded_otherwise(parts: Parts, plain: nn.Module) -> Iterator[tuple[AbstractContextManager[None], bool, bool]]:
    """Yield contexts for passes, and whether these are in bf16 and in fp8: in float32, under an fp8 mode with the
    operands of its linear layers in fp8, and from weights that differ in bf16's last digit.
    """
    yield nullcontext(), False, False
    if hasattr(parts.mode, "rounds"):
        rounding = parts.mode.rounds(plain)
        for full in GRIDS[:2]:
            yield rounded(plain, rounding, full), True, True
    nudge(trained_weights(plain))
    yield nullcontext(), True, False


def _bound(tolerance: Tolerance) -> float:
    return min(MOST, OF_ONE_WEIGHT * tolerance.input_gradient)


def _beside(own: Mapping[str, Tensor], expected: Plain, plain: Mapping[str, Tensor]) -> tuple[float, Sequence[float]]:
    """Return the relative error of all gradients, and how much of each part of the samples is in them."""
    seen = [{name: one for name, one in part.items() if name in plain} for part in expected.of_samples]
    apart = sum(norm(own[name].float() - one.float()) ** 2 for name, one in plain.items())
    error = ratio(math.sqrt(apart), math.sqrt(sum(norm(one) ** 2 for one in plain.values())))
    return error, shares(own, seen) if seen[0] else []


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


def _step_taken(parts: Parts, launch: Launch, batch: Batch) -> float:
    # A step that was skipped, since a loss scale was too large for this batch, changed only that scale: it is halved up
    # to 20 times, from torch's first one, 65,536, to less than 1.
    for _ in range(1 if getattr(parts.mode, "loss_scaling", None) is None else 20):
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

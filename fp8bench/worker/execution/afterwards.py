"""What shows, after the last timed step, that what was timed is still what was proved.

A mode, a workload or a loader may do less once the proofs have ended. While steps are timed, only the number of samples
of each batch is looked at. After the last one, one more step is launched as timed, on a batch that was never trained
on (one learned by heart has next to no gradient; a mode that keeps fp8 scales of earlier passes first trains on it as
often as they need), and the plain model with the same weights computes what it should have found:

  after_loss_error      |l' - l| / the larger of |l| and the size of the fresh model's loss
  after_gradient_error  |g' - g| / |g|, of all weights together. Not of sharded ones, whose gradients are parts, nor
                        where there is no room for a plain model: there it computes the loss alone, with one block on
                        the GPU at a time, and the record says so

What is looked at in gradients is in `execution.gradients`. Weights must also move, in this step and while steps were
timed, and ranks that hold the same weights must still hold the same numbers: both are seen by one number of each weight
(`sketches`). A batch whose gradient rounding alone changes too much tells nothing, and the next one is taken.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import torch
import torch.distributed as dist

from fp8bench.records.select import grouped
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.rank import WorkloadFacts
from fp8bench.worker.execution.build import samples_of
from fp8bench.worker.execution.decide import Execution
from fp8bench.worker.execution.gradients import Off, compared, rounding_alone
from fp8bench.worker.execution.optimizers import UpdateRule, few_weights, misapplied
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.proof import Gate, bound_on_spread
from fp8bench.worker.execution.reference import of_plain, plain_model, take_weights
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, gradients_are_finite
from fp8bench.worker.parallel import agreement, averaged, largest
from fp8bench.worker.plain_weights import SHOWN, trained_weights
from fp8bench.worker.plugin import Batches
from fp8bench.worker.rounding import ratio
from fp8bench.workloads.protocol import Batch, Workload

BATCHES = 4
"""How many are tried, until rounding alone leaves the gradient of one as it is."""


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
            plain, of_loss = plain_model(workload, parts, config.chosen_optimizer)
        take_weights(parts, plain)
        timed = sketches(parts)
        first = first or timed
        expected = of_plain(parts, workload, plain, batch, of_loss)
        few = few_weights(parts)
        rule = UpdateRule.after(parts, config.chosen_optimizer, few)
        loss = _step_taken(parts, execution.launch, batch)
        otherwise = misapplied(parts, few, rule)
        loss_error, gradient_error, taught, wrong, far = compared(parts, expected, loss, gate)
        if largest(int(bool(wrong or far)), parts.device) == 0:
            break
        alone = rounding_alone(parts, unseen, plain, batch, expected, gate.tolerance, far)
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


def _warnings(untold: Sequence[float], loss_alone: bool, unjudged: Mapping[str, Off]) -> Iterator[str]:
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


def _standing(now: Mapping[str, float], then: Mapping[str, float], taught: set[str] | None, words: str) -> list[str]:
    still = sorted(name for name, one in now.items() if then[name] == one and (taught is None or name in taught))
    if not still or (taught is None and len(still) < len(now)):
        return []
    return [f"{len(still)} of {len(now)} weights {words}: {', '.join(still[:SHOWN])}"]


def _step_taken(parts: Parts, launch: Launch, batch: Batch) -> float:
    # A step that was skipped, since a loss scale was too large for this batch, changed only that scale: it is halved up
    # to 20 times, from torch's first one, 65,536, to less than 1.
    for _ in range(1 if getattr(parts.mode, "loss_scaling", None) is None else 20):
        loss = float(launch(batch, NO_MARKS).detach())
        if largest(int(not gradients_are_finite(parts)), parts.device) == 0:
            break
    return loss

"""The parity gate proves that a mode computes the same thing before it is timed.

The plain model's trained weights are perturbed (`plain_weights.perturb`), and one batch goes through it under bf16
autocast. Another one is converted, with weights of its own, and then gets those of the first as an optimizer would
write them: a copy of weights that a mode never renews is then seen. Compared are the names of trained weights, each
block and what lies between them (`blocks`), and for the whole model, relative and without unit:

  logits_error          the larger of |z' - z| / |z| and, after subtracting the mean over the batch from both,
                        |c' - c| / |c|: the error in what the *input* contributes, which is little of a fresh logit.
  loss_error            |l' - l| / the larger of |l| and sum |z dl/dz|, which is more where the terms of a loss cancel:
                        gpt-layer's is a tenth of it, and 3 % of it is rounding alone.
  input_gradient_error  |g' - g| / |g| for the gradient of the loss at the input (at the embeddings of tokens): it has
                        been through every layer twice, and turns wherever attention looks at the wrong tokens.
  separation            |c'| / |c|: how far apart different inputs end; 0 if the output ignores them.
  leakage               the gradient of one sample's logits at the *other* samples of the batch, divided by that at its
                        own: attention across the batch of a shallow fresh model hides within the other bounds.
  later_leakage         for a causal workload: the gradient of the logits of the sample's first half at the tokens of
                        its second half, divided by that at the first half.

How far an fp8 mode may be off follows from what rounding alone does (`rounding`): rounding_logits_error and
rounding_input_gradient_error. |.| is the Euclidean norm over the batch. Measured on ViT-Huge: emulated fp8 against
float32 gives 0.17 for the logits, 0.21 for the gradient; attention across the batch or under a causal mask 0.93.

After the gate the model has its initial weights, and an fp8 recipe with scales those that a few passes give. The gate
proves neither torch.compile's output nor the optimizer (`execution.proof` does), nor convergence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fp8bench.modes import protocol as modes
from fp8bench.registry import is_built_in
from fp8bench.schema.gemm import ALIGNMENT
from fp8bench.schema.rank import BlockParity, Parity, Tolerance
from fp8bench.worker import blocks, judged
from fp8bench.worker.execution.parallel.strategy import Strategy
from fp8bench.worker.execution.step import announce
from fp8bench.worker.memory import free_bytes, size
from fp8bench.worker.parallel import agreement, largest
from fp8bench.worker.plain_weights import Tie, by_plain_names, faults_of, other_values, perturb, shapes_of, ties, write
from fp8bench.worker.plugin import Batches, Bindings, require_scaling, wrong
from fp8bench.worker.recorded import Call, Recording, leaves, recording
from fp8bench.worker.rounding import grids, of_steps, rounded
from fp8bench.worker.suitable import require_provable
from fp8bench.worker.view import View, apart, compare, further, leakage, look, look_scaled, passed, reason_of
from fp8bench.workloads.protocol import Batch, Workload, stated

ROOM = 3.0
"""The plain model stays on the GPU beside the converted one if so many times its weights are free: the converted one's,
the copies of weights that autocast makes, a block's gradients several times, and activations of 4,096 tokens, which of
the largest workload are as large as its weights.
"""

COPIES = 6
"""Passes between blocks hold what these take and give so many times: once for each way of rounding, and in the pass
that runs copies, gradients and noise for these.
"""


@dataclass(frozen=True)
class Proof:
    """The converted model with its initial weights, the verdict, torch's attention kernels, and bounds on its steps."""

    model: nn.Module
    parity: Parity
    kernels: frozenset[str]
    loss_size: float
    of_steps: Tolerance


def prove(
    mode: modes.Mode,
    workload: Workload,
    rank: int,
    device: torch.device,
    strategy: Strategy | None = None,
    built: Callable[[], None] = lambda: None,
    before: Bindings | None = None,
    earlier: Parity | None = None,
) -> Proof:
    """Build the plain model, look at it, convert another, and look again; every rank does so, on its own GPU. strategy:
    one that divides layers early does so after the blocks were examined, and before the model is looked at as a whole.
    before: what the plain model was made of before a mode of another package was there. earlier: what another process
    measured of the same; then names, shapes and values of weights are compared, and the whole models with its errors.
    """
    early = strategy if strategy is not None and strategy.divides_early else None
    if early is not None:
        # Ranks that share layers see the same batch.
        rank, before = rank // early.size, None
    whole = _samples(workload, rank, device)
    batch = _first_tokens(whole, stated(workload, "gate_length"))
    model = workload.build(device)
    built()
    seed = int(getattr(workload, "seed", 0))
    perturb(model, seed)
    initial = buffers_of(model)
    plain = None if earlier else _plainly(mode, model, workload, batch, whole, initial)
    # Of another process's parity, how far the whole models are apart shows whether this one's are what was proved.
    view = look(model, workload, batch) if plain is None else plain.view
    with agreement():
        other = workload.build(device)
        with torch.no_grad():
            for mine, one in zip(other.parameters(), model.parameters(), strict=True):
                mine.copy_(one)
        _restore(initial, other)
        # It is converted with yet other weights, and then gets the plain model's as an optimizer would write them.
        perturb(other, seed + 1)
        converted = mode.convert(other)
        require_scaling(mode)
        kept = {name: one for name, one in buffers_of(converted).items() if name in initial}
        found = ties(mode, converted)
        faults = faults_of(found, shapes_of(model), shapes_of(converted))
        faults = faults or other_values(found, model, converted, seed + 1)
    shapes = shapes_of(converted)
    by_block: BlockParity | None = None
    if plain is not None:
        with nullcontext() if early is None else modes.apart(mode):
            by_block, by_blocks = _by_block(mode, converted, workload, plain, found)
        plain.model = nn.Identity()
    elif not faults:
        forget(mode, converted)
        write(found, model, shapes, converted)
    model = converted
    if early is not None:
        with agreement():
            early.divide(model)
    if early is not None or plain is None:
        _settle(mode, model, workload, batch)
    reuses = bool(modes.stated(mode, "reuses"))
    _begin(mode, model, first=not reuses)
    seen = look_scaled(model, workload, batch, mode)
    _begin(mode, model, first=True)
    tolerance: Tolerance = modes.stated(mode, "tolerance")
    if before is not None and (replaced := before.replaced()):
        faults.insert(0, replaced)
    if plain is not None:
        leaked = leakage(model, workload, batch, mode.forward_context())
        faults += by_blocks
        parity = compare(view, seen, leaked, tolerance, plain.alone, faults, by_block, plain.of_bf16)
    else:
        assert earlier is not None
        faults += further(view, seen, earlier)
        parity = earlier.model_copy(update={"passed": not faults, "reason": reason_of(faults)})
    # One rank alone must not go on to passes for which the others' layers are needed.
    if largest(int(not parity.passed), device) == 0:
        write(found, workload.build(device), shapes, model, None if early is None else early.part)
        forget(mode, model)
        _settle(mode, model, workload, batch)
        _restore(kept, model)
    loss_size = math.nan if parity.loss_size is None else parity.loss_size
    return Proof(model, parity, seen.sdpa_kernels, loss_size, of_steps(parity.tolerance, tolerance))


def _samples(workload: Workload, rank: int, device: torch.device) -> Batch:
    piece = stated(workload, "piece")
    batch = next(Batches(workload, piece, rank, device))
    if len(batch.inputs) < 2:
        says = f"gave the gate {len(batch.inputs)} sample where {piece} were requested, and it tells samples apart"
        raise wrong(workload, "batches", says, "Give as many samples as requested")
    return batch


def _first_tokens(batch: Batch, length: int | None) -> Batch:
    return batch if length is None else Batch(*(tensor[:, :length].contiguous() for tensor in batch))


@dataclass(frozen=True)
class _Pass:
    """What the plain model's blocks did with a batch, and what lies between them: as it is, without autocast, and
    rounded to fp8. together: whether the converted model takes all calls in one pass, and not each in one of its own.
    """

    batch: Batch
    calls: list[Call]
    glue: tuple[blocks.Glue, list[blocks.Glue], list[blocks.Glue]]
    together: bool


@dataclass
class _Plain:
    """The plain model, perturbed, and what it showed. passes: over a whole sample where the gate looks at the first
    tokens of samples, and then over these. tokens: how many of a sample's these saw, and how many it has; None where
    the gate looks at all. of_bf16, alone: the errors that bf16 autocast and fp8 make of logits and input gradient.
    """

    model: nn.Module
    view: View
    passes: list[_Pass]
    tokens: tuple[int | None, int | None]
    rounding: modes.Rounding | None
    of_bf16: tuple[float, float]
    alone: tuple[float, float] | None


def _plainly(
    mode: modes.Mode, model: nn.Module, workload: Workload, batch: Batch, whole: Batch, buffers: Mapping[str, Tensor]
) -> _Plain:
    """Look at the plain model. Without room for another on the GPU it waits on the host, as its blocks do. whole: what
    the batch is the first tokens of.
    """
    with agreement():
        rounding: modes.Rounding | None = mode.rounds(model) if hasattr(mode, "rounds") else None
        if not is_built_in(type(workload).__module__):
            require_provable(model, workload, batch, partial(_restore, buffers, model))
    place = next(model.parameters()).device
    shortened = whole.inputs.shape != batch.inputs.shape
    # What lies between blocks takes as much again of a whole sample.
    room = 2 * ROOM if shortened else ROOM
    if place.type == "cuda" and torch.cuda.mem_get_info(place)[0] <= room * size(model.parameters()):
        place = torch.device("cpu")
    record = Recording(place)
    view = look(model, workload, batch, record=record)
    of_bf16, alone = (0.0, 0.0), None
    try:
        of_bf16 = apart(view, look(model, workload, batch, _without_autocast(batch)))
    except RuntimeError:
        # It does not run without autocast, or there is no room for it in float32.
        model.zero_grad(set_to_none=True)
    if rounding is not None:
        found = []
        for full in grids(model):
            with rounded(model, rounding, full):
                found.append(apart(view, look(model, workload, batch)))
        alone = max(logits for logits, _ in found), max(gradient for _, gradient in found)
    passes = [_pass(model, workload, batch, record.calls, True, rounding)]
    beside = 1 if place.type == "cpu" else 2
    if shortened and record.calls and (sample := _whole_sample(model, batch, whole, record.calls, beside)):
        record = Recording(torch.device("cpu"), record.calls)
        with recording(model, record):
            passed(workload.loss, model, sample)
        passes.insert(0, _pass(model, workload, sample, record.calls, False, rounding))
    tokens = (passes[0].batch.inputs.shape[1], whole.inputs.shape[1]) if shortened else (None, None)
    return _Plain(model.to(place), view, passes, tokens, rounding, of_bf16, alone)


def _whole_sample(model: nn.Module, batch: Batch, whole: Batch, calls: Sequence[Call], beside: int) -> Batch | None:
    # The first one's tokens as far as there is room, a number that fp8 can take; None if the batch has as many. beside:
    # so many times the model's weights are taken later.
    a_token = size(one for call in calls for one in leaves((call.arguments, call.output)) if isinstance(one, Tensor))
    room = free_bytes(batch.inputs.device) - beside * size(model.parameters())
    tokens = min(whole.inputs.shape[1], room * math.prod(batch.inputs.shape[:2]) // (COPIES * a_token))
    tokens -= tokens % ALIGNMENT
    first = Batch(*(one[:1] for one in whole))
    return _first_tokens(first, tokens) if tokens > batch.inputs.shape[1] else None


def _pass(
    model: nn.Module,
    workload: Workload,
    batch: Batch,
    calls: list[Call],
    together: bool,
    rounding: modes.Rounding | None,
) -> _Pass:
    between = partial(blocks.between, model, workload, batch, calls)
    plain, bf16, fp8 = between(), [], []
    try:
        bf16.append(between(_without_autocast(batch)))
    except RuntimeError:
        model.zero_grad(set_to_none=True)
    if rounding is not None:
        for full in grids(model):
            with rounded(model, rounding, full):
                fp8.append(between())
    return _Pass(batch, calls, (plain, bf16, fp8), together)


def _without_autocast(batch: Batch) -> torch.autocast:
    return torch.autocast(batch.inputs.device.type, enabled=False)


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in model.named_buffers()}


@torch.no_grad()
def _restore(buffers: Mapping[str, Tensor], model: nn.Module) -> None:
    # One that ranks have divided is left as it is.
    for name, one in model.named_buffers():
        if name in buffers and one.shape == buffers[name].shape:
            one.copy_(buffers[name])


def _by_block(
    mode: modes.Mode, model: nn.Module, workload: Workload, plain: _Plain, found: Sequence[Tie]
) -> tuple[BlockParity, list[str]]:
    own: Tolerance = modes.stated(mode, "tolerance")
    says_rounding = plain.rounding is not None or own.logits <= modes.BF16_TOLERANCE.logits
    stated_errors = (0.0, 0.0) if says_rounding else (own.logits, own.input_gradient)
    pair = blocks.Pair(plain.model, model, found, mode.forward_context, plain.rounding, stated_errors)
    _begin(mode, model, first=True)
    # What a mode keeps of weights, here or since it converted them, is of other weights than those that follow.
    blocks.examine(pair, plain.passes[-1].calls, look=False)
    forget(mode, model)
    write(found, plain.model, shapes_of(model), model)
    compared: list[judged.Judged] = []
    faults: list[str] = []
    names = partial(by_plain_names, found, shapes=shapes_of(plain.model))
    for one in plain.passes:
        scale = math.inf
        for calls in [one.calls] if one.together else [[call] for call in one.calls]:
            more, others, largest_finite = _examined(mode, pair, calls)
            compared, faults, scale = [*compared, *more], [*faults, *others], min(scale, largest_finite)
        _begin(mode, model, first=True)
        if not faults:
            glue = blocks.between(model, workload, one.batch, one.calls, mode.forward_context(), names, scale)
            more, faults = blocks.of_glue(*one.glue, glue, pair.more())
            compared += more
        if one is not plain.passes[-1]:
            forget(mode, model)
    faults = [*dict.fromkeys(faults), *judged.faults_of(compared)]
    number = len({call.block for call in plain.passes[-1].calls})
    return judged.measured(compared, number, *plain.tokens), faults


def _examined(
    mode: modes.Mode, pair: blocks.Pair, calls: Sequence[Call]
) -> tuple[list[judged.Judged], list[str], float]:
    # What was compared, faults in words, and the scale of gradients: the first by which all is finite.
    tolerance: Tolerance = modes.stated(mode, "tolerance")
    reuses = bool(modes.stated(mode, "reuses"))
    for _ in range(tolerance.settle_passes + reuses):
        _begin(mode, pair.converted, first=True)
        blocks.examine(pair, calls, look=False)
    tells_apart = reuses or getattr(mode, "micro_batch", None) is not None
    for scale in modes.stated(mode, "gate_scales"):
        compared: list[judged.Judged] = []
        faults: list[str] = []
        for first in (True, False) if tells_apart else (True,):
            _begin(mode, pair.converted, first)
            more, others = blocks.examine(pair, calls, scale)
            compared, faults = [*compared, *more], [*faults, *others]
        if all(math.isfinite(one.error) for one in compared):
            break
    return compared, faults, scale


def _settle(mode: modes.Mode, model: nn.Module, workload: Workload, batch: Batch) -> None:
    tolerance: Tolerance = modes.stated(mode, "tolerance")
    for _ in range(tolerance.settle_passes + bool(modes.stated(mode, "reuses"))):
        _begin(mode, model, first=True)
        look(model, workload, batch, mode.forward_context())


def forget(mode: modes.Mode, model: nn.Module) -> None:
    """Let what a mode keeps from pass to pass be as if there had been none."""
    if hasattr(mode, "forget"):
        mode.forget(model)


def _begin(mode: modes.Mode, model: nn.Module, first: bool) -> None:
    if hasattr(mode, "clear_gradients"):
        mode.clear_gradients(model)
    announce(mode, first)

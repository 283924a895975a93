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
from fp8bench.schema.rank import BlockParity, Parity, Tolerance
from fp8bench.worker import blocks, judged
from fp8bench.worker.execution.parallel.strategy import Strategy
from fp8bench.worker.execution.step import announce
from fp8bench.worker.memory import size
from fp8bench.worker.parallel import agreement, largest
from fp8bench.worker.plain_weights import Tie, by_plain_names, faults_of, other_values, perturb, shapes_of, ties, write
from fp8bench.worker.plugin import Batches, Bindings, require_scaling, wrong
from fp8bench.worker.recorded import Call, Recording
from fp8bench.worker.rounding import grids, of_steps, rounded
from fp8bench.worker.suitable import require_provable
from fp8bench.worker.view import View, apart, compare, leakage, look, look_scaled, reason_of
from fp8bench.workloads.protocol import Batch, Workload, stated

ROOM = 3.0
"""The plain model stays on the GPU beside the converted one if so many times its weights are free: the converted one's,
the copies of weights that autocast makes, a block's gradients several times, and activations of 4,096 tokens, which of
the largest workload are as large as its weights.
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
    measured of the same; then only names, shapes and values of weights are compared.
    """
    early = strategy if strategy is not None and strategy.divides_early else None
    if early is not None:
        # Ranks that share layers see the same batch.
        rank, before = rank // early.size, None
    piece = stated(workload, "piece")
    batch = next(Batches(workload, piece, rank, device))
    if len(batch.inputs) < 2:
        says = f"gave the gate {len(batch.inputs)} sample where {piece} were requested, and it tells samples apart"
        raise wrong(workload, "batches", says, "Give as many samples as requested")
    if (length := stated(workload, "gate_length")) is not None:
        batch = Batch(*(tensor[:, :length].contiguous() for tensor in batch))
    model = workload.build(device)
    built()
    seed = int(getattr(workload, "seed", 0))
    perturb(model, seed)
    initial = buffers_of(model)
    plain = None if earlier else _plainly(mode, model, workload, batch, initial)
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
    whole = shapes_of(converted)
    by_block: BlockParity | None = None
    if plain is not None:
        with nullcontext() if early is None else modes.apart(mode):
            by_block, by_blocks = _by_block(mode, converted, workload, batch, plain, found)
        plain.model = nn.Identity()
    model = converted
    if early is not None:
        with agreement():
            early.divide(model)
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
        parity = compare(plain.view, seen, leaked, tolerance, plain.alone, faults, by_block, plain.of_bf16)
    else:
        assert earlier is not None
        parity = earlier.model_copy(update={"passed": not faults, "reason": reason_of(faults)})
    # One rank alone must not go on to passes for which the others' layers are needed.
    if largest(int(not parity.passed), device) == 0:
        write(found, workload.build(device), whole, model, None if early is None else early.part)
        forget(mode, model)
        _settle(mode, model, workload, batch)
        _restore(kept, model)
    loss_size = math.nan if parity.loss_size is None else parity.loss_size
    return Proof(model, parity, seen.sdpa_kernels, loss_size, of_steps(parity.tolerance, tolerance))


@dataclass
class _Plain:
    """The plain model, perturbed, and what it showed. glue: as it is, without autocast, and rounded to fp8. of_bf16,
    alone: the errors that bf16 autocast and fp8 make of logits and input gradient.
    """

    model: nn.Module
    view: View
    calls: list[Call]
    glue: tuple[blocks.Glue, list[blocks.Glue], list[blocks.Glue]]
    rounding: modes.Rounding | None
    of_bf16: tuple[float, float]
    alone: tuple[float, float] | None


def _plainly(
    mode: modes.Mode, model: nn.Module, workload: Workload, batch: Batch, buffers: Mapping[str, Tensor]
) -> _Plain:
    """Look at the plain model. Without room for another on the GPU it waits on the host, as its blocks do."""
    with agreement():
        rounding: modes.Rounding | None = mode.rounds(model) if hasattr(mode, "rounds") else None
        if not is_built_in(type(workload).__module__):
            require_provable(model, workload, batch, partial(_restore, buffers, model))
    place = next(model.parameters()).device
    if place.type == "cuda" and torch.cuda.mem_get_info(place)[0] <= ROOM * size(model.parameters()):
        place = torch.device("cpu")
    record = Recording(place)
    view = look(model, workload, batch, record=record)
    between = partial(blocks.between, model, workload, batch, record.calls)
    glue = between()
    bf16, of_bf16, fp8, alone = [], (0.0, 0.0), [], None
    try:
        off = partial(torch.autocast, batch.inputs.device.type, enabled=False)
        of_bf16 = apart(view, look(model, workload, batch, off()))
        bf16.append(between(off()))
    except RuntimeError:
        # It does not run without autocast, or there is no room for it in float32.
        model.zero_grad(set_to_none=True)
    if rounding is not None:
        found = []
        for full in grids(model):
            with rounded(model, rounding, full):
                found.append(apart(view, look(model, workload, batch)))
                fp8.append(between())
        alone = max(logits for logits, _ in found), max(gradient for _, gradient in found)
    return _Plain(model.to(place), view, record.calls, (glue, bf16, fp8), rounding, of_bf16, alone)


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in model.named_buffers()}


@torch.no_grad()
def _restore(buffers: Mapping[str, Tensor], model: nn.Module) -> None:
    # One that ranks have divided is left as it is.
    for name, one in model.named_buffers():
        if name in buffers and one.shape == buffers[name].shape:
            one.copy_(buffers[name])


def _by_block(
    mode: modes.Mode, model: nn.Module, workload: Workload, batch: Batch, plain: _Plain, found: Sequence[Tie]
) -> tuple[BlockParity, list[str]]:
    own: Tolerance = modes.stated(mode, "tolerance")
    says_rounding = plain.rounding is not None or own.logits <= modes.BF16_TOLERANCE.logits
    stated_errors = (0.0, 0.0) if says_rounding else (own.logits, own.input_gradient)
    pair = blocks.Pair(plain.model, model, found, mode.forward_context, plain.rounding, stated_errors)
    reuses = bool(modes.stated(mode, "reuses"))
    _begin(mode, model, first=True)
    # What a mode keeps of weights, here or since it converted them, is of other weights than those that follow.
    blocks.examine(pair, plain.calls, look=False)
    forget(mode, model)
    shapes = shapes_of(plain.model)
    write(found, plain.model, shapes_of(model), model)
    for _ in range(own.settle_passes + reuses):
        _begin(mode, model, first=True)
        blocks.examine(pair, plain.calls, look=False)
    tells_apart = reuses or getattr(mode, "micro_batch", None) is not None
    for scale in modes.stated(mode, "gate_scales"):
        compared: list[judged.Judged] = []
        faults: list[str] = []
        for first in (True, False) if tells_apart else (True,):
            _begin(mode, model, first)
            more, others = blocks.examine(pair, plain.calls, scale)
            compared, faults = [*compared, *more], list(dict.fromkeys((*faults, *others)))
        if all(math.isfinite(one.error) for one in compared):
            break
    _begin(mode, model, first=True)
    if not faults:
        context, names = mode.forward_context(), partial(by_plain_names, found, shapes=shapes)
        glue = blocks.between(model, workload, batch, plain.calls, context, names, scale)
        more, faults = blocks.of_glue(*plain.glue, glue, pair.more())
        compared += more
    return judged.measured(compared, len({call.block for call in plain.calls})), [*faults, *judged.faults_of(compared)]


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

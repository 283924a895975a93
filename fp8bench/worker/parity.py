"""The parity gate proves that a mode computes the same thing before it is timed.

One batch goes through the plain model (bf16 autocast) and, with the same weights, through the converted one. This gives
five numbers, and more for some workloads, all of them relative and without unit:

  logits_error          the larger of |z' - z| / |z| and, after subtracting the mean over the batch from both,
                        |c' - c| / |c|. The second is the error in what the *input* contributes to the logits: in a
                        fresh model most of a logit is the same for every image, and the first alone would hide a
                        model that ignores them.
  loss_error            |l' - l| / |l|.
  input_gradient_error  |g' - g| / |g| for the gradient of the loss at the input: it has been through every layer
                        twice, and is zero or turned wherever attention looks at the wrong tokens. Integer tokens
                        have no gradient; their embeddings stand for them.
  separation            |c'| / |c|: how far apart different inputs end; 0 if the output ignores them.
  leakage               the gradient of one sample's logits at the *other* samples of the batch, divided by that at its
                        own: 0 unless samples see each other. Small or shallow models attend so weakly when fresh that
                        attention across the batch would hide within the other bounds; it cannot hide here.
  weight_gradient_error for a workload that ends with its gradients: |g' - g| / |g| of the weight that is furthest off,
                        by its name in the plain model; 1 if one is missing. Float32 gradients are read where they
                        are accumulated. A single weight may be twice as far off as the gradient at the input.
  later_leakage         for a causal workload: the gradient of the logits of the sample's first half at the tokens of
                        its second half, divided by that at the first half: 0 unless tokens see later tokens, and so
                        the targets that they must predict.

How far an fp8 mode's logits and gradient may be off follows from what rounding alone does to the model: the gate looks
at the plain model once more with its layers rounded (see `worker.rounding`), which gives two more numbers,
rounding_logits_error and rounding_input_gradient_error.

|.| is the Euclidean norm over the batch. Measured on ViT-Huge, 224 and 256 px: emulated fp8 against float32 gives 0.17
and 0.13 for the logits, 0.21 and 0.14 for the gradient; attention across the batch or under a causal mask 0.93 and
more.

The gate does not prove torch.compile's output, because the model is examined before it is compiled (`execution.proof`
does that), nor does it prove convergence.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fp8bench.modes import protocol as modes
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.rank import Parity, Tolerance
from fp8bench.worker.batches import Batches
from fp8bench.worker.execution.step import announce, bf16_autocast
from fp8bench.worker.parallel import agreement
from fp8bench.worker.plugin import wrong
from fp8bench.worker.relative import centred, finite, logits_error, norm, ratio, relative_error
from fp8bench.worker.rounding import explained, of_steps, rounded
from fp8bench.worker.sdpa import sdpa_kernels
from fp8bench.workloads.protocol import Batch, Workload, stated

_Found = TypeVar("_Found")
OfWeights = Callable[[nn.Module], Mapping[str, Tensor]]
"""Returns the gradients of a model's weights, by the plain model's names."""


def no_weights(_model: nn.Module) -> Mapping[str, Tensor]:
    """Return no gradients: they are not examined."""
    return {}


FEWEST = 2
"""Samples of a batch whose logits can differ."""

OF_ONE_WEIGHT = 2.0
"""How many times further off the gradient of one weight may be than that at the input, which all weights affect."""


@dataclass(frozen=True)
class View:
    """A model seen from outside. logits: [batch, ...] float32. loss: a float. input_gradient: shaped as the inputs, or
    as the embeddings of tokens. weight_gradients: by the plain model's names; empty if not examined.
    """

    logits: Tensor
    loss: float
    input_gradient: Tensor
    sdpa_kernels: frozenset[str]
    weight_gradients: Mapping[str, Tensor] = field(default_factory=dict)


def look(
    model: nn.Module,
    workload: Workload,
    batch: Batch,
    context: AbstractContextManager[Any] | None = None,
    of_weights: OfWeights = no_weights,
    scale: float = 1.0,
) -> View:
    """Run one forward and backward pass; no weight changes, and no gradient is left behind. of_weights: returns the
    gradients of weights. scale: multiplies the loss and divides the gradients.
    """
    inputs, (logits, loss) = _forward(observed, model, workload, batch, context)
    kernels = sdpa_kernels(loss)
    (loss * scale).backward()
    found = {name: gradient.detach().clone() / scale for name, gradient in of_weights(model).items()}
    return View(logits.detach().float(), loss.item(), _take_gradient(model, inputs) / scale, kernels, found)


def look_scaled(
    model: nn.Module, workload: Workload, batch: Batch, mode: modes.Mode, of_weights: OfWeights = no_weights
) -> View:
    """Look with the mode's context and the first of its `gate_scales` whose gradient is finite, else the last."""
    for scale in modes.stated(mode, "gate_scales"):
        view = look(model, workload, batch, mode.forward_context(), of_weights, scale)
        if view.input_gradient.isfinite().all():
            break
    return view


@dataclass(frozen=True)
class Leaks:
    """How much logits depend on what they must not, divided by how much on their own; NaN if on nothing.

    samples: on other samples. later: on later tokens; None if the workload is not causal.
    """

    samples: float
    later: float | None = None


def leakage(
    model: nn.Module, workload: Workload, batch: Batch, context: AbstractContextManager[Any] | None = None
) -> Leaks:
    """Measure leaks by the gradient of one sample's logits at the model's input; for a causal model, of its first half.

    The sample is one in the middle, so that attention only to earlier or only to later samples shows too.
    """
    inputs, logits = _forward(logits_of, model, workload, batch, context)
    middle, causal = logits.shape[0] // 2, stated(workload, "causal")
    half = logits.shape[1] // 2
    (logits[middle, :half] if causal else logits[middle]).float().sum().backward()
    gradient = _take_gradient(model, inputs)
    own = gradient[middle].clone()
    gradient[middle] = 0
    later = ratio(norm(own[half:]), norm(own[:half])) if causal else None
    return Leaks(ratio(norm(gradient), norm(own)), later)


def _forward(
    passes: Callable[[nn.Module, Workload, Batch], _Found],
    model: nn.Module,
    workload: Workload,
    batch: Batch,
    context: AbstractContextManager[Any] | None,
) -> tuple[Tensor, _Found]:
    """Return the tensor that takes the gradient at the input, and the result of `passes`, under autocast."""
    inputs = batch.inputs.detach().clone()
    embedded: list[Tensor] = []
    if inputs.is_floating_point():
        embedded.append(inputs.requires_grad_())
    with _embedding(model, embedded), bf16_autocast(inputs.device), context or nullcontext():
        found = passes(model, workload, batch._replace(inputs=inputs))
    return embedded[0], found


@contextmanager
def _embedding(model: nn.Module, found: list[Tensor]) -> Iterator[None]:
    """Put the output of the first embedding in a pass with gradients into `found`, if that is empty, and keep its
    gradient. Raises MeasurementInvalid if there was none.
    """

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if not found and output.requires_grad:
            output.retain_grad()
            found.append(output)

    # Before any hook of the model's own, which may scatter the embedding's output.
    handles = [m.register_forward_hook(keep, prepend=True) for m in model.modules() if isinstance(m, nn.Embedding)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise MeasurementInvalid(
            "the gate has no gradient at the input: inputs are integers, and the model has no torch.nn.Embedding",
            "Take tokens in by torch.nn.Embedding, or give floating-point inputs",
            "parity",
        )


def observed(model: nn.Module, workload: Workload, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return (logits, loss). The logits are what the model passes to the workload's loss, or what the workload says
    they are, from a separate pass without gradients.
    """
    if hasattr(workload, "logits"):
        with torch.no_grad():
            logits = logits_of(model, workload, batch)
        # Autocast caches what it has cast, and that has no gradient here.
        torch.clear_autocast_cache()
        return logits, workload.loss(model, batch)
    outputs: list[Tensor] = []
    handle = model.register_forward_hook(lambda _module, _args, output: outputs.append(output))
    try:
        loss = workload.loss(model, batch)
    finally:
        handle.remove()
    return outputs[-1], loss


def logits_of(model: nn.Module, workload: Workload, batch: Batch) -> Tensor:
    """Return the logits alone, as `observed` does."""
    by_workload: Callable[[nn.Module, Batch], Tensor] | None = getattr(workload, "logits", None)
    return by_workload(model, batch) if by_workload is not None else observed(model, workload, batch)[0]


def _take_gradient(model: nn.Module, inputs: Tensor) -> Tensor:
    model.zero_grad(set_to_none=True)
    return torch.zeros_like(inputs) if inputs.grad is None else inputs.grad.float()


@dataclass(frozen=True)
class Proof:
    """The converted model, the verdict on it, torch's attention kernels in its pass, the plain model's loss, and the
    bounds on its steps as they will be executed.
    """

    model: nn.Module
    parity: Parity
    kernels: frozenset[str]
    plain_loss: float
    of_steps: Tolerance


def prove(
    mode: modes.Mode,
    workload: Workload,
    rank: int,
    device: torch.device,
    divide: Callable[[nn.Module], None] | None = None,
) -> Proof:
    """Build the plain model, look at it, convert it, and look again. Every rank does so, on its own GPU. divide: shares
    the converted model among ranks that see the same batch, before the look; None if each rank has all of it.

    Raises what `mode.convert` and `divide` raise, on every rank (see worker.parallel.agreement).
    """
    piece = stated(workload, "piece")
    batch = next(Batches(workload, piece, rank, device))
    if len(batch.inputs) < FEWEST:
        says = f"gave the gate {len(batch.inputs)} sample where {piece} were requested, and it tells samples apart"
        raise wrong(workload, "batches", says, "Give as many samples as requested")
    model = workload.build(device)
    plain = look(model, workload, batch, of_weights=_gradients(None, workload))
    with agreement():
        rounding = _rounding(mode, model)
    alone = _rounding_alone(rounding, plain, model, workload, batch) if rounding is not None else None
    with agreement():
        model = mode.convert(model)
        if divide is not None:
            divide(model)
    tolerance: Tolerance = modes.stated(mode, "tolerance")
    reuses = bool(modes.stated(mode, "reuses"))
    for _ in range(tolerance.settle_passes + reuses):
        _begin(mode, model, first=True)
        look(model, workload, batch, mode.forward_context())
    _begin(mode, model, first=not reuses)
    converted = look_scaled(model, workload, batch, mode, _gradients(mode, workload))
    _begin(mode, model, first=True)
    leaked = leakage(model, workload, batch, mode.forward_context())
    parity = compare(plain, converted, leaked, tolerance, alone)
    return Proof(model, parity, converted.sdpa_kernels, plain.loss, of_steps(parity.tolerance, tolerance))


def _rounding(mode: modes.Mode, model: nn.Module) -> modes.Rounding | None:
    rounds: Callable[[nn.Module], modes.Rounding] | None = getattr(mode, "rounds", None)
    return rounds(model) if rounds is not None else None


def _rounding_alone(
    rounding: modes.Rounding, plain: View, model: nn.Module, workload: Workload, batch: Batch
) -> tuple[float, float]:
    """Return the errors of the logits and of the gradient at the input that rounding alone makes."""
    with rounded(model, rounding):
        found = look(model, workload, batch)
    gradient = relative_error([plain.input_gradient], [found.input_gradient])
    return logits_error(plain.logits, found.logits), gradient


def _begin(mode: modes.Mode, model: nn.Module, first: bool) -> None:
    """Prepare for a step's first or later forward pass, with nothing accumulated."""
    clear: Callable[[nn.Module], None] | None = getattr(mode, "clear_gradients", None)
    if clear is not None:
        clear(model)
    announce(mode, first)


def _gradients(mode: modes.Mode | None, workload: Workload) -> Callable[[nn.Module], Mapping[str, Tensor]]:
    """Return what gives the gradients of weights by the plain model's names; it gives none if the workload is not
    proved by them. mode: None for the plain model.
    """
    if not stated(workload, "proves_gradients"):
        return lambda _model: {}
    by_mode: Callable[[nn.Module], Mapping[str, Tensor]] | None = getattr(mode, "weight_gradients", None)
    return by_mode or _by_name


def _by_name(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def weight_gradient_error(plain: Mapping[str, Tensor], converted: Mapping[str, Tensor]) -> float:
    """Return the error of the weight that is furthest off; the error of a weight without a gradient is 1."""
    return max(
        relative_error([gradient.float()], [converted[name].float()]) if name in converted else 1.0
        for name, gradient in plain.items()
    )


def compare(
    plain: View, converted: View, leaked: Leaks, tolerance: Tolerance, rounding: tuple[float, float] | None = None
) -> Parity:
    """Measure and judge. A number that is not finite never passes. rounding: the errors of logits and gradient that
    rounding alone makes, from which the bounds on them follow; None if the tolerance is all.
    """
    if rounding is not None:
        tolerance = explained(*rounding, modes.BF16_TOLERANCE, tolerance)
    own, others = centred(plain.logits), centred(converted.logits)
    measured = {
        "logits_error": logits_error(plain.logits, converted.logits),
        "loss_error": ratio(abs(converted.loss - plain.loss), abs(plain.loss)),
        "input_gradient_error": relative_error([plain.input_gradient], [converted.input_gradient]),
        "separation": ratio(norm(others), norm(own)),
        "leakage": leaked.samples,
    }
    if leaked.later is not None:
        measured["later_leakage"] = leaked.later
    if plain.weight_gradients:
        measured["weight_gradient_error"] = weight_gradient_error(plain.weight_gradients, converted.weight_gradients)
    reason = judge(measured, tolerance, gradient_is_zero=not converted.input_gradient.any().item())
    return Parity(
        passed=reason is None,
        reason=reason,
        batch_size=plain.logits.shape[0],
        tolerance=tolerance,
        rounding_logits_error=finite(rounding[0]) if rounding else None,
        rounding_input_gradient_error=finite(rounding[1]) if rounding else None,
        **{name: finite(value) for name, value in measured.items()},
    )


def judge(measured: dict[str, float], tolerance: Tolerance, gradient_is_zero: bool) -> str | None:
    """Return why the mode does not compute what the plain model does, or None. Written so that NaN fails every test."""
    faults = []
    if not measured["separation"] >= tolerance.min_separation:
        faults.append(
            "its logits hardly differ between different inputs "
            f"(separation {measured['separation']:.3g} of the plain model's, at least {tolerance.min_separation:g})"
        )
    if gradient_is_zero:
        faults.append("the gradient at its input is exactly zero")
    elif not measured["leakage"] <= tolerance.max_leakage:
        faults.append(
            "the samples of a batch see each other "
            f"(leakage {measured['leakage']:.3g}, at most {tolerance.max_leakage:g})"
        )
    if not measured.get("later_leakage", 0.0) <= tolerance.max_leakage:
        faults.append(
            "its tokens see later ones, which a causal model must not "
            f"(leakage {measured['later_leakage']:.3g}, at most {tolerance.max_leakage:g})"
        )
    for name, label in (("logits", "logits"), ("loss", "loss"), ("input_gradient", "input gradient")):
        error, bound = measured[f"{name}_error"], getattr(tolerance, name)
        if not error <= bound:
            faults.append(f"its {label} differ{'s' if name != 'logits' else ''} by {error:.3g} (at most {bound:.3g})")
    error, bound = measured.get("weight_gradient_error", 0.0), OF_ONE_WEIGHT * tolerance.input_gradient
    if not error <= bound:
        faults.append(f"the gradient of one of its weights differs by {error:.3g} (at most {bound:.3g})")
    if not faults:
        return None
    return "it does not compute what the plain model does: " + "; ".join(faults)

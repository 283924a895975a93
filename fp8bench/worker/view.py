"""A model seen from outside: its logits, its loss, the gradient at its input, and what leaks between samples; and how a
converted one is judged beside the plain one (see `parity`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fp8bench.modes import protocol as modes
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.rank import BlockParity, Parity, Tolerance
from fp8bench.worker.execution.step import bf16_autocast
from fp8bench.worker.plugin import wrong
from fp8bench.worker.recorded import Recording, gradient_at, recording
from fp8bench.worker.rounding import MOST, centred, explained, finite, logits_error, norm, ratio, relative_error
from fp8bench.workloads.protocol import Batch, Workload, stated

_Found = TypeVar("_Found")
Context = AbstractContextManager[Any] | None

_SDPA_KERNELS = {
    "ScaledDotProductFlashAttentionForCpu": "flash-cpu",
    "ScaledDotProductFlashAttention": "flash",
    "ScaledDotProductEfficientAttention": "efficient",
    "ScaledDotProductCudnnAttention": "cudnn",
    "ScaledDotProductFusedAttention": "fused",
}
"""Kernels by the name of the autograd node that torch's scaled_dot_product_attention leaves."""

OVER_BF16 = 2.0
"""How many times further off than bf16 autocast alone a computation without fp8 may be, where that is more than a mode
states: ReLUs turn a fifth of the gradient at the input of five layers.
"""


AGAIN, BESIDE = 1.25, 0.02
"""How many times as far off as an earlier process's, and by how much more, a later one's model may be. On an H200 these
errors of ViT-Huge and llm-1b differed by up to 0.002 between processes that saw one batch; other ranks see others.
"""


@dataclass(frozen=True)
class View:
    """A model seen from outside. logits: [batch, ...] float32. loss_size: what errors of the loss are relative to."""

    logits: Tensor
    loss: float
    input_gradient: Tensor
    sdpa_kernels: frozenset[str]
    loss_size: float


def look(
    model: nn.Module,
    workload: Workload,
    batch: Batch,
    context: Context = None,
    scale: float = 1.0,
    record: Recording | None = None,
) -> View:
    """Run one forward and backward pass, without gradients of weights for their own sake. scale: of the loss."""
    with recording(model, record) if record is not None else nullcontext():
        inputs, (logits, loss) = passed(partial(observed, workload), model, batch, context)
    kernels = sdpa_kernels(loss)
    outputs = [logits] if logits.requires_grad else []
    (loss * scale).backward(inputs=[inputs, *outputs, *(record.marks if record is not None else ())])
    terms = [
        (one.grad * one.detach()).abs().sum(dtype=torch.float64) / scale for one in outputs if one.grad is not None
    ]
    sizes = [abs(loss.item()), *(float(one) for one in terms if one.isfinite())]
    return View(logits.detach().float(), loss.item(), _take_gradient(model, inputs) / scale, kernels, max(sizes))


def look_scaled(model: nn.Module, workload: Workload, batch: Batch, mode: modes.Mode) -> View:
    """Look with the mode's context and the first of its `gate_scales` whose gradient is finite, else the last."""
    for scale in modes.stated(mode, "gate_scales"):
        view = look(model, workload, batch, mode.forward_context(), scale)
        if view.input_gradient.isfinite().all():
            break
    return view


def leakage(model: nn.Module, workload: Workload, batch: Batch, context: Context = None) -> tuple[float, float | None]:
    """Return how much logits depend on other samples, and in a causal model on later tokens, by how much on their own;
    NaN if on nothing. Seen by the gradient of one sample's logits at the input; in a causal model, of its first half's.
    """
    inputs, logits = passed(partial(logits_of, workload), model, batch, context)
    middle, causal = logits.shape[0] // 2, stated(workload, "causal")
    half = logits.shape[1] // 2
    (logits[middle, :half] if causal else logits[middle]).float().sum().backward(inputs=[inputs])
    gradient = _take_gradient(model, inputs)
    own = gradient[middle].clone()
    gradient[middle] = 0
    later = ratio(norm(own[half:]), norm(own[:half])) if causal else None
    return ratio(norm(gradient), norm(own)), later


def passed(
    passes: Callable[[nn.Module, Batch], _Found], model: nn.Module, batch: Batch, context: Context = None
) -> tuple[Tensor, _Found]:
    """Return the tensor that takes the gradient at the input, and the result of `passes`, under autocast."""
    inputs = batch.inputs.detach().clone()
    embedded: list[Tensor] = []
    if inputs.is_floating_point():
        embedded.append(inputs.requires_grad_())
        # A copy, which a model may change in place.
        inputs = inputs.clone()
    with _embedding(model, embedded), bf16_autocast(inputs.device), context or nullcontext():
        found = passes(model, batch._replace(inputs=inputs))
    return embedded[0], found


@contextmanager
def _embedding(model: nn.Module, found: list[Tensor]) -> Iterator[None]:
    # Put the first embedding's output in a pass with gradients into `found`, if that is empty.
    without: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if not found and torch.is_grad_enabled():
            # A frozen embedding gives what takes no gradient.
            (output if output.requires_grad else output.requires_grad_()).retain_grad()
            found.append(output)
        elif not found and not without:
            without.append(output.detach())

    with ExitStack() as hooks:
        for embedding in modes.named(model, nn.Embedding).values():
            # Before any hook of the model's own, which may scatter the embedding's output.
            hooks.enter_context(embedding.register_forward_hook(keep, prepend=True))
        yield
    if not found and without:
        found.append(without[0].requires_grad_())
    if not found:
        raise MeasurementInvalid(
            "the gate has no gradient at the input: inputs are integers, and the model has no torch.nn.Embedding",
            "Take tokens in by torch.nn.Embedding, or give floating-point inputs",
            "parity",
        )


def observed(workload: Workload, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return (logits, loss): the model's output under the loss, or the workload's own logits."""
    if hasattr(workload, "logits"):
        with torch.no_grad():
            logits = logits_of(workload, model, batch)
        # Autocast caches what it has cast, and that has no gradient here.
        torch.clear_autocast_cache()
        return logits, workload.loss(model, batch)
    outputs: list[Tensor] = []
    with model.register_forward_hook(lambda _module, _args, output: outputs.append(output)):
        loss = workload.loss(model, batch)
    if not outputs:
        raise wrong(workload, "loss", "does not call the model", "Call it as model(batch.inputs), once")
    if not isinstance(outputs[-1], Tensor):
        says = f"gives a model whose output is a {type(outputs[-1]).__name__}"
        raise wrong(workload, "build", says, "Define logits(model, batch) beside it")
    return outputs[-1], loss


def logits_of(workload: Workload, model: nn.Module, batch: Batch) -> Tensor:
    by_workload: Callable[[nn.Module, Batch], Tensor] | None = getattr(workload, "logits", None)
    return by_workload(model, batch) if by_workload is not None else observed(workload, model, batch)[0]


def _take_gradient(model: nn.Module, inputs: Tensor) -> Tensor:
    model.zero_grad(set_to_none=True)
    return gradient_at(inputs).float()


def apart(plain: View, other: View) -> tuple[float, float]:
    return logits_error(plain.logits, other.logits), relative_error(plain.input_gradient, other.input_gradient)


def compare(
    plain: View,
    converted: View,
    leaked: tuple[float, float | None],
    tolerance: Tolerance,
    rounding: tuple[float, float] | None = None,
    found: Sequence[str] = (),
    by_block: BlockParity | None = None,
    of_bf16: tuple[float, float] = (0.0, 0.0),
) -> Parity:
    """Measure and judge; what is not finite never passes. leaked: see `leakage`. rounding: errors that rounding alone
    makes of logits and gradient, from which their bounds follow; None if the tolerance is all. found: faults by name
    and by block. of_bf16: errors of autocast.
    """
    tolerance = _widened(tolerance, of_bf16)
    if rounding is not None:
        tolerance = explained(*rounding, _widened(modes.BF16_TOLERANCE, of_bf16), tolerance)
    of_logits, of_gradient = apart(plain, converted)
    measured = {
        "logits_error": of_logits,
        "loss_error": ratio(abs(converted.loss - plain.loss), plain.loss_size),
        "input_gradient_error": of_gradient,
        "separation": ratio(norm(centred(converted.logits)), norm(centred(plain.logits))),
        "leakage": leaked[0],
    }
    if leaked[1] is not None:
        measured["later_leakage"] = leaked[1]
    is_zero = not converted.input_gradient.any().item()
    to_judge = measured
    if is_zero and not plain.input_gradient.any():
        # What comes first is frozen, and gives neither model a gradient to compare.
        is_zero, to_judge = False, {**measured, "input_gradient_error": 0.0, "leakage": 0.0, "later_leakage": 0.0}
    faults = [*judge(to_judge, tolerance, is_zero), *found]
    return Parity(
        passed=not faults,
        reason=reason_of(faults),
        loss_size=finite(plain.loss_size),
        batch_size=plain.logits.shape[0],
        tolerance=tolerance,
        rounding_logits_error=finite(rounding[0]) if rounding else None,
        rounding_input_gradient_error=finite(rounding[1]) if rounding else None,
        weight_gradient_error=by_block.weight_gradient_error if by_block else None,
        blocks=by_block,
        **{name: finite(value) for name, value in measured.items()},  # type: ignore[arg-type]
    )


def further(plain: View, converted: View, earlier: Parity) -> list[str]:
    """Return what is further from the plain model than in an earlier process, whose kernels and batch were the same, in
    words: by AGAIN of that and BESIDE, at most by the earlier one's bounds.
    """
    logits, gradient = apart(plain, converted)
    found = {
        "logits": (logits, earlier.logits_error),
        "loss": (ratio(abs(converted.loss - plain.loss), plain.loss_size), earlier.loss_error),
        "input_gradient": (gradient, earlier.input_gradient_error),
    }
    return [
        f"the error of its {name.replace('_', ' ')} is {error:.3g}, and was {then:.3g} in {earlier.of_run}"
        for name, (error, then) in found.items()
        # Frozen inputs take no gradient.
        if then is not None and not error <= min(getattr(earlier.tolerance, name), AGAIN * then + BESIDE)
    ]


def reason_of(faults: Sequence[str]) -> str | None:
    return f"it does not compute what the plain model does: {'; '.join(faults)}" if faults else None


def _widened(bounds: Tolerance, of_bf16: tuple[float, float]) -> Tolerance:
    errors = {"logits": of_bf16[0], "input_gradient": of_bf16[1]}
    wider = {name: min(MOST, OVER_BF16 * error) for name, error in errors.items() if math.isfinite(error)}
    return bounds.model_copy(update={name: max(bound, getattr(bounds, name)) for name, bound in wider.items()})


def judge(measured: dict[str, float], tolerance: Tolerance, gradient_is_zero: bool) -> list[str]:
    """Return what sets the converted model apart as a whole, in words. Written so that NaN fails every test."""
    separation, least, most = measured["separation"], tolerance.min_separation, tolerance.max_leakage
    leakage, later = measured["leakage"], measured.get("later_leakage", 0.0)
    faults = []
    if not separation >= least:
        apart = f"separation {separation:.3g} of the plain model's, at least {least:g}"
        faults.append(f"its logits hardly differ between different inputs ({apart})")
    if gradient_is_zero:
        faults.append("the gradient at its input is exactly zero")
    elif not leakage <= most:
        faults.append(f"the samples of a batch see each other (leakage {leakage:.3g}, at most {most:g})")
    if not later <= most:
        words = "its tokens see later ones, which a causal model must not"
        faults.append(f"{words} (leakage {later:.3g}, at most {most:g})")
    for name, differs in {"logits": "differ", "loss": "differs", "input_gradient": "differs"}.items():
        error, bound = measured[f"{name}_error"], getattr(tolerance, name)
        if not error <= bound:
            faults.append(f"its {name.replace('_', ' ')} {differs} by {error:.3g} (at most {bound:.3g})")
    return faults


def sdpa_kernels(loss: Tensor) -> frozenset[str]:
    """Return the attention kernels in the autograd graph of `loss`; none for plain GEMMs."""
    seen: set[Any] = {None}
    pending: list[Any] = [loss.grad_fn]
    while pending:
        if (node := pending.pop()) not in seen:
            seen.add(node)
            pending.extend(parent for parent, _ in node.next_functions)
    names = {node.name().rpartition("::")[2].removesuffix("Backward0") for node in seen - {None}}
    return frozenset(short for name, short in _SDPA_KERNELS.items() if name in names)

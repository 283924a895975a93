"""The interface of a mode: five methods, and attributes that the mode states about itself.

The worker calls the methods in this order, each once except `forward_context`, which is entered for every forward pass:

    mode = cls(recipe)            # and the fields of RunConfig that `config_fields` names, as keywords
    mode.check(device)            # raises ModeUnavailable instead of falling back silently
    model = mode.convert(model)   # plain model in, same weights out, before DDP and torch.compile
    with mode.forward_context(): loss = ...          # forward alone; backward runs outside
    mode.evidence(model)          # what actually ran, read from the model afterwards

A class need not inherit from `Mode`; for what it does not define the values here apply. It may have more:

  fp8                     a promise: a run of such a mode is invalid if no fp8 GEMM is observed in it
  rounds(model)           what of the plain model will be rounded to fp8, from which the gate derives how far the mode
                          may be off (see `worker.rounding`); without it the mode's tolerance applies
  plain_weights(model)    the plain names of each trained weight, for layers that hold weights fused, split, or under
                          other names (see `worker.plain_weights`); both proofs compare weights by the plain names
  step_state(model)       the tensors, in a fixed order, that it keeps from step to step besides weights and buffers
                          (the scales of a delayed recipe): steps are compared from the same state, and it after them
  forget(model), apart()  make these as if no pass had run; the context for a second model, if the library keeps one
                          state for all models of a process
  loss_scaling            after conversion: an object with `scaled(loss)`, whose result backward starts from, and
                          `step(optimizer)`, which divides gradients in place and steps, or skips a step whose gradients
                          are not finite. The gate multiplies its loss by the first of `gate_scales` for which the
                          gradient at the input is finite
  micro_batch(first)      called before each forward pass with whether it is the first of a step; the gate then checks a
                          first pass and a later one. With `reuses`, later passes use what the first has stored
  clear_gradients(model)  clears what zero_grad does not
  checkpoint(function, *args)  replaces torch's own, if activations must be recomputed in the mode's context
  gathered_dtype          FSDP2: the dtype in which weights are gathered (None: unchanged)
  before_sharding(model)  FSDP2: prepares the model in place; returns whether weights are gathered in float8
  after_update(model)     FSDP2: called after each optimizer step
  divide(model, group)    shares the layers of a model among ranks by the library's own arguments (see
                          `modes.te_parallel`), instead of DTensor plans
  joined_alone            whether DDP also wraps a single rank
  tensor_parallel_refusal, sharding_refusal, selective_refusal   why ranks cannot share its layers, its weights cannot
                          be sharded, and selective activation checkpointing cannot tell its GEMMs apart
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from fp8bench.schema.errors import UsageError
from fp8bench.schema.rank import Tolerance


@dataclass(frozen=True)
class CompilePolicy:
    """What `--compile auto` means for a mode, and why. refusal: why `--compile on` is impossible, or None."""

    auto: bool
    reason: str
    refusal: str | None = None


@dataclass(frozen=True)
class Rounding:
    """What a mode rounds to fp8. layers: dotted names, in the plain model, of linear layers whose GEMMs run in fp8.
    gradient: the format of their outputs' gradients; inputs and weights are e4m3.
    """

    layers: frozenset[str]
    gradient: torch.dtype = torch.float8_e5m2

    def within(self, name: str) -> "Rounding":
        """Return what is rounded of the module of this name, by names inside it."""
        inside = {
            layer.removeprefix(name).removeprefix(".") for layer in self.layers if f"{layer}.".startswith(f"{name}.")
        }
        return Rounding(frozenset(inside), self.gradient)


BF16_TOLERANCE = Tolerance(logits=0.1, loss=0.02, input_gradient=0.1)
"""For two bf16 computations of the same function (see worker.parity). Transformer Engine's block in ViT-Huge, measured
on an H200: 0.03 for the logits, 0.02 for the gradient.
"""

FP8_TOLERANCE = Tolerance(logits=0.4, loss=0.05, input_gradient=0.45)
"""fp8 has 3 (e4m3) or 2 (e5m2) bits of mantissa and bf16 has 7, so fp8's rounding is 16 times coarser. ViT-Huge on an
H200, te-fp8:delayed and torchao tensorwise: 0.18 for the logits, 0.22 for the gradient. For the logits and the gradient
these bounds serve modes that do not say what they round; those of others follow from the model.
"""


class Mode(Protocol):
    """The contract of a mode. name: in the registry. capture_refusal: why its step cannot be captured in a CUDA graph.
    compile_islands: why torch.compile breaks its graphs, shown if that happens.
    """

    name: str
    tolerance: Tolerance = BF16_TOLERANCE
    compile_policy: CompilePolicy = CompilePolicy(auto=False, reason="the mode does not say that it gains by it")
    compile_islands: str | None = None
    capture_refusal: str | None = None
    config_fields: ClassVar[tuple[str, ...]] = ()
    fp8: ClassVar[bool] = False
    gathered_dtype: str | None = "bfloat16"
    sharding_notes: tuple[str, ...] = ()
    sharding_refusal: str | None = None
    gate_scales: tuple[float, ...] = (1.0,)
    tensor_parallel_refusal: str | None = None
    selective_refusal: str | None = None
    reuses: bool = False
    joined_alone: bool = False

    def __init__(self, recipe: str | None = None) -> None:
        if recipe is not None:
            raise UsageError(f"mode {self.name!r} has no recipes, so not {recipe!r}", f"Use `--mode {self.name}`")

    def check(self, device: torch.device) -> None:
        """Raises ModeUnavailable(reason, remedy) if `device` cannot run this mode."""

    def convert(self, model: nn.Module) -> nn.Module:
        """Return the model in this precision, on the same device and with the same weights. May change `model`."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the context of each forward pass. It is entered inside bf16 autocast."""
        return nullcontext()

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """Return what ran: converted_layers, total_layers, recipe, attention, emulated, warnings, and other keys."""


def apart(mode: Mode) -> AbstractContextManager[Any]:
    """Return the context for a second model in this process: what a library keeps for all models is set aside in it."""
    own: Callable[[], AbstractContextManager[Any]] = getattr(mode, "apart", nullcontext)
    return own()


def stated(mode: Mode | type[Mode], name: str) -> Any:
    """Return what a mode states about itself, or the protocol's default if it states nothing."""
    return getattr(mode, name, getattr(Mode, name))


def named(model: nn.Module, kind: type) -> dict[str, Any]:
    """Return the modules of a class or a subclass of it by dotted name, in the model's order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def named_exactly(model: nn.Module, *kinds: tuple[str, str]) -> dict[str, Any]:
    """Return the modules of exactly these classes, (module, name) so that none is imported, by dotted name."""
    return {name: part for name, part in model.named_modules() if (type(part).__module__, type(part).__name__) in kinds}


def compute_capability(device: torch.device) -> tuple[int, int]:
    """Return (major, minor) of a CUDA device; (0, 0) for any other."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)

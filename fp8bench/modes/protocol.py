"""What a mode is: five methods, and what it states about itself.

The worker calls them in this order, once each but for `forward_context`, which is entered around every forward pass:

    mode = cls(recipe)            # and the fields of RunConfig that `config_fields` names, as keywords
    mode.check(device)            # raises ModeUnavailable rather than fall back in silence
    model = mode.convert(model)   # plain model in, same weights out, before DDP and torch.compile
    with mode.forward_context(): loss = ...          # forward alone; backward runs outside
    mode.evidence(model)          # what really ran, read off the model afterwards

A class need not inherit from `Mode`; where it does not state `tolerance`, `compile_policy`, `capture_refusal`,
`config_fields` or `fp8`, the values here hold. `fp8` is a promise: a run of such a mode in which no fp8 GEMM is
seen is invalid.

Where weights are sharded (FSDP2), a mode may state `gathered_dtype`, in which they are gathered (None: as they are),
and have two methods more: `before_sharding(model)`, which prepares the converted model in place and returns whether
weights are gathered in float8, and `after_update(model)`, called after each optimizer step. A method
`checkpoint(function, *args)` stands for torch's own where activations are computed again in the mode's context.
`tensor_parallel_refusal`, `sharding_refusal`, `selective_refusal` and `twin_refusal` say why its layers cannot be
shared among ranks, why its weights cannot, why selective activation checkpointing cannot tell its GEMMs apart, and why
a process cannot have a second model, with which steps of a sharded one are compared.

A mode whose loss is scaled has `loss_scaling` once it has converted the model: an object with `scaled(loss)`, of which
backward is taken, and `step(optimizer)`, in place of the optimizer's own. The gate then multiplies its loss with the
first of `gate_scales` under which the gradient at the input is finite.

A mode whose layers do something once a step has a method `micro_batch(first)`, called before each forward pass: whether
it is the first of a step. One that states `reuses` computes later ones with what the first has kept: the gate then
looks at such a later one. `weight_gradients(model)` gives gradients by the names that weights have in the plain model,
float32 ones from where they are accumulated: the gate compares them too. `clear_gradients(model)` clears what zero_grad
does not. `divide(model, group)` shares the layers of a model among ranks by the library's own arguments (see
`modes.te_parallel`), and takes the place of DTensor plans. `joined_alone`: DDP
wraps a single rank too.

A mode that keeps tensors from step to step beside weights and buffers (the scales of a delayed recipe) has one method
more, `step_state(model)`, which gives them in a fixed order: steps are compared from the same state, and what they make
of it is compared too.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from fp8bench.schema.rank import Tolerance


@dataclass(frozen=True)
class CompilePolicy:
    """What `--compile auto` means for a mode, and why; refusal: why `--compile on` is impossible, or None."""

    auto: bool
    reason: str
    refusal: str | None = None


BF16_TOLERANCE = Tolerance(logits=0.1, loss=0.02, input_gradient=0.1)
"""Two bf16 computations of one function (see worker.parity). Transformer Engine's block in ViT-Huge, measured on an
H200: 0.03 for the logits, 0.02 for the gradient."""

FP8_TOLERANCE = Tolerance(logits=0.4, loss=0.05, input_gradient=0.45)
"""fp8 keeps 3 (e4m3) or 2 (e5m2) bits of mantissa where bf16 keeps 7, so its rounding is 16 times coarser. ViT-Huge
on an H200, te-fp8:delayed and torchao tensorwise: 0.18 for the logits, 0.22 for the gradient."""


class Mode(Protocol):
    """The contract. name: as in the registry. recipe: None takes the mode's own default. capture_refusal: why its step
    cannot be captured in a CUDA graph; None: as far as it knows, it can. compile_islands: why torch.compile breaks its
    graphs, which is shown where it does; None: it need not.
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
    twin_refusal: str | None = None
    reuses: bool = False
    joined_alone: bool = False

    def __init__(self, recipe: str | None = None) -> None: ...

    def check(self, device: torch.device) -> None:
        """Raises ModeUnavailable(reason, remedy) where `device` cannot run this mode."""

    def convert(self, model: nn.Module) -> nn.Module:
        """The model in this precision, on the same device, with the same weights; `model` may be changed in place."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Entered around each forward pass, inside bf16 autocast."""

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """What ran. Known keys: converted_layers, total_layers, recipe, attention, emulated, warnings; others are
        kept.
        """


def stated(mode: Mode | type[Mode], name: str) -> Any:
    """What a mode states about itself, or the protocol's default where it is silent."""
    return getattr(mode, name, getattr(Mode, name))


def count_linears(model: nn.Module) -> int:
    """Plain and converted `nn.Linear` layers (a subclass counts)."""
    return sum(isinstance(module, nn.Linear) for module in model.modules())


def compute_capability(device: torch.device) -> tuple[int, int]:
    """(major, minor) of a CUDA device; (0, 0) for any other."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)

"""Probes: what can only be determined by importing torch, torchao or Transformer Engine. Each runs in its own process,
which may hang or crash:

    python -m fp8bench.doctor.probe NAME [PARENT]

prints one JSON object, and ends when its parent (a process id) does. After an exception, its traceback is on stderr,
and the doctor reads the last line.

Each probe imports its packages itself, and nothing before them, because which libraries are mapped, and in which order,
is part of its result.
"""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from fp8bench.doctor.facts import (
    FP8_UNITS,
    AttentionResult,
    CompileResult,
    ImportResult,
    LibrariesResult,
    PrecisionResult,
    Recipe,
    TorchResult,
    TransformerEngineResult,
    own_copies,
)
from fp8bench.lifeline import leave_with
from fp8bench.schema.files import Frozen

if TYPE_CHECKING:
    import torch

SIDE = 256
"""The size of every matrix that is multiplied here."""

TOLERANCE = 0.02
"""The reference of a GEMM is computed in float32 from the values rounded to the narrow type, so the remaining error is
the rounding of the output to bf16, 2 ** -9, and the order of the sums.
"""


def main() -> None:
    """Run a probe. What libraries print on stdout is sent to stderr, so that stdout has only the result."""
    name, *parent = sys.argv[1:]
    if parent:
        leave_with(int(parent[0]))
    result_to = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.write(result_to, PROBES[name]().model_dump_json().encode())
    # The result is written. Tearing down CUDA, compilers and their threads takes seconds and can only fail.
    os._exit(0)


def torch_and_cuda() -> TorchResult:
    import torch

    # Only a start of CUDA reveals a driver that is too old.
    error = None
    try:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as failure:
        # torch without CUDA asserts; a driver that is too old, or no GPU, raises RuntimeError.
        error = _first_line(failure)
    nccl = None
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found = torch.cuda.nccl.version()
        nccl = ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
    return TorchResult(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        cuda_error=error,
        gpus=torch.cuda.device_count(),
        nccl=nccl,
        copies=own_copies(),
    )


def imported(package: str, part: str) -> ImportResult:
    import_module(f"{package}.{part}")
    return ImportResult(version=import_module(package).__version__)


def precision() -> PrecisionResult:
    import torch

    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    capability = torch.cuda.get_device_capability(device)
    return PrecisionResult(
        capability=capability,
        bf16_error=gemm_error(torch.bfloat16, lambda left, right: left @ right.t(), device),
        fp8_error=gemm_error(torch.float8_e4m3fn, fp8_gemm, device) if capability >= FP8_UNITS else None,
    )


def fp8_gemm(left: "torch.Tensor", right: "torch.Tensor") -> "torch.Tensor":
    """Multiply as torchao's Float8Linear does in the end: the second operand is column-major, scales are 1."""
    import torch

    one = torch.ones((), device=left.device)
    return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def gemm_error(
    dtype: "torch.dtype",
    gemm: Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"],
    device: "torch.device",
) -> str | None:
    """Return how `left` times the transpose of `right`, both of the dtype, fails or is off; None if it is right."""
    import torch

    try:
        left, right = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2))
        exact = left.float() @ right.float().t()
        distance = float((gemm(left, right).float() - exact).norm() / exact.norm())
    except RuntimeError as error:
        return _first_line(error)
    return None if distance < TOLERANCE else f"the product is off by {distance:.3g} of its norm"


def torch_compile() -> CompileResult:
    """Test whether torch.compile works on the GPU: Inductor, Triton, and the C compiler that Triton's launcher needs.
    The doctor starts this probe with empty caches, because what an earlier run compiled proves nothing about today.
    Dynamo's fallbacks are not enabled, so a compiler that fails raises.
    """
    import torch
    from torch._dynamo.utils import counters

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().exp() * x

    x = torch.linspace(-1, 1, 4096, device="cuda")
    right = bool(torch.allclose(torch.compile(function)(x), function(x), atol=1e-4))
    return CompileResult(graphs=int(counters["stats"]["unique_graphs"]), right=right)


def transformer_engine() -> TransformerEngineResult:
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling

    def linear_in_fp8() -> None:
        x = torch.randn(SIDE, SIDE, device="cuda", requires_grad=True)
        _train(te.Linear(SIDE, SIDE, device="cuda"), x, te.autocast(enabled=True, recipe=DelayedScaling()))

    supports = {
        "delayed": te.is_fp8_available,
        "current": te.is_fp8_available,
        "block": te.is_fp8_block_scaling_available,
        "mxfp8": te.is_mxfp8_available,
    }
    recipes = []
    for name, available in supports.items() if torch.cuda.is_available() else ():
        yes, reason = available(return_reason=True)
        recipes.append(Recipe(name=name, available=bool(yes), reason=reason))
    delayed = any(recipe.available for recipe in recipes if recipe.name == "delayed")
    return TransformerEngineResult(
        version=version("transformer-engine"),
        recipes=tuple(recipes),
        linear_error=_error_of(linear_in_fp8) if delayed else None,
    )


def libraries() -> LibrariesResult:
    """Find which copies of cuDNN, cuBLAS and NCCL a process of the te modes maps. The order is that of a run: torch,
    then Transformer Engine, then the patch embedding's convolution, which is the first use of cuDNN. Many parts of
    cuDNN are loaded only by that use.
    """
    import torch
    import transformer_engine.pytorch  # noqa: F401

    def embed_patches() -> None:
        embed = torch.nn.Conv2d(3, 1280, kernel_size=16, stride=16, device="cuda")
        _train(embed, torch.randn(2, 3, 224, 224, device="cuda"))

    error = _error_of(embed_patches) if torch.cuda.is_available() else None
    return LibrariesResult(copies=own_copies(), use_error=error)


def attention() -> AttentionResult:
    """Find which attention Transformer Engine runs for ViT-Huge: fused, flash, or the slow one. One block of ViT-Huge,
    converted by mode te-bf16 itself, runs forward and backward at batch 64 on the GPU; if no attention can run, it
    raises. The reasons why other kernels were refused are in Transformer Engine's log at debug level, for which the
    doctor sets NVTE_DEBUG=1 and NVTE_DEBUG_LEVEL=2.
    """
    import torch
    from timm.models.vision_transformer import Block

    from fp8bench.modes.te_attention import attention_backend
    from fp8bench.modes.transformer_engine import TEBF16

    refusals = Refusals()
    # If there is a handler, Transformer Engine adds none of its own.
    logging.getLogger("DotProductAttention").addHandler(refusals)
    with torch.device("cuda"):
        model: torch.nn.Module = torch.nn.Sequential(Block(dim=1280, num_heads=16, mlp_ratio=4.0, qkv_bias=True))
        x = torch.randn(64, 197, 1280, requires_grad=True)
    _train(TEBF16().convert(model.train()), x)
    return AttentionResult(backend=attention_backend(), reasons=tuple(refusals.lines), copies=own_copies())


class Refusals(logging.Handler):
    """Stores the lines of the log with the reasons why a kernel was refused, each once."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Disabling "):
            self.lines[" ".join(text.split())] = None


def _train(module: "torch.nn.Module", x: "torch.Tensor", context: AbstractContextManager[object] | None = None) -> None:
    import torch

    with torch.autocast("cuda", torch.bfloat16), context or nullcontext():
        y = module(x)
    y.float().sum().backward()
    torch.cuda.synchronize()


def _error_of(work: Callable[[], None]) -> str | None:
    try:
        work()
    except RuntimeError as error:
        return _first_line(error)
    return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


PROBES: dict[str, Callable[[], Frozen]] = {
    "torch": torch_and_cuda,
    "timm": partial(imported, "timm", "models.vision_transformer"),
    "torchao": partial(imported, "torchao", "float8"),
    "precision": precision,
    "transformer-engine": transformer_engine,
    "libraries": libraries,
    "attention": attention,
    "compile": torch_compile,
}

if __name__ == "__main__":
    main()

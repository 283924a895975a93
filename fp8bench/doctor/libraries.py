"""Transformer Engine, and NVIDIA's libraries under it and torch. For each, what a probe finds in its own process, and
how its answer is judged in the doctor's.

Two cuDNN in one process are the costliest known fault: torch includes its own, Transformer Engine prefers the system's,
and parts of one are then looked up in the other. Transformer Engine silently falls back to unfused attention, and
ViT-Huge at batch 64 on an H200 takes 171 ms a step under te-bf16 instead of 127.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING

from fp8bench.doctor.check import SKIPPED, Failure, MachineFacts, Verdict
from fp8bench.doctor.copies import Copy, own_copies
from fp8bench.doctor.software import ELSEWHERE, SIDE, ImportResult, TorchResult, first_line
from fp8bench.schema.files import Frozen

if TYPE_CHECKING:
    import torch

NO_TE = "Transformer Engine is not installed"
ONE_CUDNN = (
    "Point CUDNN_HOME at the cuDNN that torch brings (site-packages/nvidia/cudnn) and put its lib folder first in "
    "LD_LIBRARY_PATH"
)
SHAPE = "ViT-Huge, batch 64"


class TransformerEngineResult(ImportResult):
    """What Transformer Engine reported. recipes: why each is not available; None if it is. linear_error: the error of a
    te.Linear, forward and backward, in fp8 with delayed scaling; None if it ran, or if that is not available.
    """

    recipes: dict[str, str | None]
    linear_error: str | None


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
    recipes: dict[str, str | None] = {}
    for name, available in supports.items() if torch.cuda.is_available() else ():
        yes, reason = available(return_reason=True)
        recipes[name] = None if yes else str(reason)
    delayed = "delayed" in recipes and recipes["delayed"] is None
    return TransformerEngineResult(
        version=version("transformer-engine"),
        recipes=recipes,
        linear_error=_error_of(linear_in_fp8) if delayed else None,
    )


def recipes(facts: MachineFacts) -> Verdict:
    """The recipes as Transformer Engine reports them, and one linear layer in fp8."""
    result = facts.answer("transformer-engine", TransformerEngineResult)
    if result is None:
        return Verdict("unknown", SKIPPED if facts.quick else NO_TE)
    if isinstance(result, Failure):
        return Verdict("unknown", "Transformer Engine does not import")
    if not result.recipes:
        return Verdict("unknown", "Transformer Engine saw no GPU")
    if result.linear_error is not None:
        remedy = "Install a Transformer Engine built for this torch and CUDA, and check that one cuBLAS is loaded"
        return Verdict("problem", f"a te.Linear in fp8 failed: {result.linear_error}", remedy)
    available = ", ".join(name for name, reason in result.recipes.items() if reason is None)
    missing: dict[str, list[str]] = {}
    for name, reason in result.recipes.items():
        if reason is not None:
            missing.setdefault(reason.rstrip(". "), []).append(name)
    texts = [available] if available else []
    text = "; ".join([*texts, *(f"not {', '.join(names)}: {reason}" for reason, names in missing.items())])
    return Verdict("ok", text) if available else Verdict("warning", text, ELSEWHERE)


class LibrariesResult(Frozen):
    """The libraries mapped after importing torch and Transformer Engine and using cuDNN. use_error: of that use."""

    copies: tuple[Copy, ...]
    use_error: str | None


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


def mapped(facts: MachineFacts, family: str) -> list[Copy]:
    """Return the copies mapped by the process that mapped most: attention, else first use, else the import of torch."""
    for probe, kind in (("attention", AttentionResult), ("libraries", LibrariesResult), ("torch", TorchResult)):
        result = facts.answer(probe, kind)
        if isinstance(result, AttentionResult | LibrariesResult | TorchResult) and result.copies:
            return [copy for copy in result.copies if copy.family == family]
    return []


def cudnn(facts: MachineFacts) -> Verdict:
    """Two copies of one version are not known to do harm, but it cannot be excluded."""
    found, used = mapped(facts, "cudnn"), facts.answer("libraries", LibrariesResult)
    text = " and ".join(map(str, found))
    if len(found) > 1:
        versions = {copy.version for copy in found}
        if len(versions) == 1 and None not in versions:
            return Verdict("warning", f"mapped twice, in one version: {text}", ONE_CUDNN)
        return Verdict("problem", f"{len(found)} mapped in one process: {text}", ONE_CUDNN)
    if isinstance(used, Failure):
        return used.verdict(ONE_CUDNN, "the first use of cuDNN: {}")
    if used is not None and used.use_error:
        return Verdict("problem", f"{text or 'none mapped'}; its first use failed: {used.use_error}", ONE_CUDNN)
    return Verdict("ok", text) if text else Verdict("unknown", "no file of cuDNN is mapped; torch may contain it")


def cublas_and_nccl(facts: MachineFacts) -> Verdict:
    families = {family: copies for family in ("cublas", "nccl") if (copies := mapped(facts, family))}
    text = "; ".join(f"{family} {' and '.join(map(str, copies))}" for family, copies in families.items())
    if any(len(copies) > 1 for copies in families.values()):
        remedy = "Put the folders of torch's own libraries (site-packages/nvidia/*/lib) first in LD_LIBRARY_PATH"
        return Verdict("warning", f"several mapped in one process: {text}", remedy)
    return Verdict("ok", text) if text else Verdict("unknown", "neither is mapped; both may be linked into torch")


class AttentionResult(Frozen):
    """The attention that Transformer Engine ran for ViT-Huge's block. reasons: why it refused the other kernels."""

    backend: str | None
    reasons: tuple[str, ...]
    copies: tuple[Copy, ...]


class Refusals(logging.Handler):
    """Stores the lines of the log with the reasons why a kernel was refused, each once."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Disabling "):
            self.lines[" ".join(text.split())] = None


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


def te_attention(facts: MachineFacts) -> Verdict:
    """Unfused, a step of ViT-Huge on an H200 was 34 % slower in te-bf16 and 48 % in te-fp8."""
    remedy = "Run one step with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 and fix the reason that it logs"
    if off := [name for name in ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN") if facts.environ.get(name) == "0"]:
        remedy = f"Unset {' and '.join(off)}"
    elif len(mapped(facts, "cudnn")) > 1:
        remedy = ONE_CUDNN
    result = facts.answer("attention", AttentionResult)
    if result is None:
        return Verdict("unknown", NO_TE)
    if isinstance(result, Failure):
        return result.verdict(remedy)
    if result.backend is None:
        return Verdict("unknown", "it ran, but this Transformer Engine does not report which")
    if result.backend in ("fused", "flash"):
        return Verdict("ok", f"{result.backend} ({SHAPE}, bf16, forward and backward)")
    reasons = "; ".join(reason.rstrip(". ") for reason in result.reasons) or "no reason given"
    return Verdict("problem", f"{result.backend} ({SHAPE}): far slower, without a warning. {reasons}", remedy)


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
        return first_line(error)
    return None

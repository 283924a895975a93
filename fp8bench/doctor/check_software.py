"""Checks of the precisions that run here; torch, timm, torchao and Transformer Engine and their versions; CUDA's
libraries, and the attention that Transformer Engine runs with them; and torch.compile.

Two cuDNN in one process are the costliest known fault: Transformer Engine then silently falls back to unfused
attention, and ViT-Huge at batch 64 on an H200 takes 171 ms a step under te-bf16 instead of 127.
"""

import re
from collections.abc import Callable

from fp8bench.doctor.check import Check, Verdict, a_gpu, failed, probes
from fp8bench.doctor.facts import (
    FP8_UNITS,
    SKIPPED,
    Copy,
    Failure,
    MachineFacts,
    PrecisionResult,
)
from fp8bench.machine.driver import Version
from fp8bench.schema.machine import release

SMI = "Reinstall torch for this GPU and driver, and run `nvidia-smi -q` to see whether the GPU is sound"
ELSEWHERE = "Measure baseline-bf16 and te-bf16 here, and fp8 on an L4, L40S, H100 or newer"
NO_TE = "Transformer Engine is not installed"
ONE_CUDNN = (
    "Point CUDNN_HOME at the cuDNN that torch brings (site-packages/nvidia/cudnn) and put its lib folder first in "
    "LD_LIBRARY_PATH"
)
SHAPE = "ViT-Huge, batch 64"
UNCOMPILED = "without it torchao-float8 runs at about 0.36 of the baseline's speed"
"""387.7 ms a step of ViT-Huge at batch 64 on an H200, torchao tensorwise, eager; the baseline took 137.5."""

SUPPORTED = {"torch": ">=2.11,<2.16", "timm": ">=1.0.20", "torchao": ">=0.17", "transformer-engine": ">=2.9"}
"""The same as in pyproject.toml, which a test checks: the sources may run without being installed."""


def gemm(name: str, units: Version, call: str, fault: Verdict) -> Callable[[MachineFacts], Verdict]:
    """Make the judge of bf16 or fp8. fault: of a GPU without the units."""

    def judge(facts: MachineFacts) -> Verdict:
        result = facts.probed.precision
        capability: Version | None = min((gpu.capability for gpu in facts.driver.gpus if gpu.capability), default=None)
        if capability is None and isinstance(result, PrecisionResult):
            capability = result.capability
        if capability is None:
            return Verdict("unknown", "the GPU's compute capability is unknown")
        text = "compute capability {}.{}".format(*capability)
        if capability < units:
            return fault._replace(found="{}, and {} units need {}.{}".format(text, name, *units))
        if result is None:
            return Verdict("unknown", f"{text} has it; whether a GEMM runs was {SKIPPED}")
        if isinstance(result, Failure):
            return failed(result, SMI, f"{text}; a small GEMM: {{}}")
        error = result.bf16_error if name == "bf16" else result.fp8_error
        if error:
            return Verdict("problem", f"{text}; {call} failed: {error}", SMI)
        return Verdict("ok", f"{text}; {call} runs and is right")

    return judge


def recipes(facts: MachineFacts) -> Verdict:
    """The recipes as Transformer Engine reports them, and one linear layer in fp8."""
    result = facts.probed.transformer_engine
    if result is None:
        return Verdict("unknown", SKIPPED if facts.quick else NO_TE)
    if isinstance(result, Failure):
        return Verdict("unknown", "Transformer Engine does not import")
    if not result.recipes:
        return Verdict("unknown", "Transformer Engine saw no GPU")
    if result.linear_error is not None:
        remedy = "Install a Transformer Engine built for this torch and CUDA, and check that one cuBLAS is loaded"
        return Verdict("problem", f"a te.Linear in fp8 failed: {result.linear_error}", remedy)
    available = ", ".join(recipe.name for recipe in result.recipes if recipe.available)
    missing: dict[str, list[str]] = {available: []} if available else {}
    for recipe in result.recipes:
        if not recipe.available:
            missing.setdefault(recipe.reason.rstrip(". "), []).append(recipe.name)
    text = "; ".join(f"not {', '.join(names)}: {reason}" if names else reason for reason, names in missing.items())
    return Verdict("ok", text) if available else Verdict("warning", text, ELSEWHERE)


def package(name: str) -> Callable[[MachineFacts], Verdict]:
    """Make the judge of a package's version and import."""
    supported = SUPPORTED[name]
    install = f"Install it: `pip install '{name}{supported}'`"

    def judge(facts: MachineFacts) -> Verdict:
        installed, result = facts.installed[name], getattr(facts.probed, name.replace("-", "_"))
        imported = result is not None and not isinstance(result, Failure)
        if name == "transformer-engine" and installed is None and not imported:
            # Nothing else needs it.
            text = "not installed: te-bf16 and te-fp8 do not run here"
            return Verdict("warning", text, "Install it for the te modes: `pip install fp8bench[te]`")
        if isinstance(result, Failure):
            return failed(result, install, f"{installed or 'not installed'}; import: {{}}")
        version = result.version if imported else installed
        if version is None:
            return Verdict("problem", "not installed", install)
        text = f"{version}, imports" if imported else version
        least, *below = map(release, re.findall(r"[\d.]+", supported))
        if release(version) < least:
            return Verdict("problem", f"{text}; older than the supported {supported}", install)
        if below and release(version) >= below[0]:
            return Verdict("warning", f"{text}; newer than the supported {supported}", install)
        return Verdict("ok", text)

    return judge


def mapped(facts: MachineFacts, family: str) -> list[Copy]:
    """Return the copies mapped by the process that mapped most: attention, else first use, else the import of torch."""
    for result in (facts.probed.attention, facts.probed.libraries, facts.probed.torch):
        if result is not None and not isinstance(result, Failure) and result.copies:
            return [copy for copy in result.copies if copy.family == family]
    return []


def cudnn(facts: MachineFacts) -> Verdict:
    """Two copies of one version are not known to do harm, but it cannot be excluded."""
    found, used = mapped(facts, "cudnn"), facts.probed.libraries
    text = " and ".join(map(str, found))
    if len(found) > 1:
        versions = {copy.version for copy in found}
        if len(versions) == 1 and None not in versions:
            return Verdict("warning", f"mapped twice, in one version: {text}", ONE_CUDNN)
        return Verdict("problem", f"{len(found)} mapped in one process: {text}", ONE_CUDNN)
    if isinstance(used, Failure):
        return failed(used, ONE_CUDNN, "the first use of cuDNN: {}")
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


def attention(facts: MachineFacts) -> Verdict:
    """Unfused, a step of ViT-Huge on an H200 was 34 % slower in te-bf16 and 48 % in te-fp8."""
    remedy = "Run one step with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 and fix the reason that it logs"
    if off := [name for name in ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN") if facts.environ.get(name) == "0"]:
        remedy = f"Unset {' and '.join(off)}"
    elif len(mapped(facts, "cudnn")) > 1:
        remedy = ONE_CUDNN
    result = facts.probed.attention
    if result is None:
        return Verdict("unknown", NO_TE)
    if isinstance(result, Failure):
        return failed(result, remedy)
    if result.backend is None:
        return Verdict("unknown", "it ran, but this Transformer Engine does not report which")
    if result.backend in ("fused", "flash"):
        return Verdict("ok", f"{result.backend} ({SHAPE}, bf16, forward and backward)")
    reasons = "; ".join(reason.rstrip(". ") for reason in result.reasons) or "no reason given"
    return Verdict("problem", f"{result.backend} ({SHAPE}): far slower, without a warning. {reasons}", remedy)


def torch_compile(facts: MachineFacts) -> Verdict:
    """Without it, torchao's float8 is slow."""
    remedy = "Install a C compiler (`apt install build-essential`) and the Triton that torch brings"
    off = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
    if on := [name for name in off if facts.environ.get(name) not in (None, "", "0")]:
        remedy = f"Unset {' and '.join(on)}"
    result = facts.probed.compile
    if result is None:
        return Verdict("unknown", "not tried")
    if isinstance(result, Failure):
        return failed(result, remedy, f"{{}} ({UNCOMPILED})")
    if result.graphs == 0:
        return Verdict("problem", f"it compiles nothing: {UNCOMPILED}", remedy)
    if not result.right:
        return Verdict("problem", "what it compiles gives wrong numbers", "Reinstall torch and its Triton")
    return Verdict("ok", f"compiles on the GPU; {UNCOMPILED}")


# A GPU without fp8 units can be measured in bf16.
BF16 = gemm("bf16", (8, 0), "a small GEMM", Verdict("problem", "", "Measure on an A100 or newer"))
FP8 = gemm("fp8", FP8_UNITS, "torch._scaled_mm", Verdict("warning", "", ELSEWHERE))

CHECKS = (
    Check("bf16", "gpu", "bf16", BF16, a_gpu),
    Check("fp8", "gpu", "fp8", FP8, a_gpu),
    Check("te-fp8-recipes", "software", "te-fp8 recipes", recipes, a_gpu),
    Check("torch", "software", "torch", package("torch")),
    Check("timm", "software", "timm", package("timm")),
    Check("torchao", "software", "torchao", package("torchao")),
    Check("transformer-engine", "software", "Transformer Engine", package("transformer-engine"), a_gpu),
    Check("cudnn-mix", "software", "cuDNN", cudnn, probes),
    Check("cuda-libraries", "software", "cuBLAS and NCCL", cublas_and_nccl, probes),
    Check("te-attention", "software", "TE attention", attention, probes),
    Check("torch-compile", "software", "torch.compile", torch_compile, probes),
)

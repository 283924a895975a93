"""Judges the precisions that run here; torch, timm, torchao and Transformer Engine and their versions; CUDA's
libraries, and the attention that Transformer Engine runs with them; and torch.compile.

Two cuDNN in one process are the costliest known fault: Transformer Engine then silently falls back to unfused
attention, and ViT-Huge at batch 64 on an H200 takes 171 ms a step under te-bf16 instead of 127.
"""

import re
from collections.abc import Callable, Sequence

from fp8bench.doctor.facts import (
    FP8_UNITS,
    SKIPPED,
    AttentionResult,
    CompileResult,
    ImportResult,
    LibrariesResult,
    MachineFacts,
    PrecisionResult,
    TorchResult,
    TransformerEngineResult,
)
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.mapped import Copy
from fp8bench.doctor.run_probes import Failure
from fp8bench.machine.driver import Version
from fp8bench.schema.machine import release

BF16 = Check("bf16", "gpu", "bf16")
FP8 = Check("fp8", "gpu", "fp8")
RECIPES = Check("te-fp8-recipes", "software", "te-fp8 recipes")
PACKAGES = {name: Check(name, "software", name) for name in ("torch", "timm", "torchao")}
TE = Check("transformer-engine", "software", "Transformer Engine")
CUDNN = Check("cudnn-mix", "software", "cuDNN")
OTHERS = Check("cuda-libraries", "software", "cuBLAS and NCCL")
ATTENTION = Check("te-attention", "software", "TE attention")
COMPILE = Check("torch-compile", "software", "torch.compile")
DELAYED = Check("delayed-scaling-compile", "software", "delayed scaling")

BF16_UNITS = (8, 0)
SMI = "Reinstall torch for this GPU and driver, and run `nvidia-smi -q` to see whether the GPU is sound"
ELSEWHERE = "Measure baseline-bf16 and te-bf16 here, and fp8 on an L4, L40S, H100 or newer"
INSTALL_TE = "Install it for the te modes: `pip install fp8bench[te]`"
NO_TE = "Transformer Engine is not installed"
ONE_CUDNN = (
    "Point CUDNN_HOME at the cuDNN that torch brings (site-packages/nvidia/cudnn) and put its lib folder first in "
    "LD_LIBRARY_PATH"
)
ONE_OF_EACH = "Put the folders of torch's own libraries (site-packages/nvidia/*/lib) first in LD_LIBRARY_PATH"

SHAPE = "ViT-Huge, batch 64"
FAST = ("fused", "flash")
ATTENTION_SWITCHES = ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN")
ATTENTION_DEBUG = "Run one step with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 and fix the reason that it logs"

COMPILE_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
COMPILER = "Install a C compiler (`apt install build-essential`) and the Triton that torch brings"
UNCOMPILED = "without it torchao-float8 runs at about 0.36 of the baseline's speed"
"""387.7 ms a step of ViT-Huge at batch 64 on an H200, torchao tensorwise, eager; the baseline took 137.5."""


SUPPORTED = {"torch": ">=2.11,<2.16", "timm": ">=1.0.20", "torchao": ">=0.17", "transformer-engine": ">=2.9"}
"""The same as in pyproject.toml, which a test checks: the sources may run without being installed."""


def findings(facts: MachineFacts) -> list[Finding]:
    """Return one finding per check."""
    mapped, probed = seen(facts), facts.probed
    plain = {"torch": probed.torch, "timm": probed.timm, "torchao": probed.torchao}
    found = [
        *precisions(facts),
        *(package(PACKAGES[name], facts.installed[name], result) for name, result in plain.items()),
        transformer_engine(facts),
        cudnn(facts, mapped),
        others(facts, mapped),
        attention(facts),
        torch_compile(facts),
    ]
    if isinstance(probed.transformer_engine, TransformerEngineResult):
        text = "under torch.compile it recompiles without end: fp8bench refuses the pair, and te modes run uncompiled"
        found.append(DELAYED.ok(text))
    return found


def precisions(facts: MachineFacts) -> list[Finding]:
    """Judge bf16, fp8, and Transformer Engine's fp8 recipes."""
    if facts.driver.why_no_gpu:
        return [check.unknown(facts.driver.why_no_gpu) for check in (BF16, FP8, RECIPES)]
    result = facts.probed.precision
    capability = min((gpu.capability for gpu in facts.driver.gpus if gpu.capability is not None), default=None)
    if capability is None and isinstance(result, PrecisionResult):
        capability = result.capability
    return [bf16(capability, result), fp8(capability, result), recipes(facts)]


def bf16(capability: tuple[int, int] | None, result: PrecisionResult | Failure | None) -> Finding:
    """Judge bf16. capability: the lowest of all GPUs."""
    if capability is not None and capability < BF16_UNITS:
        text = f"compute capability {_dotted(capability)}, and bf16 units need {_dotted(BF16_UNITS)}"
        return BF16.problem(text, "Measure on an A100 or newer")
    return _gemm(BF16, capability, result, "a small GEMM", lambda one: one.bf16_error)


def fp8(capability: tuple[int, int] | None, result: PrecisionResult | Failure | None) -> Finding:
    """Judge fp8. A GPU without fp8 units can be measured in bf16: a warning. capability: the lowest of all GPUs."""
    if capability is not None and capability < FP8_UNITS:
        text = f"compute capability {_dotted(capability)}, and fp8 units need {_dotted(FP8_UNITS)}"
        return FP8.warning(text, ELSEWHERE)
    return _gemm(FP8, capability, result, "torch._scaled_mm", lambda one: one.fp8_error)


def _gemm(
    check: Check,
    capability: tuple[int, int] | None,
    result: PrecisionResult | Failure | None,
    gemm: str,
    error_of: Callable[[PrecisionResult], str | None],
) -> Finding:
    """Judge a GEMM on a GPU that has the units."""
    if capability is None:
        return check.unknown("the GPU's compute capability is unknown")
    text = f"compute capability {_dotted(capability)}"
    match result:
        case None:
            return check.unknown(f"{text} has it; whether a GEMM runs was {SKIPPED}")
        case Failure():
            return result.finding(check, SMI, f"{text}; a small GEMM: {{}}")
        case _ if error := error_of(result):
            return check.problem(f"{text}; {gemm} failed: {error}", SMI)
        case _:
            return check.ok(f"{text}; {gemm} runs and is right")


def recipes(facts: MachineFacts) -> Finding:
    """Judge the recipes as Transformer Engine reports them, and one linear layer in fp8."""
    match facts.probed.transformer_engine:
        case None:
            return RECIPES.unknown(SKIPPED if facts.quick else NO_TE)
        case Failure():
            return RECIPES.unknown("Transformer Engine does not import")
        case TransformerEngineResult(recipes=()):
            return RECIPES.unknown("Transformer Engine saw no GPU")
        case TransformerEngineResult(linear_error=str() as error):
            return RECIPES.problem(
                f"a te.Linear in fp8 failed: {error}",
                "Install the Transformer Engine that was built for this torch and CUDA, and check that one cuBLAS is "
                "loaded",
            )
        case TransformerEngineResult(recipes=found):
            missing: dict[str, list[str]] = {}
            for recipe in found:
                if not recipe.available:
                    missing.setdefault(recipe.reason.rstrip(". "), []).append(recipe.name)
            available = ", ".join(recipe.name for recipe in found if recipe.available)
            why_not = (f"not {', '.join(names)}: {reason}" for reason, names in missing.items())
            text = "; ".join([*filter(None, [available]), *why_not])
            return RECIPES.ok(text) if available else RECIPES.warning(text, ELSEWHERE)


def package(
    check: Check, installed: str | None, result: TorchResult | ImportResult | TransformerEngineResult | Failure | None
) -> Finding:
    """Judge a package. installed: the version that the package manager knows."""
    supported = SUPPORTED[check.name]
    install = f"Install it: `pip install '{check.name}{supported}'`"
    if isinstance(result, Failure):
        return result.finding(check, install, f"{installed or 'not installed'}; import: {{}}")
    version = installed if result is None else result.version
    if version is None:
        return check.problem("not installed", install)
    text = f"{version}, imports" if result is not None else version
    least, *below = map(release, re.findall(r"[\d.]+", supported))
    if release(version) < least:
        return check.problem(f"{text}; older than the supported {supported}", install)
    if below and release(version) >= below[0]:
        return check.warning(f"{text}; newer than the supported {supported}", install)
    return check.ok(text)


def transformer_engine(facts: MachineFacts) -> Finding:
    """Judge Transformer Engine. Its absence is a warning, and only if there is a GPU, because nothing else needs it."""
    if facts.driver.why_no_gpu:
        return TE.unknown(facts.driver.why_no_gpu)
    result = facts.probed.transformer_engine
    if facts.installed[TE.name] is None and not isinstance(result, TransformerEngineResult):
        return TE.warning("not installed: te-bf16 and te-fp8 do not run here", INSTALL_TE)
    return package(TE, facts.installed[TE.name], result)


def seen(facts: MachineFacts) -> tuple[Copy, ...]:
    """Return the copies mapped by the process that mapped most: attention, else first use, else the import of torch."""
    for result in (facts.probed.attention, facts.probed.libraries, facts.probed.torch):
        if isinstance(result, AttentionResult | LibrariesResult | TorchResult) and result.copies:
            return result.copies
    return ()


def cudnn(facts: MachineFacts, copies: Sequence[Copy]) -> Finding:
    """Judge copies of cuDNN. Two copies of one version are not known to do harm, but it cannot be excluded."""
    if facts.why_not_probed:
        return CUDNN.unknown(facts.why_not_probed)
    found = _of("cudnn", copies)
    text = " and ".join(map(str, found))
    used = facts.probed.libraries
    if len(found) > 1:
        versions = {copy.version for copy in found}
        if len(versions) == 1 and None not in versions:
            return CUDNN.warning(f"mapped twice, in one version: {text}", ONE_CUDNN)
        return CUDNN.problem(f"{len(found)} mapped in one process: {text}", ONE_CUDNN)
    if isinstance(used, Failure):
        return used.finding(CUDNN, ONE_CUDNN, "the first use of cuDNN: {}")
    if used is not None and used.use_error:
        return CUDNN.problem(f"{text or 'none mapped'}; its first use failed: {used.use_error}", ONE_CUDNN)
    return CUDNN.ok(text) if found else CUDNN.unknown("no file of cuDNN is mapped; it may be linked into torch")


def others(facts: MachineFacts, copies: Sequence[Copy]) -> Finding:
    """Judge copies of cuBLAS and NCCL."""
    if facts.why_not_probed:
        return OTHERS.unknown(facts.why_not_probed)
    families = {family: _of(family, copies) for family in ("cublas", "nccl")}
    text = "; ".join(f"{family} {' and '.join(map(str, found))}" for family, found in families.items() if found)
    if any(len(found) > 1 for found in families.values()):
        return OTHERS.warning(f"several mapped in one process: {text}", ONE_OF_EACH)
    return OTHERS.ok(text) if text else OTHERS.unknown("neither is mapped; both may be linked into torch")


def _of(family: str, copies: Sequence[Copy]) -> list[Copy]:
    return [copy for copy in copies if copy.family == family]


def attention(facts: MachineFacts) -> Finding:
    """Judge attention. Unfused, a step of ViT-Huge on an H200 was 34 % slower in te-bf16 and 48 % in te-fp8."""
    if facts.why_not_probed:
        return ATTENTION.unknown(facts.why_not_probed)
    off = [name for name in ATTENTION_SWITCHES if facts.environ.get(name) == "0"]
    mixed = len(_of("cudnn", seen(facts))) > 1
    remedy = f"Unset {' and '.join(off)}" if off else ONE_CUDNN if mixed else ATTENTION_DEBUG
    match facts.probed.attention:
        case None:
            return ATTENTION.unknown(NO_TE)
        case Failure() as failure:
            return failure.finding(ATTENTION, remedy)
        case AttentionResult(backend=None):
            return ATTENTION.unknown("it ran, but this Transformer Engine does not report which")
        case AttentionResult(backend=backend) if backend in FAST:
            return ATTENTION.ok(f"{backend} ({SHAPE}, bf16, forward and backward)")
        case found:
            reasons = "; ".join(reason.rstrip(". ") for reason in found.reasons) or "no reason given"
            return ATTENTION.problem(f"{found.backend} ({SHAPE}): far slower, without a warning. {reasons}", remedy)


def torch_compile(facts: MachineFacts) -> Finding:
    """Judge torch.compile, without which torchao's float8 is slow."""
    if facts.why_not_probed:
        return COMPILE.unknown(facts.why_not_probed)
    off = [name for name in COMPILE_SWITCHES if facts.environ.get(name) not in (None, "", "0")]
    remedy = f"Unset {' and '.join(off)}" if off else COMPILER
    match facts.probed.compile:
        case None:
            return COMPILE.unknown("not tried")
        case Failure() as failure:
            return failure.finding(COMPILE, remedy, f"{{}} ({UNCOMPILED})")
        case CompileResult(graphs=0):
            return COMPILE.problem(f"it compiles nothing: {UNCOMPILED}", remedy)
        case CompileResult(right=False):
            return COMPILE.problem(
                "a small function compiled on the GPU gives wrong numbers", "Reinstall torch and its Triton"
            )
        case _:
            return COMPILE.ok(f"compiles on the GPU; {UNCOMPILED}")


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))

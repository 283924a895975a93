"""Packages that a run needs, the GPUs and precisions that torch computes with, torch.compile, Transformer Engine, and
NVIDIA's libraries under them. A probe runs in its own process and imports its packages itself, and nothing before them,
because which libraries are mapped, and in which order, is part of its answer; the doctor judges that.

Two cuDNN in one process are the costliest known fault: torch includes its own, Transformer Engine prefers the system's,
and parts of one are then looked up in the other. Transformer Engine silently falls back to unfused attention, and
ViT-Huge at batch 64 on an H200 takes 171 ms a step under te-bf16 instead of 127.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from fp8bench.doctor.check import SKIPPED, Answer, Copy, Failure, MachineFacts, Verdict, copies, judged
from fp8bench.schema.errors import first_line
from fp8bench.schema.machine import release

if TYPE_CHECKING:
    import torch

# As in pyproject.toml, which a test checks: the sources may run without being installed.
SUPPORTED = {"torch": ">=2.11,<2.16", "timm": ">=1.0.20", "torchao": ">=0.17", "transformer-engine": ">=2.9"}
# The lowest compute capability of GPUs with units for fp8:
FP8_UNITS = (8, 9)
ELSEWHERE = "Measure baseline-bf16 and te-bf16 here, and fp8 on an L4, L40S, H100 or newer"
NO_TE = "Transformer Engine is not installed"
ONE_CUDNN = (
    "Point CUDNN_HOME at the cuDNN that torch brings (site-packages/nvidia/cudnn) and put its lib folder first in "
    "LD_LIBRARY_PATH"
)
# 387.7 ms a step of ViT-Huge at batch 64 on an H200, torchao tensorwise, eager; the baseline took 137.5:
UNCOMPILED = "without it torchao-float8 runs at about 0.36 of the baseline's speed"
# The size of every matrix that is multiplied here:
SIDE = 256


def imported(package: str, part: str) -> Answer:
    import_module(f"{package}.{part}")
    return Answer(version=import_module(package).__version__)


def package(name: str) -> Callable[[MachineFacts], Verdict]:
    supported = SUPPORTED[name]
    install = f"Install it: `pip install '{name}{supported}'`"
    least, *below = map(release, re.findall(r"[\d.]+", supported))

    def judge(facts: MachineFacts) -> Verdict:
        installed, answer = facts.installed[name], facts.answers.get(name)
        if isinstance(answer, Failure):
            return answer.verdict(f"{installed or 'not installed'}; import: {{}}", install)
        found = answer.version if answer else installed
        if found is None and name == "transformer-engine":
            # Nothing else needs it.
            text = "not installed: te-bf16 and te-fp8 do not run here"
            return Verdict("warning", text, "Install it for the te modes: `pip install fp8bench[te]`")
        if found is None:
            return Verdict("problem", "not installed", install)
        old, new = release(found) < least, any(release(found) >= limit for limit in below)
        text = f"{found}, imports" if answer else found
        text += f"; {'older' if old else 'newer'} than the supported {supported}" if old or new else ""
        return judged(text, old or new, install, "problem" if old else "warning")

    return judge


def torch_and_cuda() -> Answer:
    import torch

    # Only a start of CUDA reveals a driver that is too old, or no GPU.
    return Answer(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        error=error_of(lambda: torch.zeros(1, device="cuda")),
        gpus=torch.cuda.device_count(),
        copies=copies(),
    )


def gpus_of_torch(facts: MachineFacts) -> Verdict:
    torch, driver = facts.answer("torch", SKIPPED, "torch does not import"), facts.driver
    if torch.cuda is None:
        built = f"torch {torch.version} was built without CUDA"
        return Verdict("problem", built, "Install a torch that was built for CUDA")
    built = f"torch was built for CUDA {torch.cuda}"
    if torch.error is not None:
        remedy = "Check `nvidia-smi`, and restart the machine if the driver was updated"
        if driver.cuda is not None and driver.cuda[0] < int(torch.cuda.partition(".")[0]):
            remedy = "Update the driver, or install a torch that was built for an older CUDA"
        return Verdict("problem", f"{built}, and CUDA does not start: {torch.error}", remedy)
    if torch.gpus != len(driver.gpus) and not any(gpu.mig for gpu in driver.gpus):
        text = f"torch sees {torch.gpus} GPU(s), the driver {len(driver.gpus)}"
        return Verdict("problem", text, "Check CUDA_VISIBLE_DEVICES, and the GPUs given to this container")
    return Verdict("ok", f"{torch.gpus}; {built}")


def precision() -> Answer:
    import torch

    def fp8_gemm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        # As torchao's Float8Linear does in the end: the second operand is column-major, scales are 1.
        one = torch.ones((), device=left.device)
        return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    capability = torch.cuda.get_device_capability(device)
    return Answer(
        capability=capability,
        bf16_error=gemm_error(torch.bfloat16, lambda left, right: left @ right.t(), device),
        fp8_error=gemm_error(torch.float8_e4m3fn, fp8_gemm, device) if capability >= FP8_UNITS else None,
    )


def gemm_error(
    dtype: "torch.dtype", gemm: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]", device: "torch.device"
) -> str | None:
    """Return how `left` times the transpose of `right`, both of the dtype, fails or is off; None if it is right."""
    import torch

    try:
        left, right = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2))
        exact = left.float() @ right.float().t()
        distance = float((gemm(left, right).float() - exact).norm() / exact.norm())
    except RuntimeError as error:
        return first_line(error)
    # `exact` is of rounded values: what remains is the rounding of the output to bf16, 2 ** -9, and the sums' order.
    return None if distance < 0.02 else f"the product is off by {distance:.3g} of its norm"


def gemm(error: str, units: tuple[int, int], lacking: Verdict, call: str) -> Callable[[MachineFacts], Verdict]:
    """Judge a precision on the least capable GPU. error: the result's field. lacking: for one below the units."""

    def judge(facts: MachineFacts) -> Verdict:
        probed = getattr(facts.answers.get("precision"), "capability", None)
        capabilities = [found for found in (*(gpu.capability for gpu in facts.driver.gpus), probed) if found]
        if not capabilities:
            return Verdict("unknown", "the GPU's compute capability is unknown")
        text = "compute capability {}.{}".format(*min(capabilities))
        if min(capabilities) < units:
            return lacking._replace(found=f"{text}, and {lacking.found}")
        remedy = "Reinstall torch for this GPU and driver, and run `nvidia-smi -q` to see whether the GPU is sound"
        absent = f"{text} has it; whether a GEMM runs was {SKIPPED}"
        result = facts.answer("precision", absent, f"{text}; a small GEMM: {{}}", remedy)
        failed = getattr(result, error)
        how = f"failed: {failed}" if failed else "runs and is right"
        return judged(f"{text}; {call} {how}", failed, remedy, "problem")

    return judge


bf16 = gemm(
    "bf16_error", (8, 0), Verdict("problem", "bf16 units need 8.0", "Measure on an A100 or newer"), "a small GEMM"
)
fp8 = gemm("fp8_error", FP8_UNITS, Verdict("warning", "fp8 units need 8.9", ELSEWHERE), "torch._scaled_mm")


def compiled() -> Answer:
    """Test Inductor, Triton, and the C compiler that Triton's launcher needs, with empty caches."""
    import torch
    from torch._dynamo.utils import counters

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().exp() * x

    x = torch.linspace(-1, 1, 4096, device="cuda")
    right = bool(torch.allclose(torch.compile(function)(x), function(x), atol=1e-4))
    return Answer(graphs=int(counters["stats"]["unique_graphs"]), right=right)


def torch_compile(facts: MachineFacts) -> Verdict:
    remedy = "Install a C compiler (`apt install build-essential`) and the Triton that torch brings"
    off = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
    if on := [name for name in off if facts.environ.get(name) not in (None, "", "0")]:
        remedy = f"Unset {' and '.join(on)}"
    result = facts.answer("compile", "not tried", f"{{}} ({UNCOMPILED})", remedy)
    if result.graphs and not result.right:
        return Verdict("problem", "what it compiles gives wrong numbers", "Reinstall torch and its Triton")
    text = f"compiles on the GPU; {UNCOMPILED}" if result.graphs else f"it compiles nothing: {UNCOMPILED}"
    return judged(text, not result.graphs, remedy, "problem")


def transformer_engine() -> Answer:
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling

    from fp8bench.modes.te_recipe import CLASSES
    from fp8bench.modes.transformer_engine import unavailable

    recipes = {name: unavailable(name) for name in CLASSES} if torch.cuda.is_available() else {}

    def in_fp8() -> None:
        x = torch.randn(SIDE, SIDE, device="cuda", requires_grad=True)
        _train(te.Linear(SIDE, SIDE, device="cuda"), x, te.autocast(enabled=True, recipe=DelayedScaling()))

    error = error_of(in_fp8) if recipes.get("delayed", "no GPU") is None else None
    return Answer(version=version("transformer-engine"), recipes=recipes, error=error)


def recipes(facts: MachineFacts) -> Verdict:
    result = facts.answer("transformer-engine", NO_TE, "Transformer Engine does not import")
    if not result.recipes:
        return Verdict("unknown", "Transformer Engine saw no GPU")
    if result.error is not None:
        remedy = "Install a Transformer Engine built for this torch and CUDA, and check that one cuBLAS is loaded"
        return Verdict("problem", f"a te.Linear in fp8 failed: {result.error}", remedy)
    names: dict[str | None, list[str]] = {}
    for name, reason in result.recipes.items():
        names.setdefault(reason and reason.rstrip(". "), []).append(name)
    available = names.pop(None, [])
    refused = [f"not {', '.join(of)}: {reason}" for reason, of in names.items()]
    return judged("; ".join([", ".join(available) or "none", *refused]), not available, ELSEWHERE)


def libraries() -> Answer:
    # In a run's order: the patch embedding's convolution is the first use of cuDNN, and loads many parts of it.
    import torch
    import transformer_engine.pytorch  # noqa: F401

    def embedded() -> None:
        embed = torch.nn.Conv2d(3, 1280, kernel_size=16, stride=16, device="cuda")
        _train(embed, torch.randn(2, 3, 224, 224, device="cuda"))

    error = error_of(embedded) if torch.cuda.is_available() else None
    return Answer(copies=copies(), error=error)


def mapped(facts: MachineFacts, family: str) -> list[Copy]:
    # By the process that mapped most.
    found = (getattr(facts.answers.get(probe), "copies", ()) for probe in ("attention", "libraries", "torch"))
    return [copy for copy in next(filter(None, found), ()) if copy.family == family]


def cudnn(facts: MachineFacts) -> Verdict:
    """Two copies of one version are not known to do harm, but it cannot be excluded."""
    found, used = mapped(facts, "cudnn"), facts.answers.get("libraries")
    text = " and ".join(map(str, found))
    if len(found) > 1:
        versions = {copy.version for copy in found}
        if len(versions) == 1 and None not in versions:
            return Verdict("warning", f"mapped twice, in one version: {text}", ONE_CUDNN)
        return Verdict("problem", f"{len(found)} mapped in one process: {text}", ONE_CUDNN)
    if isinstance(used, Failure):
        return used.verdict("the first use of cuDNN: {}", ONE_CUDNN)
    if failed := used and used.error:
        return Verdict("problem", f"{text or 'none mapped'}; its first use failed: {failed}", ONE_CUDNN)
    return judged(text or None, False, "", unknown="no file of cuDNN is mapped; torch may contain it")


def cublas_and_nccl(facts: MachineFacts) -> Verdict:
    families = {family: copies for family in ("cublas", "nccl") if (copies := mapped(facts, family))}
    text = "; ".join(f"{family} {' and '.join(map(str, copies))}" for family, copies in families.items())
    several = any(len(copies) > 1 for copies in families.values())
    text = f"several mapped in one process: {text}" if several else text
    remedy = "Put the folders of torch's own libraries (site-packages/nvidia/*/lib) first in LD_LIBRARY_PATH"
    return judged(text or None, several, remedy, unknown="neither is mapped; both may be linked into torch")


def attention() -> Answer:
    # One block of ViT-Huge, converted by te-bf16 itself, which listens to its log: at debug level it has
    # why other kernels were refused. If no attention can run, it raises.
    import torch
    from timm.models.vision_transformer import Block

    from fp8bench.modes.te_block import attention_backend, listen
    from fp8bench.modes.transformer_engine import TEBF16

    with torch.device("cuda"):
        model: torch.nn.Module = torch.nn.Sequential(Block(dim=1280, num_heads=16, mlp_ratio=4.0, qkv_bias=True))
        x = torch.randn(64, 197, 1280, requires_grad=True)
    _train(TEBF16().convert(model.train()), x)
    log = listen()
    reasons = tuple(line for line in log.said if line.startswith("Disabling ")) if log else ()
    return Answer(backend=attention_backend(), reasons=reasons, copies=copies())


def te_attention(facts: MachineFacts) -> Verdict:
    """Unfused, a step of ViT-Huge on an H200 was 34 % slower in te-bf16 and 48 % in te-fp8."""
    remedy = "Run one step with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 and fix the reason that it logs"
    if off := [name for name in ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN") if facts.environ.get(name) == "0"]:
        remedy = f"Unset {' and '.join(off)}"
    elif len(mapped(facts, "cudnn")) > 1:
        remedy = ONE_CUDNN
    result = facts.answer("attention", NO_TE, remedy=remedy)
    if result.backend is None:
        return Verdict("unknown", "it ran, but this Transformer Engine does not report which")
    if result.backend in ("fused", "flash"):
        return Verdict("ok", f"{result.backend} (ViT-Huge, batch 64, bf16, forward and backward)")
    reasons = "; ".join(reason.rstrip(". ") for reason in result.reasons) or "no reason given"
    text = f"{result.backend} (ViT-Huge, batch 64): far slower, without a warning. {reasons}"
    return Verdict("problem", text, remedy)


def _train(module: "torch.nn.Module", x: "torch.Tensor", context: AbstractContextManager[object] | None = None) -> None:
    import torch

    with torch.autocast("cuda", torch.bfloat16), context or nullcontext():
        y = module(x)
    y.float().sum().backward()
    torch.cuda.synchronize()


def error_of(work: Callable[[], object]) -> str | None:
    """Return the first line of torch's error that ended the work; None if it was done. torch without CUDA asserts."""
    try:
        work()
    except (RuntimeError, AssertionError) as error:
        return first_line(error)
    return None

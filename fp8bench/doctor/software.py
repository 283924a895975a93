"""Packages that a run needs, the GPUs and precisions that torch computes with, and torch.compile. For each, what a
probe finds in its own process, and how its answer is judged in the doctor's.

A probe imports its packages itself, and nothing before them, because which libraries are mapped, and in which order, is
part of its answer.
"""

import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from fp8bench.doctor.check import SKIPPED, Failure, MachineFacts, Verdict
from fp8bench.doctor.copies import Copy, own_copies
from fp8bench.machine.driver import Version
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import release

if TYPE_CHECKING:
    import torch

SUPPORTED = {"torch": ">=2.11,<2.16", "timm": ">=1.0.20", "torchao": ">=0.17", "transformer-engine": ">=2.9"}
"""The same as in pyproject.toml, which a test checks: the sources may run without being installed."""

BF16_UNITS, FP8_UNITS = (8, 0), (8, 9)
"""The lowest compute capabilities of GPUs with units for them."""

ELSEWHERE = "Measure baseline-bf16 and te-bf16 here, and fp8 on an L4, L40S, H100 or newer"
SMI = "Reinstall torch for this GPU and driver, and run `nvidia-smi -q` to see whether the GPU is sound"

UNCOMPILED = "without it torchao-float8 runs at about 0.36 of the baseline's speed"
"""387.7 ms a step of ViT-Huge at batch 64 on an H200, torchao tensorwise, eager; the baseline took 137.5."""

SIDE = 256
"""The size of every matrix that is multiplied here."""

TOLERANCE = 0.02
"""The reference of a GEMM is computed in float32 from the values rounded to the narrow type, so the remaining error is
the rounding of the output to bf16, 2 ** -9, and the order of the sums.
"""


class ImportResult(Frozen):
    """A package that was imported."""

    version: str


def imported(package: str, part: str) -> ImportResult:
    import_module(f"{package}.{part}")
    return ImportResult(version=import_module(package).__version__)


def package(name: str) -> Callable[[MachineFacts], Verdict]:
    """Make the judge of a package's version and import."""
    supported = SUPPORTED[name]
    install = f"Install it: `pip install '{name}{supported}'`"

    def judge(facts: MachineFacts) -> Verdict:
        installed, result = facts.installed[name], facts.answer(name, ImportResult)
        if name == "transformer-engine" and installed is None and not isinstance(result, ImportResult):
            # Nothing else needs it.
            text = "not installed: te-bf16 and te-fp8 do not run here"
            return Verdict("warning", text, "Install it for the te modes: `pip install fp8bench[te]`")
        if isinstance(result, Failure):
            return result.verdict(install, f"{installed or 'not installed'}; import: {{}}")
        version = result.version if result else installed
        if version is None:
            return Verdict("problem", "not installed", install)
        text = f"{version}, imports" if result else version
        least, *below = map(release, re.findall(r"[\d.]+", supported))
        if release(version) < least:
            return Verdict("problem", f"{text}; older than the supported {supported}", install)
        if below and release(version) >= below[0]:
            return Verdict("warning", f"{text}; newer than the supported {supported}", install)
        return Verdict("ok", text)

    return judge


class TorchResult(ImportResult):
    """torch, and the GPUs that it sees. cuda: the CUDA that it was built for. cuda_error: why CUDA did not start."""

    cuda: str | None
    cuda_error: str | None
    gpus: int
    nccl: str | None
    copies: tuple[Copy, ...]


def torch_and_cuda() -> TorchResult:
    import torch

    # Only a start of CUDA reveals a driver that is too old.
    error = None
    try:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as failure:
        # torch without CUDA asserts; a driver that is too old, or no GPU, raises RuntimeError.
        error = first_line(failure)
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


def of_torch(judge: Callable[[TorchResult, MachineFacts], Verdict]) -> Callable[[MachineFacts], Verdict]:
    """Make a judge of what torch answered. Unless it did, there is nothing to be judged."""

    def judged(facts: MachineFacts) -> Verdict:
        torch = facts.answer("torch", TorchResult)
        if isinstance(torch, TorchResult):
            return judge(torch, facts)
        return Verdict("unknown", "torch does not import" if torch else SKIPPED)

    return judged


@of_torch
def gpus_of_torch(torch: TorchResult, facts: MachineFacts) -> Verdict:
    driver = facts.driver
    if torch.cuda is None:
        text = f"torch {torch.version} was built without CUDA"
        return Verdict("problem", text, "Install a torch that was built for CUDA")
    built = f"torch was built for CUDA {torch.cuda}"
    if torch.cuda_error is not None:
        remedy = "Check `nvidia-smi`, and restart the machine if the driver was updated"
        if driver.cuda is not None and driver.cuda[0] < int(torch.cuda.partition(".")[0]):
            remedy = "Update the driver, or install a torch that was built for an older CUDA"
        return Verdict("problem", f"{built}, and CUDA does not start: {torch.cuda_error}", remedy)
    if torch.gpus != len(driver.gpus) and not any(gpu.mig for gpu in driver.gpus):
        text = f"torch sees {torch.gpus} GPU(s), the driver {len(driver.gpus)}"
        return Verdict("problem", text, "Check CUDA_VISIBLE_DEVICES, and the GPUs given to this container")
    return Verdict("ok", f"{torch.gpus}; {built}")


@of_torch
def nccl(torch: TorchResult, facts: MachineFacts) -> Verdict:
    """Without it, training on several GPUs is impossible."""
    if torch.nccl is not None:
        return Verdict("ok", torch.nccl)
    several = len(facts.driver.gpus) > 1
    return Verdict("problem" if several else "warning", "torch has none", "Install a torch that was built with NCCL")


class PrecisionResult(Frozen):
    """Tiny GEMMs on the first GPU. An error is None if the GEMM ran and was right; for fp8, also without fp8 units."""

    capability: tuple[int, int]
    bf16_error: str | None
    fp8_error: str | None


def precision() -> PrecisionResult:
    import torch

    def fp8_gemm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Multiply as torchao's Float8Linear does in the end: the second operand is column-major, scales are 1."""
        one = torch.ones((), device=left.device)
        return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    capability = torch.cuda.get_device_capability(device)
    return PrecisionResult(
        capability=capability,
        bf16_error=gemm_error(torch.bfloat16, lambda left, right: left @ right.t(), device),
        fp8_error=gemm_error(torch.float8_e4m3fn, fp8_gemm, device) if capability >= FP8_UNITS else None,
    )


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
        return first_line(error)
    return None if distance < TOLERANCE else f"the product is off by {distance:.3g} of its norm"


def bf16(facts: MachineFacts) -> Verdict:
    lacking = Verdict("problem", "bf16 units need 8.0", "Measure on an A100 or newer")
    return _gemm(facts, BF16_UNITS, lacking, "a small GEMM", lambda result: result.bf16_error)


def fp8(facts: MachineFacts) -> Verdict:
    """A GPU without fp8 units can be measured in bf16."""
    lacking = Verdict("warning", "fp8 units need 8.9", ELSEWHERE)
    return _gemm(facts, FP8_UNITS, lacking, "torch._scaled_mm", lambda result: result.fp8_error)


def _gemm(
    facts: MachineFacts, units: Version, lacking: Verdict, call: str, error: Callable[[PrecisionResult], str | None]
) -> Verdict:
    """Judge the least capable GPU. lacking: the verdict on one with less than the units need."""
    result = facts.answer("precision", PrecisionResult)
    probed = [result.capability] if isinstance(result, PrecisionResult) else []
    capabilities = [gpu.capability for gpu in facts.driver.gpus if gpu.capability] or probed
    if not capabilities:
        return Verdict("unknown", "the GPU's compute capability is unknown")
    text = "compute capability {}.{}".format(*min(capabilities))
    if min(capabilities) < units:
        return lacking._replace(found=f"{text}, and {lacking.found}")
    if result is None:
        return Verdict("unknown", f"{text} has it; whether a GEMM runs was {SKIPPED}")
    if isinstance(result, Failure):
        return result.verdict(SMI, f"{text}; a small GEMM: {{}}")
    if error(result):
        return Verdict("problem", f"{text}; {call} failed: {error(result)}", SMI)
    return Verdict("ok", f"{text}; {call} runs and is right")


class CompileResult(Frozen):
    """graphs: how many torch.compile made of a small function; 0 if none. right: whether its result is right."""

    graphs: int
    right: bool


def compiled() -> CompileResult:
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


def torch_compile(facts: MachineFacts) -> Verdict:
    """Without it, torchao's float8 is slow."""
    remedy = "Install a C compiler (`apt install build-essential`) and the Triton that torch brings"
    off = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
    if on := [name for name in off if facts.environ.get(name) not in (None, "", "0")]:
        remedy = f"Unset {' and '.join(on)}"
    result = facts.answer("compile", CompileResult)
    if result is None:
        return Verdict("unknown", "not tried")
    if isinstance(result, Failure):
        return result.verdict(remedy, f"{{}} ({UNCOMPILED})")
    if result.graphs == 0:
        return Verdict("problem", f"it compiles nothing: {UNCOMPILED}", remedy)
    if not result.right:
        return Verdict("problem", "what it compiles gives wrong numbers", "Reinstall torch and its Triton")
    return Verdict("ok", f"compiles on the GPU; {UNCOMPILED}")


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

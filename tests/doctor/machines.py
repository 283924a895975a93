"""Machines as facts: a healthy H200 host, and the ways in which one is not."""

from dataclasses import replace

from fp8bench.doctor.check import MachineFacts
from fp8bench.doctor.copies import Copy
from fp8bench.doctor.software import (
    AttentionResult,
    CompileResult,
    ImportResult,
    LibrariesResult,
    PrecisionResult,
    TorchResult,
    TransformerEngineResult,
)
from fp8bench.machine.driver import DriverFacts, GpuFacts
from fp8bench.machine.host import HostFacts, SpeedFacts

GIB = 1 << 30

H200 = GpuFacts(
    index=0,
    name="NVIDIA H200",
    capability=(9, 0),
    memory_used_bytes=4 << 20,
    processes=0,
    utilization_percent=0,
    power_limit_w=700.0,
    power_default_w=700.0,
    power_max_w=700.0,
    persistence=True,
    ecc=True,
    ecc_pending=True,
    uncorrected_errors=0,
    remap_pending=False,
    remap_failed=False,
    throttle_reasons=0x1,
    temperature_c=31,
    slowdown_temperature_c=87,
    application_clock_mhz=1980,
    default_application_clock_mhz=1980,
    max_clock_mhz=1980,
    mig=False,
    nvlinks=18,
    compute_mode=0,
)

TORCHS_CUDNN = Copy(family="cudnn", folder="site-packages/nvidia/cudnn/lib", version="9.19.0.56")
SYSTEMS_CUDNN = Copy(family="cudnn", folder="/usr/lib/x86_64-linux-gnu", version="9.14.0")
CUBLAS = Copy(family="cublas", folder="site-packages/nvidia/cu13/lib", version="13.1.0.3")
NCCL = Copy(family="nccl", folder="site-packages/nvidia/nccl/lib", version="2.28.9")

HOST = HostFacts(
    cpu="INTEL(R) XEON(R) PLATINUM 8558",
    cores=16.0,
    load=0.3,
    governors=("performance",),
    open_files=65536,
    shm_bytes=64 * GIB,
    shm_free_bytes=64 * GIB,
    memory_free_bytes=120 * GIB,
)
NO_MXFP8 = "Device compute capability 10.0 or higher required for MXFP8."
RECIPES = {"delayed": None, "current": None, "block": None, "mxfp8": NO_MXFP8}
COPIES = (CUBLAS, TORCHS_CUDNN, NCCL)
TORCH = TorchResult(version="2.11.0+cu130", cuda="13.0", cuda_error=None, gpus=1, nccl="2.28.9", copies=COPIES)
PRECISION = PrecisionResult(capability=(9, 0), bf16_error=None, fp8_error=None)
TE = TransformerEngineResult(version="2.20.2", recipes=RECIPES, linear_error=None)
ANSWERS = {
    "torch": TORCH,
    "timm": ImportResult(version="1.0.24"),
    "torchao": ImportResult(version="0.18.0"),
    "precision": PRECISION,
    "transformer-engine": TE,
    "libraries": LibrariesResult(copies=COPIES, use_error=None),
    "attention": AttentionResult(backend="fused", reasons=(), copies=COPIES),
    "compile": CompileResult(graphs=1, right=True),
}
INSTALLED = {"torch": "2.11.0", "timm": "1.0.24", "torchao": "0.18.0", "transformer-engine": "2.20.2"}


def gpu(**fields):
    """An H200 with some fields of another kind."""
    return H200.model_copy(update=fields)


def h200_host(*gpus, **fields):
    """A healthy host with these GPUs, or one H200. fields: of MachineFacts."""
    shown = gpus or (H200,)
    torch = TORCH.model_copy(update={"gpus": len(shown)})
    healthy = MachineFacts(
        driver=DriverFacts(version="580.82.07", cuda=(13, 0), gpus=shown, on_the_bus=len(shown)),
        host=HOST.model_copy(update={"cores": 16.0 * len(shown), "memory_free_bytes": 120 * GIB * len(shown)}),
        speed=SpeedFacts(loop_s=(0.011, 0.012, 0.011)),
        environ={},
        installed=INSTALLED,
        answers={**ANSWERS, "torch": torch},
    )
    return replace(healthy, **fields)


def probing(facts, **answers):
    """The machine with other answers of its probes; None: it was not asked."""
    others = {name.replace("_", "-"): answer for name, answer in answers.items()}
    return replace(facts, answers={name: answer for name, answer in {**facts.answers, **others}.items() if answer})


def cudnn_mix():
    """The trap: torch's cuDNN and the system's in one process, and unfused attention for it."""
    both = (CUBLAS, TORCHS_CUDNN, SYSTEMS_CUDNN, NCCL)
    reasons = ("Disabling FusedAttention: cuDNN frontend: CUDNN_STATUS_NOT_INITIALIZED.",)
    return probing(
        h200_host(),
        libraries=LibrariesResult(copies=both, use_error=None),
        attention=AttentionResult(backend="unfused", reasons=reasons, copies=both),
    )


def l4_host():
    """One L4: fp8 units, no NVLink, a small limit that is its own."""
    l4 = gpu(
        name="NVIDIA L4",
        capability=(8, 9),
        power_limit_w=72.0,
        power_default_w=72.0,
        power_max_w=72.0,
        nvlinks=None,
        mig=None,
    )
    return probing(h200_host(l4), precision=PRECISION.model_copy(update={"capability": (8, 9)}))


def a100_host():
    """One A100: bf16, and no fp8."""
    a100 = gpu(name="NVIDIA A100-SXM4-40GB", capability=(8, 0), nvlinks=12)
    reason = "Device compute capability 8.9 or higher required for FP8 execution."
    return probing(
        h200_host(a100),
        precision=PRECISION.model_copy(update={"capability": (8, 0)}),
        transformer_engine=TE.model_copy(update={"recipes": dict.fromkeys(RECIPES, reason)}),
    )


def without_gpu(driver=None):
    """A machine where nothing of a GPU can be asked."""
    torch = TORCH.model_copy(update={"cuda_error": "Found no NVIDIA driver on your system.", "gpus": 0})
    return replace(
        h200_host(),
        driver=driver or DriverFacts(),
        installed={**INSTALLED, "transformer-engine": None},
        answers={"torch": torch, "timm": ANSWERS["timm"], "torchao": ANSWERS["torchao"]},
    )

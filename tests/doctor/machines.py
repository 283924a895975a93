"""Machines as facts: a healthy H200 host, and the ways in which one is not."""

from dataclasses import replace

from fp8bench.doctor.check import Answer, Copy, MachineFacts
from fp8bench.machine.gpus import DriverFacts, GpuFacts
from fp8bench.machine.host import HostFacts

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
    shm_bytes=64 * GIB,
    shm_free_bytes=64 * GIB,
    memory_free_bytes=120 * GIB,
)
NO_MXFP8 = "Device compute capability 10.0 or higher required for MXFP8."
RECIPES = {"delayed": None, "current": None, "block": None, "mxfp8": NO_MXFP8}
COPIES = (CUBLAS, TORCHS_CUDNN, NCCL)
ANSWERS = {
    "torch": Answer(version="2.11.0+cu130", cuda="13.0", gpus=1, copies=COPIES),
    "timm": Answer(version="1.0.24"),
    "torchao": Answer(version="0.18.0"),
    "precision": Answer(capability=(9, 0)),
    "transformer-engine": Answer(version="2.20.2", recipes=RECIPES),
    "libraries": Answer(copies=COPIES),
    "attention": Answer(backend="fused", copies=COPIES),
    "compile": Answer(graphs=1, right=True),
}
INSTALLED = {"torch": "2.11.0", "timm": "1.0.24", "torchao": "0.18.0", "transformer-engine": "2.20.2"}


def gpu(**fields):
    """An H200 with some fields of another kind."""
    return H200.model_copy(update=fields)


def h200_host(*gpus, **fields):
    """A healthy host with these GPUs, or one H200. fields: of MachineFacts."""
    shown = gpus or (H200,)
    healthy = MachineFacts(
        driver=DriverFacts(version="580.82.07", cuda=(13, 0), gpus=shown, on_the_bus=len(shown)),
        host=HOST.model_copy(update={"cores": 16.0 * len(shown), "memory_free_bytes": 120 * GIB * len(shown)}),
        loop_s=(0.011, 0.012, 0.011),
        environ={},
        installed=INSTALLED,
        answers=ANSWERS,
    )
    return replace(answering("torch", healthy, gpus=len(shown)), **fields)


def answering(probe, facts=None, **fields):
    """The machine, whose probe answers this in some fields."""
    facts = facts or h200_host()
    return replace(facts, answers={**facts.answers, probe: facts.answers[probe].model_copy(update=fields)})


def failing(failure, *probes, facts=None):
    """The machine, whose probes fail; None: they were not run."""
    facts = facts or h200_host()
    answers = {**facts.answers, **dict.fromkeys(probes, failure)}
    return replace(facts, answers={name: answer for name, answer in answers.items() if answer})


def cudnn_mix():
    """The trap: torch's cuDNN and the system's in one process, and unfused attention for it."""
    reasons = ("Disabling FusedAttention: cuDNN frontend: CUDNN_STATUS_NOT_INITIALIZED.",)
    return answering("attention", backend="unfused", reasons=reasons, copies=(*COPIES, SYSTEMS_CUDNN))


def l4_host():
    """One L4: fp8 units, no NVLink, a small limit that is its own."""
    watts = dict.fromkeys(("power_limit_w", "power_default_w"), 72.0)
    l4 = gpu(name="NVIDIA L4", capability=(8, 9), nvlinks=None, mig=None, **watts)
    return answering("precision", h200_host(l4), capability=(8, 9))


def a100_host():
    """One A100: bf16, and no fp8."""
    a100 = gpu(name="NVIDIA A100-SXM4-40GB", capability=(8, 0), nvlinks=12)
    reason = "Device compute capability 8.9 or higher required for FP8 execution."
    facts = answering("precision", h200_host(a100), capability=(8, 0))
    return answering("transformer-engine", facts, recipes=dict.fromkeys(RECIPES, reason))


def without_gpu(driver=None):
    """A machine where nothing of a GPU can be asked."""
    facts = answering("torch", error="Found no NVIDIA driver on your system.", gpus=0)
    return replace(
        facts,
        driver=driver or DriverFacts(),
        installed={**INSTALLED, "transformer-engine": None},
        answers={name: facts.answers[name] for name in ("torch", "timm", "torchao")},
    )

"""Environment variables that change what is measured, and NCCL's, which change how gradients travel.

A value is shown only if it is a plain number or switch: anything else may be a path, a host or worse.
"""

import re
from collections.abc import Mapping

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.facts import LEFT_OUT, Facts
from fp8bench.doctor.finding import Check, Finding

TRAPS = Check("environment", "host", "environment variables")
NCCL = Check("nccl", "gpu", "NCCL")
NCCL_SETTINGS = Check("nccl-settings", "gpu", "NCCL's settings")

_SHOWN = re.compile(r"\d{1,6}|true|false|on|off|yes|no", re.IGNORECASE)
OFF = frozenset({"", "0", "false", "no", "off"})

SPOILS_WHEN_ON = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits",
    "NVTE_DEBUG": "Transformer Engine logs at every step",
    "TORCH_COMPILE_DISABLE": "nothing is compiled",
    "TORCHDYNAMO_DISABLE": "nothing is compiled",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation waits for the GPU",
    "NVIDIA_TF32_OVERRIDE": "precisions are not what they seem",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "precisions are not what they seem",
    "PYTHONDEVMODE": "Python is slowed",
    "PYTHONTRACEMALLOC": "Python is slowed",
}
SPOILS_WHEN_OFF = {
    "NVTE_FUSED_ATTN": "Transformer Engine may not use fused attention",
    "NVTE_FLASH_ATTN": "Transformer Engine may not use flash attention",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "Transformer Engine may not use its fastest attention",
}
SPOILS_WHEN_SET = {
    "PYTORCH_CUDA_ALLOC_CONF": "another allocator",
    "PYTORCH_ALLOC_CONF": "another allocator",
    "CUDA_DEVICE_MAX_CONNECTIONS": "launches may be serialised",
    "CUBLAS_WORKSPACE_CONFIG": "cuBLAS may choose slower products",
    "TORCH_CUDA_ARCH_LIST": "kernels may be built for another GPU",
    "TORCH_LOGS": "torch logs",
    "NVTE_UNFUSED_ATTN": "Transformer Engine's choice of attention",
}
SPOILS_AT = {
    "OMP_NUM_THREADS": ("1", "CPU work of a rank on one thread"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked"),
}

NCCL_SPEED = (
    *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL"),
    *("NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_LAUNCH_MODE"),
    *("NCCL_NET", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_TUNER_PLUGIN", "NCCL_DEBUG"),
)
"""Those that change speed. Names of network interfaces and the like do not."""


def findings(facts: Facts) -> list[Finding]:
    """Traps, NCCL and its settings."""
    return [traps(facts.environ), nccl(facts), nccl_settings(facts)]


def traps(environ: Mapping[str, str]) -> Finding:
    """Every variable that spoils a number, with what it does."""
    found = {name: effect for name, effect in _set(environ).items() if name in environ}
    if not found:
        return TRAPS.ok("none that spoils a number")
    text = "; ".join(f"{shown(name, environ[name])} ({effect})" for name, effect in found.items())
    return TRAPS.warning(text, f"Unset them: `unset {' '.join(found)}`")


def _set(environ: Mapping[str, str]) -> dict[str, str]:
    on = {name: effect for name, effect in SPOILS_WHEN_ON.items() if environ.get(name, "").lower() not in OFF}
    off = {name: effect for name, effect in SPOILS_WHEN_OFF.items() if environ.get(name) == "0"}
    at = {name: effect for name, (value, effect) in SPOILS_AT.items() if environ.get(name, "").upper() == value}
    any_value = {name: effect for name, effect in SPOILS_WHEN_SET.items() if environ.get(name)}
    return {**on, **off, **at, **any_value}


def nccl(facts: Facts) -> Finding:
    """Without it there is no training on several GPUs."""
    if facts.driver.why_no_gpu:
        return NCCL.unknown(facts.driver.why_no_gpu)
    match facts.probed.torch:
        case None:
            return NCCL.unknown(LEFT_OUT)
        case Failure():
            return NCCL.unknown("torch does not import")
        case found if found.nccl is None:
            remedy = "Install a torch that was built with NCCL"
            several = len(facts.driver.gpus) > 1
            return NCCL.problem("torch has none", remedy) if several else NCCL.warning("torch has none", remedy)
        case found:
            return NCCL.ok(str(found.nccl))


def nccl_settings(facts: Facts) -> Finding:
    """They matter between GPUs only."""
    if facts.driver.why_no_gpu:
        return NCCL_SETTINGS.unknown(facts.driver.why_no_gpu)
    found = [name for name in NCCL_SPEED if facts.environ.get(name)]
    if not found:
        return NCCL_SETTINGS.ok("none in the environment")
    text = ", ".join(shown(name, facts.environ[name]) for name in found)
    if len(facts.driver.gpus) == 1:
        return NCCL_SETTINGS.ok(f"{text}: without effect on one GPU")
    return NCCL_SETTINGS.warning(text, f"Unset them: `unset {' '.join(found)}`")


def shown(name: str, value: str) -> str:
    """`NAME=1`, or `NAME is set`."""
    return f"{name}={value}" if _SHOWN.fullmatch(value) else f"{name} is set"

"""Judges the host: environment variables that change what is measured; NCCL and its variables, which change how
gradients are transferred; then speed, load, cores, governor, memory, shared memory and open files.

The value of a variable is shown only if it is a plain number or switch; any other may be private.
"""

import re
from collections.abc import Iterable, Mapping

from fp8bench.doctor.facts import MachineFacts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.machine.host import LOOP_TURNS, HostFacts, SpeedFacts
from fp8bench.schema.machine import GIB, gib

TRAPS = Check("environment", "host", "environment variables")
NCCL = Check("nccl", "gpu", "NCCL")
NCCL_SETTINGS = Check("nccl-settings", "gpu", "NCCL's settings")

SPEED = Check("host-speed", "host", "host speed")
LOAD = Check("load", "host", "load")
CORES = Check("cores", "host", "cores")
GOVERNOR = Check("cpu-governor", "host", "CPU governor")
MEMORY = Check("host-memory", "host", "free memory")
SHM = Check("shared-memory", "host", "/dev/shm")
FILES = Check("open-files", "host", "open files")

STEADY_SWING = 1.25
BUSY_LOAD = 0.5
CORES_A_GPU = 4
"""A rank's Python thread, autograd's, NCCL's, and at least one DataLoader worker."""

HOST_BYTES_A_GPU = 8 * GIB
"""torch with CUDA takes 3 to 4 GiB per process; ViT-Huge's float32 weights take 2.4 GiB; waiting batches are extra."""

SHM_LEAST_BYTES = GIB
"""Docker's default of 64 MiB ends a DataLoader with a bus error. A batch of 64 images of 224 px is 37 MiB, and every
worker keeps two.
"""

OPEN_FILES = 1024
"""Linux's default for a login. A DataLoader holds a descriptor for every tensor in transit, some dozens per rank."""

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
    "CUBLAS_WORKSPACE_CONFIG": "cuBLAS may choose slower kernels",
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
"""Settings that change speed. Names of network interfaces and the like do not."""


def findings(facts: MachineFacts) -> list[Finding]:
    """Return one finding per check."""
    host, gpus = facts.host, len(facts.driver.gpus)
    return [
        traps(facts.environ),
        nccl(facts),
        nccl_settings(facts),
        speed(facts.speed, gpus),
        load(host, gpus),
        cores(host, gpus),
        governor(host, gpus),
        memory(host, gpus),
        shared_memory(host, gpus),
        open_files(host),
    ]


def traps(environ: Mapping[str, str]) -> Finding:
    """Return every variable that spoils a number, with its effect."""
    found = {
        **{name: effect for name, effect in SPOILS_WHEN_ON.items() if environ.get(name, "").lower() not in OFF},
        **{name: effect for name, effect in SPOILS_WHEN_OFF.items() if environ.get(name) == "0"},
        **{name: effect for name, (value, effect) in SPOILS_AT.items() if environ.get(name, "").upper() == value},
        **{name: effect for name, effect in SPOILS_WHEN_SET.items() if environ.get(name)},
    }
    if not found:
        return TRAPS.ok("none that spoils a number")
    text = "; ".join(f"{shown(name, environ[name])} ({effect})" for name, effect in found.items())
    return TRAPS.warning(text, _unset(found))


def nccl(facts: MachineFacts) -> Finding:
    """Judge NCCL. Without it, training on several GPUs is impossible."""
    torch, remedy = facts.torch_on_gpu, "Install a torch that was built with NCCL"
    if isinstance(torch, str):
        return NCCL.unknown(torch)
    if torch.nccl is not None:
        return NCCL.ok(torch.nccl)
    several = len(facts.driver.gpus) > 1
    return NCCL.problem("torch has none", remedy) if several else NCCL.warning("torch has none", remedy)


def nccl_settings(facts: MachineFacts) -> Finding:
    """Judge NCCL's settings, which only matter between GPUs."""
    if facts.driver.why_no_gpu:
        return NCCL_SETTINGS.unknown(facts.driver.why_no_gpu)
    found = [name for name in NCCL_SPEED if facts.environ.get(name)]
    if not found:
        return NCCL_SETTINGS.ok("none in the environment")
    text = ", ".join(shown(name, facts.environ[name]) for name in found)
    if len(facts.driver.gpus) == 1:
        return NCCL_SETTINGS.ok(f"{text}: without effect on one GPU")
    return NCCL_SETTINGS.warning(text, _unset(found))


def shown(name: str, value: str) -> str:
    """Return `NAME=1`, or `NAME is set` if the value may be private."""
    return f"{name}={value}" if _SHOWN.fullmatch(value) else f"{name} is set"


def _unset(names: Iterable[str]) -> str:
    return f"Unset them: `unset {' '.join(names)}`"


def or_replay(remedy: str, gpus: int) -> str:
    """Return the remedy for a slow or uneven host; with a GPU, also one that needs no fast host."""
    return f"{remedy}; with `--cuda-graphs on` no step waits for Python to launch" if gpus else remedy


def speed(found: SpeedFacts, gpus: int) -> Finding:
    """Judge the swing. The speed itself is not judged, because no limit is known."""
    text = f"a loop of {LOOP_TURNS:,} turns takes {found.median_s * 1e3:.1f} ms, slowest/fastest {found.swing:.2f}"
    if found.swing > STEADY_SWING:
        return SPEED.warning(
            f"{text}: launched from Python, te-fp8 at a small batch waits for the host, and one process is not a "
            "measurement",
            or_replay("Quiet the host, and measure in several processes with --rounds", gpus),
        )
    return SPEED.ok(text)


def load(host: HostFacts, gpus: int) -> Finding:
    """Judge the load before the doctor's own work."""
    if host.load is None:
        return LOAD.unknown("the system does not report its load")
    text = f"load {host.load:.1f} on {host.cores:g} cores"
    if host.load > BUSY_LOAD * host.cores:
        return LOAD.warning(text, or_replay("Wait for the other work to end", gpus))
    return LOAD.ok(text)


def cores(host: HostFacts, gpus: int) -> Finding:
    """Judge the number of cores that this process may use, under affinity and quota."""
    text = f"{host.cores:g}" if gpus == 0 else f"{host.cores:g} for {gpus} GPU(s)"
    if host.cores < gpus * CORES_A_GPU:
        return CORES.warning(
            f"{text}, fewer than {CORES_A_GPU} each",
            or_replay("Give the container more cores, or show fewer GPUs", gpus),
        )
    return CORES.ok(text)


def governor(host: HostFacts, gpus: int) -> Finding:
    """Judge the governor. `performance` keeps the clock high; the others follow the load with a delay."""
    if host.governors is None:
        return GOVERNOR.unknown("not reported, as in most virtual machines")
    text = ", ".join(host.governors)
    if host.governors != ("performance",):
        return GOVERNOR.warning(text, or_replay("Set it: `sudo cpupower frequency-set -g performance`", gpus))
    return GOVERNOR.ok(text)


def memory(host: HostFacts, gpus: int) -> Finding:
    """Judge the free memory, for one rank per GPU or one rank on the CPU."""
    if host.memory_free_bytes is None:
        return MEMORY.unknown("the system does not report its free memory")
    needed = max(gpus, 1) * HOST_BYTES_A_GPU
    text = f"{host.memory_free_bytes / GIB:.0f} GiB"
    if host.memory_free_bytes < needed:
        return MEMORY.warning(f"{text}; a run needs {needed // GIB} GiB", "Free memory, or raise the container's limit")
    return MEMORY.ok(text)


def shared_memory(host: HostFacts, gpus: int) -> Finding:
    """Judge the shared memory, in which DataLoader workers put their batches."""
    if host.shm_free_bytes is None or host.shm_bytes is None:
        return SHM.unknown("there is none here")
    text = f"{_size(host.shm_free_bytes)} free of {_size(host.shm_bytes)}"
    remedy = "Enlarge it: `docker run --shm-size=16g`, or `sudo mount -o remount,size=16g /dev/shm`"
    if host.shm_free_bytes < SHM_LEAST_BYTES:
        return SHM.problem(text, remedy) if gpus else SHM.warning(text, remedy)
    if host.shm_free_bytes < gpus * SHM_LEAST_BYTES:
        return SHM.warning(f"{text} for {gpus} GPUs", remedy)
    return SHM.ok(text)


def open_files(host: HostFacts) -> Finding:
    """Judge the soft limit of open files, which is the effective one."""
    if host.open_files is None:
        return FILES.ok("no limit")
    text = f"up to {host.open_files} a process"
    if host.open_files < OPEN_FILES:
        return FILES.warning(text, f"Raise it: `ulimit -n {OPEN_FILES * 4}`")
    return FILES.ok(text)


def _size(count: int) -> str:
    return gib(count) if count >= GIB else f"{count >> 20} MiB"

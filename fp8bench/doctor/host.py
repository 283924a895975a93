"""Checks of the host: environment variables that change what is measured, those of NCCL apart, because they change how
gradients are transferred; then speed, load, cores, governor, memory, shared memory and open files.

The value of a variable is shown only if it is a plain number or switch; any other may be private.
"""

import re
from collections.abc import Callable, Mapping

from fp8bench.doctor.check import MachineFacts, Verdict
from fp8bench.machine.host import LOOP_TURNS
from fp8bench.schema.machine import GIB, gib

STEADY_SWING = 1.25
BUSY_LOAD = 0.5
# A rank's Python thread, autograd's, NCCL's, and at least one DataLoader worker:
CORES_A_GPU = 4
# torch with CUDA takes 3 to 4 GiB per process; ViT-Huge's float32 weights take 2.4 GiB; waiting batches are extra:
HOST_BYTES_A_GPU = 8 * GIB
# Docker's default of 64 MiB ends a DataLoader with a bus error. A batch of 64 images of 224 px is 37 MiB, and every
# worker keeps two:
SHM_LEAST_BYTES = GIB
# Linux's default for a login. A DataLoader holds a descriptor for every tensor in transit, some dozens per rank:
OPEN_FILES = 1024

_SHOWN = re.compile(r"\d{1,6}|true|false|on|off|yes|no", re.IGNORECASE)


def is_on(value: str) -> bool:
    return value.lower() not in ("", "0", "false", "no", "off")


SPOILS: tuple[tuple[Callable[[str], bool], str, tuple[str, ...]], ...] = (
    (is_on, "every launch waits", ("CUDA_LAUNCH_BLOCKING",)),
    (is_on, "Transformer Engine logs at every step", ("NVTE_DEBUG",)),
    (is_on, "nothing is compiled", ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")),
    (is_on, "every allocation waits for the GPU", ("PYTORCH_NO_CUDA_MEMORY_CACHING",)),
    (is_on, "precisions are not what they seem", ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")),
    (is_on, "Python is slowed", ("PYTHONDEVMODE", "PYTHONTRACEMALLOC")),
    ("0".__eq__, "Transformer Engine may not use fused attention", ("NVTE_FUSED_ATTN",)),
    ("0".__eq__, "Transformer Engine may not use flash attention", ("NVTE_FLASH_ATTN",)),
    ("0".__eq__, "Transformer Engine may not use its fastest attention", ("NVTE_ALLOW_NONDETERMINISTIC_ALGO",)),
    ("1".__eq__, "CPU work of a rank on one thread", ("OMP_NUM_THREADS",)),
    (lambda value: value.upper() == "DETAIL", "every collective is checked", ("TORCH_DISTRIBUTED_DEBUG",)),
    (bool, "another allocator", ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")),
    (bool, "launches may be serialised", ("CUDA_DEVICE_MAX_CONNECTIONS",)),
    (bool, "cuBLAS may choose slower kernels", ("CUBLAS_WORKSPACE_CONFIG",)),
    (bool, "kernels may be built for another GPU", ("TORCH_CUDA_ARCH_LIST",)),
    (bool, "torch logs", ("TORCH_LOGS",)),
    (bool, "Transformer Engine's choice of attention", ("NVTE_UNFUSED_ATTN",)),
)
"""Which value of which variables has what effect."""

NCCL_SPEED = (
    *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL"),
    *("NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_LAUNCH_MODE"),
    *("NCCL_NET", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_TUNER_PLUGIN", "NCCL_DEBUG"),
)
"""Settings that change speed. Names of network interfaces and the like do not."""


def shown(name: str, environ: Mapping[str, str]) -> str:
    """Return `NAME=1`, or `NAME is set` if the value may be private."""
    return f"{name}={environ[name]}" if _SHOWN.fullmatch(environ[name]) else f"{name} is set"


def environment(facts: MachineFacts) -> Verdict:
    environ = facts.environ
    found = {name: effect for spoils, effect, names in SPOILS for name in names if spoils(environ.get(name, ""))}
    text = "; ".join(f"{shown(name, environ)} ({effect})" for name, effect in found.items())
    return judged(text or "none that spoils a number", bool(found), f"Unset them: `unset {' '.join(found)}`")


def nccl_settings(facts: MachineFacts) -> Verdict:
    found = [name for name in NCCL_SPEED if facts.environ.get(name)]
    text = ", ".join(shown(name, facts.environ) for name in found) or "none in the environment"
    if found and len(facts.driver.gpus) == 1:
        return Verdict("ok", f"{text}: without effect on one GPU")
    return judged(text, bool(found), f"Unset them: `unset {' '.join(found)}`")


def judged(text: str, bad: bool, remedy: str) -> Verdict:
    return Verdict("warning", text, remedy) if bad else Verdict("ok", text)


def slow(facts: MachineFacts, text: str, bad: bool, remedy: str) -> Verdict:
    """Warn of a slow or uneven host. With a GPU, one remedy needs no fast host."""
    replay = "; with `--cuda-graphs on` no step waits for Python to launch" if facts.driver.gpus else ""
    return judged(text, bad, remedy + replay)


def speed(facts: MachineFacts) -> Verdict:
    """The swing is judged, and not the speed, because no limit is known."""
    milliseconds, swing = facts.speed.median_s * 1e3, facts.speed.swing
    text = f"a loop of {LOOP_TURNS:,} turns takes {milliseconds:.1f} ms, slowest/fastest {swing:.2f}"
    waits = ": launched from Python, te-fp8 at a small batch waits for the host, and one process is not a measurement"
    uneven, remedy = swing > STEADY_SWING, "Quiet the host, and measure in several processes with --rounds"
    return slow(facts, text + waits * uneven, uneven, remedy)


def load(facts: MachineFacts) -> Verdict:
    if facts.host.load is None:
        return Verdict("unknown", "the system does not report its load")
    text, busy = f"load {facts.host.load:.1f} on {facts.host.cores:g} cores", BUSY_LOAD * facts.host.cores
    return slow(facts, text, facts.host.load > busy, "Wait for the other work to end")


def cores(facts: MachineFacts) -> Verdict:
    """The cores that this process may use, under affinity and quota."""
    gpus = len(facts.driver.gpus)
    few = facts.host.cores < gpus * CORES_A_GPU
    text = f"{facts.host.cores:g}" + (f" for {gpus} GPU(s)" if gpus else "")
    text += f", fewer than {CORES_A_GPU} each" if few else ""
    return slow(facts, text, few, "Give the container more cores, or show fewer GPUs")


def governor(facts: MachineFacts) -> Verdict:
    """`performance` keeps the clock high; the others follow the load with a delay."""
    governors = facts.host.governors
    if governors is None:
        return Verdict("unknown", "not reported, as in most virtual machines")
    remedy = "Set it: `sudo cpupower frequency-set -g performance`"
    return slow(facts, ", ".join(governors), governors != ("performance",), remedy)


def memory(facts: MachineFacts) -> Verdict:
    """Free memory for one rank per GPU, or one rank on the CPU."""
    free, needed = facts.host.memory_free_bytes, max(len(facts.driver.gpus), 1) * HOST_BYTES_A_GPU
    if free is None:
        return Verdict("unknown", "the system does not report its free memory")
    text = f"{free / GIB:.0f} GiB" + (f"; a run needs {needed // GIB} GiB" if free < needed else "")
    return judged(text, free < needed, "Free memory, or raise the container's limit")


def shared_memory(facts: MachineFacts) -> Verdict:
    """DataLoader workers put their batches in it."""
    free, size, gpus = facts.host.shm_free_bytes, facts.host.shm_bytes, len(facts.driver.gpus)
    if free is None or size is None:
        return Verdict("unknown", "there is none here")
    free_text, size_text = (gib(count) if count >= GIB else f"{count >> 20} MiB" for count in (free, size))
    text = f"{free_text} free of {size_text}" + (f" for {gpus} GPUs" if gpus > 1 else "")
    remedy = "Enlarge it: `docker run --shm-size=16g`, or `sudo mount -o remount,size=16g /dev/shm`"
    if gpus and free < SHM_LEAST_BYTES:
        return Verdict("problem", text, remedy)
    return judged(text, free < max(gpus, 1) * SHM_LEAST_BYTES, remedy)


def open_files(facts: MachineFacts) -> Verdict:
    limit = facts.host.open_files
    text = "no limit" if limit is None else f"up to {limit} a process"
    return judged(text, limit is not None and limit < OPEN_FILES, f"Raise it: `ulimit -n {OPEN_FILES * 4}`")

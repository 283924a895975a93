"""Checks of NVIDIA's driver, of each GPU, and of the host. A GPU is idle during the examination, so its present clocks
mean nothing; its limits and its slowdowns do. The value of a variable is shown only if it is a plain number or switch;
any other may be private.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from fp8bench.doctor.check import Check, MachineFacts, Status, Verdict, judged
from fp8bench.machine.busy import is_held
from fp8bench.machine.driver import GpuFacts
from fp8bench.machine.host import LOOP_TURNS
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.rank import SLOWDOWNS

Gpus = Sequence[GpuFacts]
Says = Callable[[GpuFacts], object]
"""What is wrong with a GPU in words; false if nothing."""

NOT_REPORTED = "the driver does not report it"
NOT_TOLD = "the system does not report it"
BUSY_PERCENT = 10
# NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED; modes 1 and 3 admit one process:
DEFAULT_MODE, PROHIBITED_MODE = 0, 2
TOLERANCE_W = 1.0
# An idle GPU this close to the temperature at which it slows down will reach it within a run:
NEAR_SLOWDOWN_C = 10
# Longer names of some of SLOWDOWNS, because there is room here: NVML's own words.
IN_FULL = {"hot": "software thermal slowdown", "hot (hardware)": "hardware thermal slowdown"}


def driver(facts: MachineFacts) -> Verdict:
    """One that should answer and does not is a problem; a machine without a GPU has none."""
    found = facts.driver
    if found.error is not None:
        bus = f" ({found.on_the_bus} NVIDIA GPU(s) on the PCI bus)" if found.on_the_bus else ""
        remedy = "Install or reload NVIDIA's driver until `nvidia-smi` works, and give this user or container the GPUs"
        return Verdict("problem", f"it does not answer: {found.error}{bus}", remedy)
    if found.why_no_gpu:
        return Verdict("unknown", found.why_no_gpu)
    cuda = "an unknown CUDA" if found.cuda is None else f"CUDA {'.'.join(map(str, found.cuda))}"
    products = Counter(gpu.name for gpu in found.gpus)
    counts = ", ".join(f"{count} x {name}" for name, count in products.items())
    mixed = ": the step waits for the slowest GPU" if len(products) > 1 else ""
    text = f"{found.version or 'of unknown version'}, supports {cuda}; {counts}{mixed}"
    return judged(text, mixed, "Show GPUs of one product with CUDA_VISIBLE_DEVICES")


def gpus_judged(gpus: Gpus, says: Says, fine: str, remedy: str, status: Status = "warning") -> Verdict:
    """Name the GPUs with what is wrong, equal texts once: `GPU 0: 350 of 700 W; GPUs 1, 3: 400 of 700 W`."""
    wrong: dict[object, list[str]] = {}
    for gpu in gpus:
        if text := says(gpu):
            wrong.setdefault(text, []).append(str(gpu.index))
    texts = (f"GPU{'s' if len(of) > 1 else ''} {', '.join(of)}: {text}" for text, of in wrong.items())
    return Verdict(status, "; ".join(texts), remedy) if wrong else Verdict("ok", fine)


def once(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def busy(gpus: Gpus) -> Verdict:
    """A GPU that others compute on gives wrong times; one with allocated memory only may. Nobody is named."""
    working = [gpu for gpu in gpus if (gpu.utilization_percent or 0) >= BUSY_PERCENT]
    held = [gpu for gpu in gpus if is_held(gpu.processes, gpu.memory_used_bytes)]

    def use(gpu: GpuFacts) -> str:
        words = [f"{'an unknown number of' if gpu.processes is None else gpu.processes} other process(es)"]
        if gpu.memory_used_bytes is not None:
            unseen = ", held by no visible process" if gpu in held and not gpu.processes else ""
            words.append(f"{gib(gpu.memory_used_bytes)} in use{unseen}")
        if gpu.utilization_percent is not None:
            words.append(f"{gpu.utilization_percent} % busy")
        return ", ".join(words)

    fine = f"no other process, at most {gib(max(gpu.memory_used_bytes or 0 for gpu in gpus))} in use"
    remedy = "Wait for it to end, end it, or hide that GPU with CUDA_VISIBLE_DEVICES"
    return gpus_judged(working or held, use, fine, remedy, "problem" if working else "warning")


def compute_mode(gpus: Gpus) -> Verdict:
    """A run starts one process per GPU, which an exclusive mode allows."""
    fine = "one process a GPU" if one_process_a_gpu(gpus) else "default"
    remedy = "Allow it: `sudo nvidia-smi -c DEFAULT`"
    return gpus_judged(gpus, lambda gpu: gpu.compute_mode == PROHIBITED_MODE and "prohibited", fine, remedy, "problem")


def one_process_a_gpu(gpus: Gpus) -> bool:
    """Return whether some GPU admits only one process at a time."""
    return any(gpu.compute_mode not in (None, DEFAULT_MODE) for gpu in gpus)


def nvlink(gpus: Gpus) -> Verdict:
    """Gradients go over NVLink. Many GPUs are built without links; unequal links are a fault."""
    if len(gpus) == 1:
        return Verdict("ok", "one GPU, so it is not used")
    counts = {gpu.nvlinks or 0 for gpu in gpus}
    fine = f"{max(counts)} active links a GPU" if any(counts) else "none: gradients go over PCIe"
    remedy = "Check `nvidia-smi nvlink --status` and NVIDIA's fabric manager, and restart the machine"
    return gpus_judged(gpus, lambda gpu: len(counts) > 1 and f"{gpu.nvlinks or 0} active links", fine, remedy)


def power(gpus: Gpus) -> Verdict:
    """The limit is compared with the default; if that is unknown, with the highest that may be set."""
    known = [gpu for gpu in gpus if (gpu.power_default_w, gpu.power_max_w) != (None, None)]
    if not known:
        return Verdict("unknown", NOT_REPORTED)

    def low(gpu: GpuFacts) -> object:
        normal_w = (gpu.power_max_w if gpu.power_default_w is None else gpu.power_default_w) or 0
        limit_w = gpu.power_limit_w or 0
        return limit_w < normal_w - TOLERANCE_W and f"{limit_w:.0f} of {normal_w:.0f} W"

    most_w = [gpu.power_max_w for gpu in known if gpu.power_max_w and gpu.power_max_w > (gpu.power_limit_w or 0) + 1]
    fine = once(f"{gpu.power_limit_w:.0f} W, as by default" for gpu in known)
    fine += f" (up to {max(most_w):.0f} W may be set)" if most_w else ""
    return gpus_judged(known, low, fine, "Set it back: `sudo nvidia-smi -pl` with the larger number")


def clocks(gpus: Gpus) -> Verdict:
    """Below the GPU's default, someone lowered them. A default below the maximum is no fault."""

    def low(gpu: GpuFacts) -> object:
        default, clock = gpu.default_application_clock_mhz, gpu.application_clock_mhz or 0
        normal = gpu.max_clock_mhz if default is None else default
        return clock < (normal or 0) and f"{clock} of {normal} MHz"

    fine = once(f"{gpu.application_clock_mhz} MHz, of at most {gpu.max_clock_mhz or '?'}" for gpu in gpus)
    return gpus_judged(gpus, low, fine, "Reset them: `sudo nvidia-smi -rac`")


def temperature(gpus: Gpus) -> Verdict:
    limits = {gpu.index: gpu.slowdown_temperature_c for gpu in gpus if gpu.slowdown_temperature_c is not None}

    def hot(gpu: GpuFacts) -> object:
        near = (gpu.temperature_c or 0) >= limits.get(gpu.index, inf) - NEAR_SLOWDOWN_C
        return near and f"{gpu.temperature_c} C, slows down at {limits[gpu.index]} C"

    slows = f", slows down at {min(limits.values())} C" if limits else ""
    fine = f"{max(gpu.temperature_c or 0 for gpu in gpus)} C{slows}"
    return gpus_judged(gpus, hot, fine, "Let it cool down, and check the cooling")


def ecc(gpus: Gpus) -> Verdict:
    """Errors that ECC could not correct, memory rows to be replaced, and changes that wait for a reset."""
    fine = once("ECC on" if gpu.ecc else "ECC off" for gpu in gpus) + ", no uncorrected errors"

    def broken(gpu: GpuFacts) -> object:
        row = ", and a row that could not be replaced" if gpu.remap_failed else ""
        return (gpu.uncorrected_errors or row) and f"{gpu.uncorrected_errors or 0} uncorrected errors{row}"

    if any(map(broken, gpus)):
        remedy = "Restart the machine, and replace the GPU if they come back"
        return gpus_judged(gpus, broken, fine, remedy, "problem")
    waiting = [gpu for gpu in gpus if gpu.remap_pending or gpu.ecc != gpu.ecc_pending]
    text = "a change of ECC or a replacement of rows waits for a reset"
    return gpus_judged(waiting, lambda _gpu: text, fine, "Restart the machine")


def check(name: str, title: str, judge: Callable[[Gpus], Verdict], *fields: str) -> Check:
    """Make a check of the GPUs that report at least one of the fields, by default that of the check's name."""

    def of_facts(facts: MachineFacts) -> Verdict:
        told = fields or (name.replace("-", "_"),)
        gpus = [gpu for gpu in facts.driver.gpus if any(getattr(gpu, field) is not None for field in told)]
        return judge(gpus) if gpus else Verdict("unknown", NOT_REPORTED)

    return Check(name, "gpu", title, of_facts, "gpu")


def throttling(gpus: Gpus) -> Verdict:
    """Slowdowns that an idle, sound GPU never has. Idleness, the power cap and clock settings are none."""

    def slowed(gpu: GpuFacts) -> str:
        reasons = gpu.throttle_reasons or 0
        return ", ".join(IN_FULL.get(name, name) for bit, name in SLOWDOWNS.items() if reasons & bit)

    return gpus_judged(gpus, slowed, "none", "Fix the cooling or the power supply, or measure on another machine")


def mig(gpus: Gpus) -> Verdict:
    """A slice has only part of the units, memory and bandwidth of the catalogue's GPU."""
    sliced = "on; a run sees a slice and would be priced as the whole"
    return gpus_judged(gpus, lambda gpu: gpu.mig and sliced, "off", "Turn it off: `sudo nvidia-smi -mig 0`")


def persistence(gpus: Gpus) -> Verdict:
    restarts = "off, and the driver starts the GPU again for every process"
    return gpus_judged(gpus, lambda gpu: not gpu.persistence and restarts, "on", "Turn it on: `sudo nvidia-smi -pm 1`")


PER_GPU = (
    check("busy", "other users", busy, "processes", "memory_used_bytes"),
    check("mig", "MIG", mig),
    check("compute-mode", "compute mode", compute_mode),
    check("nvlink", "NVLink", nvlink, "index"),
    check("power-limit", "power limit", power, "power_limit_w"),
    check("clocks", "application clocks", clocks, "application_clock_mhz"),
    check("throttling", "throttling now", throttling, "throttle_reasons"),
    check("temperature", "temperature", temperature, "temperature_c"),
    check("persistence", "persistence mode", persistence),
    check("ecc", "memory errors", ecc),
)

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
    return judged(text or "none that spoils a number", found, f"Unset them: `unset {' '.join(found)}`")


def nccl_settings(facts: MachineFacts) -> Verdict:
    found = [name for name in NCCL_SPEED if facts.environ.get(name)]
    text = ", ".join(shown(name, facts.environ) for name in found) or "none in the environment"
    alone = len(facts.driver.gpus) == 1
    text += ": without effect on one GPU" if found and alone else ""
    return judged(text, found and not alone, f"Unset them: `unset {' '.join(found)}`")


def slow(facts: MachineFacts, text: str | None, bad: bool, remedy: str, unknown: str = NOT_TOLD) -> Verdict:
    """Warn of a slow or uneven host. With a GPU, one remedy needs no fast host."""
    replay = "; with `--cuda-graphs on` no step waits for Python to launch" if facts.driver.gpus else ""
    return judged(text, bad, remedy + replay, unknown=unknown)


def speed(facts: MachineFacts) -> Verdict:
    """The swing is judged, and not the speed, because no limit is known."""
    milliseconds, swing = facts.speed.median_s * 1e3, facts.speed.swing
    text = f"a loop of {LOOP_TURNS:,} turns takes {milliseconds:.1f} ms, slowest/fastest {swing:.2f}"
    waits = ": launched from Python, te-fp8 at a small batch waits for the host, and one process is not a measurement"
    uneven, remedy = swing > STEADY_SWING, "Quiet the host, and measure in several processes with --rounds"
    return slow(facts, text + waits * uneven, uneven, remedy)


def load(facts: MachineFacts) -> Verdict:
    load, cores = facts.host.load, facts.host.cores
    text = None if load is None else f"load {load:.1f} on {cores:g} cores"
    return slow(facts, text, (load or 0) > BUSY_LOAD * cores, "Wait for the other work to end")


def cores(facts: MachineFacts) -> Verdict:
    """The cores that this process may use, under affinity and quota."""
    gpus = len(facts.driver.gpus)
    few = facts.host.cores < gpus * CORES_A_GPU
    text = f"{facts.host.cores:g}" + (f" for {gpus} GPU(s)" if gpus else "")
    text += f", fewer than {CORES_A_GPU} each" if few else ""
    return slow(facts, text, few, "Give the container more cores, or show fewer GPUs")


def governor(facts: MachineFacts) -> Verdict:
    """`performance` keeps the clock high; the others follow the load with a delay."""
    governors, remedy = facts.host.governors, "Set it: `sudo cpupower frequency-set -g performance`"
    text, unknown = governors and ", ".join(governors), "not reported, as in most virtual machines"
    return slow(facts, text or None, governors != ("performance",), remedy, unknown)


def memory(facts: MachineFacts) -> Verdict:
    """Free memory for one rank per GPU, or one rank on the CPU."""
    free, needed = facts.host.memory_free_bytes, max(len(facts.driver.gpus), 1) * HOST_BYTES_A_GPU
    few = free is not None and free < needed
    text = None if free is None else f"{free / GIB:.0f} GiB" + f"; a run needs {needed // GIB} GiB" * few
    return judged(text, few, "Free memory, or raise the container's limit", unknown=NOT_TOLD)


def shared_memory(facts: MachineFacts) -> Verdict:
    """DataLoader workers put their batches in it."""
    free, size, gpus = facts.host.shm_free_bytes, facts.host.shm_bytes, len(facts.driver.gpus)
    if free is None or size is None:
        return Verdict("unknown", "there is none here")
    free_text, size_text = (gib(count) if count >= GIB else f"{count >> 20} MiB" for count in (free, size))
    text = f"{free_text} free of {size_text}" + (f" for {gpus} GPUs" if gpus > 1 else "")
    remedy = "Enlarge it: `docker run --shm-size=16g`, or `sudo mount -o remount,size=16g /dev/shm`"
    status: Status = "problem" if gpus and free < SHM_LEAST_BYTES else "warning"
    return judged(text, free < max(gpus, 1) * SHM_LEAST_BYTES, remedy, status)


def open_files(facts: MachineFacts) -> Verdict:
    limit = facts.host.open_files
    text = "no limit" if limit is None else f"up to {limit} a process"
    return judged(text, limit is not None and limit < OPEN_FILES, f"Raise it: `ulimit -n {OPEN_FILES * 4}`")

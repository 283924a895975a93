"""Checks of NVIDIA's driver, of each GPU, and of the host. A GPU is idle during the examination, so its present clocks
mean nothing; its limits and its slowdowns do.
"""

from collections import Counter
from collections.abc import Callable
from statistics import median

from fp8bench.doctor.check import WORST_FIRST, MachineFacts, Status, Verdict, judged
from fp8bench.machine.gpus import GpuFacts, is_held
from fp8bench.machine.host import LOOP_TURNS
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.private import shown_variable
from fp8bench.schema.rank import SLOWDOWNS

# NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED; modes 1 and 3 admit one process:
DEFAULT_MODE, PROHIBITED_MODE = 0, 2


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


def each_gpu(judge: Callable[[GpuFacts], Verdict]) -> Callable[[MachineFacts], Verdict]:
    """Judge every GPU, and name those with the worst verdict, equal ones once: `GPUs 1, 3: 400 of 700 W`."""

    def of_all(facts: MachineFacts) -> Verdict:
        found: dict[Verdict, list[str]] = {}
        for gpu in facts.driver.gpus:
            found.setdefault(judge(gpu), []).append(str(gpu.index))
        worst = min(found, key=lambda verdict: WORST_FIRST.index(verdict.status))
        texts = {verdict.found: gpus for verdict, gpus in found.items() if verdict.status == worst.status}
        if worst.remedy:
            texts = {f"GPU{'s' if len(of) > 1 else ''} {', '.join(of)}: {text}": of for text, of in texts.items()}
        return worst._replace(found="; ".join(texts))

    return of_all


def one_process_a_gpu(facts: MachineFacts) -> bool:
    return any(gpu.compute_mode not in (None, DEFAULT_MODE) for gpu in facts.driver.gpus)


def busy(gpu: GpuFacts) -> Verdict:
    """One that others compute on gives wrong times; one with allocated memory only may. Nobody is named."""
    working = (gpu.utilization_percent or 0) >= 10
    held = is_held(gpu.processes, gpu.memory_used_bytes)
    words = [] if gpu.processes is None else [f"{gpu.processes} other process(es)"]
    if gpu.memory_used_bytes is not None:
        unseen = ", held by no visible process" if held and not gpu.processes else ""
        words.append(f"{gib(gpu.memory_used_bytes)} in use{unseen}")
    if words and gpu.utilization_percent is not None:
        words.append(f"{gpu.utilization_percent} % busy")
    remedy = "Wait for it to end, end it, or hide that GPU with CUDA_VISIBLE_DEVICES"
    return judged(", ".join(words) or None, working or held, remedy, "problem" if working else "warning")


def mig(gpu: GpuFacts) -> Verdict:
    """A slice has only part of the units, memory and bandwidth of the catalogue's GPU."""
    text = "on; a run sees a slice and would be priced as the whole" if gpu.mig else "off"
    return judged(None if gpu.mig is None else text, gpu.mig, "Turn it off: `sudo nvidia-smi -mig 0`")


def compute_mode(gpu: GpuFacts) -> Verdict:
    text = {None: None, DEFAULT_MODE: "default", PROHIBITED_MODE: "prohibited"}.get(gpu.compute_mode, "one process")
    return judged(text, text == "prohibited", "Allow it: `sudo nvidia-smi -c DEFAULT`", "problem")


def power(gpu: GpuFacts) -> Verdict:
    limit_w, usual_w = gpu.power_limit_w, gpu.power_default_w
    if limit_w is None or usual_w is None:
        return judged(None, False, "")
    remedy = "Set it back: `sudo nvidia-smi -pl` with the larger number"
    return judged(f"{limit_w:.0f} of {usual_w:.0f} W", limit_w < usual_w - 1, remedy)


def clocks(gpu: GpuFacts) -> Verdict:
    """Below the GPU's default, someone lowered them. A default below the maximum is no fault."""
    clock, usual = gpu.application_clock_mhz, gpu.default_application_clock_mhz or gpu.max_clock_mhz or 0
    text = clock and f"{clock} of {usual or '?'} MHz"
    return judged(text or None, (clock or 0) < usual, "Reset them: `sudo nvidia-smi -rac`")


def throttling(gpu: GpuFacts) -> Verdict:
    """Slowdowns that an idle, sound GPU never has. Idleness, the power cap and clock settings are none."""
    reasons = gpu.throttle_reasons or 0
    slowed = ", ".join(name for bit, name in SLOWDOWNS.items() if reasons & bit)
    remedy = "Fix the cooling or the power supply, or measure on another machine"
    return judged(None if gpu.throttle_reasons is None else slowed or "none", slowed, remedy)


def temperature(gpu: GpuFacts) -> Verdict:
    now_c, limit_c = gpu.temperature_c, gpu.slowdown_temperature_c
    text = f"{now_c} C" + (f", slows down at {limit_c} C" if limit_c else "")
    # An idle GPU this close to the temperature at which it slows down will reach it within a run.
    hot = limit_c is not None and (now_c or 0) >= limit_c - 10
    return judged(None if now_c is None else text, hot, "Let it cool down, and check the cooling")


def ecc(gpu: GpuFacts) -> Verdict:
    """Errors that ECC could not correct, memory rows to be replaced, and changes that wait for a reset."""
    if gpu.uncorrected_errors or gpu.remap_failed:
        row = ", and a row that could not be replaced" if gpu.remap_failed else ""
        remedy = "Restart the machine, and replace the GPU if they come back"
        return Verdict("problem", f"{gpu.uncorrected_errors or 0} uncorrected errors{row}", remedy)
    if gpu.remap_pending or gpu.ecc != gpu.ecc_pending:
        return Verdict("warning", "a change of ECC or a replacement of rows waits for a reset", "Restart the machine")
    return judged(gpu.ecc if gpu.ecc is None else f"ECC {'on' if gpu.ecc else 'off'}, no uncorrected errors", False, "")


def nvlink(facts: MachineFacts) -> Verdict:
    """Gradients go over NVLink. Many GPUs are built without links; unequal links are a fault."""
    counts = [gpu.nvlinks or 0 for gpu in facts.driver.gpus]
    text = f"active links of each GPU: {', '.join(map(str, counts))}" if any(counts) else "none: gradients go over PCIe"
    remedy = "Check `nvidia-smi nvlink --status` and NVIDIA's fabric manager, and restart the machine"
    return judged(text if len(counts) > 1 else "one GPU, so it is not used", len(set(counts)) > 1, remedy)


# A rank's Python thread, autograd's, NCCL's, and at least one DataLoader worker:
CORES_A_GPU = 4
# torch with CUDA takes 3 to 4 GiB per process; ViT-Huge's float32 weights take 2.4 GiB; waiting batches are extra:
HOST_BYTES_A_GPU = 8 * GIB
# Docker's default of 64 MiB ends a DataLoader with a bus error. A batch of 64 images of 224 px is 37 MiB, and every
# worker keeps two:
SHM_LEAST_BYTES = GIB


def is_on(value: str) -> bool:
    return value.lower() not in ("", "0", "false", "no", "off")


SPOILS: tuple[tuple[Callable[[str], bool], str, tuple[str, ...]], ...] = (
    (is_on, "every launch waits", ("CUDA_LAUNCH_BLOCKING",)),
    (is_on, "Transformer Engine logs at every step", ("NVTE_DEBUG",)),
    (is_on, "nothing is compiled", ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")),
    (is_on, "every allocation waits for the GPU", ("PYTORCH_NO_CUDA_MEMORY_CACHING",)),
    (is_on, "precisions are not what they seem", ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")),
    (is_on, "Python is slowed", ("PYTHONDEVMODE", "PYTHONTRACEMALLOC")),
    (is_on, "GPUs talk over slower ways", ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")),
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


def environment(facts: MachineFacts) -> Verdict:
    environ = facts.environ
    found = {name: effect for spoils, effect, names in SPOILS for name in names if spoils(environ.get(name, ""))}
    text = "; ".join(f"{name}={shown_variable(name, environ[name])} ({effect})" for name, effect in found.items())
    return judged(text or "none that spoils a number", found, f"Unset them: `unset {' '.join(found)}`")


def slow(facts: MachineFacts, text: str | None, bad: bool, remedy: str) -> Verdict:
    """Warn of a slow or uneven host. With a GPU, one remedy needs no fast host."""
    replay = "; with `--cuda-graphs on` no step waits for Python to launch" if facts.driver.gpus else ""
    return judged(text, bad, remedy + replay)


def speed(facts: MachineFacts) -> Verdict:
    """The swing is judged, and not the speed, because no limit is known."""
    swing = max(facts.loop_s) / min(facts.loop_s)
    text = f"a loop of {LOOP_TURNS:,} turns takes {1e3 * median(facts.loop_s):.1f} ms, slowest/fastest {swing:.2f}"
    waits = ": launched from Python, te-fp8 at a small batch waits for the host, and one process is not a measurement"
    uneven, remedy = swing > 1.25, "Quiet the host, and measure in several processes with --rounds"
    return slow(facts, text + waits * uneven, uneven, remedy)


def load(facts: MachineFacts) -> Verdict:
    load, cores = facts.host.load, facts.host.cores
    text = None if load is None else f"load {load:.1f} on {cores:g} cores"
    return slow(facts, text, (load or 0) > 0.5 * cores, "Wait for the other work to end")


def cores(facts: MachineFacts) -> Verdict:
    gpus = len(facts.driver.gpus)
    few = facts.host.cores < gpus * CORES_A_GPU
    text = f"{facts.host.cores:g}" + (f" for {gpus} GPU(s)" if gpus else "")
    text += f", fewer than {CORES_A_GPU} each" if few else ""
    return slow(facts, text, few, "Give the container more cores, or show fewer GPUs")


def governor(facts: MachineFacts) -> Verdict:
    """`performance` keeps the clock high; the others follow the load with a delay."""
    governors, remedy = facts.host.governors, "Set it: `sudo cpupower frequency-set -g performance`"
    return slow(facts, ", ".join(governors) if governors else None, governors != ("performance",), remedy)


def memory(facts: MachineFacts) -> Verdict:
    free, needed = facts.host.memory_free_bytes, max(len(facts.driver.gpus), 1) * HOST_BYTES_A_GPU
    few = free is not None and free < needed
    text = None if free is None else f"{free / GIB:.0f} GiB" + f"; a run needs {needed // GIB} GiB" * few
    return judged(text, few, "Free memory, or raise the container's limit")


def shared_memory(facts: MachineFacts) -> Verdict:
    free, size, gpus = facts.host.shm_free_bytes, facts.host.shm_bytes, len(facts.driver.gpus)
    if free is None or size is None:
        return Verdict("unknown", "there is none here")
    free_text, size_text = (gib(count) if count >= GIB else f"{count >> 20} MiB" for count in (free, size))
    text = f"{free_text} free of {size_text}" + (f" for {gpus} GPUs" if gpus > 1 else "")
    remedy = "Enlarge it: `docker run --shm-size=16g`, or `sudo mount -o remount,size=16g /dev/shm`"
    status: Status = "problem" if gpus and free < SHM_LEAST_BYTES else "warning"
    return judged(text, free < max(gpus, 1) * SHM_LEAST_BYTES, remedy, status)

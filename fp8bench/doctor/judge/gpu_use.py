"""Who else uses the GPUs, and are they whole? MIG, other processes, compute mode, NVLink."""

from fp8bench.doctor.driver_facts import GpuFacts, named, which
from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.judge.over_gpus import Gpus, over_gpus

MIG = Check("mig", "gpu", "MIG")
BUSY = Check("busy", "gpu", "other users")
MODE = Check("compute-mode", "gpu", "compute mode")
NVLINK = Check("nvlink", "gpu", "NVLink")
NOT_TOLD = "the driver does not tell"

GIB = 1 << 30
UNSEEN_BYTES = GIB
"""More memory in use than this belongs to someone, though a container may hide the process."""

BUSY_PERCENT = 10
DEFAULT_MODE, PROHIBITED_MODE = 0, 2
"""NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED; 1 and 3 let one process in."""


def findings(facts: Facts) -> list[Finding]:
    """One a check, over all GPUs."""
    checks = (
        (BUSY, busy),
        (MIG, mig),
        (MODE, compute_mode),
        (NVLINK, nvlink),
    )
    return over_gpus(facts, checks)


def busy(gpus: Gpus) -> Finding:
    """A GPU at work for someone else gives wrong times; one that is only held may."""
    known = which(gpus, lambda gpu: gpu.processes is not None or gpu.memory_used_bytes is not None)
    if not known:
        return BUSY.unknown(NOT_TOLD)
    remedy = "Wait for it to end, end it, or hide that GPU with CUDA_VISIBLE_DEVICES"
    working = which(known, lambda gpu: (gpu.utilization_percent or 0) >= BUSY_PERCENT)
    if working:
        return BUSY.problem("; ".join(map(_use, working)), remedy)
    held = which(known, lambda gpu: bool(gpu.processes) or _unseen_bytes(gpu) > UNSEEN_BYTES)
    if held:
        return BUSY.warning("; ".join(map(_use, held)), remedy)
    most = max(gpu.memory_used_bytes or 0 for gpu in known)
    return BUSY.ok(f"no other process, at most {most / GIB:.1f} GiB in use")


def _unseen_bytes(gpu: GpuFacts) -> int:
    return (gpu.memory_used_bytes or 0) - (gpu.process_memory_bytes or 0)


def _use(gpu: GpuFacts) -> str:
    """Counts and sizes, never names."""
    processes = "an unknown number of" if gpu.processes is None else str(gpu.processes)
    words = [f"GPU {gpu.index}: {processes} other process(es)"]
    if gpu.memory_used_bytes is not None:
        unseen = ", held by none that is visible" if not gpu.processes and _unseen_bytes(gpu) > UNSEEN_BYTES else ""
        words.append(f"{gpu.memory_used_bytes / GIB:.1f} GiB in use{unseen}")
    if gpu.utilization_percent is not None:
        words.append(f"{gpu.utilization_percent} % busy")
    return ", ".join(words)


def mig(gpus: Gpus) -> Finding:
    """A slice has part of the units, the memory and the bandwidth that the catalogue's GPU has."""
    known = which(gpus, lambda gpu: gpu.mig is not None)
    if not known:
        return MIG.unknown(NOT_TOLD)
    sliced = which(known, lambda gpu: bool(gpu.mig))
    if sliced:
        return MIG.warning(
            f"on: {named(sliced)}; a run sees a slice and would be priced as the whole",
            "Turn it off: `sudo nvidia-smi -mig 0`",
        )
    return MIG.ok("off")


def compute_mode(gpus: Gpus) -> Finding:
    """fp8bench starts one process a GPU, which an exclusive mode allows."""
    known = which(gpus, lambda gpu: gpu.compute_mode is not None)
    if not known:
        return MODE.unknown(NOT_TOLD)
    closed = which(known, lambda gpu: gpu.compute_mode == PROHIBITED_MODE)
    if closed:
        return MODE.problem(f"prohibited on {named(closed)}", "Allow it: `sudo nvidia-smi -c DEFAULT`")
    return MODE.ok("default" if all(gpu.compute_mode == DEFAULT_MODE for gpu in known) else "one process a GPU")


def one_process_a_gpu(gpus: Gpus) -> bool:
    """Whether some GPU lets in only one process at a time."""
    return any(gpu.compute_mode not in (None, DEFAULT_MODE) for gpu in gpus)


def nvlink(gpus: Gpus) -> Finding:
    """Gradients go over it. No links is how many GPUs are built; unequal links are a fault."""
    if len(gpus) == 1:
        return NVLINK.ok("one GPU, so it is not used")
    counts = {gpu.nvlinks or 0 for gpu in gpus}
    if counts == {0}:
        return NVLINK.ok("none: gradients go over PCIe")
    if len(counts) > 1:
        return NVLINK.warning(
            "active links: " + ", ".join(f"GPU {gpu.index} {gpu.nvlinks or 0}" for gpu in gpus),
            "See `nvidia-smi nvlink --status` and NVIDIA's fabric manager, and restart the machine",
        )
    return NVLINK.ok(f"{counts.pop()} active links a GPU")

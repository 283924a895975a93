"""Checks of NVIDIA's driver and of each GPU: other users and MIG first, then what makes it slower than its product's
name promises: power, clocks, heat, memory errors.

A GPU is idle during the examination, so its present clocks mean nothing; its limits and its slowdowns do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf

from fp8bench.doctor.check import Check, MachineFacts, Status, Verdict
from fp8bench.machine.busy import is_held
from fp8bench.machine.driver import GpuFacts
from fp8bench.schema.machine import gib
from fp8bench.schema.rank import SLOWDOWNS

Gpus = Sequence[GpuFacts]
Says = Callable[[GpuFacts], object]
"""What is wrong with a GPU in words; false if nothing."""

NOT_REPORTED = "the driver does not report it"
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
    text = f"{found.version or 'of unknown version'}, supports {cuda}; {counts}"
    if len(products) > 1:
        remedy = "Show GPUs of one product with CUDA_VISIBLE_DEVICES"
        return Verdict("warning", f"{text}: the step waits for the slowest GPU", remedy)
    return Verdict("ok", text)


def judged(gpus: Gpus, says: Says, fine: str, remedy: str, status: Status = "warning", after: str = "") -> Verdict:
    """Name the GPUs with what is wrong, equal texts once: `GPU 0: 350 of 700 W; GPUs 1, 3: 400 of 700 W`, and `after`
    that. fine: the text if nothing is.
    """
    wrong: dict[object, list[str]] = {}
    for gpu in gpus:
        if text := says(gpu):
            wrong.setdefault(text, []).append(str(gpu.index))
    texts = (f"GPU{'s' if len(of) > 1 else ''} {', '.join(of)}: {text}" for text, of in wrong.items())
    return Verdict(status, "; ".join(texts) + after, remedy) if wrong else Verdict("ok", fine)


def once(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def busy(gpus: Gpus) -> Verdict:
    """A GPU that others compute on gives wrong times; one with allocated memory only may. Its use is described by
    counts and sizes, never by names.
    """
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
    return judged(working or held, use, fine, remedy, "problem" if working else "warning")


def compute_mode(gpus: Gpus) -> Verdict:
    """A run starts one process per GPU, which an exclusive mode allows."""
    fine = "one process a GPU" if one_process_a_gpu(gpus) else "default"
    remedy = "Allow it: `sudo nvidia-smi -c DEFAULT`"
    return judged(gpus, lambda gpu: gpu.compute_mode == PROHIBITED_MODE and "prohibited", fine, remedy, "problem")


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
    return judged(gpus, lambda gpu: len(counts) > 1 and f"{gpu.nvlinks or 0} active links", fine, remedy)


def power(gpus: Gpus) -> Verdict:
    """The limit is compared with the default; if that is unknown, with the highest that may be set."""
    normal = {gpu.index: gpu.power_max_w if gpu.power_default_w is None else gpu.power_default_w for gpu in gpus}
    gpus = [gpu for gpu in gpus if normal[gpu.index] is not None]
    if not gpus:
        return Verdict("unknown", NOT_REPORTED)

    def low(gpu: GpuFacts) -> object:
        limit_w, normal_w = gpu.power_limit_w or 0, normal[gpu.index] or 0
        return limit_w < normal_w - TOLERANCE_W and f"{limit_w:.0f} of {normal_w:.0f} W"

    most_w = [gpu.power_max_w for gpu in gpus if gpu.power_max_w and gpu.power_max_w > (gpu.power_limit_w or 0) + 1]
    fine = once(f"{gpu.power_limit_w:.0f} W, as by default" for gpu in gpus)
    fine += f" (up to {max(most_w):.0f} W may be set)" if most_w else ""
    return judged(gpus, low, fine, "Set it back: `sudo nvidia-smi -pl` with the larger number")


def clocks(gpus: Gpus) -> Verdict:
    """Below the GPU's default, someone lowered them. A default below the maximum is no fault."""

    def low(gpu: GpuFacts) -> object:
        default, clock = gpu.default_application_clock_mhz, gpu.application_clock_mhz or 0
        normal = gpu.max_clock_mhz if default is None else default
        return clock < (normal or 0) and f"{clock} of {normal} MHz"

    fine = once(f"{gpu.application_clock_mhz} MHz, of at most {gpu.max_clock_mhz or '?'}" for gpu in gpus)
    return judged(gpus, low, fine, "Reset them: `sudo nvidia-smi -rac`")


def temperature(gpus: Gpus) -> Verdict:
    limits = {gpu.index: gpu.slowdown_temperature_c for gpu in gpus if gpu.slowdown_temperature_c is not None}

    def hot(gpu: GpuFacts) -> object:
        near = (gpu.temperature_c or 0) >= limits.get(gpu.index, inf) - NEAR_SLOWDOWN_C
        return near and f"{gpu.temperature_c} C, slows down at {limits[gpu.index]} C"

    slows = f", slows down at {min(limits.values())} C" if limits else ""
    fine = f"{max(gpu.temperature_c or 0 for gpu in gpus)} C{slows}"
    return judged(gpus, hot, fine, "Let it cool down, and check the cooling")


def ecc(gpus: Gpus) -> Verdict:
    """Errors that ECC could not correct, memory rows to be replaced, and changes that wait for a reset."""
    fine = once("ECC on" if gpu.ecc else "ECC off" for gpu in gpus) + ", no uncorrected errors"
    if broken := [gpu for gpu in gpus if gpu.uncorrected_errors or gpu.remap_failed]:
        row = ", and a row that could not be replaced" if any(gpu.remap_failed for gpu in broken) else ""
        remedy = "Restart the machine, and replace the GPU if they come back"
        return judged(
            broken, lambda gpu: f"{gpu.uncorrected_errors or 0} uncorrected errors", fine, remedy, "problem", row
        )
    waiting = [gpu for gpu in gpus if gpu.remap_pending or gpu.ecc != gpu.ecc_pending]
    text = "a change of ECC or a replacement of rows waits for a reset"
    return judged(waiting, lambda _gpu: text, fine, "Restart the machine")


def check(name: str, title: str, judge: Callable[[Gpus], Verdict], *fields: str) -> Check:
    """Make a check of the GPUs that report at least one of the fields, by default that of the check's name."""

    def of_facts(facts: MachineFacts) -> Verdict:
        told = fields or (name.replace("-", "_"),)
        gpus = [gpu for gpu in facts.driver.gpus if any(getattr(gpu, field) is not None for field in told)]
        return judge(gpus) if gpus else Verdict("unknown", NOT_REPORTED)

    return Check(name, "gpu", title, of_facts, "gpu")


def each(says: Says, fine: str, remedy: str) -> Callable[[Gpus], Verdict]:
    return lambda gpus: judged(gpus, says, fine, remedy)


def slowed(gpu: GpuFacts) -> str:
    """Slowdowns that an idle, sound GPU never has. Idleness, the power cap and clock settings are none."""
    reasons = gpu.throttle_reasons or 0
    return ", ".join(IN_FULL.get(name, name) for bit, name in SLOWDOWNS.items() if reasons & bit)


# A slice has only part of the units, memory and bandwidth of the catalogue's GPU.
SLICE = "on; a run sees a slice and would be priced as the whole"
RESTARTS = "off, and the driver starts the GPU again for every process"
REPAIR = "Fix the cooling or the power supply, or measure on another machine"

PER_GPU = (
    check("busy", "other users", busy, "processes", "memory_used_bytes"),
    check("mig", "MIG", each(lambda gpu: gpu.mig and SLICE, "off", "Turn it off: `sudo nvidia-smi -mig 0`")),
    check("compute-mode", "compute mode", compute_mode),
    check("nvlink", "NVLink", nvlink, "index"),
    check("power-limit", "power limit", power, "power_limit_w"),
    check("clocks", "application clocks", clocks, "application_clock_mhz"),
    check("throttling", "throttling now", each(slowed, "none", REPAIR), "throttle_reasons"),
    check("temperature", "temperature", temperature, "temperature_c"),
    check(
        *("persistence", "persistence mode"),
        each(lambda gpu: not gpu.persistence and RESTARTS, "on", "Turn it on: `sudo nvidia-smi -pm 1`"),
    ),
    check("ecc", "memory errors", ecc),
)

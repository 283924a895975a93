"""Checks of NVIDIA's driver, of torch's view of its GPUs, and of each GPU: other users and MIG first, then what makes
it slower than its product's name promises: power, clocks, heat, memory errors.

A GPU is idle during the examination, so its present clocks mean nothing; its limits and its slowdowns do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf

from fp8bench.doctor.check import Check, Verdict, a_gpu
from fp8bench.doctor.facts import MachineFacts
from fp8bench.machine.busy import is_held
from fp8bench.machine.driver import GpuFacts
from fp8bench.schema.machine import gib
from fp8bench.schema.rank import SLOWDOWNS

Gpus = Sequence[GpuFacts]

NOT_REPORTED = "the driver does not report it"

BUSY_PERCENT = 10
DEFAULT_MODE, PROHIBITED_MODE = 0, 2
"""NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED; modes 1 and 3 admit one process."""

TOLERANCE_W = 1.0
NEAR_SLOWDOWN_C = 10
"""An idle GPU this close to the temperature at which it slows down will reach it within a run."""

IN_FULL = {"hot": "software thermal slowdown", "hot (hardware)": "hardware thermal slowdown"}
"""Longer names of some of SLOWDOWNS, because there is room here: NVML's own words."""


def driver(facts: MachineFacts) -> Verdict:
    """One that should answer and does not is a problem; a machine without a GPU has none."""
    found = facts.driver
    if found.error is not None:
        bus = f" ({found.on_the_bus} NVIDIA GPU(s) on the PCI bus)" if found.on_the_bus else ""
        return Verdict(
            "problem",
            f"it does not answer: {found.error}{bus}",
            "Install or reload NVIDIA's driver until `nvidia-smi` works, and give this user (or container) the GPUs",
        )
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


def torch_sees(facts: MachineFacts) -> Verdict:
    torch, driver = facts.torch_on_gpu, facts.driver
    if isinstance(torch, str):
        return Verdict("unknown", torch)
    if torch.cuda is None:
        text = f"torch {torch.version} was built without CUDA"
        return Verdict("problem", text, "Install a torch that was built for CUDA")
    built = f"torch was built for CUDA {torch.cuda}"
    if torch.cuda_error is not None:
        too_old = driver.cuda is not None and driver.cuda[0] < int(torch.cuda.partition(".")[0])
        return Verdict(
            "problem",
            f"{built}, and CUDA does not start: {torch.cuda_error}",
            "Update the driver, or install a torch that was built for an older CUDA"
            if too_old
            else "Check `nvidia-smi`, and restart the machine if the driver was updated",
        )
    sliced = any(gpu.mig for gpu in driver.gpus)
    if torch.gpus != len(driver.gpus) and not sliced:
        text = f"torch sees {torch.gpus} GPU(s), the driver {len(driver.gpus)}"
        return Verdict("problem", text, "Check CUDA_VISIBLE_DEVICES, and the GPUs given to this container")
    return Verdict("ok", f"{torch.gpus}; {built}")


def busy(gpus: Gpus) -> Verdict:
    """A GPU that others compute on gives wrong times; one with allocated memory only may."""
    working = [gpu for gpu in gpus if (gpu.utilization_percent or 0) >= BUSY_PERCENT]
    held = [gpu for gpu in gpus if is_held(gpu.processes, gpu.memory_used_bytes)]
    if working or held:
        remedy = "Wait for it to end, end it, or hide that GPU with CUDA_VISIBLE_DEVICES"
        return Verdict("problem" if working else "warning", named(working or held, use), remedy)
    return Verdict("ok", f"no other process, at most {gib(max(gpu.memory_used_bytes or 0 for gpu in gpus))} in use")


def use(gpu: GpuFacts) -> str:
    """Describe a GPU's use by counts and sizes, never by names."""
    words = [f"{'an unknown number of' if gpu.processes is None else gpu.processes} other process(es)"]
    if gpu.memory_used_bytes is not None:
        unseen = not gpu.processes and is_held(gpu.processes, gpu.memory_used_bytes)
        words.append(f"{gib(gpu.memory_used_bytes)} in use{', held by no visible process' if unseen else ''}")
    if gpu.utilization_percent is not None:
        words.append(f"{gpu.utilization_percent} % busy")
    return ", ".join(words)


def mig(gpus: Gpus) -> Verdict:
    """A slice has only part of the units, memory and bandwidth of the catalogue's GPU."""
    sliced = [gpu for gpu in gpus if gpu.mig]
    if sliced:
        text = named(sliced, lambda gpu: "on; a run sees a slice and would be priced as the whole")
        return Verdict("warning", text, "Turn it off: `sudo nvidia-smi -mig 0`")
    return Verdict("ok", "off")


def compute_mode(gpus: Gpus) -> Verdict:
    """A run starts one process per GPU, which an exclusive mode allows."""
    closed = [gpu for gpu in gpus if gpu.compute_mode == PROHIBITED_MODE]
    if closed:
        return Verdict("problem", named(closed, lambda gpu: "prohibited"), "Allow it: `sudo nvidia-smi -c DEFAULT`")
    return Verdict("ok", "one process a GPU" if one_process_a_gpu(gpus) else "default")


def one_process_a_gpu(gpus: Gpus) -> bool:
    """Return whether some GPU admits only one process at a time."""
    return any(gpu.compute_mode not in (None, DEFAULT_MODE) for gpu in gpus)


def nvlink(gpus: Gpus) -> Verdict:
    """Gradients go over NVLink. Many GPUs are built without links; unequal links are a fault."""
    counts = {gpu.nvlinks or 0 for gpu in gpus}
    if len(gpus) == 1:
        return Verdict("ok", "one GPU, so it is not used")
    if len(counts) > 1:
        remedy = "Check `nvidia-smi nvlink --status` and NVIDIA's fabric manager, and restart the machine"
        return Verdict("warning", named(gpus, lambda gpu: f"{gpu.nvlinks or 0} active links"), remedy)
    return Verdict("ok", f"{counts.pop()} active links a GPU" if any(counts) else "none: gradients go over PCIe")


def power(gpus: Gpus) -> Verdict:
    """The limit is compared with the default; if that is unknown, with the highest that may be set."""
    normal = {gpu.index: gpu.power_max_w if gpu.power_default_w is None else gpu.power_default_w for gpu in gpus}
    gpus = [gpu for gpu in gpus if normal[gpu.index] is not None]
    low = [gpu for gpu in gpus if (gpu.power_limit_w or 0) < (normal[gpu.index] or 0) - TOLERANCE_W]
    if not gpus:
        return Verdict("unknown", NOT_REPORTED)
    if low:
        text = named(low, lambda gpu: f"{gpu.power_limit_w:.0f} of {normal[gpu.index]:.0f} W")
        return Verdict("warning", text, f"Set it back: `sudo nvidia-smi -pl {normal[low[0].index]:.0f}`")
    most = [gpu.power_max_w for gpu in gpus if gpu.power_max_w and gpu.power_max_w > (gpu.power_limit_w or 0) + 1]
    text = once(f"{gpu.power_limit_w:.0f} W, as by default" for gpu in gpus)
    return Verdict("ok", f"{text} (up to {max(most):.0f} W may be set)" if most else text)


def clocks(gpus: Gpus) -> Verdict:
    """Below the GPU's default, someone lowered them. A default below the maximum is no fault."""
    default = {gpu.index: gpu.default_application_clock_mhz for gpu in gpus}
    normal = {gpu.index: gpu.max_clock_mhz if default[gpu.index] is None else default[gpu.index] for gpu in gpus}
    low = [gpu for gpu in gpus if (gpu.application_clock_mhz or 0) < (normal[gpu.index] or 0)]
    if low:
        text = named(low, lambda gpu: f"{gpu.application_clock_mhz} of {normal[gpu.index]} MHz")
        return Verdict("warning", text, "Reset them: `sudo nvidia-smi -rac`")
    return Verdict(
        "ok", once(f"{gpu.application_clock_mhz} MHz, of at most {gpu.max_clock_mhz or '?'}" for gpu in gpus)
    )


def throttling(gpus: Gpus) -> Verdict:
    """Slowdowns that an idle, sound GPU never has. Idleness, the power cap and clock settings are none."""
    slow = [gpu for gpu in gpus if slowdowns(gpu)]
    if slow:
        remedy = "Fix the cooling or the power supply, or measure on another machine"
        return Verdict("warning", named(slow, slowdowns), remedy)
    return Verdict("ok", "none")


def slowdowns(gpu: GpuFacts) -> str:
    return ", ".join(IN_FULL.get(name, name) for bit, name in SLOWDOWNS.items() if (gpu.throttle_reasons or 0) & bit)


def temperature(gpus: Gpus) -> Verdict:
    """At rest, compared with the GPU's own threshold."""
    limits = {gpu.index: gpu.slowdown_temperature_c for gpu in gpus if gpu.slowdown_temperature_c is not None}
    hot = [gpu for gpu in gpus if (gpu.temperature_c or 0) >= limits.get(gpu.index, inf) - NEAR_SLOWDOWN_C]
    if hot:
        text = named(hot, lambda gpu: f"{gpu.temperature_c} C, slows down at {limits[gpu.index]} C")
        return Verdict("warning", text, "Let it cool down, and check the cooling")
    slows = f", slows down at {min(limits.values())} C" if limits else ""
    return Verdict("ok", f"{max(gpu.temperature_c or 0 for gpu in gpus)} C{slows}")


def persistence(gpus: Gpus) -> Verdict:
    """Without it, the driver releases the GPU after each process and restarts it."""
    off = [gpu for gpu in gpus if not gpu.persistence]
    if off:
        text = named(off, lambda gpu: "off, and the driver starts the GPU again for every process")
        return Verdict("warning", text, "Turn it on: `sudo nvidia-smi -pm 1`")
    return Verdict("ok", "on")


def ecc(gpus: Gpus) -> Verdict:
    """Errors that ECC could not correct, memory rows to be replaced, and changes that wait for a reset."""
    broken = [gpu for gpu in gpus if gpu.uncorrected_errors or gpu.remap_failed]
    if broken:
        text = named(broken, lambda gpu: f"{gpu.uncorrected_errors or 0} uncorrected errors")
        text += ", and a row that could not be replaced" if any(gpu.remap_failed for gpu in broken) else ""
        return Verdict("problem", text, "Restart the machine, and replace the GPU if they come back")
    pending = [gpu for gpu in gpus if gpu.remap_pending or gpu.ecc != gpu.ecc_pending]
    if pending:
        text = named(pending, lambda gpu: "a change of ECC or a replacement of rows waits for a reset")
        return Verdict("warning", text, "Restart the machine")
    return Verdict("ok", once("ECC on" if gpu.ecc else "ECC off" for gpu in gpus) + ", no uncorrected errors")


def named(gpus: Gpus, text: Callable[[GpuFacts], str]) -> str:
    """Name the GPUs with what is said of them, equal texts once: `GPU 0: 350 of 700 W; GPUs 1, 3: 400 of 700 W`."""
    indices: dict[str, list[str]] = {}
    for gpu in gpus:
        indices.setdefault(text(gpu), []).append(str(gpu.index))
    return "; ".join(f"GPU{'s' if len(of) > 1 else ''} {', '.join(of)}: {said}" for said, of in indices.items())


def once(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def reporting(judge: Callable[[Gpus], Verdict], *fields: str) -> Callable[[MachineFacts], Verdict]:
    """Make a check's judge from one of the GPUs that report at least one of the fields."""

    def of_facts(facts: MachineFacts) -> Verdict:
        gpus = [gpu for gpu in facts.driver.gpus if any(getattr(gpu, field) is not None for field in fields)]
        return judge(gpus) if gpus else Verdict("unknown", NOT_REPORTED)

    return of_facts


CHECKS = (
    Check("driver", "gpu", "NVIDIA driver", driver),
    Check("torch-sees-gpus", "gpu", "GPUs torch sees", torch_sees),
    Check("busy", "gpu", "other users", reporting(busy, "processes", "memory_used_bytes"), a_gpu),
    Check("mig", "gpu", "MIG", reporting(mig, "mig"), a_gpu),
    Check("compute-mode", "gpu", "compute mode", reporting(compute_mode, "compute_mode"), a_gpu),
    Check("nvlink", "gpu", "NVLink", reporting(nvlink, "index"), a_gpu),
    Check("power-limit", "gpu", "power limit", reporting(power, "power_limit_w"), a_gpu),
    Check("clocks", "gpu", "application clocks", reporting(clocks, "application_clock_mhz"), a_gpu),
    Check("throttling", "gpu", "throttling now", reporting(throttling, "throttle_reasons"), a_gpu),
    Check("temperature", "gpu", "temperature", reporting(temperature, "temperature_c"), a_gpu),
    Check("persistence", "gpu", "persistence mode", reporting(persistence, "persistence"), a_gpu),
    Check("ecc", "gpu", "memory errors", reporting(ecc, "ecc"), a_gpu),
)

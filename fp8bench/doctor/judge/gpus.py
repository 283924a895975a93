"""Each GPU, as its driver tells: who else uses it and whether it is whole, then what makes it slower than its product's
name says: power, clocks, heat, memory errors.

A GPU is idle while it is looked at, so its clocks now say nothing; its limits and its complaints do.
"""

from collections.abc import Callable

from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.machine.busy import is_held
from fp8bench.machine.driver import GpuFacts
from fp8bench.schema.rank import SLOWDOWNS

Gpus = tuple[GpuFacts, ...]

BUSY = Check("busy", "gpu", "other users")
MIG = Check("mig", "gpu", "MIG")
MODE = Check("compute-mode", "gpu", "compute mode")
NVLINK = Check("nvlink", "gpu", "NVLink")
POWER = Check("power-limit", "gpu", "power limit")
CLOCKS = Check("clocks", "gpu", "application clocks")
THROTTLING = Check("throttling", "gpu", "throttling now")
TEMPERATURE = Check("temperature", "gpu", "temperature")
PERSISTENCE = Check("persistence", "gpu", "persistence mode")
ECC = Check("ecc", "gpu", "memory errors")

GIB = 1 << 30
BUSY_PERCENT = 10
DEFAULT_MODE, PROHIBITED_MODE = 0, 2
"""NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED; 1 and 3 let one process in."""

TOLERANCE_W = 1.0
NEAR_SLOWDOWN_C = 10
"""An idle GPU this near to the temperature at which it slows down will be there within a run."""

IN_FULL = {"hot": "software thermal slowdown", "hot (hardware)": "hardware thermal slowdown"}
"""What some of SLOWDOWNS are called here, where there is room: NVML's own words. The others are said as they are."""


def findings(facts: Facts) -> list[Finding]:
    """One a check, over the visible GPUs of which the driver tells; where no GPU can be examined, why not."""
    if why := facts.driver.why_no_gpu:
        return [check.unknown(why) for check, _, _ in CHECKS]
    found = []
    for check, told, judge in CHECKS:
        known = which(facts.driver.gpus, told)
        found.append(judge(known) if known else check.unknown("the driver does not tell"))
    return found


def busy(gpus: Gpus) -> Finding:
    """A GPU at work for someone else gives wrong times; one that is only held may."""
    remedy = "Wait for it to end, end it, or hide that GPU with CUDA_VISIBLE_DEVICES"
    working = which(gpus, lambda gpu: (gpu.utilization_percent or 0) >= BUSY_PERCENT)
    if working:
        return BUSY.problem("; ".join(map(_use, working)), remedy)
    held = which(gpus, lambda gpu: is_held(gpu.processes, gpu.memory_used_bytes))
    if held:
        return BUSY.warning("; ".join(map(_use, held)), remedy)
    most = max(gpu.memory_used_bytes or 0 for gpu in gpus)
    return BUSY.ok(f"no other process, at most {most / GIB:.1f} GiB in use")


def _use(gpu: GpuFacts) -> str:
    """Counts and sizes, never names."""
    processes = "an unknown number of" if gpu.processes is None else str(gpu.processes)
    words = [f"GPU {gpu.index}: {processes} other process(es)"]
    if gpu.memory_used_bytes is not None:
        unseen = not gpu.processes and is_held(gpu.processes, gpu.memory_used_bytes)
        held = ", held by none that is visible" if unseen else ""
        words.append(f"{gpu.memory_used_bytes / GIB:.1f} GiB in use{held}")
    if gpu.utilization_percent is not None:
        words.append(f"{gpu.utilization_percent} % busy")
    return ", ".join(words)


def mig(gpus: Gpus) -> Finding:
    """A slice has part of the units, the memory and the bandwidth that the catalogue's GPU has."""
    sliced = which(gpus, lambda gpu: bool(gpu.mig))
    if sliced:
        return MIG.warning(
            f"on: {named(sliced)}; a run sees a slice and would be priced as the whole",
            "Turn it off: `sudo nvidia-smi -mig 0`",
        )
    return MIG.ok("off")


def compute_mode(gpus: Gpus) -> Finding:
    """fp8bench starts one process a GPU, which an exclusive mode allows."""
    closed = which(gpus, lambda gpu: gpu.compute_mode == PROHIBITED_MODE)
    if closed:
        return MODE.problem(f"prohibited on {named(closed)}", "Allow it: `sudo nvidia-smi -c DEFAULT`")
    return MODE.ok("default" if all(gpu.compute_mode == DEFAULT_MODE for gpu in gpus) else "one process a GPU")


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


def power(gpus: Gpus) -> Finding:
    """Against the default; where that is not told, against the highest that may be set."""
    low = which(gpus, lambda gpu: (gpu.power_limit_w or 0) < (_normal_w(gpu) or 0) - TOLERANCE_W)
    if low:
        return POWER.warning(
            f"{named(low)}: {_each(low, lambda g: f'{g.power_limit_w:.0f} of {_normal_w(g):.0f} W')}",
            f"Set it back: `sudo nvidia-smi -pl {_normal_w(low[0]):.0f}`",
        )
    return POWER.ok(_each(gpus, lambda g: f"{g.power_limit_w:.0f} W, as by default") + _most(gpus))


def _normal_w(gpu: GpuFacts) -> float | None:
    return gpu.power_max_w if gpu.power_default_w is None else gpu.power_default_w


def _most(gpus: Gpus) -> str:
    most = {gpu.power_max_w for gpu in gpus if gpu.power_max_w and gpu.power_max_w > (gpu.power_limit_w or 0) + 1}
    return f" (up to {max(most):.0f} W may be set)" if most else ""


def clocks(gpus: Gpus) -> Finding:
    """Below the GPU's own default someone has lowered them. A default below the maximum is common, and no fault."""
    low = which(gpus, lambda gpu: (gpu.application_clock_mhz or 0) < (_normal_mhz(gpu) or 0))
    if low:
        return CLOCKS.warning(
            f"{named(low)}: {_each(low, lambda g: f'{g.application_clock_mhz} of {_normal_mhz(g)} MHz')}",
            "Reset them: `sudo nvidia-smi -rac`",
        )
    return CLOCKS.ok(_each(gpus, lambda g: f"{g.application_clock_mhz} MHz, of at most {g.max_clock_mhz or '?'}"))


def _normal_mhz(gpu: GpuFacts) -> int | None:
    return gpu.max_clock_mhz if gpu.default_application_clock_mhz is None else gpu.default_application_clock_mhz


def throttling(gpus: Gpus) -> Finding:
    """What the GPU complains of at this moment."""
    slow = which(gpus, lambda gpu: bool(_complaints(gpu)))
    if slow:
        return THROTTLING.warning(
            f"{named(slow)}: {_each(slow, lambda g: ', '.join(_complaints(g)))}",
            "Fix the cooling or the power supply, or measure on another machine",
        )
    return THROTTLING.ok("none")


def _complaints(gpu: GpuFacts) -> list[str]:
    """What an idle, sound GPU never shows. Idleness, the power cap and the clocks' setting are not complaints."""
    return [IN_FULL.get(name, name) for bit, name in SLOWDOWNS.items() if (gpu.throttle_reasons or 0) & bit]


def temperature(gpus: Gpus) -> Finding:
    """At rest, against the GPU's own threshold."""
    hot = which(
        gpus,
        lambda gpu: (
            gpu.slowdown_temperature_c is not None
            and (gpu.temperature_c or 0) >= gpu.slowdown_temperature_c - NEAR_SLOWDOWN_C
        ),
    )
    if hot:
        return TEMPERATURE.warning(
            f"{named(hot)}: {_each(hot, lambda g: f'{g.temperature_c} C, slows down at {g.slowdown_temperature_c} C')}",
            "Let it cool down, and look at the cooling",
        )
    limits = {gpu.slowdown_temperature_c for gpu in gpus} - {None}
    slows = f", slows down at {min(limit for limit in limits if limit)} C" if limits else ""
    return TEMPERATURE.ok(f"{max(gpu.temperature_c or 0 for gpu in gpus)} C{slows}")


def persistence(gpus: Gpus) -> Finding:
    """Without it the driver lets go of the GPU between processes, and the next one starts it anew."""
    off = which(gpus, lambda gpu: not gpu.persistence)
    if off:
        return PERSISTENCE.warning(
            f"off on {named(off)}: the driver starts the GPU anew for every process",
            "Turn it on: `sudo nvidia-smi -pm 1`",
        )
    return PERSISTENCE.ok("on")


def ecc(gpus: Gpus) -> Finding:
    """Errors that ECC could not correct, rows of memory to be replaced, and a change that waits for a reset."""
    broken = which(gpus, lambda gpu: bool(gpu.uncorrected_errors or gpu.remap_failed))
    if broken:
        return ECC.problem(
            f"{named(broken)}: {_each(broken, lambda g: f'{g.uncorrected_errors or 0} uncorrected errors')}"
            + (", and a row that could not be replaced" if any(gpu.remap_failed for gpu in broken) else ""),
            "Restart the machine, and replace the GPU if they come back",
        )
    pending = which(gpus, lambda gpu: bool(gpu.remap_pending) or gpu.ecc != gpu.ecc_pending)
    if pending:
        return ECC.warning(
            f"{named(pending)}: a change of ECC or a replacement of rows waits for a reset", "Restart the machine"
        )
    return ECC.ok(_each(gpus, lambda gpu: "ECC on" if gpu.ecc else "ECC off") + ", no uncorrected errors")


def _each(gpus: Gpus, say: Callable[[GpuFacts], str]) -> str:
    """What is to be said of each GPU, once where it is the same of all."""
    return "; ".join(dict.fromkeys(map(say, gpus)))


def which(gpus: Gpus, holds: Callable[[GpuFacts], bool]) -> Gpus:
    """The GPUs of which it holds."""
    return tuple(gpu for gpu in gpus if holds(gpu))


def named(gpus: Gpus) -> str:
    """`GPU 0`, `GPUs 0, 3`."""
    return f"GPU{'' if len(gpus) == 1 else 's'} {', '.join(str(gpu.index) for gpu in gpus)}"


CHECKS: tuple[tuple[Check, Callable[[GpuFacts], bool], Callable[[Gpus], Finding]], ...] = (
    (BUSY, lambda gpu: gpu.processes is not None or gpu.memory_used_bytes is not None, busy),
    (MIG, lambda gpu: gpu.mig is not None, mig),
    (MODE, lambda gpu: gpu.compute_mode is not None, compute_mode),
    (NVLINK, lambda _gpu: True, nvlink),
    (POWER, lambda gpu: gpu.power_limit_w is not None and _normal_w(gpu) is not None, power),
    (CLOCKS, lambda gpu: gpu.application_clock_mhz is not None, clocks),
    (THROTTLING, lambda gpu: gpu.throttle_reasons is not None, throttling),
    (TEMPERATURE, lambda gpu: gpu.temperature_c is not None, temperature),
    (PERSISTENCE, lambda gpu: gpu.persistence is not None, persistence),
    (ECC, lambda gpu: gpu.ecc is not None, ecc),
)
"""Each check, what of a GPU must be told for it, and the judge of those GPUs of which that is told."""

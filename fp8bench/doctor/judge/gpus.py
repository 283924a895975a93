"""Judges NVIDIA's driver, whether torch sees its GPUs, and each GPU: other users and MIG first, then what makes it
slower than its product's name promises: power, clocks, heat, memory errors.

A GPU is idle during the examination, so its present clocks mean nothing; its limits and its slowdowns do.
"""

from collections import Counter
from collections.abc import Callable

from fp8bench.doctor.facts import MachineFacts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.machine.busy import is_held
from fp8bench.machine.driver import DriverFacts, GpuFacts
from fp8bench.schema.machine import gib
from fp8bench.schema.rank import SLOWDOWNS

Gpus = tuple[GpuFacts, ...]

DRIVER = Check("driver", "gpu", "NVIDIA driver")
VISIBLE = Check("torch-sees-gpus", "gpu", "GPUs torch sees")

NOT_REPORTED = "the driver does not report it"

BUSY_PERCENT = 10
DEFAULT_MODE, PROHIBITED_MODE = 0, 2
"""NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED; modes 1 and 3 admit one process."""

TOLERANCE_W = 1.0
NEAR_SLOWDOWN_C = 10
"""An idle GPU this close to the temperature at which it slows down will reach it within a run."""

IN_FULL = {"hot": "software thermal slowdown", "hot (hardware)": "hardware thermal slowdown"}
"""Longer names of some of SLOWDOWNS, because there is room here: NVML's own words."""


def findings(facts: MachineFacts) -> list[Finding]:
    """Return findings about the driver, torch's view of it, and one per check of the GPUs that report its fields."""
    found = [driver(facts.driver), torch_sees(facts)]
    for check, fields, judge in CHECKS:
        known = tuple(gpu for gpu in facts.driver.gpus if any(getattr(gpu, name) is not None for name in fields))
        why = facts.driver.why_no_gpu or NOT_REPORTED
        found.append(judge(check, known) if known else check.unknown(why))
    return found


def driver(found: DriverFacts) -> Finding:
    """Judge the driver. One that should answer and does not is a problem; a machine without a GPU has none."""
    if found.error is not None:
        bus = f" ({found.on_the_bus} NVIDIA GPU(s) on the PCI bus)" if found.on_the_bus else ""
        return DRIVER.problem(
            f"it does not answer: {found.error}{bus}",
            "Install or reload NVIDIA's driver until `nvidia-smi` works, and give this user (or container) the GPUs",
        )
    if found.why_no_gpu:
        return DRIVER.unknown(found.why_no_gpu)
    cuda = "an unknown CUDA" if found.cuda is None else f"CUDA {'.'.join(map(str, found.cuda))}"
    products = Counter(gpu.name for gpu in found.gpus)
    counts = ", ".join(f"{count} x {name}" for name, count in products.items())
    text = f"{found.version or 'of unknown version'}, supports {cuda}; {counts}"
    if len(products) > 1:
        return DRIVER.warning(
            f"{text}: the step waits for the slowest GPU", "Show GPUs of one product with CUDA_VISIBLE_DEVICES"
        )
    return DRIVER.ok(text)


def torch_sees(facts: MachineFacts) -> Finding:
    """Compare torch's CUDA with the driver's, then the numbers of GPUs that both see."""
    torch, driver = facts.torch_on_gpu, facts.driver
    if isinstance(torch, str):
        return VISIBLE.unknown(torch)
    if torch.cuda is None:
        return VISIBLE.problem(
            f"torch {torch.version} was built without CUDA", "Install a torch that was built for CUDA"
        )
    built = f"torch was built for CUDA {torch.cuda}"
    if torch.cuda_error is not None:
        too_old = driver.cuda is not None and driver.cuda[0] < int(torch.cuda.partition(".")[0])
        return VISIBLE.problem(
            f"{built}, and CUDA does not start: {torch.cuda_error}",
            "Update the driver, or install a torch that was built for an older CUDA"
            if too_old
            else "Check `nvidia-smi`, and restart the machine if the driver was updated",
        )
    sliced = any(gpu.mig for gpu in driver.gpus)
    if torch.gpus != len(driver.gpus) and not sliced:
        return VISIBLE.problem(
            f"torch sees {torch.gpus} GPU(s), the driver {len(driver.gpus)}",
            "Check CUDA_VISIBLE_DEVICES, and the GPUs given to this container",
        )
    return VISIBLE.ok(f"{torch.gpus}; {built}")


def busy(check: Check, gpus: Gpus) -> Finding:
    """Judge other users. A GPU that others compute on gives wrong times; one with allocated memory only may."""
    remedy = "Wait for it to end, end it, or hide that GPU with CUDA_VISIBLE_DEVICES"
    working = which(gpus, lambda gpu: (gpu.utilization_percent or 0) >= BUSY_PERCENT)
    if working:
        return check.problem("; ".join(map(_use, working)), remedy)
    held = which(gpus, lambda gpu: is_held(gpu.processes, gpu.memory_used_bytes))
    if held:
        return check.warning("; ".join(map(_use, held)), remedy)
    most = max(gpu.memory_used_bytes or 0 for gpu in gpus)
    return check.ok(f"no other process, at most {gib(most)} in use")


def _use(gpu: GpuFacts) -> str:
    """Describe a GPU's use by counts and sizes, never by names."""
    processes = "an unknown number of" if gpu.processes is None else str(gpu.processes)
    words = [f"GPU {gpu.index}: {processes} other process(es)"]
    if gpu.memory_used_bytes is not None:
        unseen = not gpu.processes and is_held(gpu.processes, gpu.memory_used_bytes)
        held = ", held by no visible process" if unseen else ""
        words.append(f"{gib(gpu.memory_used_bytes)} in use{held}")
    if gpu.utilization_percent is not None:
        words.append(f"{gpu.utilization_percent} % busy")
    return ", ".join(words)


def mig(check: Check, gpus: Gpus) -> Finding:
    """Judge MIG. A slice has only part of the units, memory and bandwidth of the catalogue's GPU."""
    sliced = which(gpus, lambda gpu: bool(gpu.mig))
    text = f"on: {named(sliced)}; a run sees a slice and would be priced as the whole"
    return check.warning(text, "Turn it off: `sudo nvidia-smi -mig 0`") if sliced else check.ok("off")


def compute_mode(check: Check, gpus: Gpus) -> Finding:
    """Judge the compute mode. fp8bench starts one process per GPU, which an exclusive mode allows."""
    closed = which(gpus, lambda gpu: gpu.compute_mode == PROHIBITED_MODE)
    if closed:
        return check.problem(f"prohibited on {named(closed)}", "Allow it: `sudo nvidia-smi -c DEFAULT`")
    return check.ok("default" if all(gpu.compute_mode == DEFAULT_MODE for gpu in gpus) else "one process a GPU")


def one_process_a_gpu(gpus: Gpus) -> bool:
    """Return whether some GPU admits only one process at a time."""
    return any(gpu.compute_mode not in (None, DEFAULT_MODE) for gpu in gpus)


def nvlink(check: Check, gpus: Gpus) -> Finding:
    """Judge NVLink, which gradients go over. Many GPUs are built without links; unequal links are a fault."""
    if len(gpus) == 1:
        return check.ok("one GPU, so it is not used")
    counts = {gpu.nvlinks or 0 for gpu in gpus}
    if counts == {0}:
        return check.ok("none: gradients go over PCIe")
    if len(counts) > 1:
        return check.warning(
            "active links: " + ", ".join(f"GPU {gpu.index} {gpu.nvlinks or 0}" for gpu in gpus),
            "Check `nvidia-smi nvlink --status` and NVIDIA's fabric manager, and restart the machine",
        )
    return check.ok(f"{counts.pop()} active links a GPU")


def power(check: Check, gpus: Gpus) -> Finding:
    """Compare the power limit with the default; if that is unknown, with the highest that may be set."""
    gpus = which(gpus, lambda gpu: _normal_w(gpu) is not None)
    if not gpus:
        return check.unknown(NOT_REPORTED)
    low = which(gpus, lambda gpu: (gpu.power_limit_w or 0) < (_normal_w(gpu) or 0) - TOLERANCE_W)
    if low:
        return check.warning(
            f"{named(low)}: {_each(low, lambda g: f'{g.power_limit_w:.0f} of {_normal_w(g):.0f} W')}",
            f"Set it back: `sudo nvidia-smi -pl {_normal_w(low[0]):.0f}`",
        )
    return check.ok(_each(gpus, lambda g: f"{g.power_limit_w:.0f} W, as by default") + _most(gpus))


def _normal_w(gpu: GpuFacts) -> float | None:
    return gpu.power_max_w if gpu.power_default_w is None else gpu.power_default_w


def _most(gpus: Gpus) -> str:
    most = {gpu.power_max_w for gpu in gpus if gpu.power_max_w and gpu.power_max_w > (gpu.power_limit_w or 0) + 1}
    return f" (up to {max(most):.0f} W may be set)" if most else ""


def clocks(check: Check, gpus: Gpus) -> Finding:
    """Judge the clocks. Below the GPU's default, someone lowered them. A default below the maximum is no fault."""
    low = which(gpus, lambda gpu: (gpu.application_clock_mhz or 0) < (_normal_mhz(gpu) or 0))
    if low:
        return check.warning(
            f"{named(low)}: {_each(low, lambda g: f'{g.application_clock_mhz} of {_normal_mhz(g)} MHz')}",
            "Reset them: `sudo nvidia-smi -rac`",
        )
    return check.ok(_each(gpus, lambda g: f"{g.application_clock_mhz} MHz, of at most {g.max_clock_mhz or '?'}"))


def _normal_mhz(gpu: GpuFacts) -> int | None:
    return gpu.max_clock_mhz if gpu.default_application_clock_mhz is None else gpu.default_application_clock_mhz


def throttling(check: Check, gpus: Gpus) -> Finding:
    """Judge the slowdowns that the GPU reports at this moment."""
    slow = which(gpus, lambda gpu: bool(_slowdowns(gpu)))
    text = f"{named(slow)}: {_each(slow, lambda g: ', '.join(_slowdowns(g)))}"
    remedy = "Fix the cooling or the power supply, or measure on another machine"
    return check.warning(text, remedy) if slow else check.ok("none")


def _slowdowns(gpu: GpuFacts) -> list[str]:
    """Return slowdowns that an idle, sound GPU never has. Idleness, the power cap and clock settings are none."""
    return [IN_FULL.get(name, name) for bit, name in SLOWDOWNS.items() if (gpu.throttle_reasons or 0) & bit]


def temperature(check: Check, gpus: Gpus) -> Finding:
    """Compare the temperature at rest with the GPU's own threshold."""
    hot = which(
        gpus,
        lambda gpu: (
            gpu.slowdown_temperature_c is not None
            and (gpu.temperature_c or 0) >= gpu.slowdown_temperature_c - NEAR_SLOWDOWN_C
        ),
    )
    if hot:
        return check.warning(
            f"{named(hot)}: {_each(hot, lambda g: f'{g.temperature_c} C, slows down at {g.slowdown_temperature_c} C')}",
            "Let it cool down, and check the cooling",
        )
    limits = {gpu.slowdown_temperature_c for gpu in gpus} - {None}
    slows = f", slows down at {min(limit for limit in limits if limit)} C" if limits else ""
    return check.ok(f"{max(gpu.temperature_c or 0 for gpu in gpus)} C{slows}")


def persistence(check: Check, gpus: Gpus) -> Finding:
    """Judge persistence mode. Without it, the driver releases the GPU after each process and restarts it."""
    off = which(gpus, lambda gpu: not gpu.persistence)
    text = f"off on {named(off)}: the driver starts the GPU again for every process"
    return check.warning(text, "Turn it on: `sudo nvidia-smi -pm 1`") if off else check.ok("on")


def ecc(check: Check, gpus: Gpus) -> Finding:
    """Judge errors that ECC could not correct, memory rows to be replaced, and changes that wait for a reset."""
    broken = which(gpus, lambda gpu: bool(gpu.uncorrected_errors or gpu.remap_failed))
    if broken:
        return check.problem(
            f"{named(broken)}: {_each(broken, lambda g: f'{g.uncorrected_errors or 0} uncorrected errors')}"
            + (", and a row that could not be replaced" if any(gpu.remap_failed for gpu in broken) else ""),
            "Restart the machine, and replace the GPU if they come back",
        )
    pending = which(gpus, lambda gpu: bool(gpu.remap_pending) or gpu.ecc != gpu.ecc_pending)
    if pending:
        return check.warning(
            f"{named(pending)}: a change of ECC or a replacement of rows waits for a reset", "Restart the machine"
        )
    return check.ok(_each(gpus, lambda gpu: "ECC on" if gpu.ecc else "ECC off") + ", no uncorrected errors")


def _each(gpus: Gpus, describe: Callable[[GpuFacts], str]) -> str:
    """Describe each GPU, equal descriptions once."""
    return "; ".join(dict.fromkeys(map(describe, gpus)))


def which(gpus: Gpus, holds: Callable[[GpuFacts], bool]) -> Gpus:
    """Return the GPUs for which the condition is true."""
    return tuple(gpu for gpu in gpus if holds(gpu))


def named(gpus: Gpus) -> str:
    """Return the GPUs' names: `GPU 0`, `GPUs 0, 3`."""
    return f"GPU{'' if len(gpus) == 1 else 's'} {', '.join(str(gpu.index) for gpu in gpus)}"


CHECKS: tuple[tuple[Check, tuple[str, ...], Callable[[Check, Gpus], Finding]], ...] = (
    (Check("busy", "gpu", "other users"), ("processes", "memory_used_bytes"), busy),
    (Check("mig", "gpu", "MIG"), ("mig",), mig),
    (Check("compute-mode", "gpu", "compute mode"), ("compute_mode",), compute_mode),
    (Check("nvlink", "gpu", "NVLink"), ("index",), nvlink),
    (Check("power-limit", "gpu", "power limit"), ("power_limit_w",), power),
    (Check("clocks", "gpu", "application clocks"), ("application_clock_mhz",), clocks),
    (Check("throttling", "gpu", "throttling now"), ("throttle_reasons",), throttling),
    (Check("temperature", "gpu", "temperature"), ("temperature_c",), temperature),
    (Check("persistence", "gpu", "persistence mode"), ("persistence",), persistence),
    (Check("ecc", "gpu", "memory errors"), ("ecc",), ecc),
)
"""Each check, the fields of which a GPU must report at least one, and the judge of the GPUs that do."""

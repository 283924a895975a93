"""NVIDIA's driver, and whether torch sees the GPUs that it has."""

from collections import Counter

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.facts import LEFT_OUT, Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.probe_facts import TorchFacts
from fp8bench.machine.driver import DriverFacts, Version

DRIVER = Check("driver", "gpu", "NVIDIA driver")
VISIBLE = Check("torch-sees-gpus", "gpu", "GPUs torch sees")


def findings(facts: Facts) -> list[Finding]:
    """The driver and torch's view of it."""
    return [driver(facts.driver), torch_sees(facts)]


def driver(found: DriverFacts) -> Finding:
    """A driver that ought to answer and does not is a problem; a machine without a GPU is none."""
    if found.error is not None:
        bus = f" ({found.on_the_bus} NVIDIA GPU(s) on the PCI bus)" if found.on_the_bus else ""
        return DRIVER.problem(
            f"it does not answer: {found.error}{bus}",
            "Install or reload NVIDIA's driver until `nvidia-smi` works, and give this user (or container) the GPUs",
        )
    if found.why_no_gpu:
        return DRIVER.unknown(found.why_no_gpu)
    cuda = "an unknown CUDA" if found.cuda is None else f"CUDA {_dotted(found.cuda)}"
    products = Counter(gpu.name for gpu in found.gpus)
    text = f"{found.version or 'of unknown version'}, good for {cuda}; " + ", ".join(
        f"{count} x {name}" for name, count in products.items()
    )
    if len(products) > 1:
        return DRIVER.warning(
            f"{text}: the step waits for the slowest GPU", "Show GPUs of one kind with CUDA_VISIBLE_DEVICES"
        )
    return DRIVER.ok(text)


def torch_sees(facts: Facts) -> Finding:
    """torch's CUDA against the driver's, then the GPUs that each of them counts."""
    if facts.driver.why_no_gpu:
        return VISIBLE.unknown(facts.driver.why_no_gpu)
    match facts.probed.torch:
        case None:
            return VISIBLE.unknown(LEFT_OUT)
        case Failure():
            return VISIBLE.unknown("torch does not import")
        case found:
            return _compared(found, facts.driver)


def _compared(torch: TorchFacts, driver: DriverFacts) -> Finding:
    if torch.cuda is None:
        return VISIBLE.problem(
            f"torch {torch.version} was built without CUDA", "Install a torch that was built for CUDA"
        )
    built = f"torch was built for CUDA {torch.cuda}"
    if torch.cuda_error is not None:
        too_old = driver.cuda is not None and driver.cuda[0] < _major(torch.cuda)
        remedy = "Update the driver, or install a torch that was built for an older CUDA"
        return VISIBLE.problem(
            f"{built}, and CUDA does not start: {torch.cuda_error}",
            remedy if too_old else "See what `nvidia-smi` says, and restart the machine if the driver was updated",
        )
    sliced = any(gpu.mig for gpu in driver.gpus)
    if torch.gpus != len(driver.gpus) and not sliced:
        return VISIBLE.problem(
            f"torch sees {torch.gpus} GPU(s), the driver {len(driver.gpus)}",
            "Look at CUDA_VISIBLE_DEVICES, and at the GPUs given to this container",
        )
    return VISIBLE.ok(f"{torch.gpus}; {built}")


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))

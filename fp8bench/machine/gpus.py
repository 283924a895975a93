"""The GPUs of this machine, by NVML: which there are, which of them a run would see, and which are sliced (MIG)."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pynvml

from fp8bench.machine import nvml
from fp8bench.machine.visibility import visible_gpus
from fp8bench.schema.files import text_if_any

VISIBLE = "CUDA_VISIBLE_DEVICES"
DMI_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
SLICED = " (MIG)"
"""After the name of a GPU of which a process sees a slice: another GPU to price, and to hold others against."""


@dataclass(frozen=True)
class Gpu:
    """index: as NVML and nvidia-smi count. uuid: empty where it is not told. mig: whether it is sliced; None where the
    driver does not tell, as for the many GPUs that cannot be.
    """

    index: int
    uuid: str
    name: str
    mig: bool | None = None

    @property
    def product(self) -> str:
        """The name, with SLICED where MIG is on."""
        return self.name + SLICED if self.mig else self.name


@dataclass(frozen=True)
class Machine:
    """gpus: product name of each visible GPU, in order. product_name: as the firmware says (a cloud's instance
    type).
    """

    gpus: tuple[str, ...]
    product_name: str | None
    cpu_count: int

    @property
    def has_gpu(self) -> bool:
        """Whether workers train on CUDA here."""
        return bool(self.gpus)

    @property
    def is_sliced(self) -> bool:
        """Whether workers would see slices of GPUs."""
        return any(name.endswith(SLICED) for name in self.gpus)


def this_machine(environ: Mapping[str, str]) -> Machine:
    """Look. environ: CUDA_VISIBLE_DEVICES is heeded."""
    product = text_if_any(DMI_PRODUCT_NAME).strip() or None
    names = tuple(gpu.product for gpu in visible(gpus_here(), environ))
    return Machine(gpus=names, product_name=product, cpu_count=len(os.sched_getaffinity(0)))


def gpus_here() -> tuple[Gpu, ...]:
    """As `listed`; none without a driver. Raises pynvml.NVMLError where a driver does not list them."""
    with ExitStack() as stack:
        try:
            stack.enter_context(nvml.opened())
        except pynvml.NVMLError:
            return ()
        return listed()


def listed() -> tuple[Gpu, ...]:
    """Every GPU that the driver knows, hidden ones too. Raises pynvml.NVMLError. NVML is open."""
    return tuple(map(_gpu, range(pynvml.nvmlDeviceGetCount())))


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in CUDA's order."""
    return tuple(gpus[index] for index in visible_gpus([gpu.uuid for gpu in gpus], environ.get(VISIBLE)))


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mode = nvml.asked(pynvml.nvmlDeviceGetMigMode, handle)
    return Gpu(
        index=index,
        uuid=str(nvml.asked(pynvml.nvmlDeviceGetUUID, handle) or ""),
        name=str(nvml.asked(pynvml.nvmlDeviceGetName, handle) or "GPU of unknown name"),
        mig=None if mode is None else bool(mode[0]),
    )

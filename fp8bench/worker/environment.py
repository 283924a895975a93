"""Describes the machine and the software of a run, as found, for the record."""

import os
import platform
from collections.abc import Sequence

import torch

from fp8bench import __version__
from fp8bench.machine.host import cpu_model
from fp8bench.machine.identity import git_state, installed, settings_given
from fp8bench.machine.nvml import driver_version
from fp8bench.schema.machine import Environment

PACKAGES = ("torch", "timm", "torchao", "transformer-engine", "triton", "numpy", "nvidia-ml-py")


def environment(device: torch.device, packages: Sequence[str] = ()) -> Environment:
    """Return what may affect a number and cannot be looked up afterwards. packages: further ones of the workload."""
    on_gpu = device.type == "cuda"
    commit, dirty = git_state()
    versions = {name: installed(name) for name in (*PACKAGES, *packages)}
    if on_gpu:
        cudnn, nccl = torch.backends.cudnn.version(), torch.cuda.nccl.version()
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = None if cudnn is None else str(cudnn)
        versions["nccl"] = ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl)
    return Environment(
        fp8bench=__version__,
        python=platform.python_version(),
        versions=versions,
        device_name=torch.cuda.get_device_name(device) if on_gpu else None,
        compute_capability="{}.{}".format(*torch.cuda.get_device_capability(device)) if on_gpu else None,
        driver=driver_version() if on_gpu else None,
        cpu=cpu_model(),
        cpu_count=os.cpu_count(),
        variables=settings_given(),
        git_commit=commit,
        git_dirty=dirty,
    )

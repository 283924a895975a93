"""What is measured: the mode and the workload that a configuration names, checked, and what they say of a step; on what
machine and software; and what parity depends on. A later process of a session relies on that of an earlier one if all
of it is the same; it compares weights and whole models itself, and proves the steps that it executes.
"""

import operator
import os
import platform
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import fp8bench
from fp8bench import __version__, registry
from fp8bench.machine.host import cpu_model
from fp8bench.machine.identity import git_state, installed, settings_given
from fp8bench.machine.nvml import driver_version
from fp8bench.modes.protocol import Mode, stated
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, RunFailed, in_words
from fp8bench.schema.machine import Environment, software_of
from fp8bench.schema.option import flag_of
from fp8bench.schema.rank import Parity, WorkloadFacts
from fp8bench.schema.record import METHOD_VERSION, PROOF_VERSION
from fp8bench.worker import plugin
from fp8bench.worker.execution.optimizers import described
from fp8bench.worker.parallel import largest
from fp8bench.workloads import protocol as of_workload
from fp8bench.workloads.protocol import Workload
from fp8bench.workloads.resizable import as_named


def make_mode(config: RunConfig) -> Mode:
    entry, recipe = registry.find_mode(config.mode_label)
    mode_class = registry.load(entry)
    options = {name: getattr(config, name) for name in stated(mode_class, "config_fields")}
    mode: Mode = plugin.made("mode", entry.name, mode_class, plugin.OF_MODE, recipe, **options)
    plugin.require_stated(mode)
    return mode


def make_workload(config: RunConfig) -> Workload:
    entry = registry.find_workload(config.workload)
    workload_class = registry.load(entry)
    options = {name: getattr(config, name) for name in of_workload.stated(workload_class, "config_fields")}
    options |= {"data": config.data, "workers": config.workers, "seed": config.seed}
    made = plugin.made("workload", entry.name, workload_class, plugin.OF_WORKLOAD, **options)
    workload: Workload = as_named(made, config.workload)
    return workload


# Settings that only some workloads take, and which ones do:
OF_SAMPLES = {"sequence_length": "a language model", "image_size": "a model of timm", "classes": "a model of timm"}


def check_workload(workload: Workload, config: RunConfig, mode: Mode) -> None:
    """Raise ModeUnavailable if the workload says that it cannot be trained so, or does not take a setting."""
    taken = of_workload.stated(workload, "config_fields")
    for name, whose in OF_SAMPLES.items():
        value, flag = getattr(config, name), flag_of(name)
        if value is not None and name not in taken:
            raise ModeUnavailable(
                f"workload {config.workload!r} takes no {name.replace('_', ' ')} ({flag} {value})",
                f"Omit {flag}, or name {whose} with --workload",
            )
    # Such a workload computes in the dtype of its weights. fp8 modes use both 16-bit dtypes in addition to fp8.
    computes = stated(mode, "gathered_dtype") or "float32"
    if config.weight_dtype not in ("float32", computes) and not stated(mode, "fp8"):
        raise ModeUnavailable(
            f"{config.mode_label} computes in {computes}, and {config.workload} with weights of {config.weight_dtype} "
            "in that",
            f"Use --weight-dtype float32{'' if computes == 'float32' else f' or {computes}'}, or another mode",
        )
    getattr(workload, "check", lambda *_: None)(config.batch_size, bool(stated(mode, "fp8")))


def facts_of(workload: Workload, config: RunConfig, device: torch.device, sharded: bool) -> WorkloadFacts:
    return WorkloadFacts(
        unit=workload.unit,
        units_per_step=_counted(workload, "units_per_step", config.batch_size),
        flops_per_step=_counted(workload, "flops_per_step", config.batch_size),
        sizes=workload.sizes(),
        optimizer=described(config.chosen_optimizer, device, sharded),
    )


def _counted(workload: Workload, name: str, batch_size: int) -> int:
    found, count = getattr(workload, name)(batch_size), 0
    with suppress(TypeError):
        count = operator.index(found)
    if count <= 0:
        raise RunFailed(
            in_words(f"workload {workload.name!r} says {name}({batch_size}) is {found!r}, no whole number above 0"),
            f"Correct {name} in the workload's class",
        )
    return count


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


def depends_on(config: RunConfig, environment: Environment) -> str:
    """Return a digest of configuration, versions, driver, GPU and variables, and of the code: fp8bench, and what this
    process has loaded that is not installed, as a user's model, or is of the package of a mode or workload from
    outside. Which installed modules are loaded depends on what ran before, and tells nothing.
    """
    found = sha256(f"{METHOD_VERSION} {PROOF_VERSION} {config.model_dump_json()}".encode())
    found.update(repr(sorted((software_of(environment) or {}).items())).encode())
    # By their names first: thousands of modules are loaded, and few are not installed. Packages lie beside their
    # metadata, which need not be in a folder of this interpreter (`pip install --target`).
    paths = {*sysconfig.get_paths().values(), *(path for path in sys.path if any(Path(path).glob("*.dist-info")))}
    of_packages = tuple({*paths, *(str(Path(path).resolve()) for path in paths)})
    outside = {
        place.partition(":")[0].partition(".")[0] for place in registry.from_outside(config.mode, config.workload)
    }
    loaded = [(name.partition(".")[0], getattr(one, "__file__", None) or "") for name, one in [*sys.modules.items()]]
    named = {of for root, of in loaded if root in outside or not of.startswith(of_packages)}
    others = (Path(of).resolve() for of in named if of.endswith(".py"))
    own = Path(fp8bench.__file__).resolve().parent.rglob("*.py")
    # Some of torch's modules give the name of no file.
    for path in sorted({*own, *filter(Path.is_file, others)}):
        found.update(str(path).encode() + path.read_bytes())
    return found.hexdigest()


def unlike_work(work: Mapping[str, Any], facts: WorkloadFacts, digest: str, config: RunConfig) -> str:
    """Return in what words this process would train something else than an earlier round of its session; empty if the
    same. work: that round's `sizes` of the model and digest (`depends_on`), None where unknown.
    """
    sizes, before = work["sizes"] or facts.sizes, work["depends_on"]
    names = dict.fromkeys([*sizes, *facts.sizes])
    unlike = [
        f"{name} {sizes.get(name)} (now {facts.sizes.get(name)})"
        for name in names
        if sizes.get(name) != facts.sizes.get(name)
    ]
    outside = registry.from_outside(config.mode, config.workload)
    if not unlike and outside and before not in (None, digest):
        unlike = [f"other code of {' and '.join(outside)}"]
    return ", ".join(unlike)


def relied_on(earlier: Parity | None, digest: str, device: torch.device) -> Parity | None:
    """Return the earlier process's parity if every rank may rely on it. digest: what this process depends on."""
    fits = earlier is not None and earlier.passed and earlier.loss_size is not None and earlier.depends_on == digest
    return earlier if largest(int(not fits), device) == 0 else None

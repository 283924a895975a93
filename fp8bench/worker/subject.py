"""What is measured: the mode and the workload that a configuration names, checked, and what they say of a step."""

import operator
from collections.abc import Callable

import torch

from fp8bench import registry
from fp8bench.modes.protocol import Mode, stated
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, RunFailed, in_words
from fp8bench.schema.option import flag_of
from fp8bench.schema.rank import WorkloadFacts
from fp8bench.worker import plugin
from fp8bench.worker.execution.optimizers import described
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
    """Return the workload at the sizes in its name, with the fields of the configuration that its class names."""
    entry = registry.find_workload(config.workload)
    workload_class = registry.load(entry)
    options = {name: getattr(config, name) for name in of_workload.stated(workload_class, "config_fields")}
    options |= {"data": config.data, "workers": config.workers, "seed": config.seed}
    made = plugin.made("workload", entry.name, workload_class, plugin.OF_WORKLOAD, **options)
    workload: Workload = as_named(made, config.workload)
    return workload


OF_SAMPLES = {"sequence_length": "a language model", "image_size": "a model of timm", "classes": "a model of timm"}
"""Settings that only some workloads take, and which ones do."""


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
    check: Callable[[int, bool], None] = getattr(workload, "check", lambda *_: None)
    check(config.batch_size, bool(stated(mode, "fp8")))


def facts_of(workload: Workload, config: RunConfig, device: torch.device, sharded: bool) -> WorkloadFacts:
    return WorkloadFacts(
        unit=workload.unit,
        units_per_step=_counted(workload, "units_per_step", config.batch_size),
        flops_per_step=_counted(workload, "flops_per_step", config.batch_size),
        sizes=workload.sizes(),
        optimizer=described(config.optimizer, device, sharded),
    )


def _counted(workload: Workload, name: str, batch_size: int) -> int:
    found = getattr(workload, name)(batch_size)
    try:
        count = operator.index(found)
    except TypeError:
        count = 0
    if count <= 0:
        raise RunFailed(
            in_words(f"workload {workload.name!r} says {name}({batch_size}) is {found!r}, no whole number above 0"),
            f"Correct {name} in the workload's class",
        )
    return count

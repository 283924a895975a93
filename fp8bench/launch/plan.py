"""Decides what runs: turns a request and a machine into one configuration for each mode or variant, and a number of
rounds. Needs no torch, and is pure. rounds.py decides the order.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fp8bench import registry
from fp8bench.config.options import read_sizes, sized, sizes_of
from fp8bench.config.request import OBEYED_BY_WORKERS, RunRequest
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.recipes import chosen, switched
from fp8bench.launch.rounds import ARMS, Entry, Stop
from fp8bench.machine.gpus import Machine
from fp8bench.registry import WorkloadEntry
from fp8bench.schema.batch import AUTO
from fp8bench.schema.config import Device, RunConfig, VariantSettings
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.option import flag_of
from fp8bench.stats.certainty import FEWEST_ROUNDS, LOOKS, OUTSIDE, SEEN_SHARE
from fp8bench.tables.written import counted

MIN_ROUNDS_AA = 4  # an arm: the eight processes of both can be split in 35 ways
ROUNDS_ON_A_CPU = 2
MAX_LOADER_WORKERS = 16
CPU_RANKS, MOST_RANKS_A_CORE = 2, 4

IN_WORDS = {"batch_size": "batch", "grad_accumulation": "micro-batches", "te_attention": "attention"}
"""Settings that tables call by another name."""


def ranks_for(requested: int | None, machine: Machine, elastic: Elastic | None = None) -> Elastic:
    """Return the ranks as a group: torchrun's, as requested (--gpus), or one for each GPU and CPU_RANKS on a CPU."""
    there, ranks = len(machine.gpus), requested or len(machine.gpus) or CPU_RANKS
    asked, flag = f"--gpus {requested} is requested", "--gpus"
    if elastic is not None:
        made, ranks, flag = elastic.world_size, elastic.local_world_size, "--nproc-per-node"
        asked = f"torchrun made {ranks} processes here"
        if requested not in (None, made):
            raise UsageError(f"--gpus {requested} disagrees with torchrun, which made {made} processes", "Omit --gpus")
    if there and ranks > there:
        remedy = f"Lower {flag}, or look at CUDA_VISIBLE_DEVICES and `nvidia-smi`"
        raise ModeUnavailable(f"{asked}, and this machine shows {counted(there, 'GPU')}", remedy)
    most = max(CPU_RANKS, MOST_RANKS_A_CORE * machine.cpu_count)
    if elastic is None and not there and ranks > most:
        what = f"--gpus {requested} would start as many processes on {machine.cpu_count} CPU cores"
        raise UsageError(what, f"Give at most {most} here, {MOST_RANKS_A_CORE} for every core")
    return elastic or Elastic(rank=0, local_rank=0, world_size=ranks, local_world_size=ranks)


def plan(request: RunRequest, machine: Machine, elastic: Elastic | None = None) -> list[RunConfig]:
    """Return one configuration per mode or variant, in the order requested. Raises UsageError and ModeUnavailable."""
    if not request.variants:
        return _of_modes(request, machine, elastic)
    return apart([config for each in request.each() for config in _of_modes(each, machine, elastic)], request.variants)


def _of_modes(request: RunRequest, machine: Machine, elastic: Elastic | None) -> list[RunConfig]:
    device: Device = "cuda" if machine.has_gpu else "cpu"
    ranks = ranks_for(request.gpus, machine, elastic)
    named = request.workload or next(w.name for w in registry.workloads().values() if device in w.default_on)
    workload = sized(named, read_sizes(request.size))
    for name, size in sizes_of(workload).items():
        if name in OBEYED_BY_WORKERS:
            raise UsageError(f"--size {name}={size}: that is an option", f"Use {flag_of(name)} {size}")
    entry = registry.find_workload(workload)
    labels = request.mode or tuple(entry.name for entry in registry.modes().values() if device in entry.default_on)
    settings = request.of_workers(device, entry.usual)
    _require_applicable(settings, entry)
    if request.batch_size == AUTO:
        # What the search tries first.
        usual = entry.usual.get("batch_size") or OBEYED_BY_WORKERS["batch_size"].default.on(device)
        settings["batch_size"] = int(usual)
    if settings["workers"] is None:
        # An equal share of the cores that the ranks leave; none on a CPU.
        share = max(0, min(MAX_LOADER_WORKERS, machine.cpu_count // ranks.local_world_size - 2))
        settings["workers"] = share if machine.has_gpu and settings["data"] != "device" else 0
    _require_division(settings, ranks.world_size, ranks.local_world_size)
    settings |= {"workload": workload, "device": device, "world_size": ranks.world_size, "nodes": ranks.nodes}
    modes = chosen(labels, request.fp8_layers)
    configs = [RunConfig(mode=mode.name, recipe=recipe, **settings) for mode, recipe in modes]
    return switched(configs, request.te_switch, entry)


def _require_applicable(settings: Mapping[str, Any], workload: WorkloadEntry) -> None:
    # Outside workloads are checked when they run.
    needs = workload.needs
    if needs.module is not None and find_spec(needs.module) is None:
        package = f"'fp8bench[{needs.extra}]'" if needs.extra else needs.module
        what = f"workload {workload.name!r} needs the Python package {needs.module}, which is not installed"
        raise ModeUnavailable(what, f"Install it with `pip install {package}`")
    of_timm = "whose sizes are its own", registry.TIMM_EXAMPLE
    for name, usual, why, other in (
        ("sequence_length", None, "whose samples have no length to choose", "llm-1b"),
        ("image_size", None, *of_timm),
        ("classes", None, *of_timm),
        ("weight_dtype", "float32", "whose weights are float32", "gpt-layer"),
    ):
        if settings[name] != usual and workload.defaults is not None and name not in workload.defaults:
            what = f"{flag_of(name)} {settings[name]} does not apply to {workload.name!r}, {why}"
            raise UsageError(what, f"Omit it, or name a workload that has it, as --workload {other}")


def _require_division(settings: Mapping[str, Any], world_size: int, per_node: int) -> None:
    """Raise UsageError if GPUs or samples would be left over, as far as known without the model."""
    size, pieces, batch_size = (settings[name] for name in ("tensor_parallel", "grad_accumulation", "batch_size"))
    if per_node % size:
        what = f"--tensor-parallel {size} does not divide the {per_node} ranks of this host (--gpus)"
        raise UsageError(what, f"Give a divisor of {per_node}, or another number of --gpus")
    if size > 1 and settings["parallel"] == "ddp" and world_size > size:
        what = f"--parallel ddp wants whole weights on every GPU, and with --tensor-parallel {size} none has them"
        raise UsageError(what, "Use --parallel fsdp, or leave it at auto")
    if batch_size % pieces:
        what = f"--grad-accumulation {pieces} does not divide the {batch_size} samples of a step (--batch-size)"
        raise UsageError(what, f"Use a divisor of {batch_size}, or --batch-size {-(-batch_size // pieces) * pieces}")


def entries(request: RunRequest, configs: Sequence[RunConfig]) -> list[Entry]:
    """Return what each round runs: every configuration once, or twice with --aa."""
    notes = variant_notes(request.variants) or [""] * len(configs)
    arms = ARMS if request.aa else (None,)
    each = [Entry(config, arm, note) for config, note in zip(configs, notes, strict=True) for arm in arms]
    # A batch size that was searched for may equal the size that another variant was given.
    return list(dict.fromkeys(each))


def stop(request: RunRequest, machine: Machine) -> Stop:
    """Return how many rounds to run. Raises UsageError for too few."""
    fewest, most = MIN_ROUNDS_AA if request.aa else 1, request.max_rounds
    rounds = request.rounds or max(fewest, LOOKS[0] if machine.has_gpu else ROUNDS_ON_A_CPU)
    if rounds < fewest:
        what = f"--rounds {rounds} cannot tell how far processes of one mode differ"
        raise UsageError(what, f"Use {fewest} or more with --aa")
    if request.precision is not None and most < rounds:
        raise UsageError(f"--max-rounds {most} is less than --rounds {rounds}", "Raise the one or lower the other")
    if request.precision is not None and most < FEWEST_ROUNDS:
        unseen = f"{FEWEST_ROUNDS} processes may not show a state that {SEEN_SHARE * 100:.0f} % of them have"
        what = f"--max-rounds {most} ends before --precision can be judged: fewer than {unseen}"
        raise UsageError(what, f"Use --max-rounds {FEWEST_ROUNDS} or more, or omit --precision and choose --rounds")
    looks = machine.has_gpu and request.rounds is None and request.precision is None and not request.aa
    if looks:
        return Stop(rounds=min(rounds, most), max_rounds=most, looks=True, outside=OUTSIDE)
    return Stop(rounds=rounds, precision=request.precision, max_rounds=most)


def owned(variants: Sequence[VariantSettings]) -> frozenset[str]:
    """Return the settings that variants have of their own: every variant has all of them."""
    return frozenset(name for one in variants for name in one if name != "mode")


def variant_notes(variants: Sequence[VariantSettings]) -> list[str]:
    """Return for each variant what tells it from others of its mode: `batch 128, compile on`; empty if it has none."""
    found = []
    for one in variants:
        alike = [other for other in variants if other["mode"] == one["mode"]]
        names = [name for name in one if any(other[name] != one[name] for other in alike)]
        found.append(", ".join(setting_in_words(name, one[name]) for name in names))
    return found


def setting_in_words(name: str, value: object) -> str:
    """Return a variant's setting as tables have it: `micro-batches 4`, `image size by default`."""
    return f"{IN_WORDS.get(name, name.replace('_', ' '))} {'by default' if value is None else value}"


def apart(configs: Sequence[RunConfig], variants: Sequence[VariantSettings]) -> list[RunConfig]:
    """Return the configurations, all different: a batch size that is yet to be found begins at none of another variant.
    Raises UsageError for two that are the same here, e.g. if one leaves to the machine what the other gives.
    """
    given = [config for config, one in zip(configs, variants, strict=True) if one.get("batch_size") != AUTO]
    found: list[RunConfig] = []
    for config, one in zip(configs, variants, strict=True):
        while one.get("batch_size") == AUTO and config in (*given, *found):
            config = config.model_copy(update={"batch_size": 2 * config.batch_size})
        if config in found:
            same = f"variants {found.index(config) + 1} and {len(found) + 1} are the same here"
            what = f"{same}: {config.mode_label} at batch size {config.batch_size}"
            raise UsageError(what, "Remove one of them: --rounds measures each variant several times")
        found.append(config)
    return found

"""Decides what runs: turns a request and a machine into one configuration for each mode and a number of rounds. Needs
no torch, and is pure except for reading the file of --recipe. rounds.py decides the order.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fp8bench import registry
from fp8bench.config.recipe_file import recipe_in
from fp8bench.config.request import OBEYED_BY_WORKERS, RunRequest
from fp8bench.config.sizes import read_sizes, sized, sizes_of
from fp8bench.entries import WorkloadEntry
from fp8bench.launch import variants
from fp8bench.launch.division import require_division
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.ranks import ranks_for
from fp8bench.launch.recipes import chosen
from fp8bench.launch.rounds import ARMS, Entry, Stop
from fp8bench.launch.switched import switched
from fp8bench.machine.gpus import Machine
from fp8bench.schema.batch import AUTO
from fp8bench.schema.config import DataSource, Device, RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Instance
from fp8bench.schema.option import flag_of
from fp8bench.stats.certainty import FEWEST_ROUNDS, SEEN_SHARE

MIN_ROUNDS_AA = 4
"""Minimum rounds per arm: the eight processes of both arms can be split in 35 ways."""
MAX_LOADER_WORKERS = 16


def plan(request: RunRequest, machine: Machine, elastic: Elastic | None = None) -> list[RunConfig]:
    """Return one configuration per mode or variant, in the order requested. Under torchrun its world size holds, and
    --gpus must agree with it.

    Raises UsageError for unknown names, for sizes that do not divide and for variants that are the same here, and
    ModeUnavailable for missing GPUs.
    """
    if not request.variants:
        return _of_modes(request, machine, elastic)
    return variants.apart(
        [config for each in request.each() for config in _of_modes(each, machine, elastic)], request.variants
    )


def _of_modes(request: RunRequest, machine: Machine, elastic: Elastic | None) -> list[RunConfig]:
    device: Device = "cuda" if machine.has_gpu else "cpu"
    ranks = ranks_for(request.gpus, machine, elastic)
    named = request.workload or next(w.name for w in registry.workloads().values() if device in w.default_on)
    workload = sized(named, read_sizes(request.size))
    _require_no_option(workload)
    entry = registry.find_workload(workload)
    _require_extra(entry)
    labels = request.mode or tuple(entry.name for entry in registry.modes().values() if device in entry.default_on)
    of_file = recipe_in(request.recipe) if request.recipe is not None else None
    settings = request.of_workers(device, entry.usual)
    _require_sequence(settings["sequence_length"], entry)
    _require_family(settings, entry)
    _require_weights(settings["weight_dtype"], entry)
    if request.batch_size == AUTO:
        settings["batch_size"] = _first_size(entry.usual, device)
    if settings["workers"] is None:
        settings["workers"] = _workers(settings["data"], machine, ranks.per_node)
    require_division(settings, request.batch_size == AUTO, ranks.all, ranks.per_node)
    configs = [
        RunConfig(
            mode=mode.name,
            recipe=recipe,
            workload=workload,
            device=device,
            world_size=ranks.all,
            nodes=ranks.nodes,
            **settings,
        )
        for mode, recipe in chosen(labels, of_file, request.fp8_layers)
    ]
    return switched(configs, request.te_switch, entry)


def _require_no_option(workload: str) -> None:
    """Raise UsageError for a size that an option of its own sets, which would contradict it."""
    for name, size in sizes_of(workload).items():
        if name in OBEYED_BY_WORKERS:
            raise UsageError(f"--size {name}={size}: that is an option", f"Use {flag_of(name)} {size}")


def _require_extra(workload: WorkloadEntry) -> None:
    """Raise ModeUnavailable if the package that builds the workload's model is not installed."""
    needs = workload.needs
    if needs.module is not None and find_spec(needs.module) is None:
        package = f"'fp8bench[{needs.extra}]'" if needs.extra else needs.module
        raise ModeUnavailable(
            f"workload {workload.name!r} needs the Python package {needs.module}, which is not installed",
            f"Install it with `pip install {package}`",
        )


def _require_sequence(length: int | None, workload: WorkloadEntry) -> None:
    """Raise UsageError if the workload takes no sequence length. An outside workload is checked when it runs."""
    if length is None or workload.defaults is None or "sequence_length" in workload.defaults:
        return
    of_tokens = [one.name for one in registry.BUILTIN_WORKLOADS if one.needs.extra == "llm"]
    raise UsageError(
        f"--sequence-length {length} does not apply to {workload.name!r}, whose samples have no length to choose",
        f"Omit it, or name a language model with --workload: {', '.join(of_tokens)}",
    )


def _require_family(settings: Mapping[str, Any], workload: WorkloadEntry) -> None:
    """Raise UsageError if an image size or a number of classes is given for a workload that has its own."""
    for name in ("image_size", "classes"):
        if settings[name] is None or workload.defaults is None or name in workload.defaults:
            continue
        family = registry.FAMILIES["timm"]
        raise UsageError(
            f"{flag_of(name)} {settings[name]} does not apply to {workload.name!r}, whose sizes are its own",
            f"Omit it, or name a model of timm with --workload, as {family.prefix}:{family.example}",
        )


def _require_weights(dtype: str, workload: WorkloadEntry) -> None:
    """Raise UsageError for weights in another dtype than float32 if the workload trains float32 weights."""
    if dtype == "float32" or workload.defaults is None or "weight_dtype" in workload.defaults:
        return
    raise UsageError(
        f"--weight-dtype {dtype} does not apply to {workload.name!r}, whose weights are float32",
        "Omit it, or name gpt-layer with --workload",
    )


def _first_size(usual: Mapping[str, Any], device: Device) -> int:
    """Return the size that `--batch-size auto` tries first."""
    return int(usual.get("batch_size") or OBEYED_BY_WORKERS["batch_size"].default.on(device))


def entries(request: RunRequest, configs: Sequence[RunConfig]) -> list[Entry]:
    """Return what each round runs: every configuration once, or twice with --aa."""
    notes = variants.notes(request.variants) or [""] * len(configs)
    arms = ARMS if request.aa else (None,)
    each = [Entry(config, arm, note) for config, note in zip(configs, notes, strict=True) for arm in arms]
    # A batch size that was searched for may equal the size that another variant was given.
    return list(dict.fromkeys(each))


def stop(request: RunRequest, machine: Machine) -> Stop:
    """Return how many rounds to run."""
    fewest = MIN_ROUNDS_AA if request.aa else 1
    rounds = request.rounds or max(fewest, int(request.on("cuda" if machine.has_gpu else "cpu", "rounds")))
    if rounds < fewest:
        raise UsageError(
            f"--rounds {rounds} cannot tell how far processes of one mode differ", f"Use {fewest} or more with --aa"
        )
    if request.precision is not None:
        _require_enough_rounds(request.max_rounds, rounds)
    return Stop(rounds=rounds, precision=request.precision, max_rounds=request.max_rounds)


def _require_enough_rounds(max_rounds: int, rounds: int) -> None:
    if max_rounds < rounds:
        raise UsageError(
            f"--max-rounds {max_rounds} is less than --rounds {rounds}", "Raise the one or lower the other"
        )
    if max_rounds < FEWEST_ROUNDS:
        raise UsageError(
            f"--max-rounds {max_rounds} ends before --precision can be judged: fewer than {FEWEST_ROUNDS} processes "
            f"may not show a state that {SEEN_SHARE * 100:.0f} % of them have",
            f"Use --max-rounds {FEWEST_ROUNDS} or more, or omit --precision and choose --rounds",
        )


def hourly_price(request: RunRequest, instance: Instance) -> float | None:
    """Return the USD per hour of the complete machine, from the user's price of it or of one GPU; None if not given.

    Raises UsageError if a price per GPU is given for a machine without one.
    """
    if request.price_per_gpu is None:
        return request.price
    if instance.gpu_count == 0:
        raise UsageError(
            f"--price-per-gpu {request.price_per_gpu:g} was given, and {instance.key!r} has no GPU",
            "Give the price of the machine with --price",
        )
    return request.price_per_gpu * instance.gpu_count


def _workers(data: DataSource, machine: Machine, per_node: int) -> int:
    """Return the number of loader processes per rank: an equal share of the cores that the ranks leave; 0 on a CPU."""
    if data == "device" or not machine.has_gpu:
        return 0
    return max(0, min(MAX_LOADER_WORKERS, machine.cpu_count // per_node - 2))

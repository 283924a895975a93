"""Resolves `layers=auto` in a plan: reads this machine's newest record of `fp8bench gemm` and gives each configuration
the plain list of layers that its ranks convert (see gemm_pays.py).
"""

from collections.abc import Container, Iterable, Sequence
from math import gcd
from typing import Any

from fp8bench import registry
from fp8bench.launch.gemm_pays import PRECISIONS, judge, paying, require_timed
from fp8bench.launch.known_layers import tokens_of
from fp8bench.launch.place import Place
from fp8bench.launch.recipes import recipe_of
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.records.select import Filter
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.formats import ALIGNMENT, padded
from fp8bench.schema.machine import same_machine
from fp8bench.schema.recipe import AUTO_LAYERS
from fp8bench.schema.record import Record


def capability_of(place: Place) -> tuple[int, int] | None:
    """Return the compute capability of the GPUs there, by the catalogue; None if it is unknown or there are no GPUs."""
    if place.instance.gpu is None:
        return None
    gpu = catalogs.load_beside(instances.files(place.results_dir)).gpus.get(place.instance.gpu)
    return gpu.capability if gpu is not None else None


def resolved(
    configs: Sequence[RunConfig], place: Place, to_size: Container[RunConfig] = (), kept: Iterable[Record] = ()
) -> tuple[list[RunConfig], tuple[str, ...]]:
    """Return the configurations with their lists of layers, and a line about each list that `auto` decided.

    to_size: configurations whose batch size, on which it depends what pays, is yet to be found. kept: records of the
    session that is resumed, whose choice of layers stays. Raises UsageError if no record of their GEMMs fits or if one
    of them is in `to_size`, and ModeUnavailable if no layer pays.
    """
    before = {_chosen_for(one.config): one.config.fp8_layer_names for one in kept if one.config is not None}
    found, notes = [], []
    for config in configs:
        recipe = recipe_of(config)
        if recipe is not None and recipe.layers == AUTO_LAYERS and before.get(_chosen_for(config)) is not None:
            config = config.model_copy(update={"fp8_layer_names": before[_chosen_for(config)]})
        elif recipe is not None and recipe.layers == AUTO_LAYERS:
            if config in to_size:
                raise UsageError(
                    f"{config.mode_label}: which layers pay depends on the batch size, which is yet to be found",
                    "Give a --batch-size, or name the layers by a regular expression",
                )
            names, note = _decided(config, recipe.base, place)
            config = config.model_copy(update={"fp8_layer_names": names})
            notes.append(note)
        found.append(config)
    return found, tuple(notes)


def _chosen_for(config: RunConfig) -> tuple[str, int]:
    """Return what a choice of layers depends on."""
    return config.mode_label, config.batch_size


def _decided(config: RunConfig, recipe: str, place: Place) -> tuple[tuple[str, ...], str]:
    require_timed(recipe, config.mode_label, registry.modes()[config.mode].recipes or ())
    record = _newest(config, recipe, place)
    judged, casts = judge(record.products, recipe, te=config.mode.startswith("te-"))
    names = paying(judged, config.mode_label, f"the GEMMs of {record.run_id}")
    left = [str(one) for one in judged if not one.pays]
    counted = {"compiled": "with compiled casts", "none": "casts counted as free"}[casts]
    how = f"by the GEMMs of {record.run_id}, {counted}"
    return names, (
        f"{config.mode_label}: {', '.join(names)} in fp8; {', '.join(left)} left in bf16, {how}"
        if left
        else f"{config.mode_label}: all of {', '.join(names)} in fp8, {how}"
    )


def _newest(config: RunConfig, recipe: str, place: Place) -> Any:
    """Return the newest record of the same GEMMs, in bf16 and scaled as by the recipe, made on a GPU of this machine.
    Raises UsageError if there is none.
    """
    kind = registry.load(registry.find_kind("gemm"))
    wanted = Filter(status="ok", workload=config.workload, batch_size=config.batch_size, device=config.device)
    machine = place.here.machine if place.here else None
    found = [
        record
        for record in wanted.of(results.read_kind(place.results_dir, [place.instance.key], kind.record))
        if (record.machine is None or same_machine(record.machine, machine))
        and "bf16" in record.config.precisions
        and set(PRECISIONS[recipe]) & set(record.config.precisions)
    ]
    if not found:
        _require_rows(config)
        raise UsageError(
            f"{config.mode_label}: no record of `fp8bench gemm` of {config.workload} at batch {config.batch_size} on "
            f"this machine is kept in {place.results_dir}, so layers=auto does not know what pays",
            f"Run `fp8bench gemm --workload {config.workload} --batch-size {config.batch_size} --compiled-casts` here",
        )
    return found[-1]


def _require_rows(config: RunConfig) -> None:
    """Raise UsageError if `fp8bench gemm` could time no fp8 GEMM at this batch size."""
    tokens = tokens_of(config.workload)
    if tokens is None or config.batch_size * tokens % ALIGNMENT == 0:
        return
    raise UsageError(
        f"{config.mode_label}: layers=auto goes by the times of fp8 GEMMs, which need a multiple of {ALIGNMENT} rows, "
        f"and batch {config.batch_size} x {tokens} tokens of {config.workload} are {config.batch_size * tokens:,}",
        f"Use --batch-size {padded(config.batch_size, ALIGNMENT // gcd(ALIGNMENT, tokens))}, or name the layers by a "
        "regular expression",
    )

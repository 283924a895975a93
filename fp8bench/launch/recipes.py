"""Decides which recipe each requested mode has (its own, or that of `--recipe FILE`) and which layers (`--fp8-layers`),
and refuses what cannot work before a process starts.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fp8bench import registry
from fp8bench.config.recipe_file import recipe_in
from fp8bench.entries import ModeEntry
from fp8bench.launch.known_layers import layers_of
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.fp8_attention import refusal
from fp8bench.schema.recipe import (
    ALL_LAYERS,
    AUTO_LAYERS,
    LIBRARY_LAYERS,
    Recipe,
    checked_layers,
    read_recipe,
    split_recipe,
)

SHOWN = 4
"""The number of layers that an error names."""

Chosen = tuple[ModeEntry, str | None]


def chosen(labels: Sequence[str], recipe: str | None, layers: str | None) -> list[Chosen]:
    """Return each mode with its recipe, once. labels: as requested. recipe: from a file, written as in a mode's name.
    layers: as `layers=` takes it. Both are None if not given.

    Raises UsageError for unknown names, and for a recipe or a choice of layers that no mode takes.
    """
    found = [registry.find_mode(label) for label in labels]
    if recipe is not None:
        found = _with_recipe(labels, found, recipe)
    if layers is not None:
        found = _with_layers(found, layers)
    return list({(entry.name, own): (entry, own) for entry, own in found}.values())


def _with_recipe(labels: Sequence[str], found: list[Chosen], recipe: str) -> list[Chosen]:
    base = split_recipe(recipe).base
    takes = [":" not in label and base in one.recipe_fields for label, (one, _) in zip(labels, found, strict=True)]
    if not any(takes):
        entry = next(one for one in registry.BUILTIN_MODES if base in one.recipe_fields)
        raise UsageError(
            f"--recipe is of {entry.name}, and of the modes here none is that without a recipe of its own",
            f"Add --mode {entry.name}, or omit --recipe",
        )
    return [
        (entry, str(read_recipe(entry.name, recipe, entry.recipe_fields)) if given else own)
        for given, (entry, own) in zip(takes, found, strict=True)
    ]


def _with_layers(found: list[Chosen], layers: str) -> list[Chosen]:
    takes = [(entry, own) for entry, own in found if _has_layers(entry, own)]
    if not takes:
        raise UsageError(
            f"--fp8-layers {layers} applies to none of the modes: {', '.join(entry.name for entry, _ in found)}",
            "Omit it, or add a mode that has layers in fp8: --mode torchao-float8",
        )
    torchao = all(entry.name.startswith(LIBRARY_LAYERS) for entry, _ in takes)
    layers = checked_layers(layers, "--fp8-layers", torchao)
    return [(entry, _of_layers(entry, own, layers) if _has_layers(entry, own) else own) for entry, own in found]


def _has_layers(entry: ModeEntry, own: str | None) -> bool:
    return "layers" in entry.recipe_fields.get(split_recipe(own).base, ())


def _of_layers(entry: ModeEntry, own: str | None, layers: str) -> str:
    """Return the recipe with these layers, unless the mode has a choice of layers of its own."""
    recipe = split_recipe(own)
    if "layers" in recipe.values:
        return str(recipe)
    return str(read_recipe(entry.name, str(recipe.with_layers(layers)), entry.recipe_fields))


def require_in_names(labels: Sequence[str], file: Path | None, layers: str | None, session: str) -> None:
    """Raise UsageError if a given file's recipe or choice of layers is of none of a resumed session's modes. labels: of
    those modes, whose names contain their recipes and layers.
    """
    recipes = [split_recipe(own) for _, own in map(registry.find_mode, labels)]
    wanted = split_recipe(recipe_in(file)) if file is not None else None
    unlike = None
    if wanted is not None and not any(_same_scaling(wanted, one) for one in recipes):
        unlike = "--recipe"
    if layers is not None and layers not in [one.layers for one in recipes]:
        unlike = "--fp8-layers"
    if unlike is not None:
        raise UsageError(
            f"session {session!r} was measured with {', '.join(labels)}, and {unlike} applies to none of them",
            f"Omit {unlike} to resume it with its own settings, or choose another name with --session",
        )


def _same_scaling(one: Recipe, other: Recipe) -> bool:
    return str(one.with_layers(ALL_LAYERS)) == str(other.with_layers(ALL_LAYERS))


def recipe_of(config: RunConfig) -> Recipe | None:
    """Return the recipe of a configuration; None if its mode has no recipe fields or handles its recipes itself."""
    entry = registry.modes().get(config.mode)
    return split_recipe(config.recipe) if entry is not None and entry.recipe_fields and config.recipe else None


def require_possible(configs: Sequence[RunConfig], capability: Callable[[], tuple[int, int] | None]) -> None:
    """Check what can be known before a process starts. capability: returns the GPU's; None if unknown, or on a CPU.

    Raises UsageError for a regular expression that matches no layer and for settings that exclude each other, and
    ModeUnavailable for fp8 attention for which Transformer Engine has no backend.
    """
    for config in configs:
        recipe = recipe_of(config)
        if recipe is None:
            continue
        if recipe.fp8_attention:
            _require_attention(config, recipe, capability())
        if recipe.layers not in (ALL_LAYERS, AUTO_LAYERS, LIBRARY_LAYERS):
            require_match(recipe.layers, layers_of(config.workload), config.mode_label)
        if (recipe.base, recipe.layers) == ("rowwise_with_gw_hp", LIBRARY_LAYERS):
            raise UsageError(
                f"{config.mode_label}: torchao has no rule of layers for rowwise_with_gw_hp",
                "Use tensorwise or rowwise, or another choice of layers",
            )


def _require_attention(config: RunConfig, recipe: Recipe, capability: tuple[int, int] | None) -> None:
    if config.te_attention == "sdpa":
        raise UsageError(
            f"{config.mode_label}: dpa=on is attention of Transformer Engine's, and --te-attention sdpa is torch's",
            "Omit one of them",
        )
    head_dim = registry.find_workload(config.workload).head_dim
    why = refusal(recipe.base, head_dim, capability)
    if why is not None:
        raise ModeUnavailable(
            f"{config.mode_label} cannot train {config.workload} here: Transformer Engine has no backend of fp8 "
            f"attention for it: {why}",
            "Omit dpa=on: its linear layers run in fp8 all the same",
        )


def require_match(regex: str, layers: Sequence[str], label: str) -> None:
    """Raise UsageError if no layer matches. layers: all linear layers of the model; empty if unknown."""
    if not layers or any(re.search(regex, layer) for layer in layers):
        return
    names = dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", layer) for layer in layers)
    shown = ", ".join([*list(names)[:SHOWN], *["..."] * (len(names) > SHOWN)])
    raise UsageError(
        f"{label}: no linear layer of the model has a name that {regex!r} matches",
        f"Its layers are {shown} (* is a number)",
    )

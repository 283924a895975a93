"""Lists the configurations: mode x recipe x compile x CUDA graphs x batch x attention of the te modes. Pure.

Settings that lead to the same execution are one configuration, and the first of them is run: `--compile auto` is `on`
for a mode that gains by it and `off` for another, a CPU has no CUDA graphs and compiles nothing by itself, and only the
te modes heed --te-attention, whose switches need Transformer Engine's own attention.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from fp8bench import registry
from fp8bench.launch.forecast import AXES
from fp8bench.registry import ModeEntry
from fp8bench.schema.config import RunConfig
from fp8bench.schema.switches import ONLY_GAIN, joined

Candidates = Mapping[RunConfig, int]
"""Configurations to look at, as in full rounds and in order, and how many of their settings are not the usual ones."""

Untried = list[tuple[RunConfig, str]]
"""Configurations that are not run, and why."""


def space(
    bases: Sequence[RunConfig], values: Mapping[str, Sequence[Any]], obstacle: Callable[[RunConfig], str | None]
) -> tuple[Candidates, Untried]:
    """Return the configurations to look at, from the usual settings outwards, and the others. bases: one per mode and
    recipe. values: of AXES, the usual one first. obstacle: why a configuration cannot run here.
    """
    names = [name for name in AXES if name in values]
    recipes = {base.mode: base.recipe for base in reversed(bases)}
    found, untried = dict[tuple[Any, ...], RunConfig](), Untried()
    for base, combination in product(bases, product(*(values[name] for name in names))):
        config = base.model_copy(update=dict(zip(names, combination, strict=True)))
        if config.te_attention != "te":
            config = config.model_copy(update={"te_switches": None})
        key, why = executed_as(config), obstacle(config)
        if why is None and key in found:
            why = f"cannot differ from {in_words(found[key])}"
        if why is None:
            found[key] = config
        else:
            untried.append((config, why))

    def unusual(config: RunConfig) -> list[int]:
        usual = {"recipe": recipes[config.mode], **{name: values[name][0] for name in names}}
        return [place for place, name in enumerate(AXES) if getattr(config, name) != usual[name]]

    changes = {config: unusual(config) for config in found.values()}
    ordered = sorted(changes, key=lambda one: (len(changes[one]), min(changes[one], default=-1)))
    return {config: len(changes[config]) for config in ordered}, untried


def executed_as(config: RunConfig) -> tuple[Any, ...]:
    """Return a key that is equal for two configurations whose steps cannot be executed differently."""
    entry, scope = _entry(config.mode), str(config.compile)
    by_auto = False if config.device == "cpu" else entry.compiled_by_auto
    if scope == "auto" and by_auto is not None:
        scope = "on" if by_auto else "off"
    graphs = "off" if config.device == "cpu" and config.cuda_graphs == "auto" else config.cuda_graphs
    attention = config.te_attention if entry.heeds_te_attention is not False else None
    return config.mode_label, config.batch_size, scope, graphs, attention, config.te_switches


def switched_on(config: RunConfig) -> RunConfig:
    """Return the configuration with the switches that only gain, if its mode and its workload take them."""
    if not _entry(config.mode).heeds_te_attention:
        return config
    taken = registry.switches_of(config.workload)
    return config.model_copy(update={"te_switches": joined(name for name in ONLY_GAIN if name in taken)})


def in_words(config: RunConfig) -> str:
    """Return `te-fp8:delayed, batch 64, compile auto, graphs auto, attention te`, without what mode or device lacks."""
    said = [config.mode_label, f"batch {config.batch_size}", f"compile {config.compile}"]
    if config.device == "cuda":
        said.append(f"graphs {config.cuda_graphs}")
    if _entry(config.mode).heeds_te_attention is not False:
        said.append(f"attention {config.te_attention}")
    if config.te_switches:
        said.append(config.te_switches)
    return ", ".join(said)


def _entry(name: str) -> ModeEntry:
    """Return a mode's entry, without a search if built in: finding those of outside packages takes milliseconds."""
    built_in = next((entry for entry in registry.BUILTIN_MODES if entry.name == name), None)
    return built_in or registry.modes()[name]

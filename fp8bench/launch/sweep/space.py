"""Lists the configurations: mode x recipe x compile x CUDA graphs x batch x attention of the te modes. Pure.

Settings that lead to the same execution are one configuration, and the first of them is run: `--compile auto` is `on`
for a mode that gains by it and `off` for another, a CPU has no CUDA graphs and compiles nothing by itself, and only the
te modes heed --te-attention, whose switches need Transformer Engine's own attention.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fp8bench import registry
from fp8bench.registry import ModeEntry
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import CompileChoice, GraphChoice
from fp8bench.schema.switches import ONLY_GAIN, joined

AXES = ("batch_size", "recipe", "compile", "cuda_graphs", "te_attention")
"""The settings that differ between configurations of one mode, the likeliest to matter first."""


@dataclass(frozen=True)
class Axes:
    """The values of each setting, the usual one first. batch_size: with `auto`, the only size is where it begins."""

    batch_size: tuple[int, ...]
    compile: tuple[CompileChoice, ...]
    cuda_graphs: tuple[GraphChoice, ...]
    te_attention: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """A configuration to run. config: as in full rounds. distance: how many of its settings are not the usual ones."""

    config: RunConfig
    distance: int


@dataclass(frozen=True)
class Untried:
    """A configuration that is not run, and why."""

    config: RunConfig
    why: str


@dataclass(frozen=True)
class Space:
    """All configurations. candidates: in the order in which they are looked at, from the usual settings outwards."""

    candidates: tuple[Candidate, ...]
    untried: tuple[Untried, ...] = ()


def space(bases: Sequence[RunConfig], axes: Axes, obstacle: Callable[[RunConfig], str | None]) -> Space:
    """Return the space. bases: one configuration per mode and recipe. obstacle: why one cannot run here, if known."""
    found: dict[tuple[Any, ...], Candidate] = {}
    untried: list[Untried] = []
    first = {name: values[0] for name, values in vars(axes).items()}
    first_recipes = {base.mode: base.recipe for base in reversed(bases)}

    def unusual(config: RunConfig) -> list[int]:
        usual = {**first, "recipe": first_recipes[config.mode]}
        return [place for place, name in enumerate(AXES) if getattr(config, name) != usual[name]]

    for base, values in product(bases, product(*vars(axes).values())):
        config = base.model_copy(update=dict(zip(first, values, strict=True)))
        if config.te_attention != "te":
            config = config.model_copy(update={"te_switches": None})
        key, why = executed_as(config), obstacle(config)
        if why is None and key in found:
            why = f"cannot differ from {in_words(found[key].config)}"
        if why is None:
            found[key] = Candidate(config, len(unusual(config)))
        else:
            untried.append(Untried(config, why))

    ordered = sorted(found.values(), key=lambda one: (one.distance, min(unusual(one.config), default=-1)))
    return Space(tuple(ordered), tuple(untried))


def executed_as(config: RunConfig) -> tuple[Any, ...]:
    """Return a key that is equal for two configurations whose steps cannot be executed differently."""
    entry = _entry(config.mode)
    scope: str = config.compile
    if scope == "auto" and config.device == "cpu":
        scope = "off"
    elif scope == "auto" and entry.compiled_by_auto is not None:
        scope = "on" if entry.compiled_by_auto else "off"
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

"""Which configurations there are: mode x recipe x compile x CUDA graphs x batch x attention of the te modes. Pure.

Two settings that come to the same execution are one configuration, and the first of them is run: `--compile auto` is
`on` for a mode that gains by it and `off` for another, a CPU has no CUDA graphs and compiles nothing by itself, and
only the te modes heed --te-attention.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fp8bench import registry
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import CompileChoice, GraphChoice

AXES = ("batch_size", "recipe", "compile", "cuda_graphs", "te_attention")
"""What differs between configurations of one mode, the likeliest to matter first."""


@dataclass(frozen=True)
class Axes:
    """The values of each setting, the usual one first. batch_sizes: the only one is where `auto` begins."""

    batch_sizes: tuple[int, ...]
    compile: tuple[CompileChoice, ...]
    cuda_graphs: tuple[GraphChoice, ...]
    te_attention: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """config: as it is run in full rounds. distance: how many of its settings are not the usual ones."""

    config: RunConfig
    distance: int


@dataclass(frozen=True)
class Untried:
    """A configuration that is not run, and why."""

    config: RunConfig
    why: str


@dataclass(frozen=True)
class Space:
    """candidates: in the order in which they are looked at, from the usual settings outwards."""

    candidates: tuple[Candidate, ...]
    untried: tuple[Untried, ...] = ()


def space(bases: Sequence[RunConfig], axes: Axes, obstacle: Callable[[RunConfig], str | None]) -> Space:
    """bases: one configuration for each mode with its recipe. obstacle: why one cannot run here, if that is known."""
    found: dict[tuple[Any, ...], Candidate] = {}
    untried: list[Untried] = []
    places = {base.mode_label: _place_of_recipe(base, bases) for base in bases}
    for base in bases:
        values = product(axes.batch_sizes, axes.compile, axes.cuda_graphs, axes.te_attention)
        for batch_size, compile, graphs, attention in values:
            changes = {"batch_size": batch_size, "compile": compile, "cuda_graphs": graphs, "te_attention": attention}
            config = base.model_copy(update=changes)
            key = executed_as(config)
            why = obstacle(config)
            if why is not None:
                untried.append(Untried(config, why))
            elif key in found:
                untried.append(Untried(config, f"cannot differ from {in_words(found[key].config)}"))
            else:
                usual = (axes.batch_sizes[0], axes.compile[0], axes.cuda_graphs[0], axes.te_attention[0])
                unusual = sum(a != b for a, b in zip(usual, (batch_size, compile, graphs, attention), strict=True))
                found[key] = Candidate(config, unusual + (places[base.mode_label] > 0))
    ordered = sorted(found.values(), key=lambda one: (one.distance, _first_axis(one.config, axes, places)))
    return Space(tuple(ordered), tuple(untried))


def executed_as(config: RunConfig) -> tuple[Any, ...]:
    """Equal for two configurations that cannot differ in how a step is executed."""
    entry = _entry(config.mode)
    scope: str = config.compile
    if scope == "auto" and config.device == "cpu":
        scope = "off"
    elif scope == "auto" and entry.compiled_by_auto is not None:
        scope = "on" if entry.compiled_by_auto else "off"
    graphs = "off" if config.device == "cpu" and config.cuda_graphs == "auto" else config.cuda_graphs
    attention = config.te_attention if entry.heeds_te_attention is not False else None
    return config.mode_label, config.batch_size, scope, graphs, attention


def in_words(config: RunConfig) -> str:
    """`te-fp8:delayed, batch 64, compile auto, graphs auto, attention te`, without what the mode or device lacks."""
    said = [config.mode_label, f"batch {config.batch_size}", f"compile {config.compile}"]
    if config.device == "cuda":
        said.append(f"graphs {config.cuda_graphs}")
    if _entry(config.mode).heeds_te_attention is not False:
        said.append(f"attention {config.te_attention}")
    return ", ".join(said)


def _entry(name: str) -> registry.ModeEntry:
    """Of a built-in mode at once: to look for those of outside packages takes milliseconds."""
    built_in = next((entry for entry in registry.BUILTIN_MODES if entry.name == name), None)
    return built_in or registry.modes()[name]


def _place_of_recipe(base: RunConfig, bases: Sequence[RunConfig]) -> int:
    return [one.recipe for one in bases if one.mode == base.mode].index(base.recipe)


def _first_axis(config: RunConfig, axes: Axes, places: dict[str, int]) -> int:
    """Which setting is unusual, as a place in AXES: those that matter most are looked at first."""
    unusual = {
        "batch_size": config.batch_size != axes.batch_sizes[0],
        "recipe": places[config.mode_label] > 0,
        "compile": config.compile != axes.compile[0],
        "cuda_graphs": config.cuda_graphs != axes.cuda_graphs[0],
        "te_attention": config.te_attention != axes.te_attention[0],
    }
    return next((place for place, name in enumerate(AXES) if unusual[name]), -1)

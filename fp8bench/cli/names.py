"""Completions for a shell: names of modes, workloads and instances, and words of options with few values."""

import os
from collections.abc import Callable
from pathlib import Path

from fp8bench import registry
from fp8bench.numerics.definitions import DEFINITIONS
from fp8bench.schema.switches import LADDER, NAMES, NONE


def modes() -> list[str]:
    shown = [entry for entry in registry.modes().values() if not entry.hidden]
    return [name for e in shown for name in (e.name, *(f"{e.name}:{recipe}" for recipe in e.recipes or ()))]


def workloads(incomplete: str) -> list[str]:
    return registry.timm_models() if incomplete.startswith(registry.TIMM) else [*registry.workloads(), registry.TIMM]


def instances() -> list[str]:
    """Return the catalogue's instances, and those that have results here."""
    from fp8bench.pricing.catalog import load
    from fp8bench.records.results import known_instances
    from fp8bench.schema.address import local

    # For an address, what was fetched earlier: a shell cannot wait for a network.
    folder = Path(str(local(os.environ.get("FP8BENCH_RESULTS_DIR") or "results")))
    return [*dict.fromkeys([*load().instances, *sorted(known_instances(folder))])]


def switches() -> list[str]:
    return [*NAMES, NONE, LADDER]


def columns() -> list[str]:
    return list(registry.attribute("fp8bench.kinds.run.columns:NAMES"))


def number_formats() -> list[str]:
    return list(DEFINITIONS)


def one_of(*words: str) -> Callable[[], list[str]]:
    return lambda: list(words)

"""What a shell completes: names of modes, workloads and instances, and words of an option that takes few."""

import os
from collections.abc import Callable
from pathlib import Path


def modes() -> list[str]:
    """Every mode, and with each of its recipes."""
    from fp8bench import registry

    shown = [entry for entry in registry.modes().values() if not entry.hidden]
    return [name for e in shown for name in (e.name, *(f"{e.name}:{recipe}" for recipe in e.recipes or ()))]


def workloads() -> list[str]:
    """Every workload."""
    from fp8bench import registry

    return list(registry.workloads())


def instances() -> list[str]:
    """The catalogue's, and those that have results here."""
    from fp8bench.pricing.catalog import load
    from fp8bench.store.results import known_instances

    results_dir = Path(os.environ.get("FP8BENCH_RESULTS_DIR") or "results")
    return [*dict.fromkeys([*load().instances, *sorted(known_instances(results_dir))])]


def one_of(*words: str) -> Callable[[], list[str]]:
    """These words."""
    return lambda: list(words)

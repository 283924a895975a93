"""What a shell completes: names of modes, variants, workloads and instances, and words of an option that takes few."""

import os
from collections.abc import Callable
from pathlib import Path

from fp8bench import registry


def modes() -> list[str]:
    shown = [entry for entry in registry.modes().values() if not entry.hidden]
    return [name for e in shown for name in (e.name, *(f"{e.name}:{recipe}" for recipe in e.recipes or ()))]


def workloads(incomplete: str) -> list[str]:
    """After a family's prefix, each of its members."""
    family = registry.FAMILIES.get(incomplete.partition(":")[0])
    if family is not None and ":" in incomplete:
        return [f"{family.prefix}:{member}" for member in family.members()]
    return [*registry.workloads(), *(f"{prefix}:" for prefix in registry.FAMILIES)]


def instances() -> list[str]:
    """The catalogue's, and those that have results here."""
    from fp8bench.pricing.catalog import load

    return [*dict.fromkeys([*load().instances, *_measured()])]


def _measured() -> list[str]:
    """Instances that have results here."""
    from fp8bench.records.results import known_instances
    from fp8bench.schema.address import local

    # Of an address, what was fetched earlier: a shell cannot wait for a network.
    return sorted(known_instances(Path(str(local(os.environ.get("FP8BENCH_RESULTS_DIR") or "results")))))


def references(incomplete: str) -> list[str]:
    """INSTANCE:MODE[:RECIPE] of every instance that has results here; after a `/`, each of its variants."""
    return _with_variants([f"{instance}:{mode}" for instance in _measured() for mode in modes()], incomplete)


def modes_kept(incomplete: str) -> list[str]:
    """MODE[:RECIPE], and the same of every instance that has results here; after a `/`, each of its variants."""
    return _with_variants([*modes(), *references("")], incomplete)


def _with_variants(labels: list[str], incomplete: str) -> list[str]:
    label, slash, _ = incomplete.partition("/")
    if not slash:
        return labels
    from fp8bench.schema.execution import VARIANTS

    return [f"{label}/{variant}" for variant in VARIANTS if label in labels]


def claims() -> list[str]:
    """Ids of the claims that come with the program."""
    from fp8bench.kinds.run.claims.entry import load
    from fp8bench.pricing.catalog import load as catalogue

    return [one.claim.id for one in load(catalogue().instances).stated]


def switches() -> list[str]:
    from fp8bench.schema.switches import LADDER, NAMES, NONE

    return [*NAMES, NONE, LADDER]


def columns() -> list[str]:
    return list(registry.load(registry.find_kind("run")).columns)


def one_of(*words: str) -> Callable[[], list[str]]:
    return lambda: list(words)

"""Finds what a word names: a file, the beginning of a run's id, or `h200-1x:te-fp8:delayed/graphed`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fp8bench.records import results
from fp8bench.records.files import Broken, is_record
from fp8bench.records.layout import SomeRecord
from fp8bench.registry import find_mode
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant, split_variant, suffix

_Item = TypeVar("_Item")

DEFAULT_REFERENCE_MODE = "baseline-bf16"
SHOWN = 3


@dataclass(frozen=True)
class Reference:
    """A mode of an instance (empty: any), with or without its recipe. execution: None for any."""

    instance: str
    mode: str
    execution: Variant | None = None
    asked_for: bool = True

    @property
    def label(self) -> str:
        return f"{self.instance}:{self.mode}{suffix(self.execution)}"

    def names(self, instance: str, modes: Collection[str], execution: Variant | None) -> bool:
        """Return whether this is a mode of the instance, executed so. modes: its name without and with its recipe."""
        same = self.instance in ("", instance) and self.mode in modes
        return same and self.execution in (None, execution)


def parse_reference(text: str | None, instances: Sequence[str]) -> Reference:
    """Parse `INSTANCE:MODE[:RECIPE][/VARIANT]`; None: baseline-bf16 of the first instance. Raises UsageError."""
    if text is None:
        return Reference(instances[0], DEFAULT_REFERENCE_MODE, asked_for=False)
    label, execution = split_variant(text, f"--reference {text!r}")
    instance, _, mode = label.partition(":")
    if not instance or not mode:
        what = f"--reference {text!r} is not INSTANCE:MODE"
        raise UsageError(what, "Say, for example, --reference p4d:baseline-bf16")
    return Reference(instance, written(mode), execution)


def parse_mode(text: str, instances: Collection[str]) -> Reference:
    """Parse `[INSTANCE:]MODE[:RECIPE][/VARIANT]`. instances: those that have records. Raises UsageError."""
    label, execution = split_variant(text, repr(text))
    instance, _, mode = label.partition(":")
    named = instance in instances and mode
    return Reference(instance if named else "", written(mode if named else label), execution)


def written(label: str) -> str:
    """Return a mode as it is kept, the fields of its recipe in the kept order."""
    if "=" not in label:
        return label
    try:
        entry, recipe = find_mode(label)
    except UsageError:
        # Such a label names no record either.
        return label
    return f"{entry.name}:{recipe}"


def names_a_file(name: str) -> bool:
    """Return whether a path was meant, even of a missing file, which is then not searched for as an id."""
    return Path(name).is_file() or name.startswith(("/", "./", "../")) or name.endswith((".json", ".json.gz"))


def find_kept(
    name: str,
    results_dir: Path,
    model: type[SomeRecord],
    warn: Callable[[Sequence[Broken]], None] = lambda _broken: None,
) -> SomeRecord:
    """Return a whole record of a kind's class by its file or id. warn: of unreadable files. Raises UsageError."""
    if names_a_file(name):
        return results.read_of_kind(Path(name), model)
    found = results.read_kind(results_dir, results.known_instances(results_dir), model)
    # A folder that cannot be read may have it.
    warn([one for one in found.broken if one.path.name.startswith(name) or not is_record(one.path.name)])
    record = by_id(name, {one.run_id: one for one in found})
    if record is None:
        latest = ", ".join(one.run_id for one in found[-SHOWN:])
        remedy = f"The latest are: {latest}" if latest else f"{results_dir} keeps none of its kind: measure one first"
        raise UsageError(f"no file is called {name!r}, and no run's id begins so", remedy)
    return record


def by_id(name: str, by_run_id: dict[str, _Item]) -> _Item | None:
    """Return the item with the run id, or the only one whose id begins so, or None. Raises UsageError for several."""
    run_ids = [run_id for run_id in by_run_id if run_id.startswith(name)]
    if name in run_ids:
        return by_run_id[name]
    if len(run_ids) > 1:
        shown = ", ".join([*run_ids[:SHOWN], *["..."] * (len(run_ids) > SHOWN)])
        raise UsageError(f"{len(run_ids)} run ids begin with {name!r}", f"Give more of it: {shown}")
    return by_run_id[run_ids[0]] if run_ids else None

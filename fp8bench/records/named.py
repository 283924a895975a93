"""Which of the records that are kept a word names: a file, the beginning of a run's id, or a mode as
`h200-1x:te-fp8:delayed/graphed`.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8bench.records import results
from fp8bench.records.broken import Broken
from fp8bench.records.layout import SomeRecord
from fp8bench.records.results import Kept
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant, split_variant, suffix
from fp8bench.schema.record import Record

DEFAULT_REFERENCE_MODE = "baseline-bf16"
SHOWN = 3

Work = tuple[str | None, int | None, int | None]
"""Workload, batch size and number of workers; None where it is unknown."""


@dataclass(frozen=True)
class Reference:
    """A mode of an instance. instance: empty takes any; mode: with or without its recipe; execution: None takes any."""

    instance: str
    mode: str
    execution: Variant | None = None
    asked_for: bool = True

    @property
    def label(self) -> str:
        """As on the command line."""
        return f"{self.instance}:{self.mode}{suffix(self.execution)}"

    def names(self, instance: str, modes: Collection[str]) -> bool:
        """Whether it is a mode of this instance, however executed. modes: its name without its recipe, and with it."""
        return self.instance in ("", instance) and self.mode in modes

    def takes(self, execution: Variant | None) -> bool:
        """Whether steps that were executed so are meant."""
        return self.execution in (None, execution)


def parse_reference(text: str | None, instances: Sequence[str]) -> Reference:
    """`INSTANCE:MODE[:RECIPE][/VARIANT]`; None is the first instance's baseline-bf16. Raises UsageError."""
    if text is None:
        return Reference(instances[0], DEFAULT_REFERENCE_MODE, asked_for=False)
    label, execution = split_variant(text, f"--reference {text!r}")
    instance, _, mode = label.partition(":")
    if not instance or not mode:
        raise UsageError(
            f"--reference {text!r} is not INSTANCE:MODE", "Say, for example, --reference p4d:baseline-bf16"
        )
    return Reference(instance, mode, execution)


def parse_mode(text: str, instances: Collection[str]) -> Reference:
    """`[INSTANCE:]MODE[:RECIPE][/VARIANT]`. instances: those that have records. Raises UsageError."""
    label, execution = split_variant(text, repr(text))
    instance, _, mode = label.partition(":")
    return Reference(instance, mode, execution) if instance in instances and mode else Reference("", label, execution)


def names_a_file(name: str) -> bool:
    """Also one that is not there: a path was meant, and it is better to say so than to look for a run of that name."""
    return Path(name).is_file() or name.endswith((".json", ".json.gz"))


def find_kept(
    name: str,
    results_dir: Path,
    model: type[SomeRecord],
    told: Callable[[Sequence[Broken]], None] = lambda _broken: None,
) -> SomeRecord:
    """A record of one kind, whole, by its file or its id. model: its class. told: hears of files that cannot be read.

    Raises UsageError where the word names none of it, or several.
    """
    if names_a_file(name):
        return results.read_record(Path(name), model)
    instances = results.known_instances(results_dir)
    found = results.read_kind(results_dir, instances, model, beginning=name)
    told(found.broken)
    kept = {one.run_id: one for one in found}
    if not kept:
        there = ", ".join(one.run_id for one in results.read_kind(results_dir, instances, model)[-SHOWN:])
        remedy = f"The latest are: {there}" if there else f"{results_dir} keeps none of its kind: measure one first"
        raise UsageError(f"no file is called {name!r}, and no run's id begins so", remedy)
    return kept[only_id(list(kept), name)]


def only_id(run_ids: Sequence[str], name: str) -> str:
    """The one that is the name, or the only one. run_ids: those that begin with it. Raises UsageError for several."""
    if name in run_ids or len(run_ids) == 1:
        return name if name in run_ids else run_ids[0]
    shown = ", ".join([*run_ids[:SHOWN], *["..."] * (len(run_ids) > SHOWN)])
    raise UsageError(f"{len(run_ids)} run ids begin with {name!r}", f"Say more of it: {shown}")


def of_mode(reference: Reference, kept: Iterable[Kept[Record]]) -> list[Kept[Record]]:
    """Every measured record of the mode, whatever its status and however it was executed."""
    return [
        one
        for one in kept
        if one.record.config is not None
        and reference.names(one.record.instance, (one.record.config.mode, one.record.config.mode_label))
    ]


def candidates(
    name: str, records: Iterable[Record], reference: Reference, batch_size: int | None, like: Work | None
) -> list[Record]:
    """Of a mode's records those that are ok, executed as named, of the batch size, and of the work `like` if there are
    any; none where no record is ok and executed so. name: what the user called it. Raises UsageError where there are
    such, but of other batch sizes.
    """
    fitting = [record for record in records if record.status == "ok" and reference.takes(record.execution)]
    if fitting and batch_size is not None:
        sizes = sorted({record.what.batch_size for record in fitting})
        fitting = [record for record in fitting if record.what.batch_size == batch_size]
        if not fitting:
            raise UsageError(
                f"{name} has no record at batch size {batch_size}", f"It has: {', '.join(map(str, sizes))}"
            )
    return [record for record in fitting if work_of(record) == like] or fitting


def work_of(record: Record) -> Work:
    """What it trained, and over how many workers."""
    return record.what.workload, record.what.batch_size, record.what.world_size


def nothing_called(name: str, kept: Iterable[Kept[Record]]) -> UsageError:
    """The error for a name that no file, run or mode bears, with the modes that there are."""
    there = sorted(
        {f"{r.instance}:{r.config.mode_label}{suffix(r.execution)}" for r, _ in kept if r.config and r.status == "ok"}
    )
    return UsageError(f"no file, run or mode is called {name!r}", f"There are: {', '.join(there) or 'no records'}")

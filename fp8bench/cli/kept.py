"""Which kept record a word on the command line names: a file, or the beginning of a run's id."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fp8bench.cli.broken import tell_broken
from fp8bench.schema.errors import UsageError

if TYPE_CHECKING:
    from fp8bench.schema.record import RecordHead

SomeRecord = TypeVar("SomeRecord", bound="RecordHead")
SHOWN = 3


def names_a_file(name: str) -> bool:
    """Also one that is not there: a path was meant, and it is better to say so than to look for a run of that name."""
    return Path(name).is_file() or name.endswith((".json", ".json.gz"))


def find_kept(name: str, results_dir: Path, model: type[SomeRecord]) -> SomeRecord:
    """A record of one kind, whole. model: its class. Raises UsageError where the word names none of it, or several."""
    from fp8bench.records import results

    if names_a_file(name):
        return results.read_record(Path(name), model)
    instances = results.known_instances(results_dir)
    found = results.read_kind(results_dir, instances, model, beginning=name)
    tell_broken(found.broken)
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


def refuse_beside_record(given: dict[str, object]) -> None:
    """given: options of a measurement, by their flags. Raises UsageError for any that was set."""
    for flag, value in given.items():
        if value:
            raise UsageError(f"--record shows what was kept, and {flag} belongs to a measurement", "Give one of them")

"""What those kinds share whose call makes one record: how options are declared, what is prepared, how a record begins,
and which records are compared.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from fp8bench.config.request import OPTIONS
from fp8bench.config.words import machine_label
from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.launch.place import Place, place_on
from fp8bench.machine.gpus import Machine
from fp8bench.records import results
from fp8bench.records.select import in_order, latest_alike
from fp8bench.report.document import Document
from fp8bench.schema.instance import Catalog
from fp8bench.schema.option import Option
from fp8bench.schema.record import RecordHead


def of_run(name: str, help: str | None = None) -> Option:
    """The option of `run` that has this name. help: what it means here."""
    return OPTIONS[name] if help is None else replace(OPTIONS[name], help=help)


@dataclass(frozen=True)
class Request:
    """What a user requests of a kind whose call makes one record: words of the command line, each field an option.

    A field of several is plural; its flag is not, and is repeated. None and empty are left to the machine.
    """

    instance: Annotated[str, of_run("instance")] = "auto"
    name: Annotated[str | None, of_run("name")] = None
    results_dir: Annotated[Path, Option("Folder in which records are kept", metavar="DIR")] = Path("results")


OF_THE_MACHINE = frozenset(("instance", "name", "allow_busy", "results_dir"))
"""Options that do not say what is measured."""


def options_of(request: type[Request]) -> dict[str, tuple[Any, Option]]:
    """Each field's type and option, by name: a kind's own first."""
    hints = get_type_hints(request, include_extras=True)
    shared = [field.name for field in fields(Request)]
    own = [field.name for field in fields(request) if field.name not in shared]
    return {name: (hints[name].__origin__, hints[name].__metadata__[0]) for name in (*own, *shared)}


ConfigT = TypeVar("ConfigT")
RequestT = TypeVar("RequestT", bound=Request)
RecordT = TypeVar("RecordT", bound=RecordHead)


@dataclass(frozen=True)
class Prepared(Place, Generic[ConfigT]):
    """What will be measured, and where it is kept. warnings: of the circumstances, for the record."""

    config: ConfigT
    warnings: tuple[str, ...] = ()


def place_of(request: Request, machine: Machine) -> Place:
    """Where it is measured and kept. Raises UsageError, and ModeUnavailable where the machine is not that instance."""
    return place_on(machine, request.instance, request.results_dir, machine_label(request.name))


def head(place: Place, label: str, now: datetime) -> dict[str, Any]:
    """What the record begins with. label: in its id."""
    # Imported here: it brings numpy, which help does without.
    from fp8bench.launch.assemble import measured_head, new_run_id

    machine = place.here.machine if place.here else None
    return measured_head(new_run_id(label, now), now, place.instance.key, machine)


@dataclass(frozen=True, kw_only=True)
class OneRecord(Kind, Generic[RequestT, ConfigT, RecordT]):
    """A kind whose call measures in this process and makes one record, which has its configuration as `config`.

    prepare: checks the words and looks at the machine; writes nothing; raises UsageError and ModeUnavailable. measure:
    returns the record. exit_code: of the call that made it. document: one record, or several side by side in the order
    given. figures: by the option that asks for one, its name in the document and what it shows. idle: options that have
    no meaning beside these flags.
    """

    record: type[RecordT]
    request: type[RequestT]
    prepare: Callable[[RequestT, Mapping[str, str]], Prepared[ConfigT]]
    measure: Callable[[Prepared[ConfigT], Log], RecordT]
    exit_code: Callable[[RecordT, RequestT], int]
    document: Callable[[Sequence[RecordT], Catalog], Document]
    figures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    idle: Callable[[Collection[str]], frozenset[str]] = lambda _flags: frozenset()

    def variables(self, flags: Collection[str]) -> frozenset[str]:
        """Options that may be given as FP8BENCH_ variables too, beside these flags: those that `run` has."""
        return (frozenset(options_of(self.request)) & OPTIONS.keys()) - self.idle(flags)

    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dirs: Sequence[Path], log: Log, unread: Unread
    ) -> Document:
        """The latest of each work, or every one, in the order of the instances. One without any is warned of."""
        keys = options.instances
        found = results.read_kind(results_dirs, keys, self.record)
        unread(found.broken)
        kept, of = options.wanted.of(found), options.wanted.words
        if not kept:
            raise results.nothing_found(
                f"of `fp8bench {self.name}`{of} for {', '.join(keys)}",
                results_dirs,
                f"Run `fp8bench {self.name} --instance {keys[0]}` there",
            )
        for missing in [key for key in keys if key not in {record.instance for record in kept}]:
            log(f"warning: no record of `fp8bench {self.name}`{of} for {missing}: it is omitted")
        return self.compared(in_order(kept if options.every else latest_alike(kept), keys), catalog, options)

    def compared(self, records: Sequence[RecordT], catalog: Catalog, options: CompareOptions) -> Document:
        """Those that were chosen, in the order given. A kind whose document depends on the options has its own."""
        return self.document(records, catalog)

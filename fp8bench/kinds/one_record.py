"""What kinds share whose call makes one record: options, what is prepared, how it begins, and which are compared."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from fp8bench.config.options import Folder, Options, options_of
from fp8bench.config.request import OPTIONS
from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.launch.place import Place, place_on
from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import together
from fp8bench.records import results
from fp8bench.records.select import BY_WORK, in_order, latest_alike, same_work
from fp8bench.schema import option as limits
from fp8bench.schema.errors import Status, require_known
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import LABEL, MAX_LABEL, MachineIdentity
from fp8bench.schema.option import Option
from fp8bench.schema.record import RecordHead
from fp8bench.tables.document import Document
from fp8bench.tables.study import Study

NameT = TypeVar("NameT", bound=str)


def of_run(name: str, help: str | None = None, **changes: Any) -> Option:
    """Return the option of `run` that has this name. help, changes: what differs here."""
    return replace(OPTIONS[name], **(changes if help is None else {"help": help, **changes}))


class Request(Options):
    """What a user requests of a kind whose call makes one record; each field is an option, with its bounds in its type.
    A field with several values is plural, and its flag singular; None or empty is the default, or what the machine has.
    """

    command: ClassVar[str]

    instance: Annotated[str, of_run("instance")] = "auto"
    name: Annotated[str | None, Field(pattern=LABEL, max_length=MAX_LABEL), of_run("name")] = None
    results_dir: Annotated[Folder, of_run("results_dir")] = Path("results")

    @classmethod
    def chosen(cls, what: str, named: Sequence[str], known: tuple[NameT, ...]) -> tuple[NameT, ...]:
        """Return the named items in the order of `known`; all if none is named. Raises UsageError."""
        for name in named:
            require_known(what, name, known, f"fp8bench {cls.command} --help")
        return tuple(name for name in known if not named or name in named)


TIMING = Option("For each timing, at least 20 times a round", limit=limits.TIMING_S, metavar="S")
"""The option for the seconds of each timing, of kinds that time many small things."""

OF_THE_MACHINE = frozenset(("instance", "name", "allow_busy", "results_dir"))
"""Options that do not affect what is measured."""


ConfigT = TypeVar("ConfigT")
RequestT = TypeVar("RequestT", bound=Request)
RecordT = TypeVar("RecordT", bound=RecordHead)


@dataclass(frozen=True)
class Prepared(Place, Generic[ConfigT]):
    """What will be measured and stored. alike: what nodes must share besides options. machines: of several nodes."""

    config: ConfigT
    warnings: tuple[str, ...] = ()
    alike: Mapping[str, str] = field(default_factory=dict)
    machines: tuple[MachineIdentity | None, ...] = ()

    @property
    def machine(self) -> MachineIdentity | None:
        """The identity of this machine, or of all nodes together."""
        if self.machines:
            return together(self.machines)
        return super().machine


def place_of(request: Request, machine: Machine) -> Place:
    """Return where to measure and store. Raises UsageError, and ModeUnavailable if the machine is not that instance."""
    return place_on(machine, request.instance, request.results_dir, request.name)


def head(prepared: Prepared[Any], label: str) -> dict[str, Any]:
    """Return the first fields of the record, which is made now. label: a part of its id."""
    # Imported here because it imports numpy, which help does not need.
    from fp8bench.launch.assemble import measured_head

    return measured_head(label, datetime.now(UTC), prepared.instance.key, prepared.machine)


@dataclass(frozen=True, kw_only=True)
class OneRecord(Kind, Generic[RequestT, ConfigT, RecordT]):
    """A kind whose call measures in this process and makes one record, which has its configuration as `config`.

    prepare: checks the arguments and inspects the machine; writes nothing; raises UsageError and ModeUnavailable.
    measure: takes what was prepared, and a log; of a kind `on_nodes`, also the executor of node 0 of several nodes.
    statuses: how the parts of a record ended, which makes the exit code. tried: the option that names what is tried.
    figures: for each option that asks for a figure, its name in the document and what it shows. idle: returns the
    options that have no meaning together with these flags. on_nodes: whether it is measured on several nodes too.
    """

    record: type[RecordT]
    request: type[RequestT]
    prepare: Callable[[RequestT, Mapping[str, str]], Prepared[ConfigT]]
    measure: Callable[..., RecordT]
    statuses: Callable[[RecordT, RequestT], Iterable[Status]]
    tried: str = "modes"
    study: Study[RecordT, Any]
    figures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    idle: Callable[[Collection[str]], frozenset[str]] = lambda _flags: frozenset()
    on_nodes: bool = False
    with_prices: bool = False

    @property
    def compare_options(self) -> frozenset[str]:
        """Those that choose by work which it has too, and those of prices if it is compared `with_prices`."""
        of_prices = ("price_as_of", "region", "purchase", "price") if self.with_prices else ()
        return frozenset((*options_of(self.request).keys() & set(BY_WORK), *of_prices))

    def exit_code(self, record: RecordT, request: RequestT) -> int:
        """Return the exit code for how the parts of the record ended. What was named counts even if others ran."""
        from fp8bench.launch.session import exit_code_of

        return exit_code_of(self.statuses(record, request), named=bool(getattr(request, self.tried, ())))

    def variables(self, flags: Collection[str]) -> frozenset[str]:
        """Return the options that may also be given as FP8BENCH_ variables with these flags: those that `run` has."""
        return (frozenset(options_of(self.request)) & OPTIONS.keys()) - self.idle(flags)

    def document(self, records: Sequence[RecordT], catalog: Catalog, options: CompareOptions | None = None) -> Document:
        """Return one record, or several, those of the same work together. options: of a comparison."""
        return self.study.document(records, same_work(records), catalog, options)

    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dirs: Sequence[Path], log: Log, unread: Unread
    ) -> Document:
        """Compare the latest record of each work, or all, in the order of the instances; UsageError for none."""
        keys = options.instances
        found = results.read_kind(results_dirs, keys, self.record)
        unread(found.broken)
        kept, of = options.wanted.of(found), options.wanted.words
        if not kept:
            others = [name for name in BY_WORK if name not in self.compare_options]
            flags = replace(options.wanted, **dict.fromkeys(others)).flags
            remedy = f"Run `fp8bench {self.name} --instance {keys[0]}{flags}` there"
            what = f"of `fp8bench {self.name}`{of} for {', '.join(keys)}"
            raise results.nothing_found(what, results_dirs, remedy, self.name)
        for missing in [key for key in keys if key not in {record.instance for record in kept}]:
            log(f"warning: no record of `fp8bench {self.name}`{of} for {missing}: it is omitted")
        return self.document(in_order(kept if options.every else latest_alike(kept), keys), catalog, options)

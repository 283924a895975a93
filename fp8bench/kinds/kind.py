"""What every kind of thing that is measured has, and what those kinds share whose call makes one record.

A kind is one folder and one line in `registry`. Its folder holds what it asks, how it is measured, the model of its
record, how records are compared, and what is shown of them. Commands know it through `Kind` alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from fp8bench.config.request import OPTIONS
from fp8bench.config.words import machine_label
from fp8bench.launch.assemble import measured_head, new_run_id
from fp8bench.launch.prepare import Place, place_on
from fp8bench.machine.gpus import Machine
from fp8bench.records import results
from fp8bench.records.broken import Broken
from fp8bench.records.named import Reference
from fp8bench.records.select import in_order, latest_alike
from fp8bench.report.document import Document
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.instance import Catalog, Purchase
from fp8bench.schema.option import Option
from fp8bench.schema.record import RecordHead

Log = Callable[[str], None]
"""Takes a line about how it goes."""

Unread = Callable[[Sequence[Broken]], None]
"""Takes files that could not be read."""


@dataclass(frozen=True)
class CompareOptions:
    """What a user asks of a comparison. as_of: None prices all rows for today, or, where all are published figures, for
    the day of the newest.
    """

    instances: tuple[str, ...]
    today: date
    reference: Reference
    as_of: date | None = None
    region: str | None = None
    purchase: Purchase = "on_demand"
    workload: str | None = None
    batch_size: int | None = None
    optimizer: OptimizerName | None = None
    every: bool = False
    allow_mismatch: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """What commands need of a kind.

    record: the model of its record, whose `kind` has the name as its default. example: words of a call that takes
    seconds on any machine. compare_options: those that apply to it, by their names in `CompareOptions`, beside
    `instances` and `every`.
    """

    name: str
    record: type[RecordHead]
    example: tuple[str, ...]
    compare_options: frozenset[str] = frozenset()

    @abstractmethod
    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dir: Path, log: Log, unread: Unread
    ) -> Document:
        """The chosen records of some instances, side by side. Raises UsageError where an instance has none."""


def of_run(name: str, help: str | None = None) -> Option:
    """The option of `run` that has this name. help: what it means here."""
    return OPTIONS[name] if help is None else replace(OPTIONS[name], help=help)


@dataclass(frozen=True)
class Request:
    """What is asked of a kind whose call makes one record: words of the command line, each field an option.

    A field of several is plural; its flag is not, and is repeated. None and empty are left to the machine.
    """

    instance: Annotated[
        str, Option("Name of this machine in the catalogue", metavar="NAME|auto", complete="instances")
    ] = "auto"
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
ModelT = TypeVar("ModelT", bound=Frozen)


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
        self, options: CompareOptions, catalog: Catalog, results_dir: Path, log: Log, unread: Unread
    ) -> Document:
        """The latest of each work, or every one, in the order of the instances. One without any is warned of."""
        keys = options.instances
        found = results.read_kind(results_dir, keys, self.record)
        unread(found.broken)
        kept = [record for record in found if self._fits(record, options)]
        of = narrowed(options.workload, options.batch_size)
        if not kept:
            raise results.nothing_found(
                f"of `fp8bench {self.name}`{of} for {', '.join(keys)}",
                results_dir,
                f"Run `fp8bench {self.name} --instance {keys[0]}` there",
            )
        for missing in [key for key in keys if key not in {record.instance for record in kept}]:
            log(f"warning: no record of `fp8bench {self.name}`{of} for {missing}: it is omitted")
        return self.document(in_order(kept if options.every else latest_alike(kept), keys), catalog)

    def _fits(self, record: Any, options: CompareOptions) -> bool:
        wanted = {name: getattr(options, name) for name in self.compare_options}
        return all(value in (None, getattr(record.config, name)) for name, value in wanted.items())


def made_of(model: type[ModelT], *sources: object, **own: Any) -> ModelT:
    """A model of its own values, and for its other fields of what a source has under the same name; of several sources
    that of the last.
    """
    same = {name: getattr(one, name) for one in sources for name in model.model_fields if hasattr(one, name)}
    return model(**{**same, **own})


def narrowed(workload: str | None, batch_size: int | None, optimizer: str | None = None) -> str:
    """` of vit-huge at batch size 64 with adam`, for a sentence about records; empty where all were asked for."""
    of = f" of {workload}" if workload else ""
    at = f" at batch size {batch_size}" if batch_size else ""
    return f"{of}{at} with {optimizer}" if optimizer else f"{of}{at}"

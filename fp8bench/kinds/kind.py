"""What commands need of every kind of measured thing: a kind is one folder and one line in `registry`. And what a user
requests of a comparison: its rows, columns and their order, with the words for them on the command line. Which records
are compared is decided in `records.select`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from fp8bench import registry
from fp8bench.config.options import Options, quoted
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery
from fp8bench.records.files import Broken
from fp8bench.records.named import Reference
from fp8bench.records.select import ALL, Filter, Measurement
from fp8bench.schema.config import Device, mode_label, with_switches
from fp8bench.schema.errors import Cause, Status, UsageError
from fp8bench.schema.execution import Variant, suffix
from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import Catalog, Purchase
from fp8bench.schema.option import USD_PER_HOUR, Limit, Option
from fp8bench.schema.record import RecordHead, Source
from fp8bench.tables.document import Document

Log = Callable[[str], None]
"""A function that takes a line about progress."""

Unread = Callable[[Sequence[Broken]], None]
"""A function that takes the files that could not be read."""


JOB_UNITS = Limit(10**18, "no model is trained on more")
BUDGET_USD = Limit(10**12, "nobody spends more")

SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
HOURS = {"h": 1.0, "d": 24.0, "w": 168.0}
COUNT = r"([0-9][0-9,]*(?:\.[0-9]+)?(?:e\+?[0-9]{1,3})?|\.[0-9]+) *([kmgbt]?)"
TIME = r"([0-9]{1,6}(?:\.[0-9]+)?) *([hdw])"
PRICE = r"([^=]*[^= ]) *= *((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
CONDITION = r" *([A-Za-z][A-Za-z0-9_-]*) *(!=|<=|>=|=|<|>) *(.*?) *"
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {"=": eq, "!=": ne, "<=": le, ">=": ge, "<": lt, ">": gt}


def _scaled(pattern: str, scales: Mapping[str, float], what: str) -> BeforeValidator:
    def read(text: object) -> float:
        found = re.fullmatch(pattern, str(text).strip(), re.IGNORECASE)
        if found is None:
            raise ValueError(f"it is not {what}")
        return float(found[1].replace(",", "")) * scales[found[2].lower()]

    return BeforeValidator(read)


WhatIf = Annotated[
    tuple[str, ...], Option("What if an hour cost this; may be given several times", metavar="INSTANCE=USD")
]
AllNotes = Annotated[bool, Option("Every note below the table, and not only the first three")]
in_commas = BeforeValidator(lambda words: ",".join(words).split(",") if words else ())
"""Numbers with commas between them, in one word or several."""

Count = Annotated[float, _scaled(COUNT, SCALES, "a number such as 250000, 9e7 or 90M (k, M, B or T)"), Field(gt=0)]
Hours = Annotated[float, _scaled(TIME, HOURS, "a time in hours, days or weeks, such as 12h, 30d or 8w"), Field(gt=0)]


class Condition(NamedTuple):
    """A condition on the rows that are shown: the name of a column, and what its value must be. words: as given."""

    column: str
    operator: str
    value: str
    words: str


class View(Options):
    """What is shown. columns: empty for the kind's own choice. job: units of work. within: hours."""

    wide: Annotated[bool, Option("Every column; a narrow terminal divides them over tables")] = False
    columns: Annotated[
        tuple[str, ...],
        in_commas,
        AfterValidator(lambda names: tuple(dict.fromkeys(map(str.strip, names)))),
        Option(
            "These columns, by name (mode, step, value, gain, memory, ...)", metavar="A,B,...", flags=("--columns",)
        ),
    ] = ()
    filter: Annotated[
        tuple[str, ...], Option("Only rows like this (=, !=, <, <=, >, >=), as mode=te-fp8", metavar="COLUMN=VALUE")
    ] = ()
    group_by: Annotated[
        str | None,
        Option("A table for each value; batch, machine: compared within each", metavar="COLUMN"),
    ] = None
    best_batch: Annotated[bool, Option("Each mode at its best batch size alone")] = False
    notes: AllNotes = False
    job: Annotated[
        Count | None, Option("Show hours and USD of so many images or tokens, as 90M", metavar="UNITS", limit=JOB_UNITS)
    ] = None
    budget: Annotated[
        Count | None, Option("Show what so many USD train, and for how long, as 100k", metavar="USD", limit=BUDGET_USD)
    ] = None
    within: Annotated[
        Hours | None, Option("Show how many instances spend the budget in it, as 30d", metavar="TIME")
    ] = None
    gpus: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        in_commas,
        AfterValidator(lambda numbers: tuple(sorted(set(numbers)))),
        Option("Only rows of so many GPUs; several nodes are projected from one", metavar="N,N,...", flags=("--gpus",)),
    ] = ()
    price: WhatIf = ()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What each row must meet, e.g. `mode=te-fp8`, `gain>0`, `batch!=64`. Raises UsageError for an invalid one."""
        conditions = []
        for text in self.filter:
            found = re.fullmatch(CONDITION, text)
            if found is None or not found[3]:
                what = f"--filter {quoted(text)} is not COLUMN, one of {' '.join(OPERATORS)}, and a value"
                raise UsageError(what, "Give, for example, --filter mode=te-fp8 or --filter 'gain>0'")
            conditions.append(Condition(found[1].lower(), found[2], found[3], text))
        return tuple(conditions)


AS_IT_IS = View()
MAY_NOT_FIT = "it may not fit"  # ends the mark of a prediction that leaves too little memory


def parse_price(text: str) -> tuple[str, float]:
    """Parse e.g. `p5=60`: an instance and USD an hour. Raises UsageError."""
    found = re.fullmatch(PRICE, text.strip())
    name, price = (found[1], float(found[2])) if found else ("", 0.0)
    if price < 1e-6:
        what = f"--price {quoted(text)} is not INSTANCE=USD: a name, and a price above 0 in USD an hour"
        raise UsageError(what, "Give, for example, --price p5=60")
    if price > USD_PER_HOUR.most:
        what = f"--price {quoted(text)} is too large: {USD_PER_HOUR.refusal}"
        raise UsageError(what, f"Give USD for the whole machine and one hour, as --price {name}=60")
    return name, price


class CompareOptions(NamedTuple):
    """What a user requests of a comparison. wanted: chooses records of the instances. every: whether each record is a
    row. as_of: the day of the prices; None is today. price: USD an hour by instance; overrides any other. any_machine:
    whether the own price of any of an instance's machines counts. foresee: predicts rows of instances where nothing was
    measured; None omits them. ahead: projects one node to so many GPUs, and says where not.
    """

    instances: tuple[str, ...]
    today: date
    reference: Reference
    as_of: date | None = None
    region: str | None = None
    purchase: Purchase = "on_demand"
    wanted: Filter = ALL
    every: bool = False
    allow_mismatch: bool = False
    price: Mapping[str, float] = MappingProxyType({})
    any_machine: bool = False
    view: View = AS_IT_IS
    foresee: Callable[[Sequence[Measurement], Sequence[str], Catalog], list[Measurement]] | None = None
    ahead: Callable[[Sequence[Measurement], Sequence[int], Catalog], tuple[list[Measurement], list[str]]] | None = None

    @property
    def day(self) -> date:
        return self.as_of or self.today

    def query(self, machine: str | None = None) -> PriceQuery:
        """Return which price is asked for. machine: whose own price may be used."""
        whose = ANY_MACHINE if self.any_machine else machine
        return PriceQuery(self.day, self.day >= self.today, self.region, self.purchase, whose)


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """What commands need of a kind. record: the model of its record, whose `kind` has the name as its default."""

    name: str
    record: type[RecordHead]

    @property
    def compare_options(self) -> frozenset[str] | None:
        """The parameters of `compare` that apply in addition to `instances` and `every`; None for all."""
        return None

    @abstractmethod
    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dirs: Sequence[Path], log: Log, unread: Unread
    ) -> Document:
        """Return the chosen records of some instances side by side. Raises UsageError if there are no records."""


class Labelled:
    """The labels of a row that has an instance, a mode and an execution."""

    if TYPE_CHECKING:
        instance: str
        mode: str
        recipe: str | None
        te_switches: str | None
        execution: Variant | None

    @property
    def mode_label(self) -> str:
        """The mode with its recipe, e.g. `te-fp8:delayed`."""
        return mode_label(self.mode, self.recipe)

    @property
    def switched_label(self) -> str:
        """The mode with recipe and options of its layer, e.g. `te-fp8:delayed+split-qkv`."""
        return with_switches(self.mode_label, self.te_switches)

    @property
    def variant_label(self) -> str:
        """The same with its execution, e.g. `te-fp8:delayed+split-qkv/eager`."""
        return self.switched_label + suffix(self.execution)

    @property
    def label(self) -> str:
        """The row's name as `--reference` takes it, e.g. `p5:te-fp8:delayed/eager`."""
        return f"{self.instance}:{self.mode_label}{suffix(self.execution)}"


class Named(Labelled, Frozen):
    """What was measured or published, of which a row has the numbers. joined: how ranks were joined, and what else in a
    step differs from the plain one. derived: whether a published figure was computed from rounded ones.
    """

    instance: str
    mode: str
    recipe: str | None
    status: Status | Literal["projected"]
    reason: str | None
    cause: Cause | None = None
    source: Source | Literal["same-gpu", "predicted"]
    workload: str
    device: Device = "cuda"
    emulated: bool = False
    compile: bool | None = None
    execution: Variant | None = None
    attention: str | None = None
    joined: str | None = None
    te_switches: str | None = None
    batch_size: int | None = None
    grad_accumulation: int | None = None
    world_size: int
    nodes: int
    derived: bool = Field(default=False, exclude=True)

    @property
    def timed(self) -> bool:
        """Whether it comes from steps that fp8bench timed, here or elsewhere."""
        return self.source == "measured" or getattr(self, "measured_on", None) is not None

    @property
    def fits(self) -> bool:
        return not any(mark.endswith(MAY_NOT_FIT) for mark in getattr(self, "marks", ()))

    @property
    def origin(self) -> str:
        """Where the figure is from, for a reader: `measured`, `published`, `external`, or `derived` from published."""
        return "derived" if self.derived else self.source

    @property
    def short_label(self) -> str:
        """The mode with its recipe, unless that is the mode's default, and the options of its layer."""
        entry = next((one for one in registry.BUILTIN_MODES if one.name == self.mode), None)
        default = entry is not None and entry.recipes is not None and self.recipe in entry.recipes[:1]
        return with_switches(self.mode if default else self.mode_label, self.te_switches)

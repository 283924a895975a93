"""What commands need of every kind of measured thing: a kind is one folder and one line in `registry`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from fp8bench.kinds.view import AS_IT_IS, View
from fp8bench.pricing.choose import PriceQuery
from fp8bench.records.files import Broken
from fp8bench.records.named import Reference
from fp8bench.records.select import ALL, Filter, Measurement
from fp8bench.schema.config import mode_label
from fp8bench.schema.execution import Variant, suffix
from fp8bench.schema.instance import Catalog, Purchase
from fp8bench.schema.record import RecordHead
from fp8bench.tables.document import Document

Log = Callable[[str], None]
"""A function that takes a line about progress."""

Unread = Callable[[Sequence[Broken]], None]
"""A function that takes the files that could not be read."""


class CompareOptions(NamedTuple):
    """What a user requests of a comparison. wanted: chooses records of the instances. every: whether each record is a
    row. as_of: the day of the prices; None is today. price: USD an hour by instance; overrides any other. foresee:
    predicts rows of instances where nothing was measured; None omits them. ahead: projects one node to so many GPUs,
    and says where not.
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
    view: View = AS_IT_IS
    foresee: Callable[[Sequence[Measurement], Sequence[str], Catalog], list[Measurement]] | None = None
    ahead: Callable[[Sequence[Measurement], Sequence[int], Catalog], tuple[list[Measurement], list[str]]] | None = None

    @property
    def day(self) -> date:
        """The day of the prices."""
        return self.as_of or self.today

    def query(self, machine: str | None = None) -> PriceQuery:
        """Return which price is asked for. machine: whose own price may be used."""
        return PriceQuery(self.day, self.day >= self.today, self.region, self.purchase, machine)


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
        execution: Variant | None

    @property
    def mode_label(self) -> str:
        """The mode with its recipe, e.g. `te-fp8:delayed`."""
        return mode_label(self.mode, self.recipe)

    @property
    def variant_label(self) -> str:
        """The mode with its recipe and execution, e.g. `te-fp8:delayed/eager`."""
        return f"{self.mode_label}{suffix(self.execution)}"

    @property
    def label(self) -> str:
        """The row's name as `--reference` takes it, e.g. `p5:te-fp8:delayed/eager`."""
        return f"{self.instance}:{self.variant_label}"

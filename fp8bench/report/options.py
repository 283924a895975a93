"""What a comparison of runs compares, and at which prices."""

from dataclasses import dataclass
from datetime import date

from fp8bench.records.named import Reference
from fp8bench.records.select import ALL, Filter
from fp8bench.schema.instance import Purchase


@dataclass(frozen=True)
class CompareOptions:
    """wanted: of the instances' records only those that it takes. every: each record is a row. as_of: None prices all
    rows for today, or, where all are published figures, for the day of the newest.
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

"""What the tests of the comparison share: a catalogue of round prices, and one call that compares."""

from datetime import date
from typing import Any

import builders

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.records.named import parse_reference
from fp8bench.records.select import ALL, Filter
from fp8bench.schema.instance import Catalog, Instance, Price
from fp8bench.schema.record import Record

TODAY = date(2026, 7, 1)
OLD, NEW = date(2023, 1, 1), date(2026, 6, 1)
RELATIVE_NUMBERS = ("gain_vs_reference", "speedup_vs_reference", "break_even_usd_per_hour")


def price(usd_per_hour: float, as_of: date | None, **changes: Any) -> Price:
    """A price of its day, of no region."""
    return builders.price(usd_per_hour, as_of=as_of, **{"region": None, "source": "a page", **changes})


def instance(key: str, *prices: Price, gpu_count: int = 8) -> Instance:
    """Eight GPUs that nobody knows, at some prices."""
    return builders.instance(key, gpu=None, gpu_count=gpu_count, prices=prices)


def catalog(*instances: Instance) -> Catalog:
    """These instances, and no GPU."""
    return Catalog(instances={item.key: item for item in instances}, gpus={})


CATALOG = catalog(
    instance("p4d", price(20.0, NEW), price(30.0, OLD)),
    instance("p5", price(50.0, NEW), price(100.0, OLD)),
    instance("undated", price(40.0, None)),
    instance("cpu", price(1.0, NEW), gpu_count=0),
)


def compared(
    *records: Record, reference: str | None = None, prices: Catalog = CATALOG, today: date = TODAY, **options: Any
) -> Comparison:
    """Records in the order of their time, instances in the order of their first record. options: of the comparison, and
    what its filter has.
    """
    keys = tuple(dict.fromkeys(record.instance for record in records))
    wanted = Filter(**{name: options.pop(name) for name in vars(ALL) if name in options})
    asked = CompareOptions(keys, today, parse_reference(reference, keys), wanted=wanted, **options)
    return compare(sorted(records, key=lambda record: record.created_utc), prices, asked)


def row_of(comparison: Comparison, record: Record) -> Row:
    """The row that the record became."""
    return next(row for row in comparison.rows if row.run_id == record.run_id)
